"""Owns the order in which a provider takes messages: results behind their calls, the prompt in front (V2). Never reads
entries.

Rules 7, 8 and 10 of the derivation of a context. They look only at messages, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from pidurable_nb.records.message import Message, ToolCall, calls_of


class Ordering:
    """Messages as they are sent, kept up to date while more arrive. Adding one costs the same however many there are.

    The newest assistant's message is open: results that arrive stand directly behind it, in call order, ahead of what
    arrived in between. The next assistant's message closes it. A call without a result gets an error that says so; a
    result without a call of the open message is dropped, and so is a second one of the same call.

    With `front`, a system message that only user messages precede moves before them.
    """

    __slots__ = ("_asking", "_between", "_calls", "_leading", "_results", "_settled")

    def __init__(self, *, front: bool) -> None:
        self._settled: list[Message] = []
        self._asking: Message | None = None
        self._calls: tuple[ToolCall, ...] = ()
        self._results: list[Message | None] = []
        self._between: list[Message] = []
        self._leading = front

    def add(self, messages: Iterable[Message]) -> None:
        """The next messages of the transcript."""
        for message in messages:
            role = message.get("role")
            if role == "toolResult":
                self._answer(message)
                continue
            if role == "assistant":
                self._settle()
                self._asking = message
                self._calls = calls_of(message)
                self._results = [None] * len(self._calls)
            elif role == "system" and self._leading:
                self._between.insert(0, message)
            else:
                self._between.append(message)
            if role != "user":
                self._leading = False

    def _answer(self, message: Message) -> None:
        id = message.get("toolCallId")
        for index, call in enumerate(self._calls):
            if call.id == id and self._results[index] is None:
                self._results[index] = message
                return

    def _settle(self) -> None:
        self._settled += self._open()
        self._between = []

    def messages(self) -> tuple[Message, ...]:
        """All of them, in order."""
        return (*self._settled, *self._open())

    def _open(self) -> list[Message]:
        asking = self._asking
        if asking is None:
            return self._between
        found = [asking]
        for call, result in zip(self._calls, self._results, strict=True):
            found.append(result if result is not None else _missing(call, asking))
        return found + self._between


def ordered(messages: Iterable[Message], *, front: bool) -> tuple[Message, ...]:
    """The messages in the order in which they are sent."""
    ordering = Ordering(front=front)
    ordering.add(messages)
    return ordering.messages()


def _missing(call: ToolCall, asking: Message) -> Message:
    """What stands for a result that is not in the transcript. It is never stored, so its time is that of the call."""
    text = f"{call.name} has no result in this conversation; it is not known whether it ran"
    return {
        "role": "toolResult",
        "toolCallId": call.id,
        "toolName": call.name,
        "content": [{"type": "text", "text": text}],
        "isError": True,
        "timestamp": asking.get("timestamp", 0),
    }
