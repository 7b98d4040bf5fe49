"""Owns the Lab view as a notebook shows it: the widget while there is a kernel, beside the saved forms that need none.

Every call of the source runs on the view's own thread, so a press never waits for a cell. Never decides a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anywidget
import traitlets

from pidurable_nb.ids import JsonObject
from pidurable_nb.notebook.both_forms import LIVE, publish_both
from pidurable_nb.notebook.bundle import bundle
from pidurable_nb.notebook.labview.pace import Pace
from pidurable_nb.notebook.labview.plain import plain
from pidurable_nb.notebook.labview.static_form import static_form
from pidurable_nb.notebook.labview.worker import Worker
from pidurable_nb.notebook.markup import View, cut

if TYPE_CHECKING:
    from pidurable_nb.lab.scene.scene import Scene
    from pidurable_nb.lab.scene.source import SceneSource

_PAGE = Path(__file__).parent / "page"


class LabWidget(anywidget.AnyWidget):
    """What the page shows: the scene, and messages both ways."""

    _esm = bundle(_PAGE / "lab.js")
    _css = _PAGE / "lab.css"
    scene = traitlets.Dict().tag(sync=True)


class LabView(View):
    """A lab: step through a recovery, choose at its effects, crash it again. `scene` is what it shows now.

    Raises what the source raises when it is asked for its first scene.
    """

    scene: Scene

    def __init__(self, source: SceneSource) -> None:
        self._begin(lambda: source, contextlib.nullcontext())

    @classmethod
    def making(
        cls,
        make: Callable[[], SceneSource],
        within: contextlib.AbstractContextManager[object] | None = None,
    ) -> Self:
        """A lab whose source is made on its own thread, where no event loop runs, `within` what its effects need."""
        view = cls.__new__(cls)
        view._begin(make, within if within is not None else contextlib.nullcontext())
        return view

    @classmethod
    def watching(cls, make: Callable[[Callable[[], None]], SceneSource], pace: Pace | None = None) -> Self:
        """A lab that shows by itself what changed: its source calls what it is made with when there is news."""
        news = pace if pace is not None else Pace()
        view = cls.__new__(cls)
        view._begin(lambda: make(news.stir), contextlib.nullcontext(), news)
        return view

    def _begin(
        self,
        make: Callable[[], SceneSource],
        within: contextlib.AbstractContextManager[object],
        pace: Pace | None = None,
    ) -> None:
        self._widget: LabWidget | None = None
        self._worker = Worker(make, within, show=self._show, say=self._say, pace=pace)
        try:
            self._worker.call(lambda source: self._show(source.scene()))
        except BaseException:
            self._worker.close()
            raise

    @property
    def label(self) -> str:
        return f"Lab: {cut(self.scene.store)}"

    @property
    def widget(self) -> LabWidget:
        """The live form, made when it is first shown."""
        if self._widget is None:
            self._widget = LabWidget(scene=dict(self.scene.to_json()))
            self._widget.on_msg(self._hear)
        return self._widget

    def html(self) -> str:
        return static_form(self.scene)

    def text(self) -> str:
        return plain(self.scene)

    def close(self) -> None:
        """End the lab: its thread, its copies, its children. What is shown stays. Idempotent."""
        self._worker.close()

    def _repr_mimebundle_(  # type: ignore[override]  # a widget's part of a bundle is no text
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, object]:
        saved = super()._repr_mimebundle_(include, exclude)
        return {**self._live(), **saved}

    def _ipython_display_(self) -> None:
        """Two outputs, of which one is seen: a page that lacks a widget's kernel shows no other form of its output."""
        publish_both(self._live()[LIVE], super()._repr_mimebundle_(), live="pi-lab")

    def _live(self) -> dict[str, object]:
        live, _ = self.widget._repr_mimebundle_() or ({}, {})
        return dict(live)

    # -- the page ----------------------------------------------------------------------------------------------------

    def _hear(self, widget: object, message: object, buffers: object) -> None:
        self._worker.hear(message)

    def _show(self, scene: Scene) -> None:
        self.scene = scene
        if self._widget is not None:
            self._widget.scene = dict(scene.to_json())

    def _say(self, message: JsonObject) -> None:
        if self._widget is not None:
            self._widget.send(message)
