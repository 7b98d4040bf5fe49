"""Owns where scenes come from: a store file that is walked on a copy, or a scenario that is run until it dies.

The store that was given, and its folder, stay as they are to the byte. Never renders a scene and knows no notebook.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from pidurable_nb.agent.stored.recovery import TOOL
from pidurable_nb.errors import PidurableError
from pidurable_nb.lab.code import Loaded
from pidurable_nb.lab.dying.crash import Passed
from pidurable_nb.lab.dying.forkserver import ForkServer
from pidurable_nb.lab.dying.point import Point, TaskPlace
from pidurable_nb.lab.dying.run import fork_server
from pidurable_nb.lab.outside.bank import ADDRESS
from pidurable_nb.lab.scenario import Scenario, around
from pidurable_nb.lab.scene.graph import Graph
from pidurable_nb.lab.scene.lives import Life, live, points_of
from pidurable_nb.lab.scene.parts import Entries, Task, short
from pidurable_nb.lab.scene.reading import Of, Passage, found_in, passage
from pidurable_nb.lab.scene.scene import PointRow, Scene
from pidurable_nb.lab.scene.stage import Origin, Stage, edges_of, origin_of_file, origin_of_lives
from pidurable_nb.lab.scene.taken import CHOSEN
from pidurable_nb.lab.scene.walk import Walking
from pidurable_nb.lab.scene.words import place_words
from pidurable_nb.lab.walking.recover import effects_before
from pidurable_nb.lab.walking.walk import just_run

MOST_LIVES: Final = 2


class NoScenario(PidurableError):
    """A store file cannot be made to die again: name a scenario for that."""


class CannotDo(PidurableError, ValueError):
    """What was asked for is not possible at this position; the message says why."""


class SceneSource(Protocol):
    """Where a view gets its scenes from. Everything blocks; call it from one thread at a time."""

    def scene(self) -> Scene:
        """The scene at this position."""
        ...

    def next(self) -> Scene:
        """Take one step; at the end nothing changes."""
        ...

    def back(self) -> Scene:
        """Take back the last step; before the first nothing changes."""
        ...

    def goto(self, position: int) -> Scene:
        """Go to that position, or to the end where that comes before."""
        ...

    def finish(self) -> Scene:
        """Take every step that is left."""
        ...

    def choose(self, option: str) -> Scene:
        """Take the last step once more with this option; later steps are discarded. Raises CannotDo."""
        ...

    def entries(self, conversation: int, start: int, count: int) -> Entries:
        """Another window of a transcript, at this position."""
        ...

    def text(self, of: Of, start: int, count: int) -> Passage:
        """A page of a text that is shown cut, at this position. Raises NothingThere."""
        ...

    def find(self, of: Of, what: str, start: int) -> int | None:
        """Where `what` stands next in such a text, from `start`; None where it does not. Raises NothingThere."""
        ...

    def graph(self) -> Graph:
        """All tasks as a picture, at this position."""
        ...

    def task(self, id: int) -> Task:
        """One task at this position, whether the scene lists it or not. Raises NothingThere."""
        ...

    def points(self) -> tuple[PointRow, ...]:
        """Where a scenario may be made to die."""
        ...

    def run(self, points: Sequence[str], kind: str) -> Scene:
        """Run the scenario until it dies there, a life for each point, and look at what is left."""
        ...

    def close(self) -> None:
        """Drop the walk and its copies. Idempotent."""
        ...


class _Staged:
    """What both sources share: the stage at hand, and moving on it."""

    _stage: Stage

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ready(self) -> None:
        """What has to be so before code runs."""

    def scene(self) -> Scene:
        """The scene at this position."""
        return self._stage.scene(self.points())

    def next(self) -> Scene:
        """Take one step; at the end nothing changes."""
        self._ready()
        self._stage.walking.next()
        return self.scene()

    def back(self) -> Scene:
        """Take back the last step; before the first nothing changes."""
        return self.goto(self._stage.walking.position - 1)

    def goto(self, position: int) -> Scene:
        """Go to that position, or to the end where that comes before."""
        self._ready()
        walking = self._stage.walking
        walking.back_to(max(position, 0))
        while walking.position < position and walking.next():
            pass
        return self.scene()

    def finish(self) -> Scene:
        """Take every step that is left."""
        self._ready()
        while self._stage.walking.next():
            pass
        return self.scene()

    def choose(self, option: str) -> Scene:
        """Take the last step once more with this option; later steps are discarded. Raises CannotDo.

        At a lens nothing runs and nothing is discarded: only what is supposed of the world changes.
        """
        shown = self.scene().step.choice
        if shown is None:
            raise CannotDo("there is nothing to choose at this step")
        found = next((one for one in shown.options if one.id == option), None)
        if found is None:
            raise CannotDo(f"no option is called {option!r}; there are {', '.join(one.id for one in shown.options)}")
        if found.disabled is not None:
            raise CannotDo(f"{found.label} is not possible: {found.disabled}")
        if shown.kind == "lens":
            self._stage.suppose(option == "happened")
        else:
            self._ready()
            self._stage.walking.choose(CHOSEN[option])
        return self.scene()

    def entries(self, conversation: int, start: int, count: int) -> Entries:
        """Another window of a transcript, at this position; at most 200 entries."""
        return self._stage.entries(conversation, start, min(count, 200))

    def text(self, of: Of, start: int, count: int) -> Passage:
        """A page of a text that is shown cut, at this position. Raises NothingThere."""
        return passage(self._stage.text(of), start, count)

    def find(self, of: Of, what: str, start: int) -> int | None:
        """Where `what` stands next in such a text, from `start`; None where it does not. Raises NothingThere."""
        return found_in(self._stage.text(of), what, start)

    def graph(self) -> Graph:
        """All tasks as a picture, at this position."""
        return self._stage.graph()

    def task(self, id: int) -> Task:
        """One task at this position, whether the scene lists it or not. Raises NothingThere."""
        return self._stage.task(id)

    def points(self) -> tuple[PointRow, ...]:
        """Where a scenario may be made to die; none for a file."""
        return ()

    def close(self) -> None:
        """Drop the walk and its copies. Idempotent."""
        self._stage.close()


class StoreSource(_Staged):
    """A store file, of this package or of another, walked on a copy with the code that is given, or without any.

    Naming code is telling that its effects may be run. `ledger`, which is only read, says what was asked before.
    Raises: StoreRefused and its kinds.
    """

    def __init__(
        self, store: Path, *, code: Loaded | None = None, ledger: Path | None = None, now_ms: int | None = None
    ) -> None:
        loaded = code if code is not None else Loaded(name="")
        before = effects_before(ledger) if ledger is not None else None
        walking = Walking(
            store, program=loaded.program, edges=edges_of(loaded.program), now_ms=now_ms,
            perform=loaded.world.perform if loaded.world is not None else just_run,
            before=before,
        )  # fmt: skip
        self._stage = Stage(walking, origin_of_file(store.name, walking, before))

    def run(self, points: Sequence[str], kind: str) -> Scene:
        """Raises: NoScenario, always."""
        raise NoScenario("this is a store file, which nobody here can run: name a scenario to make one die")


class ScenarioSource(_Staged):
    """A scenario that is run and dies: where `points` say, else where it is killed in a demonstration.

    Its effects go to a world of its own; a bank is open as long as this is.
    Raises: DidNotDie, and what the scenario itself raises.
    """

    def __init__(self, scenario: Scenario, *, points: Sequence[str] | None = None, kind: str = "freeze") -> None:
        self.scenario = scenario
        self._stack = ExitStack()
        self._runs = 0
        self._staged = False
        self._armed: tuple[str, ...] = ()
        self._server: ForkServer | None = None
        try:
            self._folder = Path(self._stack.enter_context(_temporary()))
            self._bank = self._stack.enter_context(around(scenario))
            if kind == "kill":
                self._fork_server()  # it gets ready while the points are looked for
            self._first = self._rows(points_of(scenario, self._new_folder()), None)
            self._second: tuple[PointRow, ...] = ()
            self.run(points if points is not None else self._usual(), kind)
        except BaseException:
            self.close()
            raise

    def run(self, points: Sequence[str], kind: str) -> Scene:
        """Run the scenario until it dies at the first point, then the next life until the second, and look at it."""
        if not 1 <= len(points) <= MOST_LIVES:
            raise CannotDo(f"name one point, or two for two lives; {len(points)} were named")
        if kind not in ("freeze", "kill"):
            raise CannotDo(f"a life dies by freeze or kill, not by {kind!r}")
        if kind == "kill" and self.scenario.module == "__main__":
            raise CannotDo("no child process can import the code of a cell; freeze it")
        self._ready()
        parsed = [Point.parse(point) for point in points]
        folder = self._new_folder()
        lives = live(self.scenario, parsed, folder, self._fork_server() if kind == "kill" else None)
        second = points_of(self.scenario, self._new_folder(), lives[0], folder / "1" / "effects.jsonl")
        staged = self._on_stage(lives, folder / "ledger.jsonl")
        if self._staged:
            self._stage.close()
        self._stage, self._staged = staged, True
        self._armed = tuple(str(replace(point, life=number)) for number, point in enumerate(parsed, 1))
        self._second = self._rows(second, lives[0])
        return self.scene()

    def points(self) -> tuple[PointRow, ...]:
        """The points of a first life, then those of a second one behind the first crash."""
        return tuple(replace(row, armed=row.point in self._armed) for row in (*self._first, *self._second))

    def close(self) -> None:
        """Drop the walk, its copies and the bank. Idempotent."""
        if self._staged:
            self._stage.close()
        self._stack.close()

    def _ready(self) -> None:
        """Code finds its bank by the environment, where another laboratory may have put its own."""
        if self._bank is not None:
            os.environ[ADDRESS] = self._bank.address

    def _fork_server(self) -> ForkServer:
        """One for all the runs: starting it is what takes time."""
        if self._server is None:
            self._server = fork_server()
            self._stack.callback(self._server.close)
            self._server.begin()
        return self._server

    def _usual(self) -> Sequence[str]:
        if self.scenario.kill_point is not None:
            return [self.scenario.kill_point]
        return [next(row.point for row in reversed(self._first))]

    def _on_stage(self, lives: Sequence[Life], ledger: Path) -> Stage:
        program = self.scenario.program()
        copied = self._new_folder() / "effects.jsonl"
        copied.write_bytes(ledger.read_bytes() if ledger.exists() else b"")
        earlier = frozenset((effect.task, effect.name) for life in lives for effect in life.effects)
        walking = Walking(
            lives[-1].store, program=program, edges=edges_of(program), now_ms=lives[-1].ended_ms + 1000,
            ledger=copied, life=len(lives) + 1, earlier=earlier,
        )  # fmt: skip
        origin: Origin = origin_of_lives(self.scenario.name, lives, walking, copied)
        return Stage(walking, origin)

    def _rows(self, passed: Sequence[Passed], dead: Life | None) -> tuple[PointRow, ...]:
        named = _Named(passed)
        kinds = ("freeze",) if self.scenario.module == "__main__" else ("freeze", "kill")
        return tuple(
            PointRow(
                point=str(one.point), text=place_words(one.point, named.who(one), _effect(one)), kinds=kinds,
                occurrence=one.point.n, armed=False,
            )
            for one in passed
            if one.point.what != "open" or dead is not None
        )  # fmt: skip

    def _new_folder(self) -> Path:
        self._runs += 1
        folder = self._folder / str(self._runs)
        folder.mkdir()
        return folder


class _Named:
    """How the tasks of a life are called: a call by its tool, an answer by its number, others by their kind."""

    def __init__(self, passed: Sequence[Passed]) -> None:
        self._tools: dict[tuple[str, int], str] = {}
        for one in passed:
            place, name = one.point.place, _effect(one)
            if isinstance(place, TaskPlace) and place.kind == TOOL and name is not None:
                self._tools.setdefault((place.kind, place.ordinal), name.partition("(")[0])

    def who(self, passed: Passed) -> str:
        """Whom a point is about."""
        place = passed.point.place
        if not isinstance(place, TaskPlace):
            return str(place).replace("#", " ")
        number = f" {place.ordinal}" if place.ordinal > 1 else ""
        match place.kind:
            case "pi.tool":
                return short(self._tools.get((place.kind, place.ordinal), f"tool call {place.ordinal}"), 60)
            case "pi.generation":
                return f"answer {place.ordinal}" + (f", {place.phase}" if place.phase != "request" else "")
            case kind:
                return f"{short(kind, 60)}{number}" + (f", {short(place.phase, 40)}" if place.phase else "")


def _effect(passed: Passed) -> str | None:
    """The name of the effect or the memo that a point is about."""
    if passed.point.what not in ("effect", "memo") or passed.mark is None or passed.mark.name is None:
        return None
    return short(passed.mark.name, 80)


def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pidurable_nb-lab-", ignore_cleanup_errors=True)
