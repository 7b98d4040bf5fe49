"""Owns the live form of a prediction: the widget, its one trait, and the messages between page and kernel.

Callbacks only submit work: the answer is stored on the host's thread, and whoever stored it says so here. Never knows
what is right before it was revealed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import anywidget
import traitlets
from IPython.core.error import UsageError

HERE: Final = Path(__file__).parent
Done = Callable[[str | None], None]
"""Called when the answer is stored, or with the sentence why it is not."""
Lock = Callable[[int, float, Done], None]


class PredictWidget(anywidget.AnyWidget):
    """Radio group, confidence and lock. `state` is what `forms.page_of` gives; the page changes nothing in it."""

    _esm = HERE / "predict.js"
    _css = HERE / "predict.css"
    state = traitlets.Dict().tag(sync=True)

    def __init__(self, state: dict[str, object], lock: Lock) -> None:
        self._lock = lock
        super().__init__(state=state)
        self.on_msg(self._heard)

    def _heard(self, widget: object, content: object, buffers: object) -> None:
        match content:
            case {"do": "hello", "id": int(id)}:
                self.send({"id": id, "ok": True})
            case {"do": "lock", "id": int(id), "choice": int(choice), "confidence": int() | float() as confidence}:

                def done(error: str | None) -> None:
                    self.send({"id": id, "ok": True} if error is None else {"id": id, "error": error})

                try:
                    self._lock(choice, confidence / 100, done)
                except UsageError as refused:
                    done(str(refused))
            case _:
                pass  # an older page, or none of ours

    def shown(self) -> dict[str, object]:
        """What a cell's output holds of it."""
        return {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
