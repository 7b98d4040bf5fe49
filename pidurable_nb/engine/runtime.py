"""Owns what one invocation of a task may do: memos, effects, commits, reads. Never decides what comes next.

A runtime belongs to one invocation. After that ended, each operation raises InvocationEnded and writes nothing (T13).
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, overload

from pidurable_nb.clock import as_datetime
from pidurable_nb.engine.definition import TaskDefinition
from pidurable_nb.engine.facts import Fact, Frozen, fact_of, read_fact
from pidurable_nb.engine.phase import Outcome, State, TaskRef
from pidurable_nb.engine.tx import Landed, TaskTx
from pidurable_nb.errors import EffectInBlock, IllegalTransition, InvocationEnded, KeyShared
from pidurable_nb.ids import ConversationId, EntryId, Json, TaskId
from pidurable_nb.probe import Mark, TaskSubject
from pidurable_nb.records import task as stored
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.strict import detach
from pidurable_nb.session.documents import Document

if TYPE_CHECKING:
    from pidurable_nb.engine.engine import Engine
    from pidurable_nb.engine.invocation import Invocation

R = TypeVar("R")
D = TypeVar("D", bound=Document)
F = TypeVar("F", bound="Fact | Frozen")
V = TypeVar("V", bound="Json | Frozen")

RESERVED_MEMOS = "pidurable."


class TaskBlock:
    """`async with rt.commit() as tx`: what happens inside lands whole, with the state, or not at all (C1)."""

    __slots__ = ("_barrier", "_block", "_name", "_rt", "_tx", "_what")

    def __init__(self, rt: Runtime, *, barrier: bool) -> None:
        self._rt = rt
        self._barrier = barrier

    async def __aenter__(self) -> TaskTx:
        rt = self._rt
        rt.check("commit")
        engine = rt.engine
        self._block = engine.session.block(
            rt.subject, barrier=self._barrier, conversation=rt.conversation, by_task=rt.id, name=None
        )
        inner = await self._block.__aenter__()
        try:
            record = rt.gate()
        except BaseException as error:
            await self._block.__aexit__(type(error), error, error.__traceback__)
            raise
        rt.in_block = asyncio.current_task()
        self._tx = TaskTx(inner, engine, rt, record)
        return self._tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        rt = self._rt
        rt.in_block = None
        landed: Landed | None = None
        if error is None:
            try:
                landed = self._tx.land()
            except BaseException as refused:
                await self._block.__aexit__(type(refused), refused, refused.__traceback__)
                raise
        await self._block.__aexit__(kind, error, trace)
        if landed is not None:
            rt.landed = landed.state
            rt.progressed = rt.progressed or landed.progress


class Runtime:
    """What one invocation of a phase may do.

    Every method raises InvocationEnded once the invocation is over (T13).
    """

    def __init__(self, engine: Engine, invocation: Invocation, record: stored.TaskRecord) -> None:
        self.engine = engine
        self.id: TaskId = record.id
        self.conversation: ConversationId = record.conversation
        self.landed: State | None = None
        self.progressed = False
        self.in_block: asyncio.Task[object] | None = None
        self.abandons = False
        """O7: whether what this invocation creates for itself is given up when a new opening finds it."""
        self.subject = TaskSubject(record.id, record.kind, record.phase or "")
        self._invocation = invocation
        self._record = record
        self._keys: dict[str, str] = {}
        self._phase = record.phase or ""

    # -- what the engine asks ------------------------------------------------------------------------------------------

    def begin(self, phase: str, *, shown: str | None = None) -> None:
        """The next phase of this invocation begins. `shown` is what points call it, where that is not its name."""
        self.subject = TaskSubject(self.id, self._record.kind, shown if shown is not None else phase)
        self.landed = None
        self.progressed = False
        self._phase = phase

    @property
    def input(self) -> Json:
        """The task's input as it is stored."""
        return self._record.input

    @property
    def definition(self) -> TaskDefinition:
        """The code that this invocation runs."""
        return self._invocation.definition

    def check_declared(self, to: State) -> None:
        """T3: refuse a state that the running phase, or its abort handler, does not declare."""
        self.definition.check_declared(self._phase, to, aborting=self._invocation.aborting)

    def check(self, what: str) -> None:
        """T13: refuse `what` once the invocation has ended."""
        if self._invocation.ended:
            raise InvocationEnded(f"task {self.id}: this invocation has ended; its {what} wrote nothing")

    def gate(self) -> stored.TaskRecord:
        """On the line: the task still runs this invocation. Raises InvocationEnded otherwise."""
        self.check("commit")
        if self.overtaken:
            raise InvocationEnded(f"task {self.id} is to be aborted; only its abort handler may write now")
        record = self.engine.table.live_task(self.id)
        if record is None or not isinstance(record.state, stored.Running):
            raise InvocationEnded(f"task {self.id} has its outcome or waits; this invocation may not write any more")
        return record

    @property
    def overtaken(self) -> bool:
        """T13: the task was marked, and this invocation runs its phases: it is over, whether it knows it or not."""
        record = self.engine.table.live_task(self.id)
        return record is not None and record.abort_requested and not self._invocation.aborting

    @property
    def over(self) -> bool:
        """T13: whether this invocation may do nothing any more: what its code raises now is nobody's fault."""
        return self._invocation.ended or self.overtaken

    # -- what a phase asks ---------------------------------------------------------------------------------------------

    def commit(self, *, barrier: bool = False) -> TaskBlock:
        """A block whose writes land together, and with what the task becomes.

        Durability: stored when the block has ended; with `barrier`, and a durability above "kill", synced too (E5).
        """
        return TaskBlock(self, barrier=barrier)

    async def memo(self, name: str, value: F, *, barrier: bool = False) -> F:
        """The kept value: this one, or that of whoever was first (M1).

        Durability: stored on return; with `barrier`, and a durability above "kill", synced too. Raises NotJson for
        what cannot be stored, TypeError when the kept value is of another type.
        """
        self._refuse_reserved(name)
        fact = fact_of(value, at=f"memo {name!r}")
        if fact is None:
            raise TypeError(f"memo {name!r}: None is not a value; it means that nothing was kept (M1)")
        self.check("memo")
        engine = self.engine
        block = engine.session.block(
            self.subject, what="memo", barrier=barrier, conversation=self.conversation, by_task=self.id, name=name
        )
        async with block as tx:
            record = self.gate()
            if name not in record.memos:
                tx.put_task(replace(record, memos={**record.memos, name: fact}))
                kept: Json = fact
            else:
                kept = record.memos[name]
        if kept != fact and (probe := engine.session.probe) is not None:
            probe.note(Mark(self.subject, "lost", "after", name, laws=("M1",), text=dumps(fact)))
        return read_fact(kept, type(value), at=f"memo {name!r}")

    @overload
    async def recall(self, name: str, of: type[dict[str, Json]]) -> Mapping[str, Json] | None: ...
    @overload
    async def recall(self, name: str, of: type[F]) -> F | None: ...
    async def recall(self, name: str, of: type[object]) -> object:
        """The kept value of an earlier moment or attempt, or None. Raises TypeError when it is of another type."""
        return await self.recalled(name, of)

    async def recalled(self, name: str, of: type[object]) -> object:
        """As `recall`, for who offers it under another name."""
        self._refuse_reserved(name)
        self.check("recall")
        record = self.engine.stored_task(self.id)
        kept = record.memos.get(name) if record is not None else None
        return None if kept is None else read_fact(kept, of, at=f"memo {name!r}")

    @overload
    async def effect(self, name: str, do: Callable[[], Awaitable[V]], *, key: str | None = None) -> V: ...
    @overload
    async def effect(self, name: str, do: Callable[[], V], *, key: str | None = None) -> V: ...
    async def effect(self, name: str, do: Callable[[], V | Awaitable[V]], *, key: str | None = None) -> V:
        """What `do` gives, done outside. Stores nothing: whether to remember is the author's decision.

        The laboratory counts it, and can answer for it from its record. Raises EffectInBlock inside a commit block
        (C3), KeyShared when another effect of this invocation already used the key (E6).
        """
        self.check("effect")
        if self.in_block is not None and self.in_block is asyncio.current_task():
            raise EffectInBlock(f"effect {name!r} of task {self.id}: leave the commit block first (C3)")
        if key is not None and self._keys.setdefault(key, name) != name:
            raise KeyShared(
                f"effect {name!r} of task {self.id} has the key of {self._keys[key]!r}; give each purpose its own"
            )
        probe = self.engine.probe
        if probe is None:
            got = do()
            return await got if inspect.isawaitable(got) else got
        return await probe.perform(Mark(self.subject, "effect", "before", name=name, key=key), do)

    def key(self, purpose: str) -> str:
        """The idempotency key of this purpose: the same in every rerun, another for every purpose (E6)."""
        return self.key_for(self._record.input, purpose)

    def key_for(self, given: Json, purpose: str) -> str:
        """The same, for a kind of task whose work is told by something else than its input: a tool's arguments."""
        record = self._record
        parts: Json = [self.engine.origin, record.id, record.kind, given, purpose]
        return hashlib.sha256(dumps(detach(parts)).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def now(self) -> datetime:
        """The harness clock, in UTC (T12)."""
        return as_datetime(self.engine.clock.now_ms())

    async def outcomes(self, refs: Iterable[TaskRef[R]]) -> tuple[Outcome[R], ...]:
        """How the tasks ended, in order. Raises IllegalTransition when one is still live."""
        self.check("outcomes")
        return tuple([await self.engine.answers.outcome_of(ref) for ref in refs])

    async def results(self, refs: Iterable[TaskRef[R]]) -> tuple[R, ...]:
        """The results of the tasks, in order. Raises TaskEnded for the first that has none."""
        self.check("results")
        return tuple([await self.engine.answers.result_of(ref) for ref in refs])

    async def children(self) -> tuple[TaskRef[object], ...]:
        """The tasks that this one owns, ended ones included, oldest first."""
        self.check("children")
        return tuple(TaskRef[object](id) for id in await self.engine.answers.children_of(self._record))

    async def read(
        self, doc: type[D], *, of: ConversationId | None = None, key: str | None = None, at: EntryId | None = None
    ) -> D:
        """The stored value of a document, its defaults where it was never written."""
        self.check("read")
        return await self.engine.read_document(doc, conversation=of or self.conversation, task=self.id, key=key, at=at)

    def report(self, error: BaseException) -> None:
        """Tell the host about an error that does not stop this task."""
        self.engine.report(error)

    def _refuse_reserved(self, name: str) -> None:
        if name.startswith(RESERVED_MEMOS):
            raise IllegalTransition(f"memo {name!r}: names that start with {RESERVED_MEMOS!r} are the engine's (T11)")
