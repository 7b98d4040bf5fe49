"""Owns the thread that runs a lab's calls: one at a time, in the order in which somebody asked, each answered once.

A message comes from a page and is as foreign as any text: what does not fit is answered with an error. Never renders,
and never knows a widget: what it has to say goes through two functions.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, TypeVar

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.scene.parts import as_json
from pidurable_nb.notebook.labview.pace import Pace
from pidurable_nb.notebook.labview.questions import BadMessage, number_of, sought_in, text_in, word_of
from pidurable_nb.store.visible import visible

if TYPE_CHECKING:
    from pidurable_nb.lab.scene.scene import Scene
    from pidurable_nb.lab.scene.source import SceneSource

V = TypeVar("V")
MOST_ENTRIES: Final = 500
"""Entries that one message may ask for."""
MOST_POINTS: Final = 9
READS: Final = ("entries", "text", "find", "graph", "task")
"""What changes nothing, and is answered by itself."""
CLOSE_S: Final = 10.0
"""How long somebody who closes a lab waits for the step that it is in."""


class Worker:
    """Runs a source. `show` gets each new scene, `say` each answer; both are called on the worker's thread.

    The source is made there too, within what its effects need around them, and closed there. When a `pace` says that
    there is news, a scene is shown that nobody asked for.
    """

    def __init__(
        self,
        make: Callable[[], SceneSource],
        within: AbstractContextManager[object],
        *,
        show: Callable[[Scene], None],
        say: Callable[[JsonObject], None],
        pace: Pace | None = None,
    ) -> None:
        self._show = show
        self._say = say
        self._calls: queue.SimpleQueue[Callable[[SceneSource], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._waiting = 0
        self._lock = threading.Lock()
        self._made: Future[None] = Future()
        self._pace = pace if pace is not None else Pace()
        self._pace.rings(lambda: self._calls.put(_look))
        self._thread = threading.Thread(target=self._run, args=(make, within), name="pidurable-lab", daemon=True)
        self._thread.start()

    # -- from any thread ---------------------------------------------------------------------------------------------

    def hear(self, message: object) -> None:
        """Take a message of a page. Returns at once; a greeting is answered before that, however much is waiting."""
        if not isinstance(message, Mapping):
            return
        id = message.get("id")
        answer: JsonObject = {"id": id} if isinstance(id, int) else {}
        if self._closed:
            self._say({**answer, "error": "this lab was closed: run %pi lab again"})
        elif message.get("do") == "hello":
            self._say({**answer, "ok": True})
        else:
            with self._lock:
                self._waiting += 1
            self._calls.put(lambda source: self._answer(source, message, answer))

    def call(self, what: Callable[[SceneSource], V]) -> V:
        """Run a call of the source behind all that is waiting, and give what it gives. Raises what it raises.

        Where the source could not be made, it raises what making it raised.
        """
        self._made.result()
        done: Future[V] = Future()

        def run(source: SceneSource) -> None:
            try:
                done.set_result(what(source))
            except BaseException as error:  # whoever called is told, and this thread lives on
                done.set_exception(error)

        self._calls.put(run)
        return done.result()

    def close(self) -> None:
        """End the thread behind what is running, and close the source on it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    # -- on the thread -----------------------------------------------------------------------------------------------

    def _run(self, make: Callable[[], SceneSource], within: AbstractContextManager[object]) -> None:
        with within:
            try:
                source = make()
            except BaseException as error:  # whoever began the lab is told
                self._made.set_exception(error)
                return
            self._made.set_result(None)
            try:
                while (call := self._next()) is not None:
                    call(source)
            finally:
                source.close()

    def _next(self) -> Callable[[SceneSource], None] | None:
        """What is to be done next: show the news when it is due, else what was asked for. None: the end."""
        while True:
            due_s = self._pace.due_s()
            if due_s is not None and due_s <= 0:
                return self._look_again
            try:
                return self._calls.get(timeout=due_s)
            except queue.Empty:
                continue

    def _look_again(self, source: SceneSource) -> None:
        try:
            with self._pace.picture():
                self._show(source.scene())
        except Exception as error:
            self._say({"error": said(error)})

    def _answer(self, source: SceneSource, message: Mapping[object, object], answer: JsonObject) -> None:
        try:
            found = _read(source, message)
            if found is None:
                self._say({"busy": True})
                self._show(_press(source, message))
                found = {"ok": True}
        except Exception as error:
            found = {"error": said(error)}
        with self._lock:
            self._waiting -= 1
            idle = not self._waiting
        self._say({**answer, **found})
        if idle and message.get("do") not in READS:
            self._say({"busy": False})


def _look(source: SceneSource) -> None:
    """Nothing is to be done, but there is news: see when it is due."""


def _read(source: SceneSource, message: Mapping[object, object]) -> JsonObject | None:
    """The answer to a question that changes nothing; None for a press."""
    match message.get("do"):
        case "entries":
            return {"entries": _entries(source, message)}
        case "text":
            start, count = number_of(message, "start"), number_of(message, "count")
            return {"text": source.text(text_in(message), start, count).to_json()}
        case "find":
            return {"found": source.find(text_in(message), sought_in(message), number_of(message, "from"))}
        case "graph":
            return {"graph": source.graph().to_json()}
        case "task":
            return {"task": as_json(source.task(number_of(message, "task")))}
        case _:
            return None


def _entries(source: SceneSource, message: Mapping[object, object]) -> Json:
    conversation, start, count = (number_of(message, name) for name in ("conversation", "start", "count"))
    return source.entries(conversation, max(0, start), max(0, min(count, MOST_ENTRIES))).to_json()


def _press(source: SceneSource, message: Mapping[object, object]) -> Scene:
    match message.get("do"):
        case "next":
            return source.next()
        case "back":
            return source.back()
        case "finish":
            return source.finish()
        case "goto":
            return source.goto(number_of(message, "position"))
        case "choose":
            return source.choose(word_of(message.get("option"), "option"))
        case "run":
            points = message.get("points")
            if not isinstance(points, list) or not 0 < len(points) <= MOST_POINTS:
                raise BadMessage(f"points: 1 to {MOST_POINTS} names of points are needed, not {points!r:.60}")
            return source.run([word_of(one, "points") for one in points], word_of(message.get("kind"), "kind"))
        case other:
            raise BadMessage(f"do: {other!r:.60} is nothing that a lab does")


def said(error: Exception) -> str:
    """An error in one line; one of another package is named."""
    text = visible(" ".join(str(error).split()))
    return text if isinstance(error, PidurableError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
