"""Owns asking a model: the effect, the partial answer that is stored meanwhile (V5), and what came of it.

Never classifies an answer: it is a message, whatever happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from pidurable_nb.agent import live
from pidurable_nb.agent.progress import Throttle
from pidurable_nb.agent.workshop import Workshop
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models.assembly import Assembly
from pidurable_nb.models.model import Model, ModelEvent
from pidurable_nb.probe import Mark
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a model said in the end, and how long its provider asks to be left alone."""

    message: Message
    retry_after_ms: int | None = None


async def ask(
    rt: Runtime, shop: Workshop, model: Model, events: AsyncIterator[ModelEvent], *, partials: bool = True
) -> Asked:
    """Let the model answer. What it said so far is stored now and then, where `partials`.

    Whatever the provider's code raises becomes an answer that failed. Laws: V5, E6.
    """
    assembly = Assembly(model.ref, model.api, rt.engine.clock.now_ms())

    async def store() -> int:
        return await _store_partial(rt, assembly.partial())

    async def do() -> Json:
        async with Throttle(shop.settings().progress_every, store) as throttle:
            failed = await _stream(rt, events, assembly, throttle if partials else None)
        return _effect_value(assembly, failed)

    return _read(await rt.effect(f"ask {model.ref}", do))


async def _stream(
    rt: Runtime, events: AsyncIterator[ModelEvent], assembly: Assembly, throttle: Throttle | None
) -> Exception | None:
    """Take the answer in, piece by piece. Returns what the provider's code raised."""
    probe = rt.engine.probe
    try:
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
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
    return None


def _effect_value(assembly: Assembly, failed: Exception | None) -> JsonObject:
    finished = assembly.finished
    if failed is not None:
        return {"message": assembly.failed(f"{type(failed).__name__}: {failed}"[:500])}
    if finished is None:
        return {"message": assembly.failed("the stream ended before the answer did")}
    value: dict[str, Json] = {"message": assembly.message()}
    if finished.retry_after_ms is not None:
        value["retryAfterMs"] = finished.retry_after_ms
    return value


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
            generation["message"] = partial
    return len(dumps(partial))
