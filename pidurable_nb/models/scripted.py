"""Owns a model that does as it is told, for lessons and tests. Never reaches out, and keeps no place in its script.

Which answer comes next is read from the request alone. A process that recovers and sends its request again is given
the same answer, as if the model had not noticed the crash.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self, assert_never

from pidurable_nb.clock import Clock, SystemClock
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models import fields
from pidurable_nb.models.model import (
    ArgumentsDelta,
    CallStart,
    Finished,
    ModelEvent,
    ModelRef,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
)
from pidurable_nb.models.script import (
    Answer,
    Attempts,
    Break,
    CallTools,
    Defer,
    Once,
    PlannedCall,
    Playable,
    Raise,
    Say,
    pieces,
)
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import UNSENT, Message, blocks_of, calls_of, role_of, stop_reason

_CALL_ID: Final = re.compile(r"call_(\d{1,9})")
_CHARS_PER_TOKEN: Final = 4
_IMAGE_CHARS: Final = 4800


class Scripted:
    """A model whose answers are written down: `Scripted("Hello", CallTools(call("search", q="tides")), "Done")`.

    The n-th answer goes to the request that holds n-1 answers of an assistant; failed, aborted and deferred ones are
    never sent, so they do not count. Nothing else counts: a request that is sent again, even by another process, gets
    the same answer, and a fork goes on from where it branched off. After a reset or a compaction the count is that of
    what is still sent; there, and where several conversations share a model, `Scripted.by` is the better form. Beyond
    the last answer the model fails and says so.

    Token counts are estimated from lengths of texts, four characters a token, so that they are the same every time.
    `requests` and `cancelled` are what this process asked, for looking at.

    Raises: ValueError without an answer.
    """

    def __init__(
        self,
        *answers: Answer,
        name: str = "teacher",
        context_window: int = 0,
        max_tokens: int = 0,
        provider: str = "scripted",
        clock: Clock | None = None,
    ) -> None:
        if not answers:
            raise ValueError("a script needs at least one answer: Scripted('Hello'), or Scripted.by(function)")
        self.ref = ModelRef(provider, name)
        self.api = "scripted"
        self.context_window = context_window
        self.max_tokens = max_tokens
        self.requests: list[ModelRequest] = []
        self.cancelled: list[JsonObject] = []
        self._script: _Script = _Listed(answers)
        self._clock: Clock = SystemClock() if clock is None else clock
        self._tries: Counter[tuple[str | None, int]] = Counter()

    @classmethod
    def by(
        cls,
        function: Callable[[ModelRequest], Answer],
        *,
        name: str = "teacher",
        context_window: int = 0,
        max_tokens: int = 0,
        provider: str = "scripted",
        clock: Clock | None = None,
    ) -> Self:
        """A model that answers what the function says to the request.

        The function should look at the request only: then a request that is sent again is answered the same.
        """
        made = cls("", name=name, context_window=context_window, max_tokens=max_tokens, provider=provider, clock=clock)
        made._script = _Asked(function)
        return made

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value, usual in self._settings() if value != usual]
        match self._script:
            case _Listed(answers):
                return f"Scripted({', '.join([*map(repr, answers), *shown])})"
            case _Asked(function):
                return f"Scripted.by({', '.join([getattr(function, '__name__', repr(function)), *shown])})"

    def _settings(self) -> tuple[tuple[str, str | int, str | int], ...]:
        return (
            ("name", self.ref.model_id, "teacher"),
            ("context_window", self.context_window, 0),
            ("max_tokens", self.max_tokens, 0),
            ("provider", self.ref.provider, "scripted"),
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The answer that the script has for the request."""
        self.requests.append(request)
        answer = self._answer(request)
        if isinstance(answer, Raise):
            raise answer.exception.with_traceback(None)
        if not isinstance(answer, Defer):
            for step in _steps(answer, request):
                yield await step.taken()
            return
        after_ms = round(answer.after / timedelta(milliseconds=1))
        steps = [step.json() for step in _steps(answer.then, request)]
        yield self._deferred({"dueMs": self._clock.now_ms() + after_ms, "steps": steps}, after_ms)

    async def fetch(self, handle: JsonObject) -> AsyncGenerator[ModelEvent, None]:
        """The answer in the handle, once it is due; `deferred` again before."""
        left_ms = fields.count(handle, "dueMs") - self._clock.now_ms()
        steps = tuple(map(_step_from, fields.objects(handle, "steps")))
        if not steps:
            yield Finished(stop_reason="error", error=f"{self.ref} never gave the handle {dumps(handle)[:200]}")
        elif left_ms > 0:
            yield self._deferred(handle, left_ms)
        else:
            for step in steps:
                yield await step.taken()

    async def cancel(self, handle: JsonObject) -> None:
        """Notes that nobody will fetch it."""
        self.cancelled.append(handle)

    def _deferred(self, handle: JsonObject, left_ms: int) -> Finished:
        return Finished(stop_reason="deferred", handle={**handle, "pollAfterMs": left_ms})

    def _answer(self, request: ModelRequest) -> Once:
        so_far = _answers_in(request.messages)
        answer = self._script.answer(request, so_far)
        if answer is None:
            return Break(f"the script of {self.ref} ends after {so_far} answers, and this asks for one more")
        if not isinstance(answer, Attempts):
            return answer
        place = (request.session_id, so_far)
        self._tries[place] += 1
        return answer.answers[min(self._tries[place], len(answer.answers)) - 1]


@dataclass(frozen=True, slots=True)
class _Listed:
    answers: tuple[Answer, ...]

    def answer(self, request: ModelRequest, so_far: int) -> Answer | None:
        return self.answers[so_far] if so_far < len(self.answers) else None


@dataclass(frozen=True, slots=True)
class _Asked:
    function: Callable[[ModelRequest], Answer]

    def answer(self, request: ModelRequest, so_far: int) -> Answer | None:
        return self.function(request)


_Script = _Listed | _Asked


@dataclass(frozen=True, slots=True)
class _Step:
    """An event, and how long it takes."""

    delay: timedelta
    event: ModelEvent

    async def taken(self) -> ModelEvent:
        await asyncio.sleep(self.delay.total_seconds())
        return self.event

    def json(self) -> JsonObject:
        found: dict[str, Json] = {"delayMs": round(self.delay / timedelta(milliseconds=1))}
        match self.event:
            case TextDelta(index, text):
                found |= {"type": "text", "index": index, "text": text}
            case ThinkingDelta(index, text):
                found |= {"type": "thinking", "index": index, "text": text}
            case CallStart(index, id, name):
                found |= {"type": "call", "index": index, "id": id, "name": name}
            case ArgumentsDelta(index, text):
                found |= {"type": "arguments", "index": index, "text": text}
            case Finished() as end:
                found |= {"type": end.stop_reason, "usage": end.usage, "error": end.error, "wait": end.retry_after_ms}
        return found


def _step_from(stored: JsonObject) -> _Step:
    """The step that `_Step.json` wrote."""
    delay = timedelta(milliseconds=fields.count(stored, "delayMs"))
    index, text = fields.count(stored, "index"), fields.text(stored, "text")
    match fields.text(stored, "type"):
        case "text":
            return _Step(delay, TextDelta(index, text))
        case "thinking":
            return _Step(delay, ThinkingDelta(index, text))
        case "call":
            return _Step(delay, CallStart(index, fields.text(stored, "id"), fields.text(stored, "name")))
        case "arguments":
            return _Step(delay, ArgumentsDelta(index, text))
        case "stop" | "length" | "toolUse" as reason:
            return _Step(delay, Finished(stop_reason=reason, usage=fields.member(stored, "usage")))
        case _:
            wait = fields.count(stored, "wait") if stored.get("wait") is not None else None
            error = fields.text(stored, "error") or "a step that this version does not know"
            usage = fields.member(stored, "usage")
            return _Step(delay, Finished(stop_reason="error", usage=usage, error=error, retry_after_ms=wait))


def _steps(answer: Playable, request: ModelRequest) -> Iterator[_Step]:
    """What happens, piece by piece."""
    match answer:
        case str():
            yield from _steps(Say(answer), request)
        case Say():
            yield from _spoken(answer.thinking, pieces(answer.text, answer.chunks), answer.delay)
            said = len(answer.text) + len(answer.thinking or "")
            usage = _estimate(request, said) if answer.usage is None else answer.usage
            yield _Step(timedelta(), Finished(stop_reason=answer.stop, usage=usage))
        case CallTools():
            yield from _called(answer, request)
        case Break():
            after = (answer.after,) if isinstance(answer.after, str) else answer.after
            yield from _spoken(None, tuple(filter(None, after)), answer.delay)
            wait = None if answer.retry_after is None else round(answer.retry_after / timedelta(milliseconds=1))
            usage = _estimate(request, sum(map(len, after))) if after else {}
            end = Finished(stop_reason="error", usage=usage, error=answer.error, retry_after_ms=wait)
            yield _Step(timedelta(), end)
        case _:
            assert_never(answer)


def _spoken(thinking: str | None, texts: Sequence[str], delay: timedelta) -> Iterator[_Step]:
    if thinking:
        yield _Step(delay, ThinkingDelta(0, thinking))
    for text in texts:
        yield _Step(delay, TextDelta(1 if thinking else 0, text))


def _called(answer: CallTools, request: ModelRequest) -> Iterator[_Step]:
    yield from _spoken(answer.thinking, (answer.text,) if answer.text else (), answer.delay)
    spent = len(answer.text) + len(answer.thinking or "")
    numbers = [int(found[1]) for call in _calls_in(request.messages) if (found := _CALL_ID.fullmatch(call))]
    number = max(numbers, default=0)
    for index, planned in enumerate(answer.calls, start=2):
        number += 1
        arguments = _arguments_text(planned)
        spent += len(planned.name) + len(arguments)
        yield _Step(answer.delay, CallStart(index, planned.id or f"call_{number}", planned.name))
        yield _Step(timedelta(), ArgumentsDelta(index, arguments))
    usage = _estimate(request, spent) if answer.usage is None else answer.usage
    yield _Step(timedelta(), Finished(stop_reason="toolUse", usage=usage))


def _arguments_text(planned: PlannedCall) -> str:
    return planned.arguments if isinstance(planned.arguments, str) else dumps(planned.arguments)


def _answers_in(messages: Sequence[Message]) -> int:
    """How many answers the request holds."""
    return sum(role_of(message) == "assistant" and stop_reason(message) not in UNSENT for message in messages)


def _calls_in(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if role_of(message) == "assistant":
            yield from (call.id for call in calls_of(message))


def _estimate(request: ModelRequest, answered: int) -> JsonObject:
    """What the request and an answer of so many characters would cost about."""
    asked = sum(map(_length, request.messages))
    return {"input": -(-asked // _CHARS_PER_TOKEN), "output": -(-answered // _CHARS_PER_TOKEN)}


def _length(message: Message) -> int:
    """The characters of a message that a model reads."""
    if role_of(message) == "system":
        sections = fields.member(message, "sections").values()
        tools = fields.objects(message, "toolsAdded")
        return sum(len(text) for text in sections if isinstance(text, str)) + sum(len(dumps(tool)) for tool in tools)
    return sum(map(_block_length, blocks_of(message)))


def _block_length(block: JsonObject) -> int:
    if block.get("type") == "image":
        return _IMAGE_CHARS
    arguments = block.get("arguments")
    called = len(dumps(arguments)) + len(fields.text(block, "name")) if isinstance(arguments, Mapping) else 0
    return called + len(fields.text(block, "text")) + len(fields.text(block, "thinking"))
