"""Owns the public face of an open store, and nothing behind it: wiring only.

`Harness.open` puts a storage, a session, the task machine and the rules of conversations together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar

from pidurable_nb.agent.conversation import CommitBlock, Conversation
from pidurable_nb.agent.extending.configuring import AgentChange, configure
from pidurable_nb.agent.extending.extension import Extension
from pidurable_nb.agent.extending.settings import Settings, SettingsSource
from pidurable_nb.agent.extending.workshop import EnvironmentSource, Workshop
from pidurable_nb.agent.opening import (
    Durability,
    Parts,
    build,
    extensions_of,
    models_of,
    settings_source,
    storage_of,
)
from pidurable_nb.agent.owning import forwarded, owned_loop
from pidurable_nb.agent.submission import Answered, Submission
from pidurable_nb.agent.usage import Usage, total_usage
from pidurable_nb.agent.watching.task_graph import GraphWatch, watch_graph
from pidurable_nb.engine.engine import Engine
from pidurable_nb.engine.phase import Outcome, Phase, TaskRef
from pidurable_nb.errors import SessionClosed, SessionFailed, StorageRequestError
from pidurable_nb.ids import ROOT, ConversationId, EntryId, SubmissionId, TaskId
from pidurable_nb.models.model import Model
from pidurable_nb.probe import ConversationSubject
from pidurable_nb.records.task import Status, TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, SubmissionRecord, Written
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.documents import Document
from pidurable_nb.session.session import Session
from pidurable_nb.store.storage import Storage, TaskQuery
from pidurable_nb.tools.tool import Tool

if TYPE_CHECKING:
    from pidurable_nb.engine.decide import Verdict

R = TypeVar("R")
D = TypeVar("D", bound=Document)
SETTLED = frozenset({"done", "unanswered"})


@dataclass(frozen=True, slots=True)
class Closed:
    """Why a harness is not open any more. `error` is set when the storage failed (F1)."""

    reason: Literal["closed", "failed"]
    error: SessionFailed | None = None


class Opening:
    """`await` it to keep the harness, or enter it to close it at the end."""

    def __init__(self, opening: Callable[[], Coroutine[None, None, Harness]]) -> None:
        self._opening = opening
        self._harness: Harness | None = None

    def __await__(self) -> Generator[None, None, Harness]:
        return self._opening().__await__()

    async def __aenter__(self) -> Harness:
        self._harness = await self._opening()
        return self._harness

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._harness is not None:
            await self._harness.aclose()


class Harness:
    """An open store whose work goes on while this lives.

    Its methods may be awaited from any event loop; commit blocks work on the loop that opened it. After a storage
    error everything raises SessionFailed (F1); after `aclose`, SessionClosed.
    """

    def __init__(self, session: Session, engine: Engine, shop: Workshop) -> None:
        self.engine = engine
        self.registry = engine.registry
        self.shop = shop
        self.shop.conversation = lambda id: Conversation(self, id)
        self.loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[Closed] = self.loop.create_future()
        self._session = session
        self._settlers: dict[SubmissionId, list[asyncio.Future[SubmissionRecord]]] = {}
        self._closing: asyncio.Task[None] | None = None
        session.subscribe(self._follow)
        self._of_extensions = {task._task for task in shop.extensions.tasks if task._task is not None}
        self._forget_extensions = shop.extensions.subscribe(self._extensions_changed)

    @property
    def settings(self) -> Settings:
        """What the host decides, as of now."""
        return self.shop.settings()

    @property
    def owning_harness(self) -> Harness:
        """This one."""
        return self

    # -- opening and closing -------------------------------------------------------------------------------------------

    @staticmethod
    def open(
        store: Path | str | Storage,
        *,
        tasks: Sequence[type[Phase[object]]] = (),
        tools: Sequence[Tool] = (),
        extensions: Sequence[Extension] = (),
        models: Sequence[Model] = (),
        environment: EnvironmentSource | None = None,
        settings: SettingsSource | None = None,
        durability: Durability = "barrier",
        run: bool = True,
        on_report: Callable[[BaseException], None] | None = None,
    ) -> Opening:
        """Open a store for writing and go on with its work; await it, or enter it.

        A path is a SQLite store, made when there is none; `"folder/"` is a JSONL store. With `run=False` nothing starts
        before `resume()`. `tools` are the extension `host`; `models` are found by the names that conversations choose;
        a conversation that chose none uses the first. `settings` may be a function that gives them, asked whenever they
        are needed.

        Durability: tasks that ran when the last process died are pending and counted (T7); nothing else changed.
        Raises StoreRefused when the file is no store or another process owns it (F5), DuplicateTask, PhaseRefused,
        ExtensionRefused.
        """
        source = settings_source(settings)

        async def opening() -> Harness:
            installed = extensions_of(tools, extensions)
            parts = Parts(tuple(tasks), installed, models_of(models), environment)
            return await Harness.of_parts(storage_of(store, durability), source, parts, run, on_report or _swallow)

        return Opening(opening)

    @staticmethod
    async def of_parts(
        storage: Storage,
        settings: Callable[[], Settings],
        parts: Parts,
        run: bool,
        report: Callable[[BaseException], None],
    ) -> Harness:
        """As `open`, of parts that somebody put together, which may decide with other code than is installed."""
        harness: Harness | None = None

        def heard(error: BaseException) -> None:
            if isinstance(error, SessionFailed) and harness is not None:
                harness._fail(error)
            report(error)

        first = settings()
        session = await Session.open(storage, clock=first.clock, probe=first.probe, report=heard)
        try:
            engine, shop = build(session, settings, parts)
            harness = Harness(session, engine, shop)
            await engine.open(run=run)
        except BaseException:
            await (harness.aclose() if harness is not None else session.close())
            raise
        return harness

    @forwarded
    async def aclose(self) -> None:
        """Stop all code in order and let go of the store. What ran is pending and not counted (T7). Idempotent.

        Durability: every commit that was admitted has settled.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._forget_extensions()
        try:
            try:
                await self.engine.close()
            finally:
                await self._session.close()
        finally:
            failed = self._session.failed
            self._end_waits(failed or SessionClosed("the harness was closed; open the store again"))
            if not self.closed.done():
                self.closed.set_result(Closed("failed", failed) if failed is not None else Closed("closed"))

    def _fail(self, error: SessionFailed) -> None:
        """F1: the harness closes itself."""
        self._end_waits(error)
        if self._closing is None:
            self._closing = self.loop.create_task(self._close(), name="close")

    def resume(self) -> None:
        """Start work, after `open(run=False)`."""
        self.engine.resume()

    # -- conversations -------------------------------------------------------------------------------------------------

    @forwarded
    async def root(self, *, agent: AgentChange | None = None) -> Conversation:
        """The root conversation, made the first time, with these choices of its agent."""
        if await self._session.conversation(ROOT) is None:
            async with self._session.block(ConversationSubject(ROOT), conversation=ROOT) as tx:
                if await tx.conversation(ROOT) is None:
                    record = ConversationRecord(id=ROOT)
                    tx.put_conversation(record)
                    await self.engine.household.created(tx, record)
                    if agent is not None:
                        await configure(tx, ROOT, agent)
        return Conversation(self, ROOT)

    @forwarded
    async def conversation(self, id: ConversationId | int) -> Conversation:
        """The conversation with this id. Raises StorageRequestError when there is none."""
        if await self._session.conversation(ConversationId(id)) is None:
            raise StorageRequestError(f"conversation {id} does not exist")
        return Conversation(self, ConversationId(id))

    @forwarded
    async def create(self, *, agent: AgentChange | None = None) -> Conversation:
        """A new ownerless conversation, with these choices of its agent."""
        async with CommitBlock(self, None, barrier=False) as tx:
            made = await tx.create_conversation()
            if agent is not None:
                await configure(tx.rows, made, agent)
        return Conversation(self, made)

    def commit(self, *, barrier: bool = False) -> CommitBlock:
        """A block of writes to the root conversation, or to several by name."""
        return CommitBlock(self, ROOT, barrier=barrier)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    @forwarded
    async def wait(self, ref: TaskRef[R]) -> R:
        """The result of a task, when it has ended. Raises TaskEnded when it has none (T5, T11)."""
        return await self.engine.answers.wait(ref)

    @forwarded
    async def outcome(self, ref: TaskRef[R]) -> Outcome[R]:
        """How a task ended, when it has; the fault, while one keeps it."""
        return await self.engine.answers.outcome(ref)

    @forwarded
    async def task(self, ref: TaskRef[object] | int) -> TaskRecord:
        """The task as it is stored. Raises StorageRequestError when there is none."""
        id = ref if isinstance(ref, int) else ref.id
        found = await self._session.task(TaskId(id))
        if found is None:
            raise StorageRequestError(f"task {id} does not exist")
        return found

    @forwarded
    async def tasks(
        self, *, kind: str | None = None, status: Status | None = None, live: bool | None = None, limit: int = 1000
    ) -> tuple[TaskRecord, ...]:
        """The first `limit` tasks that fit, in id order, as they are stored."""
        page = await self._session.scan_tasks(TaskQuery(kind=kind, status=status, live=live), limit=limit)
        return page.items

    @forwarded
    async def abort(self, ref: TaskRef[object] | int, *, background: bool = False) -> bool:
        """Ask a task to end: its owned work first, then its abort handler (O2). False when it had ended already.

        With `background`, work that runs in the background of what it owns is asked too (O3).

        Durability: the mark is stored on return. Raises StorageRequestError when there is no such task.
        """
        asked = ref if isinstance(ref, TaskRef) else TaskRef[object](TaskId(ref))
        return await self.engine.abort(asked, background=background)

    @forwarded
    async def retry(self, ref: TaskRef[object] | int) -> None:
        """Let a parked or faulted task go on (T9, T11). Raises StorageRequestError when it is not live.

        Durability: its count of restarts is cleared on return.
        """
        await self.engine.retry(ref if isinstance(ref, TaskRef) else TaskRef(TaskId(ref)))

    def install(self, code: type[Phase[object]] | Extension) -> None:
        """Install a task by its first phase, or an extension, or the new code of either (T8, T10).

        What runs keeps the code that it took; the next phase, call or request uses the new one. May be called from
        anywhere. Raises DuplicateTask, PhaseRefused, ExtensionRefused.
        """
        if isinstance(code, Extension):
            self.shop.extensions.install(code)
        else:
            self.registry.install(code)

    def uninstall(self, name: str | Extension) -> None:
        """Remove the extension or the task of that name: live tasks without code are blocked from now on (T8)."""
        found = name.name if isinstance(name, Extension) else name
        if self.shop.extensions.snapshot().extension(found) is not None:
            self.shop.extensions.uninstall(found)
        else:
            self.registry.uninstall(found)

    def use(self, model: Model) -> None:
        """Take a model, or another one in the place of the one of its name, for every request from now on.

        May be called from anywhere.
        """
        self.shop.models = {**self.shop.models, model.ref: model}

    def _extensions_changed(self) -> None:
        """Their tasks are installed with them; calls that a tool's absence holds up are decided again."""
        wanted = {task._task: task for task in self.shop.extensions.tasks if task._task is not None}
        for gone in self._of_extensions - wanted.keys():
            self.registry.uninstall(gone)
        for task in wanted.values():
            self.registry.install(task)
        self._of_extensions = set(wanted)

    @forwarded
    async def wait_idle(self) -> None:
        """Return when no task lives but background work (O3). A blocked, parked or faulted task is live."""
        await self.engine.answers.idle()

    @asynccontextmanager
    async def moving(self) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
        """Gives what returns after the next commit. Raises SessionClosed or SessionFailed when there will be none."""
        moved = asyncio.Event()
        dispose = self._session.subscribe(lambda changes: moved.set())

        def over(closed: asyncio.Future[Closed]) -> None:
            moved.set()

        self.closed.add_done_callback(over)

        async def wait() -> None:
            self._session.admit()
            await moved.wait()
            moved.clear()

        try:
            yield wait
        finally:
            dispose()
            self.closed.remove_done_callback(over)

    async def watch_graph(self) -> GraphWatch:
        """Every live task, who owns it and what it waits for, and every later state of that (V4).

        Raises WrongLoop elsewhere than on the loop that opened the harness.
        """
        owned_loop(self, "watches", "pi.call(function)")
        return await watch_graph(self.engine)

    @forwarded
    async def usage(self) -> Usage:
        """What all conversations of the store have spent."""
        return await total_usage(self._session)

    @forwarded
    async def verdicts(self) -> tuple[Verdict, ...]:
        """What would happen to every live task, as decided now: why an idle wait does not return."""
        return self.engine.verdicts()

    # -- submissions and documents -------------------------------------------------------------------------------------

    @forwarded
    async def submission(self, id: SubmissionId | int) -> Submission[Answered | Written]:
        """What somebody asked for, by id, after a restart too (S5). Raises StorageRequestError when there is none."""
        if await self._session.submission(SubmissionId(id)) is None:
            raise StorageRequestError(f"submission {id} does not exist")
        return Submission(self, SubmissionId(id))

    async def settled(self, id: SubmissionId) -> SubmissionRecord:
        """The record of a submission, when it is settled."""
        settler: asyncio.Future[SubmissionRecord] = asyncio.get_running_loop().create_future()
        self._settlers.setdefault(id, []).append(settler)  # before the read: it may be settled in between
        try:
            found = await self._session.submission(id)
            if found is None:
                raise StorageRequestError(f"submission {id} does not exist")
            return found if found.status in SETTLED else await settler
        finally:
            self._give_up(id, settler)

    def _give_up(self, id: SubmissionId, settler: asyncio.Future[SubmissionRecord]) -> None:
        """Leave nothing behind of a wait that is over, whatever ended it."""
        waiting = self._settlers.get(id, [])
        if settler in waiting:
            waiting.remove(settler)
            if not waiting:
                del self._settlers[id]
        if settler.done() and not settler.cancelled():
            settler.exception()

    @forwarded
    async def read(
        self, doc: type[D], *, of: Conversation | None = None, key: str | None = None, at: EntryId | None = None
    ) -> D:
        """The stored value of a document, today or as of an entry (V3); its defaults where none was written."""
        conversation = of.id if of is not None else ROOT
        return await self.engine.read_document(doc, conversation=conversation, key=key, at=at)

    def _follow(self, changes: Changes) -> None:
        for id, change in changes.submissions.items():
            if change.after.status in SETTLED:
                for settler in self._settlers.pop(id, ()):
                    if not settler.done():
                        settler.set_result(change.after)

    def _end_waits(self, error: BaseException) -> None:
        waiting = [settler for settlers in self._settlers.values() for settler in settlers]
        self._settlers.clear()
        for settler in waiting:
            if not settler.done():
                settler.set_exception(error)


def _swallow(error: BaseException) -> None:
    """Nobody asked for reports; every error still reaches whoever waits for its task."""
