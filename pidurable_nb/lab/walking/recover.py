"""Owns recovering a copy of a store from end to end, and saying what happened. Never touches the store it was given."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import Json, JsonObject, TaskId
from pidurable_nb.lab.code import Loaded
from pidurable_nb.lab.outside.world import World, copy_ledger
from pidurable_nb.lab.scenario import around
from pidurable_nb.lab.walking.stepper import Stepper
from pidurable_nb.lab.walking.verdict_check import Disagreement
from pidurable_nb.lab.walking.walk import Perform, Step, just_run
from pidurable_nb.records.codec import BadRecord, loads

NO_CODE = Loaded(name="")


class NoLedger(PidurableError):
    """The file is no ledger of effects: it must hold one JSON object a line, each with an `effect`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a recovery did. `effects` are its own; `effects_before` come from a ledger, None where none was given.

    `stopped` are the live tasks that nothing here could move, with what each needs.
    """

    source: Path
    steps: tuple[Step, ...]
    effects: Mapping[str, int]
    effects_before: Mapping[str, int] | None
    disagreements: tuple[Disagreement, ...]
    stopped: tuple[tuple[TaskId, str], ...]
    after: JsonObject

    @property
    def predicted_equals_done(self) -> bool:
        """Whether every task met the verdict that was predicted before anything was opened."""
        return not self.disagreements

    def to_json(self) -> JsonObject:
        """The object that `pidurable-nb recover --json` prints."""
        stopped: list[Json] = [{"task": id, "needs": needs} for id, needs in self.stopped]
        return {
            "steps": [step_json(step) for step in self.steps],
            "effects": dict(self.effects),
            "effects_before": dict(self.effects_before) if self.effects_before is not None else None,
            "predicted_equals_done": self.predicted_equals_done,
            "stopped": stopped,
            "after": self.after,
        }


def step_json(step: Step) -> JsonObject:
    """One step as it is printed."""
    shown: dict[str, Json] = {
        "n": step.n,
        "kind": step.kind,
        "task": step.task,
        "laws": list(step.laws),
        "text": step.text,
        "changed": list(step.changed),
    }
    if step.verdict is not None:
        shown["verdict"] = step.verdict
    if step.effect is not None:
        shown["effect"] = step.effect
    return shown


def recover(
    source: Path,
    *,
    code: Loaded = NO_CODE,
    until: int | None = None,
    ledger: Path | None = None,
    out: Path | None = None,
    now_ms: int | None = None,
) -> Recovery:
    """Recover a copy of `source` with this code, as far as it goes, or `until` so many steps were taken.

    Effects of the code are run: naming code is telling so. With `ledger`, which is only read, they are counted beside
    those of earlier lives. `out` gets the recovered store, folded into one file.

    Raises: StoreRefused and its kinds, FileExistsError for `out`, DuplicateTask.
    """
    if out is not None and out.exists():
        raise FileExistsError(f"{out} exists; name a new file")
    before = effects_before(ledger) if ledger is not None else None
    program = code.program
    with (
        _outside(code, ledger) as perform,
        Stepper(
            source, tasks=program.tasks, tools=program.tools, extensions=program.extensions, models=program.models,
            settings=program.settings, now_ms=now_ms, perform=perform,
        ) as stepper,
    ):  # fmt: skip
        stepper.run(until=until)
        if out is not None:
            stepper.save(out)
        return Recovery(
            source=source,
            steps=tuple(stepper.steps),
            effects=dict(stepper.effects()),
            effects_before=before,
            disagreements=stepper.disagreements(),
            stopped=stepper.stopped(),
            after=stepper.inspection(),
        )


@contextmanager
def _outside(code: Loaded, ledger: Path | None) -> Generator[Perform]:
    """Where effects go: the module's own world; for a scenario a copy of the ledger, and its bank; else just out."""
    if code.world is not None:
        yield code.world.perform
    elif code.scenario is not None:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pidurable_nb-world-"))
            stack.enter_context(around(code.scenario))
            copy = Path(folder) / "effects.jsonl"
            yield World(copy_ledger(ledger, copy) if ledger is not None else copy, life=2).perform
    else:
        yield just_run


def effects_before(ledger: Path) -> Mapping[str, int]:
    """How often earlier lives asked the outside for what, by a ledger of this package or of another implementation.

    A line counts that asks: one without an `edge`, or whose edge is `before`; what a recovery did is not before it.
    Raises: NoLedger naming the line.
    """
    found: Counter[str] = Counter()
    try:
        lines = ledger.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NoLedger(f"{ledger} cannot be read as a ledger: {error}") from error
    for number, text in enumerate(lines, 1):
        try:
            line = loads(text)
        except BadRecord as error:
            if number == len(lines):
                continue  # a kill may cut the last line, whose effect was not begun then
            raise NoLedger(f"{ledger}, line {number}: {error}") from error
        effect = line.get("effect") if isinstance(line, Mapping) else None
        if not isinstance(line, Mapping) or not isinstance(effect, str):
            raise NoLedger(f"{ledger}, line {number}: no JSON object with an effect")
        if line.get("edge", "before") == "before" and line.get("run") != "recovery":
            found[effect] += 1
    return found
