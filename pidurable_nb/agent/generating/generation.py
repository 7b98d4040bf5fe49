"""Owns the generation: one request to the model and what follows from the answer, as phases in the stored format.

    prepare -> request -> (answer | tools | retry | poll)       retry, poll and tools wait without code

A run is a chain of generations; `pi.live.run` names the one in charge. What an answer leads to is decided in
`classifying`; how a request is prepared, asked and a round begun is in `preparing`, `streaming` and `rounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypeAlias

from pidurable_nb.agent.extending.configuring import added_tools
from pidurable_nb.agent.extending.hooking import run_after_response, run_after_tools, run_before_request, run_on_yield
from pidurable_nb.agent.extending.resolution import Agent
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.generating.classifying import Answers, Calls, Defers, GivesUp, Overflows, TryAgain, classify
from pidurable_nb.agent.generating.compacting import begin_background, compacted_entry, start_blocking
from pidurable_nb.agent.generating.preparing import NO_MODEL, Prepared, prepare
from pidurable_nb.agent.generating.streaming import Asked, ask
from pidurable_nb.agent.household import rules_of, shop_of
from pidurable_nb.agent.inbox import boundary, runs
from pidurable_nb.agent.inbox.ending import append_answer, end_unanswered, keep_partial, partial_of
from pidurable_nb.agent.request.selecting import select_range
from pidurable_nb.agent.round import rounds
from pidurable_nb.agent.round.rounds import Controls, Round, call_task, controls_of, plan_round, results_of, write_round
from pidurable_nb.agent.stored import live
from pidurable_nb.clock import as_ms
from pidurable_nb.engine.phase import Aborted, Done, Failed, Phase, Sleeping, TaskRef, Waiting
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.ids import EntryId, Json, JsonObject
from pidurable_nb.models.assembly import Assembly
from pidurable_nb.models.model import DeferringModel, ModelRef, ModelRequest, Thinking
from pidurable_nb.records.message import Message
from pidurable_nb.session.transaction import Transaction


class Prepare(Phase[Json], task="pi.generation"):
    """Render prompt and tools, and add to the transcript what changed; or let the context be compacted first.

    `compacted` is the compaction that was waited for, once; `overflow` the error that asked for it.
    """

    attempt: int = 1
    compacted: TaskRef[Json] | None = None
    overflow: str | None = None
    threshold: Literal[True] | None = None

    async def run(self, rt: Runtime) -> Request | Waiting[Prepare] | Failed:
        shop = shop_of(rt)
        if self.overflow is not None and (self.compacted is None or await compacted_entry(rt, self.compacted) is None):
            return await fail(rt, "model_error", self.overflow)
        prepared = await prepare(rt, shop)
        if prepared is None:
            return await fail(rt, NO_MODEL, None)
        settings = shop.settings()
        policy = settings.compaction
        if self.compacted is None and prepared.crowded(policy):
            return await self._compact(rt)
        early = policy.background
        background = self.compacted is None and early > 0 and prepared.crowded(policy, by=early)
        with rt.engine.runs.launching() as launch:
            async with rt.commit() as tx:
                cutoff = _append_planned(tx.rows, prepared)
                draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
                draft["generation"] = {"attempt": self.attempt}
                if background:
                    await begin_background(tx.rows, launch, rt.conversation)
                return tx.become(
                    request_of(prepared, settings, attempt=self.attempt, cutoff=cutoff, compacted=self.compacted)
                )

    async def _compact(self, rt: Runtime) -> Waiting[Prepare]:
        with rt.engine.runs.launching() as launch:
            async with rt.commit() as tx:
                ref = await start_blocking(tx.rows, launch, rt, "threshold")
                return tx.become(Waiting(on=(ref,), then=Prepare(self.attempt, ref, threshold=True)))

    async def abort(self, rt: Runtime) -> Aborted:
        return await aborted(rt)


class Request(Phase[Json]):
    """Ask the model. Everything that the request depends on is fixed here; a rerun sends the same again (G1)."""

    attempt: int
    model: ModelRef
    thinking_level: Thinking
    stream_options: Json
    cutoff: EntryId
    compacted: TaskRef[Json] | None = None

    async def run(
        self, rt: Runtime
    ) -> Waiting[Prepare] | Waiting[Tools] | Tools | Sleeping[Retry] | Sleeping[Poll] | Done[Json] | Failed:
        shop = shop_of(rt)
        await self._keep_leftover(rt, shop)
        model = shop.model(self.model)
        if model is None:
            return await fail(rt, NO_MODEL, None)
        context = await shop.contexts.at(rt.conversation, self.cutoff)
        agent = await shop.agent(rt.conversation)
        messages = await run_before_request(agent.hooks, context.messages, api=rt, report=rt.report)
        request = ModelRequest(
            messages=messages,
            thinking=self.thinking_level,
            session_id=await shop.session_id(rt.conversation),
            key=rt.key(f"request {self.attempt} {self.cutoff}"),
            options=self.stream_options if isinstance(self.stream_options, Mapping) else {},
        )
        asked = await ask(rt, shop, model, lambda: model.stream(request))
        return await settle(rt, shop, agent, self, asked)

    async def _keep_leftover(self, rt: Runtime, shop: Workshop) -> None:
        """G1: an answer that a crash cut is kept as aborted before the request is sent again."""
        if partial_of(await shop.live(rt.conversation)) is None:
            return
        async with rt.commit() as tx:
            draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
            await keep_partial(tx.rows, rt.conversation, partial_of(draft))
            draft["generation"] = {"attempt": self.attempt}

    async def abort(self, rt: Runtime) -> Aborted:
        return await aborted(rt)


class Retry(Phase[Json]):
    """Sleeps until the next attempt, which prepares anew: what changed meanwhile counts (G2)."""

    attempt: int
    until: datetime
    compacted: TaskRef[Json] | None = None

    async def run(self, rt: Runtime) -> Prepare:
        return Prepare(self.attempt + 1, self.compacted)

    async def abort(self, rt: Runtime) -> Aborted:
        return await aborted(rt)


class Poll(Phase[Json]):
    """Sleeps until the provider may have the deferred answer, and fetches it."""

    attempt: int
    model: ModelRef
    cutoff: EntryId
    handle: Json
    poll_at: datetime
    compacted: TaskRef[Json] | None = None

    async def run(
        self, rt: Runtime
    ) -> Waiting[Prepare] | Waiting[Tools] | Tools | Sleeping[Retry] | Sleeping[Poll] | Done[Json] | Failed:
        shop = shop_of(rt)
        model = shop.model(self.model)
        if model is None:
            return await fail(rt, NO_MODEL, None)
        handle = self.handle
        if isinstance(model, DeferringModel) and isinstance(handle, Mapping):
            asked = await ask(rt, shop, model, lambda: model.fetch(handle))
        else:
            assembly = Assembly(self.model, model.api, rt.engine.clock.now_ms())
            asked = Asked(message=assembly.failed(f"{self.model} cannot fetch a deferred answer"))
        return await settle(rt, shop, await shop.agent(rt.conversation), self, asked)

    async def abort(self, rt: Runtime) -> Aborted:
        model = shop_of(rt).model(self.model)
        if isinstance(model, DeferringModel) and isinstance(self.handle, Mapping):
            try:
                await model.cancel(self.handle)
            except Exception as error:
                rt.report(error)
        return await aborted(rt)


class Tools(Phase[Json]):
    """Waits for the round's calls; then the next generation, or the end of the run. `pending` calls come one by one."""

    assistant: EntryId
    tools: tuple[TaskRef[Json], ...]
    pending: tuple[str, ...] = ()

    async def run(self, rt: Runtime) -> Waiting[Tools] | Done[Json]:
        if self.pending:
            return await self._next_call(rt)
        shop = shop_of(rt)
        agent = await shop.agent(rt.conversation)
        state = await shop.live(rt.conversation)
        found = [await rt.engine.session.task(ref.id) for ref in self.tools]
        controls = controls_of([record for record in found if record is not None], len(rounds.slots_of(state)))
        await run_after_tools(agent.hooks, self.assistant, results_of(state), api=rt, report=rt.report)
        return await end_round(rt, shop, Round(self.assistant, self.tools), controls)

    async def _next_call(self, rt: Runtime) -> Waiting[Tools]:
        """The next call of a sequential round."""
        call, *rest = self.pending
        with rt.engine.runs.launching() as launch:
            async with rt.commit() as tx:
                record = launch.put(tx.rows, call_task(tx.rows, rt, self.assistant, call))
                draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
                slot = live.slot_by_call(draft, call)
                if slot is not None:
                    slot["taskId"] = record.id
                ref: TaskRef[Json] = TaskRef(record.id)
                return tx.become(Waiting(on=(ref,), then=Tools(self.assistant, (*self.tools, ref), tuple(rest))))

    async def abort(self, rt: Runtime) -> Aborted:
        entry = await rt.engine.session.entry(self.assistant)
        asked = entry.entry.model[0] if entry is not None and entry.entry.model else None
        async with rt.commit() as tx:
            rounds.not_started(tx.rows, rt, asked, self.pending)
            await end_unanswered(tx.rows, rt.conversation, "aborted")
            await rules_of(rt).run_failed(tx.rows, rt.conversation)
            return tx.become(Aborted())


# -- what an answer leads to -------------------------------------------------------------------------------------------

Answered: TypeAlias = (
    "Waiting[Prepare] | Waiting[Tools] | Tools | Sleeping[Retry] | Sleeping[Poll] | Done[Json] | Failed"
)


async def settle(rt: Runtime, shop: Workshop, agent: Agent, turn: Request | Poll, asked: Asked) -> Answered:
    """Commit what the answer leads to; a deferred one that is deferred again is none yet."""
    message, settings = asked.message, shop.settings()
    if message.get("stopReason") != "deferred":
        await run_after_response(agent.hooks, message, api=rt, report=rt.report)
    may_compact = settings.compaction.enabled and turn.compacted is None
    if may_compact and message.get("stopReason") == "error":
        context = await shop.contexts.at(rt.conversation, turn.cutoff)
        may_compact = select_range(context, settings.compaction.keep_recent) is not None
    meaning = classify(
        message, attempt=turn.attempt, retry=settings.retry, may_compact=may_compact,
        retry_after_ms=asked.retry_after_ms,
    )  # fmt: skip
    match meaning:
        case Answers():
            return await _answer(rt, shop, agent, message)
        case Calls():
            return await _call(rt, shop, turn, message)
        case Defers(handle=handle, after=after):
            async with rt.commit() as tx:
                at = rt.now() + after
                draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
                draft["generation"] = {"attempt": turn.attempt, "deferred": {"pollAt": as_ms(at)}}
                poll = Poll(turn.attempt, turn.model, turn.cutoff, handle, at, turn.compacted)
                return tx.become(Sleeping(until=at, then=poll))
        case TryAgain(after=after, text=text):
            async with rt.commit() as tx:
                until = rt.now() + after
                await append_answer(tx.rows, rt.conversation, message)
                draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
                draft["generation"] = {"attempt": turn.attempt, "retry": {"at": as_ms(until), "error": text}}
                return tx.become(Sleeping(until=until, then=Retry(turn.attempt, until, turn.compacted)))
        case Overflows(text=text):
            with rt.engine.runs.launching() as launch:
                async with rt.commit() as tx:
                    await append_answer(tx.rows, rt.conversation, message)
                    draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
                    draft.pop("generation", None)
                    ref = await start_blocking(tx.rows, launch, rt, "overflow")
                    return tx.become(Waiting(on=(ref,), then=Prepare(turn.attempt, ref, text)))
        case GivesUp(text=text):
            return await fail(rt, "model_error", text, message)


def request_of(
    prepared: Prepared, settings: Settings, *, attempt: int, cutoff: EntryId, compacted: TaskRef[Json] | None = None
) -> Request:
    """What is asked, fixed as it is now, of everything through the entry `cutoff`."""
    return Request(attempt, prepared.ref, prepared.agent.thinking, dict(settings.request), cutoff, compacted)


def _append_planned(tx: Transaction, prepared: Prepared) -> EntryId:
    """The system entries that change prompt and tools; the newest entry that the request sees."""
    newest = prepared.tail
    for planned in prepared.planned:
        newest = tx.append("pi.system", model=(planned.message,), edits=planned.edits)
    return newest


async def _answer(rt: Runtime, shop: Workshop, agent: Agent, message: Message) -> Done[Json]:
    """The final answer, and the final boundary behind it; a hook may go on with a user's text instead (S4)."""
    more = await run_on_yield(agent.hooks, message, api=rt, report=rt.report)
    with rt.engine.runs.launching() as launch:
        async with rt.commit() as tx:
            selection = await boundary.select(tx.rows, rt.conversation, "final", shop.settings().queues)
            entry = await append_answer(tx.rows, rt.conversation, message)
            goes_on = more is not None and not selection.users and not selection.reset
            draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
            inputs = runs.inputs_of(draft)
            runs.end(draft)
            if goes_on:
                await boundary.place(tx.rows, selection)
                boundary.append_input(tx.rows, rt.conversation, more, {})
                await runs.start(tx.rows, launch, rt.conversation, inputs)
            else:
                await runs.answer(tx.rows, inputs, entry)
                await runs.next_run(tx.rows, launch, selection)
            return tx.become(Done({"entryId": entry}))


async def _call(rt: Runtime, shop: Workshop, turn: Request | Poll, message: Message) -> Waiting[Tools] | Tools:
    """A round of tool calls, in the commit of the answer that asks for them; unsafe intents are a barrier (E5)."""
    context = await shop.contexts.at(rt.conversation, turn.cutoff)
    agent = await shop.agent(rt.conversation)  # of now: a tool that went while the model answered is not available
    plan = plan_round(agent, message, context.messages, shop)
    with rt.engine.runs.launching() as launch:
        async with rt.commit(barrier=plan.unsafe) as tx:
            entry = await append_answer(tx.rows, rt.conversation, plan.message)
            begun = await write_round(tx.rows, launch, rt, shop, plan, entry)
            then = Tools(begun.assistant, begun.tools, begun.pending)
            return tx.become(Waiting(on=begun.tools, then=then) if begun.tools else then)


async def end_round(rt: Runtime, shop: Workshop, ended: Round, controls: Controls) -> Done[Json]:
    """Every call has its result: the next generation, or the end of the run where the results ask for it (S4)."""
    kind: boundary.BoundaryKind = "final" if controls.ends_run else "post_tools"
    with rt.engine.runs.launching() as launch:
        async with rt.commit() as tx:
            cut = controls.handoff is not None
            selection = await boundary.select(tx.rows, rt.conversation, kind, shop.settings().queues, cut=cut)
            await _offer(tx.rows, rt, controls)
            draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
            inputs = runs.inputs_of(draft)
            draft.pop("tools", None)
            if controls.ends_run:
                if controls.handoff is not None:
                    reset: JsonObject = {"role": "user", "content": controls.handoff, "timestamp": tx.rows.now_ms()}
                    tx.rows.append("pi.reset", model=(reset,), head="self")
                runs.end(draft)
                await runs.answer(tx.rows, inputs, ended.assistant)
                await runs.next_run(tx.rows, launch, selection)
            elif selection.reset:
                runs.end(draft)
                await runs.give_up(tx.rows, inputs, "reset")
                await runs.next_run(tx.rows, launch, selection)
            else:
                steered = await boundary.place(tx.rows, selection) if not selection.empty else ()
                await runs.start(tx.rows, launch, rt.conversation, (*inputs, *steered))
            return tx.become(Done({"entryId": ended.assistant}))


async def _offer(tx: Transaction, rt: Runtime, controls: Controls) -> None:
    if not controls.add_tools:
        return
    draft = await tx.edit(live.AGENT, live.at(live.AGENT, rt.conversation))
    changed = added_tools(draft, controls.add_tools)
    if changed is not None:
        draft.clear()
        draft.update(changed)


# -- without an answer -------------------------------------------------------------------------------------------------


async def fail(rt: Runtime, reason: str, text: str | None, message: Message | None = None) -> Failed:
    """The run fails: the inputs stay without an answer for this reason (S2)."""
    async with rt.commit() as tx:
        if message is not None:
            draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
            draft.pop("generation", None)  # the whole answer is appended; its stored part is not kept beside it
            await append_answer(tx.rows, rt.conversation, message)
        await end_unanswered(tx.rows, rt.conversation, reason, text)
        await rules_of(rt).run_failed(tx.rows, rt.conversation)
        return tx.become(
            Failed(text or "the conversation's agent has no model that this host knows", {"reason": reason})
        )


async def aborted(rt: Runtime) -> Aborted:
    """G1, O2: what was stored of an answer is kept as aborted; the inputs stay without one."""
    async with rt.commit() as tx:
        await end_unanswered(tx.rows, rt.conversation, "aborted")
        await rules_of(rt).run_failed(tx.rows, rt.conversation)
        return tx.become(Aborted())
