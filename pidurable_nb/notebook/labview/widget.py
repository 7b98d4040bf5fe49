"""Owns the live form of a lab: the widget, its traits, and messages both ways. Never knows what a message means."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import anywidget
import traitlets

from pidurable_nb.notebook.views.bundle import bundle

_PAGE: Final = Path(__file__).parent / "page"


def _as_it_is(value: object, widget: object) -> object:
    """A scene is JSON already: nobody has to look through all of it for widgets, at each step."""
    return value


class LabWidget(anywidget.AnyWidget):
    """What the page shows: the scene, or of it only some `parts`, and messages both ways."""

    _esm = bundle(_PAGE / "lab.js")
    _css = _PAGE / "lab.css"
    scene = traitlets.Dict().tag(sync=True, to_json=_as_it_is)
    parts: traitlets.List[str] = traitlets.List().tag(sync=True)
