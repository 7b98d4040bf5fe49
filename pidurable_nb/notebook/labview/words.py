"""Owns the words that both saved forms of the Lab view share, and where the crash stands. Renders nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pidurable_nb.lab.scene.parts import Col, Effect, Entry, ForkedAt, Layer, Policy, Sub, Task
from pidurable_nb.lab.scene.scene import Agreement, Outside, Scene

OUTSIDE: Final[Mapping[Outside, str]] = {"none": "nothing happens", "again": "can happen again", "unknown": "unknown"}
"""What a step causes in the world outside."""
AGREEMENTS: Final[Mapping[Agreement, str]] = {
    "agrees": "agrees",
    "milder": "agrees, and milder",
    "differs": "differs: an error of this package",
    "choice": "your choice",
}
_NTH: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
_LAYERS: Final = ("checkpoint", "memo", "replay policy", "request id", "outside key")


def nth(n: int) -> str:
    """The n-th, as a word where there is one."""
    return _NTH[n - 1] if n <= len(_NTH) else f"{n}th"


def headline(scene: Scene) -> str:
    """The sentence that a scene is about."""
    return scene.words or scene.step.say


def where(scene: Scene) -> str:
    """The position of a scene."""
    if scene.watched is not None:
        return "live"
    if not scene.position:
        return "before any step"
    return f"step {scene.position}" + (f" of {scene.last}" if scene.last is not None else "")


def again(scene: Scene) -> str:
    """The command that shows this again."""
    return "%pi lab" if scene.watched is not None else f"%pi lab {scene.scenario or scene.store}"


def size_of(entry: Entry) -> int:
    """How long the text of an entry is."""
    return entry.size or len(entry.text)


def is_cut(scene: Scene, most: int) -> bool:
    """Whether an entry says more than `most` characters, or a call of one does."""
    calls = (call for row in scene.entries.rows for call in row.calls)
    return any(size_of(row) > most for row in scene.entries.rows) or any(
        max(len(call.arguments), len(call.output), len(call.lost)) > most for call in calls
    )


def read_whole(scene: Scene) -> str:
    """How to read what is cut: a command, where the store is a file that has a name."""
    if scene.scenario is not None:
        return "what is cut is read in the live lab"
    return "%pi entry ID" if scene.watched is not None else f"%pi entry {scene.store} ID"


def verb_of(col: Col) -> str:
    """What the step of a column did, in one word: its detail reads `Step 2: interrupt, task 12, refund`."""
    return col.detail.partition(": ")[2].partition(",")[0]


def crash_of(scene: Scene) -> tuple[int, int | None] | None:
    """The column of the last kill, and the last commit before it; None where nothing was killed."""
    past = next((n for n, col in enumerate(scene.timeline) if (col.position or 0) > 0), len(scene.timeline))
    kills = [n for n, col in enumerate(scene.timeline[:past]) if col.kind == "kill"]
    if not kills:
        return None
    commits = [col.n for col in scene.timeline[: kills[-1]] if col.n is not None]
    return kills[-1], commits[-1] if commits else None


def crash_row(scene: Scene, rows: Sequence[Entry]) -> int | None:
    """How many of `rows` stand before the line of the crash; None where the line stands in none of them."""
    crash = crash_of(scene)
    if crash is None or crash[1] is None:
        return None
    before = [entry.commit is None or entry.commit <= crash[1] for entry in rows]
    if not any(before):
        return None if scene.entries.start else 0
    return len(rows) - before[::-1].index(True)


def layers_of(effect: Effect) -> Sequence[tuple[str, Layer | None]]:
    """The layers of an effect by the words of the table."""
    found = effect.layers
    return list(zip(_LAYERS, (found.checkpoint, found.memo, found.replay, found.request, found.key), strict=True))


def counted(effect: Effect) -> str:
    """What the outside counted."""
    parts = [f"asked {effect.asked}"] if effect.asked is not None else []
    if effect.applied is not None:
        parts.append(f"{effect.word} {effect.applied}")
    return (", ".join(parts) or "not counted") + (" (supposed)" if effect.supposed else "")


def state_of(task: Task) -> str:
    """Where a task stands, in stored words."""
    if task.state == "terminal":
        return task.outcome or "terminal"
    if task.state == "waiting":
        return f"waiting on {', '.join(str(id) for id in task.on)}"
    return task.state + (", to be aborted" if task.aborting else "")


def sub_of(sub: Sub) -> str:
    """Where a submission stands."""
    return sub.status + (f", answer {sub.answer}" if sub.answer is not None else "")


def role_of(entry: Entry, names: Mapping[int, str]) -> str:
    """Who speaks in an entry."""
    if entry.state == "aborted":
        return "aborted partial, not sent to the model"
    word = entry.role if entry.role != "other" else entry.kind
    if entry.role == "tool":
        name = names.get(entry.task) if entry.task is not None else None
        word = f"result of {name}" if name else "tool result"
    return word if entry.state == "whole" else f"{word}, {entry.state}"


def fork_word(policy: Policy, at: ForkedAt) -> str:
    """What a fork has of a document."""
    return f"as of {at.at}" if policy.fork == "as_of" else policy.fork or ""
