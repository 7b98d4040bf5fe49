"""Owns a Lab of the store that is open here: hears every stored commit, and gives scenes of what is stored now.

On the harness's thread it only takes a note; everything else runs on the view's own. Never writes to the store, and
never steps: what lives is watched.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pidurable_nb.engine.definition import TaskDefinition
from pidurable_nb.errors import StoreBusy
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.scene.facts import KEPT, Base
from pidurable_nb.lab.scene.graph import Graph
from pidurable_nb.lab.scene.parts import Entries, PhaseEdge, Task
from pidurable_nb.lab.scene.reading import Of, Passage, found_in, passage
from pidurable_nb.lab.scene.scene import PointRow, Scene
from pidurable_nb.lab.scene.source import CannotDo
from pidurable_nb.lab.scene.stage import edges_of
from pidurable_nb.lab.scene.watching import ALIVE, Alive, Shown, Watching
from pidurable_nb.notebook.kernel.host import HostEnded
from pidurable_nb.store.stranger import StoreFile

if TYPE_CHECKING:
    import asyncio

    from pidurable_nb.agent.harness import Closed, Harness
    from pidurable_nb.notebook.kernel.host import Host
    from pidurable_nb.session.changes import Changes

MOST_BEHIND: Final = 10_000
"""Commits that wait for the view; behind that they are dropped, and the file is read again."""


class LiveSource:
    """Scenes of an open store. `stir` is called, on whatever thread, when the next scene will be another one.

    There is one position. Nothing that the store's harness does waits for this. Make it, use it and close it on one
    thread, which is not the harness's. Raises: StoreRefused and its kinds, HostEnded.
    """

    def __init__(self, host: Host, harness: Harness, path: Path, stir: Callable[[], None]) -> None:
        self._host = host
        self._harness = harness
        self._path = path
        self._stir = stir
        self._news: deque[Changes] = deque()
        self._missed = False
        self._room = KEPT
        self._looked: int | None = None
        self._over: Closed | None = None
        self._dispose: Callable[[], None] = lambda: None
        self._edges: tuple[frozenset[tuple[str, int]], Mapping[str, tuple[PhaseEdge, ...]]] | None = None
        host.call(self._follow())  # before the file is copied: what is stored in between is heard, and found there too
        try:
            self._file = StoreFile.open(path)
        except BaseException:
            self._leave()
            raise
        self._watching = Watching(Base(self._file))

    # -- on the harness's thread ---------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        harness = self._harness
        disposes = (
            harness.engine.session.subscribe(self._heard),
            harness.registry.subscribe(lambda names: self._stir()),
        )
        harness.closed.add_done_callback(self._ended)

        def dispose() -> None:
            for each in disposes:
                each()
            harness.closed.remove_done_callback(self._ended)

        self._dispose = dispose

    def _heard(self, changes: Changes) -> None:
        if len(self._news) >= MOST_BEHIND:
            self._missed = True
            self._news.clear()
        self._news.append(changes)
        self._stir()

    def _ended(self, closed: asyncio.Future[Closed]) -> None:
        self._over = closed.result()
        self._stir()

    # -- on the view's thread ------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """What is stored now."""
        over = self._over  # before the news: whoever closes has stored everything
        self._catch_up()
        engine = self._harness.engine
        alive = Alive(
            code=engine.code, policy=engine.policy, opening=engine.opening, now_ms=engine.clock.now_ms(),
            edges=self._arrows(),
        )  # fmt: skip
        return self._watching.scene(
            alive,
            Shown(
                store=self._path.name, how=ALIVE if over is None else over.reason, watched=self._why(over),
                words=_words(over), looked=self._looked,
            ),
        )  # fmt: skip

    def _catch_up(self) -> None:
        missed = self._missed
        if not missed:
            while self._news and not self._missed:
                with contextlib.suppress(IndexError):  # they were dropped in between
                    self._watching.take(self._news.popleft())
            missed = self._missed
        if missed or self._watching.kept > self._room:
            self._read_again(missed=missed)

    def _read_again(self, *, missed: bool) -> None:
        """Go on from the file as it is now: what was heard is in it."""
        self._missed = False
        try:
            file = StoreFile.open(self._path)
        except BaseException as error:
            self._missed = self._missed or missed
            if missed or not isinstance(error, StoreBusy):
                raise
            self._room *= 2  # the store is written to all the time; what is in memory goes on serving
            return
        base = Base(file)
        self._watching.rebase(base, missed=missed)
        self._file.close()
        self._file = file
        self._room = max(KEPT, sum(len(ids) for ids in base.order.values()))
        if missed:
            self._catch_up()

    def _arrows(self) -> Mapping[str, tuple[PhaseEdge, ...]]:
        """The state diagrams of the code that is installed; read again when another is."""
        installed = self._harness.registry.installed
        ready = {name: found for name, found in installed.items() if isinstance(found, TaskDefinition)}
        key = frozenset((name, id(found)) for name, found in ready.items())
        if self._edges is None or self._edges[0] != key:
            models = tuple(self._harness.shop.models.values())
            self._edges = key, edges_of(Program(tasks=tuple(found.first for found in ready.values()), models=models))
        return self._edges[1]

    def _why(self, over: Closed | None) -> str:
        if over is not None:
            return "the store is not open any more"
        return f"it is alive: watched, not walked; %pi lab {self._path} walks the recovery of a copy"

    def entries(self, conversation: int, start: int, count: int) -> Entries:
        """Another window of a transcript as it is now; at most 200 entries. Later scenes show that conversation."""
        self._catch_up()
        self._looked = conversation
        return self._watching.entries(conversation, start, min(count, 200))

    def text(self, of: Of, start: int, count: int) -> Passage:
        """A page of a text that is shown cut, as it is now. Raises NothingThere."""
        self._catch_up()
        return passage(self._watching.text(of), start, count)

    def find(self, of: Of, what: str, start: int) -> int | None:
        """Where `what` stands next in such a text, from `start`; None where it does not. Raises NothingThere."""
        self._catch_up()
        return found_in(self._watching.text(of), what, start)

    def graph(self) -> Graph:
        """All tasks as a picture, as they are now."""
        self._catch_up()
        return self._watching.graph()

    def task(self, id: int) -> Task:
        """One task as it is now, whether the scene lists it or not. Raises NothingThere."""
        self._catch_up()
        return self._watching.task(id)

    def points(self) -> tuple[PointRow, ...]:
        """None: what lives is not made to die."""
        return ()

    def next(self) -> Scene:
        """Raises: CannotDo, always."""
        self._refuse()

    def back(self) -> Scene:
        """Raises: CannotDo, always."""
        self._refuse()

    def goto(self, position: int) -> Scene:
        """The one position. Raises: CannotDo for any other."""
        if position:
            self._refuse()
        return self.scene()

    def finish(self) -> Scene:
        """Raises: CannotDo, always."""
        self._refuse()

    def choose(self, option: str) -> Scene:
        """Raises: CannotDo, always."""
        self._refuse()

    def run(self, points: Sequence[str], kind: str) -> Scene:
        """Raises: CannotDo, always."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise CannotDo(f"there are no steps here: {self._why(self._over)}")

    def close(self) -> None:
        """Hear nothing any more, and drop the copy. The store stays open. Idempotent."""
        self._leave()
        self._file.close()

    def _leave(self) -> None:
        async def leave() -> None:
            self._dispose()
            self._dispose = lambda: None

        with contextlib.suppress(HostEnded):
            self._host.submit(leave())


def _words(over: Closed | None) -> str | None:
    if over is None:
        return None
    if over.error is not None:
        return f"The storage failed, and the store was closed: {over.error}. %pi open it again."
    return "This store was closed. What it showed last stays; %pi open it again, then %pi lab."
