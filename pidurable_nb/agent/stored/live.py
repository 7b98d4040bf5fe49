"""Owns the documents that every conversation has, and how they come to be. Never decides when they change.

Names, order and shapes are those of the format: a conversation's own commit creates `pi.live`, `pi.inbox`, `pi.usage`,
`pi.provider` and `pi.agent`, in this order.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, Protocol

from pidurable_nb.clock import Clock
from pidurable_nb.engine.snapshot import LiveRun
from pidurable_nb.ids import ConversationId, DocumentId, Json, JsonObject, SubmissionId, TaskId
from pidurable_nb.records.document import Address, ConversationScope, ForkPolicy, History
from pidurable_nb.session.definition import Definition
from pidurable_nb.store.delta import Op


class Ids(Protocol):
    """Where identities that are not record ids come from: a seam, so that a run can be repeated."""

    def uuid(self, now_ms: int) -> str:
        """A new UUID of version 7 in text form."""
        ...


class RandomIds:
    """Identities from the system's randomness."""

    def uuid(self, now_ms: int) -> str:
        return uuid7(now_ms, secrets.randbits(74))


def uuid7(now_ms: int, random: int) -> str:
    """The UUID of version 7 with this time and these 74 random bits."""
    bits = (now_ms & (1 << 48) - 1) << 80 | 7 << 76 | (random >> 62 & 0xFFF) << 64 | 2 << 62 | random & (1 << 62) - 1
    text = f"{bits:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _always(value: JsonObject, ops: Sequence[Op], deltas: int) -> bool:
    return True


def _quiet(value: JsonObject, ops: Sequence[Op], deltas: int) -> bool:
    """`pi.live` is written whole when nothing streams: no generation, and no tool slot that runs."""
    tools = value.get("tools")
    slots = tools if isinstance(tools, Sequence) and not isinstance(tools, str) else ()
    running = any(isinstance(slot, Mapping) and slot.get("status") == "running" for slot in slots)
    return "generation" not in value and not running


def _empty(value: JsonObject, ops: Sequence[Op], deltas: int) -> bool:
    return not value.get("items")


def _initially(value: Mapping[str, Json]) -> Callable[[Json], JsonObject]:
    return lambda seed: seed if isinstance(seed, Mapping) else value


def _definition(
    kind: str,
    initial: Mapping[str, Json],
    base_when: Callable[[JsonObject, Sequence[Op], int], bool],
    *,
    history: History = "latest",
    fork: ForkPolicy = "initial",
) -> Definition:
    return Definition(
        kind=kind, version=1, scope="conversation", history=history, fork=fork, family=False,
        initial=_initially(initial), migrate=None, base_when=base_when,
    )  # fmt: skip


LIVE = _definition("pi.live", {}, _quiet)
INBOX = _definition("pi.inbox", {"items": []}, _empty)
USAGE = _definition("pi.usage", {"models": {}, "tools": {}}, _always)
PROVIDER = _definition("pi.provider", {"sessionId": ""}, _always)
AGENT = _definition("pi.agent", {}, _always, history="rewindable", fork="as_of")


SLOTS: Final[tuple[Literal["tools"], Literal["nestedTools"]]] = ("tools", "nestedTools")
"""The members of `pi.live` that list calls."""


def at(definition: Definition, conversation: ConversationId) -> Address:
    """The address of a conversation's document."""
    return Address(definition.kind, ConversationScope(conversation))


def live_run(document: DocumentId, value: JsonObject | None) -> LiveRun:
    """What `pi.live` says, as far as decisions read it. A stranger's value that says nothing legible says nothing."""
    value = value if value is not None else {}
    run = value.get("run")
    task: TaskId | None = None
    inputs: tuple[SubmissionId, ...] = ()
    if isinstance(run, Mapping):
        named, listed = run.get("taskId"), run.get("inputs")
        task = TaskId(named) if isinstance(named, int) else None
        if isinstance(listed, Sequence) and not isinstance(listed, str):
            inputs = tuple(SubmissionId(id) for id in listed if isinstance(id, int))
    generation = value.get("generation")
    partial = isinstance(generation, Mapping) and "message" in generation
    return LiveRun(document=document, task=task, inputs=inputs, tools=_tools(value), partial=partial)


def _tools(value: JsonObject) -> Mapping[TaskId, str]:
    """The names of tool calls by their task, nested ones included."""
    found: dict[TaskId, str] = {}
    for member in ("tools", "nestedTools"):
        slots = value.get(member)
        if not isinstance(slots, Sequence) or isinstance(slots, str):
            continue
        for slot in slots:
            if isinstance(slot, Mapping) and isinstance(slot.get("taskId"), int) and isinstance(slot.get("name"), str):
                found[TaskId(int(str(slot["taskId"])))] = str(slot["name"])
    return found


def slot_of(
    draft: dict[str, Json], task: TaskId, member: Literal["tools", "nestedTools"] = "tools"
) -> dict[str, Json] | None:
    """The slot of a call in a draft of `pi.live`, to be changed there."""
    slots = draft.get(member)
    for slot in slots if isinstance(slots, list) else ():
        if isinstance(slot, dict) and slot.get("taskId") == task:
            return slot
    return None


def slot_by_call(draft: dict[str, Json], call: str) -> dict[str, Json] | None:
    """The slot of a model's call by the model's own id of it, in a draft of `pi.live`."""
    slots = draft.get("tools")
    for slot in slots if isinstance(slots, list) else ():
        if isinstance(slot, dict) and slot.get("callId") == call:
            return slot
    return None


def end_slot(slot: dict[str, Json], shows: Mapping[str, Json]) -> None:
    """The call of this slot has its result, which carries from now on what the slot showed while it ran."""
    for member in ("output", "droppedBytes", "droppedLines", "details", "diagnostics"):
        slot.pop(member, None)
    slot.update({"status": "done", **shows})


def busy(live: JsonObject | None) -> bool:
    """Whether a run has the conversation (S3)."""
    return live is not None and "run" in live


def provider_seed(ids: Ids, clock: Clock) -> Json:
    """The identity that a new conversation shows to providers."""
    return {"sessionId": ids.uuid(clock.now_ms())}
