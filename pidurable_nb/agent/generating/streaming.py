"""Owns asking a model: the effect, the partial answer that is stored meanwhile (V5), and what came of it.

Never classifies an answer: it is a message, whatever happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.generating.progress import Throttle
from pidurable_nb.agent.stored import live
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models.assembly import Assembly
from pidurable_nb.models.model import Model, ModelEvent
from pidurable_nb.probe import Mark
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import Message

_ENDS: Final = frozenset({"stop", "length", "toolUse", "error", "aborted", "deferred"})
"""How an answer may end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a model said in the end, and how long its provider asks to be left alone."""

    message: Message
    retry_after_ms: int | None = None


async def ask(
    rt: Runtime, shop: Workshop, model: Model, begin: Callable[[], AsyncIterator[ModelEvent]], *, partials: bool = True
) -> Asked:
    """Let the model answer. What it said so far is stored now and then, where `partials`.

    Whatever the provider's code raises becomes an answer that failed. Laws: V5, E6.
    """
    assembly = Assembly(model.ref, model.api, rt.engine.clock.now_ms())

    async def store() -> int:
        return await _store_partial(rt, assembly.partial())

    async def do() -> Json:
        async with Throttle(shop.settings().progress_every, store) as throttle:
            failed = await _stream(rt, begin, assembly, throttle if partials else None)
        return _effect_value(assembly, failed)

    return _read(await rt.effect(f"ask {model.ref}", do))


async def _stream(
    rt: Runtime, begin: Callable[[], AsyncIterator[ModelEvent]], assembly: Assembly, throttle: Throttle | None
) -> Exception | None:
    """Take the answer in, piece by piece. Returns what the provider's code raised."""
    probe = rt.engine.probe
    events: AsyncIterator[ModelEvent] | None = None
    try:
        events = begin()
        async for event in events:
            assembly.apply(event)
            if throttle is not None and assembly.has_content:
                throttle.touch()
            if probe is not None:
                await probe.reach(Mark(rt.subject, "chunk", "after"))
            if assembly.finished is not None:
                break
    except Exception as error:
        rt.check("model request")
        return error
    finally:
        await _close(rt, events)
    return None


async def _close(rt: Runtime, events: AsyncIterator[ModelEvent] | None) -> None:
    """The provider lets go of its request; what it raises then changes nothing of the answer."""
    close = getattr(events, "aclose", None)
    if close is not None:
        try:
            await close()
        except Exception as error:
            error.add_note(f"in ending a model request of task {rt.id}")
            rt.report(error)


def _effect_value(assembly: Assembly, failed: Exception | None) -> JsonObject:
    finished = assembly.finished
    if failed is not None:
        return {"message": assembly.failed(_said(failed))}
    if finished is None:
        return {"message": assembly.failed("the stream ended before the answer did")}
    if finished.stop_reason not in _ENDS:
        return {"message": assembly.failed(f"the answer ended with {finished.stop_reason!r}, which is no end")}
    value: dict[str, Json] = {"message": assembly.message()}
    if finished.retry_after_ms is not None:
        value["retryAfterMs"] = finished.retry_after_ms
    return value


def _said(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # an error of a provider's that cannot even say what it is
        text = ""
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__


def _read(value: Json) -> Asked:
    assert isinstance(value, Mapping)
    message, after = value["message"], value.get("retryAfterMs")
    assert isinstance(message, Mapping)
    return Asked(message=message, retry_after_ms=after if isinstance(after, int) else None)


async def _store_partial(rt: Runtime, partial: Message) -> int:
    """V5: what is there of the answer, in `pi.live`. Returns its size."""
    engine = rt.engine
    block = engine.session.block(
        rt.subject, name="progress", conversation=rt.conversation, by_task=rt.id, laws=("V5",), text="progress"
    )
    async with block as tx:
        rt.gate()
        draft = await tx.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
        generation = draft.get("generation")
        if isinstance(generation, dict):
            generation.pop("deferred", None)  # a deferred answer that arrives: one of the two is shown
            generation["message"] = partial
    return len(dumps(partial))
