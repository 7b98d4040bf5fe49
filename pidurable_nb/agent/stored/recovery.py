"""Owns what recovery makes of the three built-in kinds: their versions, and how each refines a rerun. Runs nothing.

Pure functions of a record. They exist before the kinds' code does, so that a file can be explained without it, and a
running engine asks the same ones through its registry. What a record cannot know comes in from outside: which code is
installed, what a tool declares today.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pidurable_nb.engine.graph import PhaseClass
from pidurable_nb.engine.registry import BuiltIn, Code, Fit, Refined, Registry, Upgrade
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord

Replay: TypeAlias = Literal["safe", "unsafe"]
CurrentReplay: TypeAlias = Callable[[TaskRecord], Replay | None]
"""The policy that the tool of a call declares today; None where that tool is not installed."""

GENERATION: Final = "pi.generation"
TOOL: Final = "pi.tool"
COMPACTION: Final = "pi.compaction"


class CannotUpgrade(ValueError):
    """What is stored has the shape of no version of its kind."""


# --- Refining a rerun (DESIGN section 5, `replay` to `poll`) ----------------------------------------------------------


def refine(record: TaskRecord, current_replay: CurrentReplay) -> Refined | None:
    """What recovery makes of a cut task of a built-in kind; None for a plain rerun or resume, and for other kinds.

    Laws: E1, E2, E3, G1, T12.
    """
    match record.kind, record.phase:
        case "pi.tool", "execute" if _cut(record):
            return "replay" if was_safe(record) and current_replay(record) == "safe" else "interrupt"
        case "pi.generation", "request" if _cut(record):
            return "resend"
        case "pi.compaction", "summarize" if _cut(record):
            return "resend"
        case "pi.generation", "poll" if _cut(record) or isinstance(record.state, stored.Sleeping):
            return "poll"
        case _:
            return None


def _cut(record: TaskRecord) -> bool:
    """Whether its code was cut. A killed store has `running` where an opened one has `pending`: never told apart."""
    return isinstance(record.state, stored.Pending | stored.Running)


def stored_replay(record: TaskRecord) -> Replay | None:
    """The policy that was stored with the intent of a tool call; None before there is one (E1).

    Only the literal word counts as safe (E3).
    """
    checkpoint = record.checkpoint
    if record.kind != TOOL or checkpoint is None or record.phase != "execute":
        return None
    return "safe" if checkpoint.get("replay") == "safe" else "unsafe"


def was_safe(record: TaskRecord) -> bool:
    """Whether a tool call was declared safe when its intent was stored (E1)."""
    return stored_replay(record) == "safe"


# --- Versions (T8) ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The newest version of a built-in kind that is known here, and how older ones are read."""

    version: int
    upgrade: Upgrade | None = None


def _upgrade_tool(input: Json, checkpoint: JsonObject, version: int) -> tuple[Json, JsonObject]:
    """Version 1 knew only the calls of a model, and did not say so."""
    if not isinstance(input, Mapping):
        raise CannotUpgrade(f"the input of a {TOOL} of version {version} is an object")
    return {"kind": "model", **input}, checkpoint


KNOWN: Final[Mapping[str, Known]] = {
    GENERATION: Known(version=1),
    TOOL: Known(version=2, upgrade=_upgrade_tool),
    COMPACTION: Known(version=1),
}
"""The kinds of this package by name."""


NO_CODE: Final[Mapping[str, PhaseClass]] = {}


def register(
    registry: Registry,
    *,
    current_replay: CurrentReplay = stored_replay,
    hooked: Callable[[TaskRecord], bool] = lambda record: False,
    firsts: Mapping[str, PhaseClass] = NO_CODE,
) -> None:
    """Make the built-in kinds known to a registry. `hooked`: whether hooks of the user's run inside such a task.

    `firsts` is their code, by their first phases, where it is to run.
    """
    for kind, known in KNOWN.items():
        registry.register_builtin(
            kind,
            known.version,
            lambda record: refine(record, current_replay),
            known.upgrade,
            hooked=hooked,
            was_safe=was_safe,
            first=firsts.get(kind),
        )


# --- The code of a file -----------------------------------------------------------------------------------------------


class AssumedCode:
    """The code that a file is explained with: built-in kinds as they are here, the rest as told, or else as stored.

    `installed` answers for tasks of the user's; without it each is assumed installed at its stored version.
    `current_replay` answers for tools; without it each is assumed to declare what was stored with its intent.
    """

    def __init__(
        self,
        *,
        installed: Code | None = None,
        current_replay: CurrentReplay = stored_replay,
        hooked: Callable[[TaskRecord], bool] = lambda record: False,
    ) -> None:
        self._installed = installed
        self._built_in = Registry()
        register(self._built_in, current_replay=current_replay, hooked=hooked)

    def fit(self, record: TaskRecord) -> Fit:
        """Whether code for the task is at hand (T8)."""
        if record.kind.startswith("pi."):
            return self._built_in.fit(record)
        if self._installed is not None:
            return self._installed.fit(record)
        checkpoint = record.checkpoint if record.checkpoint is not None else stored.NOTHING
        return BuiltIn(kind=record.kind, version=record.version, input=record.input, checkpoint=checkpoint)

    def refine(self, record: TaskRecord) -> Refined | None:
        """What the task's kind makes of a rerun."""
        return self._of(record).refine(record)

    def hooked(self, record: TaskRecord) -> bool:
        """Whether hooks of the user's run inside this built-in task."""
        return self._of(record).hooked(record)

    def was_safe(self, record: TaskRecord) -> bool:
        """Whether the stored policy of a tool call is safe."""
        return self._of(record).was_safe(record)

    def _of(self, record: TaskRecord) -> Code:
        if record.kind.startswith("pi.") or self._installed is None:
            return self._built_in
        return self._installed
