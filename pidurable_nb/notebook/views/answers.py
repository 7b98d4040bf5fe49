"""Owns what is shown of something that was asked: what a run said and called so far, as a page with both forms.

Text is shown as text: escaped, cut where it is very long, never read as markup of any kind. Never reads a store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pidurable_nb.agent.calls.executing import effect_name
from pidurable_nb.agent.inbox.admission import Match
from pidurable_nb.agent.watching.live_state import LiveState, text_in
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.notebook.views.markup import (
    LONGEST,
    Tone,
    View,
    bdi,
    code,
    cut,
    esc,
    lines_of,
    prose,
    quiet,
    short,
    toned,
)
from pidurable_nb.notebook.views.messages import diagnostics_of, result_text
from pidurable_nb.records.message import Message, blocks_of, calls_of, error_text, role_of, stop_reason, text_of
from pidurable_nb.records.transcript import Answered, EntryRecord, Queued, SubmissionRecord, Unanswered

MOST_TEXT: Final = 50_000
"""How many characters of a text are shown."""
FOLDED: Final = 4_000
"""How many of a tool's output, where it is unfolded."""
NEAR: Final = 400
"""How far a line of it is looked for."""
MOST: Final = 100
"""How many parts of a run are shown, the newest."""

NO_MODEL: Final = (
    "The model that the conversation asks is not here: a cell that defines it, as in model = ..., brings it; "
    "%pi agent shows which one it is."
)

How = Literal["whole", "arriving", "cut", "failed", "heard"]
CallState = Literal["asked", "pending", "running", "done", "failed", "interrupted", "aborted", "blocked"]
TONES: Final[Mapping[CallState, Tone]] = {
    "asked": "lost", "pending": "lost", "running": "lost", "done": "com",
    "failed": "int", "interrupted": "int", "aborted": "int", "blocked": "int",
}  # fmt: skip
_CODES: Final[Mapping[str, CallState]] = {
    "interrupted": "interrupted", "aborted": "aborted", "abandoned": "aborted", "blocked": "blocked",
}  # fmt: skip
"""The diagnostics of the harness that have a word of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A text: of the model, or of whoever joined the run (`heard`). `why` says what became of one that is not whole."""

    text: str
    how: How = "whole"
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A tool call and what is known of it. `output` is what it gave, or has reported so far."""

    id: str
    name: str
    state: CallState = "asked"
    output: str = ""
    duration_ms: int | None = None

    def took(self) -> str:
        """The state, and how long it took."""
        if self.duration_ms is None:
            return self.state
        took = f"{self.duration_ms / 1000:,.1f} s" if self.duration_ms >= 1000 else f"{self.duration_ms} ms"
        return f"{self.state}, {took}"


Part = Said | Called


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Something that was asked, as it stands: its record, what its run wrote, and what `pi.live` says meanwhile.

    `entries` are those behind its own. `stuck` says what holds the run up, as foreign text.
    """

    record: SubmissionRecord
    match: Match
    entries: tuple[EntryRecord, ...] = ()
    live: LiveState | None = None
    stuck: tuple[str, ...] = ()

    @property
    def mine(self) -> LiveState | None:
        """What lives, where it is the run of this submission."""
        here = self.live is not None and self.live.run is not None and self.record.id in self.live.run
        return self.live if here else None


# --- Parts ----------------------------------------------------------------------------------------------------------


def parts_of(asked: Asked) -> list[Part]:
    """What the run said and called so far, oldest first."""
    found = _Run()
    for entry in asked.entries:
        found.add(entry)
    live = asked.mine
    if live is not None:
        if live.partial is not None:
            found.say(live.partial, "arriving")
        for slot in live.tools.values():
            found.slot(slot)
    return found.parts


class _Run:
    """The parts of a run, as they come."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def add(self, entry: EntryRecord) -> None:
        for message in entry.model or ():
            match role_of(message):
                case "assistant":
                    self.say(message, _how(message))
                case "toolResult":
                    self._result(message, entry)
                case "user" if entry.head is None:
                    self.parts.append(Said(text=text_of(message), how="heard"))
                case _:
                    pass

    def say(self, message: Message, how: How) -> None:
        text = text_of(message)
        why = error_text(message) if how == "failed" else ""
        thought = sum(len(text_in(block, "thinking")) for block in blocks_of(message))
        if how == "arriving" and not text and thought:
            why = f"thinking, {thought:,} characters so far"
        if text or how in ("failed", "cut", "arriving"):
            self.parts.append(Said(text=text, how=how, why=why))
        for call in calls_of(message):
            self.parts.append(Called(id=call.id, name=effect_name(call.name, call.arguments)))

    def slot(self, slot: JsonObject) -> None:
        """What `pi.live` says of a call that has no result yet."""
        state = slot.get("status")
        if state in ("pending", "running"):
            self._change(
                text_in(slot, "callId"), "running" if state == "running" else "pending", text_in(slot, "output")
            )

    def _result(self, message: Message, entry: EntryRecord) -> None:
        diagnostics = diagnostics_of(entry)
        state: CallState = "failed" if message.get("isError") is True else "done"
        for each in diagnostics:
            if (known := _CODES.get(text_in(each, "code"))) is not None:
                state = known
        duration = message.get("durationMs")
        ms = duration if isinstance(duration, int) else None
        self._change(text_in(message, "toolCallId"), state, result_text(message, diagnostics), ms)

    def _change(self, id: str, state: CallState, output: str, duration_ms: int | None = None) -> None:
        """The newest call of this id that has no result: a provider may use an id again."""
        for at in range(len(self.parts) - 1, -1, -1):
            part = self.parts[at]
            if isinstance(part, Called) and part.id == id and part.state in ("asked", "pending", "running"):
                self.parts[at] = replace(part, state=state, output=output, duration_ms=duration_ms)
                return


def _how(message: Message) -> How:
    match stop_reason(message):
        case "aborted":
            return "cut"
        case "error":
            return "failed"
        case _:
            return "whole"


# --- The page -------------------------------------------------------------------------------------------------------


class AnswerView(View):
    """Something that was asked, and the answer as far as it has come."""

    def __init__(self, asked: Asked, *, notes: Sequence[str] = ()) -> None:
        self.asked = asked
        self._notes = tuple(notes)
        parts = parts_of(asked)
        if parts and isinstance(last := parts[-1], Said) and last.how == "failed" and self.reason():
            parts[-1] = replace(last, why="")  # the reason stands below
        self._earlier = max(len(parts) - MOST, 0)
        self._parts = parts[-MOST:]

    @property
    def label(self) -> str:
        return f"Submission {self.asked.record.id}"

    def head(self) -> tuple[str, Tone, str]:
        """What was asked, and a word for how it stands in the colour of that."""
        record = self.asked.record
        where = f"submission {record.id} in conversation {record.conversation}"
        match record.state:
            case Queued():
                return where, "lost", "queued behind the run that is active"
            case Answered():
                return where, "com", "answered"
            case Unanswered(reason=reason):
                return where, "int", f"unanswered: {cut(reason)}"
            case _:
                return where, "lost", "the answer is under way"

    def remarks(self) -> list[str]:
        """What is to be known beside the parts, as foreign text."""
        record = self.asked.record
        found = [sentence] if (sentence := _compared(record, self.asked.match)) else []
        live = self.asked.mine
        generation = live.generation if live is not None else None
        if generation is not None and generation.retry is not None:
            found.append(f"attempt {generation.attempt} failed and is made again: {cut(generation.retry.error, 200)}")
        if generation is not None and generation.poll_at_ms is not None:
            found.append("the provider answers later; it is asked again")
        if live is not None and live.compactions:
            found.append("what is old is being summarized")
        return [*found, *self.asked.stuck, *self._notes]

    def reason(self) -> str:
        """Why there is no answer, in full; empty where there is one."""
        state = self.asked.record.state
        if not isinstance(state, Unanswered):
            return ""
        return _plain(state.detail) or (NO_MODEL if state.reason == "no_model" else "")

    def html(self) -> str:
        where, tone, word = self.head()
        earlier = f"<p>{quiet(f'{self._earlier:,} earlier parts are left out')}</p>" if self._earlier else ""
        body = "".join(self._said(part) if isinstance(part, Said) else _call(part) for part in self._parts)
        why = prose(self.reason(), FOLDED) if self.reason() else ""
        notes = "".join(f"<p>{quiet(bdi(line))}</p>" for line in self.remarks())
        return f"<p>{quiet(esc(where))} {toned(tone, word)}</p>{notes}{earlier}{body}{why}"

    def _said(self, part: Said) -> str:
        text = prose(part.text, MOST_TEXT) if part.text else ""
        aside = _aside(part)
        if part.how == "heard":
            return f"<p>{quiet('joined the run:')}</p>{text}"
        tone: Tone = "int" if part.how in ("failed", "cut") else "lost"
        return text + (f"<p>{toned(tone, aside)}</p>" if aside else "")

    def text(self) -> str:
        where, _, word = self.head()
        lines = [f"{where}   {word}", *self.remarks(), ""]
        if self._earlier:
            lines.append(f"{self._earlier:,} earlier parts are left out")
        for part in self._parts:
            if isinstance(part, Called):
                lines.append(f"  {cut(part.name)}  {part.took()}{_first(part)}")
                continue
            lines += ["joined the run:"] if part.how == "heard" else []
            lines += lines_of(part.text, MOST_TEXT) if part.text else []
            lines += [f"[{aside}]"] if (aside := _aside(part)) else []
        if self.reason():
            lines += lines_of(self.reason(), FOLDED)
        return "\n".join(lines).rstrip()


def _compared(record: SubmissionRecord, match: Match) -> str:
    """What became of asking again (S1)."""
    if match == "new" or record.request_id is None:
        return ""
    before = f"asked before under {cut(record.request_id)}"
    if match == "same":
        return f"same: {before}, with this very text; it is not asked again"
    if match == "differs":
        return f"differs: {before}, with another text; this one is not asked, and what stands here belongs to that one"
    return f"unknown: {before}, with a text that is not stored any more; it is not asked again"


def _aside(part: Said) -> str:
    """What became of a text that is not whole."""
    match part.how:
        case "arriving":
            return part.why or "…"
        case "cut":
            return "cut off; it is kept, and left out of later requests"
        case "failed":
            return f"failed: {cut(part.why, 400)}" if part.why else ""
        case _:
            return ""


def _first(call: Called) -> str:
    """The line of its output that says most: the newest while it runs, else the first."""
    running = call.state == "running"
    near = call.output[-NEAR:] if running else call.output[:NEAR]
    lines = [line.strip() for line in near.split("\n") if line.strip()]
    return f": {cut(lines[-1 if running else 0])}" if lines else ""


def _call(call: Called) -> str:
    """A line; where a call that is over gave more than that, it unfolds."""
    line = f"{code(cut(call.name))} {toned(TONES[call.state], call.took())}{bdi(_first(call))}"
    more = len(call.output) > LONGEST or "\n" in call.output.strip()
    if call.state in ("asked", "pending", "running") or not more:
        return f"<p>{line}</p>"
    return f"<details><summary>{line}</summary>{prose(call.output, FOLDED)}</details>"


def _plain(detail: Json) -> str:
    if detail is None:
        return ""
    return detail if isinstance(detail, str) else short(detail, FOLDED)
