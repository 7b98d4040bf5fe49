"""Owns compaction as a durable task (K1): choose what to summarize, ask for the summary, place it with a head.

    select -> summarize -> its placement          retry waits without code

Old entries stay in the store; only what the model sees begins later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pidurable_nb.agent.extending.hooking import Compacting, CompactionReason, Decline, Summary, run_before_compact
from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.generating.classifying import Answers, TryAgain, classify
from pidurable_nb.agent.generating.preparing import NO_MODEL
from pidurable_nb.agent.generating.streaming import Asked, ask
from pidurable_nb.agent.household import shop_of
from pidurable_nb.agent.inbox.admission import WriteDraft, admit_write
from pidurable_nb.agent.request.selecting import cut_at, select_range, serialize
from pidurable_nb.agent.stored import compacting_state, live
from pidurable_nb.agent.stored.spending import spend_on_model
from pidurable_nb.clock import as_ms
from pidurable_nb.engine.phase import Aborted, Done, Failed, Phase, Sleeping
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.engine.tx import TaskTx
from pidurable_nb.ids import EntryId, Json, JsonObject
from pidurable_nb.models.model import ModelRef, ModelRequest, Thinking
from pidurable_nb.records.message import Message, calls_of, error_text, text_of, user_message

BEFORE: Final = "The conversation history before this point was compacted into the following summary:\n\n<summary>\n"
BEHIND: Final = "\n</summary>"
SYSTEM: Final = (
    "You write checkpoints of conversations between a user and an assistant that works with tools. Whoever reads the "
    "checkpoint continues the work and has nothing else of what came before. Do not continue the conversation yourself."
)
TASK: Final = """Write the checkpoint of the conversation above. Carry over what an earlier summary still says.
Use exactly these headings, and leave out none:
## Goal
## Constraints and preferences
## Done, in progress, blocked
## Decisions, and why
## Next steps
## Facts to keep (paths, names, numbers, errors, word for word)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionInput:
    """Why, and what to mind."""

    reason: CompactionReason
    instructions: str | None = None

    @classmethod
    def of(cls, rt: Runtime) -> CompactionInput:
        """The input of the running compaction."""
        given = rt.input if isinstance(rt.input, Mapping) else {}
        reason, instructions = given.get("reason"), given.get("instructions")
        return cls(
            reason=reason if reason in ("threshold", "overflow") else "manual",
            instructions=instructions if isinstance(instructions, str) else None,
        )


class Select(Phase[Json], task="pi.compaction"):
    """Choose where to cut, and let the extensions decline or bring the summary."""

    async def run(self, rt: Runtime) -> Summarize | Done[Json] | Failed:
        shop = shop_of(rt)
        given, settings = CompactionInput.of(rt), shop.settings()
        agent = await shop.agent(rt.conversation)
        model = shop.model(agent.model)
        if model is None:
            return await _fail(rt, NO_MODEL, "the conversation's agent has no model that this host knows")
        context = await shop.contexts.at(rt.conversation)
        cut = select_range(context, settings.compaction.keep_recent)
        if cut is None:
            return await _end(rt, Done({}))
        asked = Compacting(
            reason=given.reason,
            entries=cut.summarized,
            messages=cut.messages,
            first_kept=cut.first_kept,
            instructions=given.instructions,
        )
        match await run_before_compact(agent.hooks, asked, api=rt, report=rt.report):
            case Decline():
                return await _end(rt, Done({}))
            case Summary(text=text):
                return await _place(rt, shop, text, cut.first_kept, None)
            case None:
                pass
        room = settings.compaction.reserve * 4 // 5
        options = {name: value for name, value in settings.request.items() if name != "deferred"}
        async with rt.commit() as tx:
            return tx.become(
                Summarize(
                    1,
                    model.ref,
                    agent.thinking,
                    options,
                    min(room, model.max_tokens) if model.max_tokens > 0 else room,
                    max(entry.id for entry in context.entries),
                    cut.first_kept,
                )
            )

    async def abort(self, rt: Runtime) -> Aborted:
        return await _aborted(rt)


class Summarize(Phase[Json]):
    """Ask for the summary. Everything the request depends on is fixed here; a rerun sends the same again (G1)."""

    attempt: int
    model: ModelRef
    thinking_level: Thinking
    stream_options: Json
    max_tokens: int
    tail: EntryId
    first_kept: EntryId

    async def run(self, rt: Runtime) -> Sleeping[RetrySummary] | Done[Json] | Failed:
        shop = shop_of(rt)
        model = shop.model(self.model)
        if model is None:
            return await _fail(rt, NO_MODEL, f"this host does not know the model {self.model}")
        context = await shop.contexts.at(rt.conversation, self.tail)
        request = await self._request(rt, shop, serialize(cut_at(context, self.first_kept).messages))
        asked = await ask(rt, shop, model, lambda: model.stream(request), partials=False)
        retry = shop.settings().retry
        meaning = classify(
            asked.message, attempt=self.attempt, retry=retry, may_compact=False, retry_after_ms=asked.retry_after_ms
        )
        match meaning:
            case Answers() if _complete(asked.message):
                return await _place(rt, shop, text_of(asked.message), self.first_kept, asked.message)
            case TryAgain(after=after, text=text):
                return await self._again(rt, asked, after, text)
            case _:
                return await _fail(rt, "model_error", _why(asked.message), asked.message)

    async def _request(self, rt: Runtime, shop: Workshop, text: str) -> ModelRequest:
        focus = CompactionInput.of(rt).instructions
        said = f"<conversation>\n{text}\n</conversation>\n\n{TASK}"
        said = f"{said}\n\nAdditional focus: {focus}" if focus else said
        now = rt.engine.clock.now_ms()
        system: JsonObject = {"role": "system", "content": "", "sections": {"task": SYSTEM}, "timestamp": now}
        options = self.stream_options if isinstance(self.stream_options, Mapping) else {}
        return ModelRequest(
            messages=(system, user_message(said, now)),
            thinking=self.thinking_level,
            session_id=await shop.session_id(rt.conversation),
            key=rt.key(f"summary {self.attempt}"),
            max_tokens=self.max_tokens,
            options={**options, "cacheRetention": "none"},
        )

    async def _again(self, rt: Runtime, asked: Asked, after: timedelta, text: str) -> Sleeping[RetrySummary]:
        async with rt.commit() as tx:
            await spend_on_model(tx.rows, rt.conversation, asked.message)
            until = rt.now() + after
            draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
            compacting_state.change(draft, rt.id, self.attempt, {"at": as_ms(until), "error": text})
            then = RetrySummary(
                self.attempt, self.model, self.thinking_level, self.stream_options, self.max_tokens, self.tail,
                self.first_kept, until,
            )  # fmt: skip
            return tx.become(Sleeping(until=until, then=then))

    async def abort(self, rt: Runtime) -> Aborted:
        return await _aborted(rt)


class RetrySummary(Phase[Json], phase="retry"):
    """Sleeps until the next attempt at the same summary (G2)."""

    attempt: int
    model: ModelRef
    thinking_level: Thinking
    stream_options: Json
    max_tokens: int
    tail: EntryId
    first_kept: EntryId
    until: datetime

    async def run(self, rt: Runtime) -> Summarize:
        attempt = self.attempt + 1
        async with rt.commit() as tx:
            draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
            compacting_state.change(draft, rt.id, attempt, None)
            return tx.become(
                Summarize(
                    attempt, self.model, self.thinking_level, self.stream_options, self.max_tokens, self.tail,
                    self.first_kept,
                )
            )  # fmt: skip

    async def abort(self, rt: Runtime) -> Aborted:
        return await _aborted(rt)


def _complete(message: Message) -> bool:
    return message.get("stopReason") == "stop" and bool(text_of(message).strip()) and not calls_of(message)


def _why(message: Message) -> str:
    match message.get("stopReason"):
        case "length":
            return "the summary was cut off at its length"
        case "stop" | "toolUse":
            return "the model gave no summary"
        case _:
            return error_text(message)


async def _place(rt: Runtime, shop: Workshop, text: str, head: EntryId, message: Message | None) -> Done[Json]:
    """K1: the summary with its head, at once behind a waiting generation, else as a write that waits its turn (S4)."""
    entry: JsonObject = {"type": "text", "text": f"{BEFORE}{text}{BEHIND}"}
    record = rt.engine.table.live_task(rt.id)
    blocking = record is not None and record.owner is not None
    with rt.engine.runs.launching() as launch:
        async with rt.commit() as tx:
            now = tx.rows.now_ms()
            said = user_message((entry,), now)
            data: JsonObject = {"reason": CompactionInput.of(rt).reason}
            if blocking:
                placed = tx.rows.append("pi.compaction", model=(said,), data=data, head=head)
                result: JsonObject = {"entryId": placed}
            else:
                draft = WriteDraft(kind="pi.compaction", model=(said,), data=data, head=head)
                admitted = await admit_write(
                    tx.rows, launch, rt.conversation, draft, request_id=f"compaction:{rt.id}",
                    modes=shop.settings().queues,
                )  # fmt: skip
                result = {"submissionId": admitted.id}
            if message is not None:
                await spend_on_model(tx.rows, rt.conversation, message)
            await _forget(tx, rt)
            return tx.become(Done(result))


async def _end(rt: Runtime, outcome: Done[Json]) -> Done[Json]:
    async with rt.commit() as tx:
        await _forget(tx, rt)
        return tx.become(outcome)


async def _fail(rt: Runtime, reason: str, text: str, message: Message | None = None) -> Failed:
    async with rt.commit() as tx:
        if message is not None:
            await spend_on_model(tx.rows, rt.conversation, message)
        await _forget(tx, rt, text)
        return tx.become(Failed(text, {"reason": reason}))


async def _aborted(rt: Runtime) -> Aborted:
    async with rt.commit() as tx:
        await _forget(tx, rt)
        return tx.become(Aborted())


async def _forget(tx: TaskTx, rt: Runtime, error: str | None = None) -> None:
    draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
    compacting_state.remove(draft, rt.id, reason=CompactionInput.of(rt).reason, error=error)
