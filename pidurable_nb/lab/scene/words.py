"""Owns the words of a scene: the sentences of steps that are no verdict, and one line for each law.

Present tense, no ids, at most 90 characters, and three words for the outside. Never decides what is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

from pidurable_nb.engine.rows import LONGEST, number
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.scene.parts import short
from pidurable_nb.lab.scene.scene import Law, Outside
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord

OUTSIDE_WORDS: Final[Mapping[Outside, str]] = {"none": "nothing", "again": "can happen again", "unknown": "unknown"}

LAWS: Final[Mapping[str, str]] = {
    "C1": "A commit lands whole or not at all.",
    "C2": "Nothing is observable before its commit is stored.",
    "T2": "A task is stored as running before any of its code runs.",
    "T3": "A checkpoint is replaced whole; a phase returns what it last committed.",
    "T4": "Waiting holds no code: it resumes when every task it waits on is terminal.",
    "T5": "Completing: the outcome is final, while owned work still lives.",
    "T6": "A terminal task keeps its outcome as a receipt.",
    "T7": "Opening turns running into pending, keeps checkpoint, memos and abort mark, and adds 1 to restarts.",
    "T8": "A task whose code is missing or too old is kept, shown with its reason, and reconsidered.",
    "T9": "Openings that find a task running are counted until it makes progress; at the limit it is parked.",
    "T10": "New code takes a running task over at its next phase boundary.",
    "T11": "A phase that raises fails its own task only: it ends, or is kept until its code is mended.",
    "T12": "A sleep is one stored due time; setting the clock back delays and never repeats.",
    "M1": "First writer wins; every later caller gets the stored value.",
    "M2": "Memos survive checkpoints and restarts, belong to one task, and end with it.",
    "M3": "Memo before effect: at most once. Effect before memo: at least once.",
    "E1": "Intent (final arguments, replay policy) is committed before the effect starts.",
    "E2": "A cut tool runs again only if the stored and the current declaration both say safe.",
    "E3": "Otherwise the model gets an interrupted result with the output so far, and decides.",
    "E5": "A barrier commit is on disk before it is acknowledged.",
    "E6": "Nothing here makes an outside effect exactly once; the result names the contract that is missing.",
    "G1": "A cut request becomes an aborted entry with what was stored, and is sent again.",
    "O2": "Abort flows down; abort handlers run bottom up.",
    "O4": "A task to be aborted whose code is missing ends orphaned, without running.",
    "O5": "A cancelled live owner marks the work below it; marks are derived again at every opening.",
    "O6": "Settle before start: what ends without user code or a model is committed first.",
    "O7": "Work that an unsafe tool created for itself is not resumed after a crash, only ended.",
    "S1": "A request id admits once per conversation, across restarts and races.",
    "S2": "An input is queued, placed, then done with its answer.",
    "S4": "Boundaries place writes first, then user items, in id order.",
    "S5": "A settled submission never changes.",
    "V2": "Results follow their calls in call order; aborted answers are left out.",
    "V5": "What arrives is stored at most every 100 ms: a crash loses at most that.",
    "F5": "One process owns a store; death frees it at once.",
}


def laws_of(ids: Sequence[str]) -> tuple[Law, ...]:
    """Each law once, with its line."""
    return tuple(Law(id=id, text=LAWS.get(id, "")) for id in dict.fromkeys(ids))


def sentence(says: str, name: str = "") -> str:
    """`says` with a foreign name in it, in what a sentence holds: the name is cut, and never the sentence."""
    room = LONGEST - len(says.format(""))
    return says.format(short(name, max(room, 1)))


def many(count: int, one: str) -> str:
    """`one row`, `3 rows`: digits stay digits, so that they can be compared."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


# --- Where a life ends ------------------------------------------------------------------------------------------------


def died_in(name: str, record: TaskRecord) -> str:
    """Where a life died, for a title, by what is stored of its task: a life is not inside of what has ended."""
    match record.state:
        case stored.Pending():
            return f"before {name} {'begins' if record.started_at_ms is None else 'goes on'}"
        case stored.Running():
            return f"inside {name}"
        case stored.Waiting():
            return f"while {name} waits"
        case stored.Sleeping():
            return f"while {name} sleeps"
        case stored.Completing():
            return f"after {name} was decided"
        case stored.Terminal():
            return f"after {name} ended"
        case never:
            assert_never(never)


def died_at(point: Point, what: str, *, asked: bool = False) -> str:
    """How a death at a point is told. `what` names what the task does there; `asked`: the effect was begun."""
    before = point.edge == "before"
    match point.what:
        case "effect" if before and asked:
            return sentence("The process dies while the outside is asked: {}.", what)
        case "effect" if before:
            return sentence("The process dies before the outside is asked: {}.", what)
        case "effect":
            return sentence("The process dies after {} was done, and before the store hears of it.", what)
        case "chunk":
            return "The process dies while the answer arrives."
        case "memo" if before:
            return "The process dies before its memo is stored."
        case "memo":
            return "The process dies right after its memo is stored."
        case "reserve" if before:
            return "The process dies before the task is stored as running."
        case "reserve":
            return "The process dies when the task is stored as running, before its code runs."
        case "phase":
            return f"The process dies {'before' if before else 'after'} the code of a phase runs."
        case "publish":
            return f"The process dies when a commit is stored, {'before' if before else 'after'} anybody sees it."
        case "commit" if before:
            return "The process dies before a commit is stored: none of it is there."
        case "commit":
            return "The process dies after a commit is stored: all of it is there."
        case "open":
            return "The process dies while the store is being opened."
        case _:
            return "The process dies inside an operation on the store's file."


def place_words(point: Point, who: str, effect: str | None) -> str:
    """A point in plain words, for whoever chooses one: `inside refund, after the outside answered`.

    `who` is the task or whatever it is about, `effect` the name of an effect or a memo.
    """
    before = point.edge == "before"
    life = "second life: " if point.life == 2 else ""
    asks = "the model" if effect is not None and effect.startswith("ask ") else "the outside"
    match point.what:
        case "effect":
            told = f"inside {who}, {f'before {asks} is asked' if before else f'after {asks} answered'}"
            return f"{life}{told}" + (f": {effect}" if effect is not None and asks != "the model" else "")
        case "chunk":
            return f"{life}inside {who}, while the model answers, piece {point.n}"
        case "memo":
            return f"{life}inside {who}, memo {effect or ''} {'not yet stored' if before else 'stored'}"
        case "reserve":
            running = "before it is stored as running" if before else "stored as running, before its code runs"
            return f"{life}{who}, {running}"
        case "phase":
            return f"{life}{who}, {'before' if before else 'after'} the code of its phase"
        case "publish":
            return f"{life}a commit of {who} is stored, {'not yet shown' if before else 'and shown'}"
        case "commit":
            return f"{life}{'before' if before else 'after'} a commit of {who} is stored"
        case "open":
            return f"{life}{'before' if before else 'after'} the store is opened"
        case _:
            return f"{life}an operation on the file: {point.what.removeprefix('vfs.')}"


def ordinal_rows(count: int) -> str:
    """`One running task becomes pending`, as a person counts."""
    return f"{number(count)} running {'task becomes' if count == 1 else 'tasks become'} pending"
