"""Owns the Lab view as a notebook shows it: the widget while there is a kernel, beside the saved forms that need none.

Every call of the source runs on the view's own thread, so a press never waits for a cell. Never decides a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Self, TypeVar

from pidurable_nb.ids import JsonObject
from pidurable_nb.notebook.labview.pace import Pace
from pidurable_nb.notebook.labview.part import Part, part_of
from pidurable_nb.notebook.labview.plain import plain
from pidurable_nb.notebook.labview.static_form import static_form
from pidurable_nb.notebook.labview.worker import Worker
from pidurable_nb.notebook.views.both_forms import LIVE, need_page, publish_both
from pidurable_nb.notebook.views.comforts import Comfort, is_here
from pidurable_nb.notebook.views.markup import View, cut

if TYPE_CHECKING:
    from pidurable_nb.lab.scene.scene import Scene
    from pidurable_nb.lab.scene.source import SceneSource
    from pidurable_nb.notebook.labview.widget import LabWidget

V = TypeVar("V")


class _Lab:
    """What every view of one lab shares: the source on its thread, the scene that it gave last, and the pages."""

    scene: Scene

    def __init__(
        self,
        make: Callable[[], SceneSource],
        within: contextlib.AbstractContextManager[object],
        pace: Pace | None = None,
    ) -> None:
        self._pages: list[LabWidget] = []
        self.worker = Worker(make, within, show=self._show, say=self._say, pace=pace)
        try:
            self.worker.call(lambda source: self._show(source.scene()))
        except BaseException:
            self.worker.close()
            raise

    def page(self, parts: tuple[Part, ...]) -> LabWidget:
        """One more page for these parts."""
        from pidurable_nb.notebook.labview.widget import LabWidget  # widgets load when one is shown

        made = LabWidget(scene=dict(self.scene.to_json()), parts=list(parts))
        made.on_msg(self._hear)
        self._pages.append(made)
        return made

    def _hear(self, widget: object, message: object, buffers: object) -> None:
        self.worker.hear(message)

    def _show(self, scene: Scene) -> None:
        self.scene = scene
        told = dict(scene.to_json()) if self._pages else {}
        for page in self._pages:
            page.scene = told

    def _say(self, message: JsonObject) -> None:
        for page in self._pages:  # each knows by its number which answer is its own
            page.send(message)


class LabView(View):
    """A lab: step through a recovery, choose at its effects, crash it again. `scene` is what it shows now.

    `parts` is what is seen of it; none means all. Raises what the source raises when it is asked for its first scene.
    """

    _lab: _Lab
    parts: tuple[Part, ...] = ()

    def __init__(self, source: SceneSource) -> None:
        self._begin(_Lab(lambda: source, contextlib.nullcontext()))

    @classmethod
    def making(
        cls,
        make: Callable[[], SceneSource],
        within: contextlib.AbstractContextManager[object] | None = None,
    ) -> Self:
        """A lab whose source is made on its own thread, where no event loop runs, `within` what its effects need."""
        view = cls.__new__(cls)
        view._begin(_Lab(make, within if within is not None else contextlib.nullcontext()))
        return view

    @classmethod
    def watching(cls, make: Callable[[Callable[[], None]], SceneSource], pace: Pace | None = None) -> Self:
        """A lab that shows by itself what changed: its source calls what it is made with when there is news."""
        news = pace if pace is not None else Pace()
        view = cls.__new__(cls)
        view._begin(_Lab(lambda: make(news.stir), contextlib.nullcontext(), news))
        return view

    def _begin(self, lab: _Lab) -> None:
        self._lab = lab
        self._widget: LabWidget | None = None

    def only(self, *parts: str) -> Self:
        """These parts of this very lab, as a view of their own: a step in one is a step in all.

        Raises: NoSuchPart.
        """
        view = type(self).__new__(type(self))
        view._begin(self._lab)
        view.parts = tuple(part_of(part) for part in parts)
        return view

    @property
    def scene(self) -> Scene:
        """What is shown now."""
        return self._lab.scene

    def ask(self, call: Callable[[SceneSource], V]) -> V:
        """What the source answers, asked on its own thread, between two presses."""
        return self._lab.worker.call(call)

    @property
    def label(self) -> str:
        return f"Lab: {cut(self.scene.store)}" + (f", {' and '.join(self.parts)}" if self.parts else "")

    @property
    def widget(self) -> LabWidget:
        """The live form, made when it is first shown."""
        if self._widget is None:
            self._widget = self._lab.page(self.parts)
        return self._widget

    def html(self) -> str:
        return static_form(self.scene, self.parts)

    def text(self) -> str:
        return plain(self.scene, self.parts)

    def close(self) -> None:
        """End the lab, whatever shows it: its thread, its copies, its children. What is shown stays. Idempotent."""
        self._lab.worker.close()

    def _repr_mimebundle_(  # type: ignore[override]  # a widget's part of a bundle is no text
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, object]:
        saved = super()._repr_mimebundle_(include, exclude)
        return {**self._live(), **saved}

    def _ipython_display_(self) -> None:
        """Two outputs, of which one is seen: a page that lacks a widget's kernel shows no other form of its output."""
        need_page()
        publish_both(self._live()[LIVE], super()._repr_mimebundle_(), live="pi-lab")

    def _live(self) -> dict[str, object]:
        if not is_here(Comfort.LIVE):
            return {}
        live, _ = self.widget._repr_mimebundle_() or ({}, {})
        return dict(live)
