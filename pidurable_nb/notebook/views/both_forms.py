"""Owns showing a live view beside its saved form: two outputs of one cell, of which a page of Jupyter shows one.

A page that has a widget's view but not its kernel shows an error and no other form of the same output (JupyterLab and
Notebook prefer the widget to markup), so the saved form is an output of its own. Never makes a widget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data

from pidurable_nb.notebook.views.comforts import Comfort, have

LIVE: Final = "application/vnd.jupyter.widget-view+json"
_OUTPUT: Final = ".jp-OutputArea-child"


def need_page() -> None:
    """Raise NotImplementedError where no widget can live: in a terminal, and without its package, which is said then.

    IPython goes on to the saved forms, and shows those alone.
    """
    if getattr(get_ipython(), "kernel", None) is None or not have(Comfort.LIVE):
        raise NotImplementedError("no page will hear of a widget here")


def publish_both(view: object, saved: Mapping[str, str], *, live: str) -> None:
    """Show the widget's `view`, and behind it the `saved` forms; `live` is the class of the widget's own element.

    Where the page knows no `:has`, or arranges its outputs in another way, both are seen.
    """
    publish_display_data({LIVE: view, "text/plain": ""})  # nothing in an export, which otherwise warns of it
    markup = f'{_one_of_two(live)}<div class="{live}-saved">{saved["text/html"]}</div>'
    publish_display_data({**saved, "text/html": markup})


def _one_of_two(live: str) -> str:
    """The saved form gives way to the live one before it, and where there is none, so does Jupyter's word about it."""
    lives = f"{_OUTPUT}:has(.{live})"
    without = f"{_OUTPUT}:not(:has(.{live},[data-mime-type]:not([data-mime-type='{LIVE}'])))"  # unnamed while it waits
    return (
        f"<style>{lives}+{_OUTPUT}:has(.{live}-saved),{without}:has(+{_OUTPUT} .{live}-saved){{display:none}}</style>"
    )
