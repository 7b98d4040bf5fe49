"""Owns asking from a cell: submitting its text, following the run on the harness's thread, and showing it in the cell.

Interrupting the cell ends the following, never the run. Never decides what is answered and never renders.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.harness import SETTLED, Harness
from pidurable_nb.agent.inbox.admission import WhenBusy
from pidurable_nb.agent.submission import Answered, Submission
from pidurable_nb.agent.watching.live_state import live_state
from pidurable_nb.agent.watching.view import ActiveEntries, ViewWatch
from pidurable_nb.ids import ConversationId, EntryId
from pidurable_nb.notebook.views.answers import Asked
from pidurable_nb.notebook.views.markup import View, cut
from pidurable_nb.records import transcript as stored
from pidurable_nb.records.transcript import EntryRecord, SubmissionRecord, Unanswered

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

EVERY_S: Final = 0.05
"""A view in a cell is updated at most this often."""
QUIET_S: Final = 2.0
"""Where nothing is committed for so long, somebody asks what holds the run up."""
MOST_ENTRIES: Final = 500
STUCK: Final = frozenset({"blocked", "parked", "faulted"})
"""The verdicts of tasks that do not go on by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a cell asks."""

    text: str
    conversation: ConversationId
    request_id: str | None = None
    when_busy: WhenBusy = "follow_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How it ended: what was asked as it is stored now, and its outcome."""

    asked: Asked
    outcome: Answered | Unanswered


def request_of(cell_id: str | None, text: str) -> str:
    """The request id of a cell: its own name where the front end gave one, else a digest of its text (S1)."""
    if cell_id:
        return f"cell:{cell_id}"
    return f"text:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


async def follow(
    harness: Harness, conversation: Conversation, question: Question, tell: Callable[[Asked], None]
) -> Settled:
    """Ask, and tell how it goes until it is settled. Runs on the harness's own loop.

    Raises what submitting raises; SessionClosed or SessionFailed when the store goes meanwhile.
    """
    watch = await conversation.watch()
    try:
        submission = await conversation.submit(
            question.text, request_id=question.request_id, when_busy=question.when_busy
        )
        run = _Following(harness, watch, submission)
        while (record := await submission.record()).status not in SETTLED:
            tell(run.standing(record))
            await run.moved()
        outcome = await submission.wait()
    finally:
        watch.stop()
    entries = await _written(conversation, record)
    return Settled(asked=Asked(record=record, match=submission.match, entries=entries), outcome=outcome)


class _Following:
    """A run as it goes on, in the view of its conversation."""

    def __init__(self, harness: Harness, watch: ViewWatch, submission: Submission[Answered]) -> None:
        self._harness = harness
        self._watch = watch
        self._submission = submission
        self._entries: list[EntryRecord] = []
        self._stuck: tuple[str, ...] = ()

    def standing(self, record: SubmissionRecord) -> Asked:
        """How it stands now. What was seen once stays, also when a new head hides it (V1)."""
        view = self._watch.value
        if isinstance(record.state, stored.Placed):
            known = self._entries[-1].id if self._entries else record.state.entry
            self._entries += _behind(view.entries, known)
        return Asked(
            record=record, match=self._submission.match, entries=tuple(self._entries), live=live_state(view),
            stuck=self._stuck,
        )  # fmt: skip

    async def moved(self) -> None:
        """Wait for a commit that touches the conversation; where none comes, look at what holds the run up."""
        try:
            async with asyncio.timeout(QUIET_S):
                await anext(self._watch)
            self._stuck = ()
        except TimeoutError:
            self._stuck = _stuck(self._harness)
        except StopAsyncIteration:  # the store was closed or failed: waiting says how
            await self._submission.wait()


def _behind(entries: ActiveEntries, known: EntryId) -> list[EntryRecord]:
    """The entries after that one, without heads, which come first in a view whatever their id."""
    found: list[EntryRecord] = []
    for at in range(len(entries) - 1, -1, -1):
        if entries[at].id <= known:
            break
        if entries[at].head is None:
            found.append(entries[at])
    return found[::-1]


def _stuck(harness: Harness) -> tuple[str, ...]:
    """The tasks that do not go on by themselves, and why."""
    if not harness.engine.scheduler.running:
        return ("the store is paused: pi.resume() starts its work",)
    return tuple(
        f"task {verdict.id} ({cut(verdict.task.kind, 40)}) does not go on: {cut(verdict.because, 200)}"
        for verdict in harness.engine.verdicts()
        if verdict.name in STUCK
    )[:3]


async def _written(conversation: Conversation, record: SubmissionRecord) -> tuple[EntryRecord, ...]:
    """What the run wrote behind the input; of one without an answer, up to the next thing that somebody asked."""
    match record.state:
        case stored.Answered(entry=entry, answer=answer):
            page = await conversation.entries(limit=MOST_ENTRIES, first=EntryId(entry + 1), last=answer)
            return tuple(reversed(page.items))
        case Unanswered(entry=entry) if entry is not None:
            page = await conversation.entries(limit=MOST_ENTRIES, first=EntryId(entry + 1), order="ascending")
            kinds = [found.kind for found in page.items]
            return page.items[: kinds.index("pi.user") if "pi.user" in kinds else None]
        case _:
            return ()


class Screen:
    """One display in a cell, which is updated in place. A terminal has no such place: there only the end is shown."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._id = uuid4().hex
        self._shown = False
        self._terminal = any(kind.__name__ == "TerminalInteractiveShell" for kind in type(shell).__mro__)

    def show(self, view: View, *, last: bool = False) -> None:
        """Show it in the place of what was shown before."""
        if self._terminal and not last:
            return
        made, place = view._repr_mimebundle_(), {"display_id": self._id}
        self._shell.display_pub.publish(made, {}, transient=place, update=self._shown)
        self._shown = True  # not before: an interrupt in between would leave every later one without a place
