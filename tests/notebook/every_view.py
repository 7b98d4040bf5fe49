"""The cells of a notebook that shows every kind of view, and what each of them says. Tests nothing itself.

Run anywhere: in a kernel whose notebook is exported, and in a terminal. Each fact stands in the markup and in the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

CODE: Final = '''
from pidurable_nb import Done, Input, Phase, Runtime, tool
from pidurable_nb.models import CallTools, Say, Scripted, call
from pidurable_nb.study import predict

class Tick(Phase[str], task="ticker", version=1):
    n: int
    to: Input[int]

    async def run(self, rt: Runtime) -> "Tick | Done[str]":
        await rt.memo(f"printed-{self.n}", True)
        async with rt.commit() as tx:
            return tx.become(Done("counted") if self.n == self.to else Tick(self.n + 1, self.to))

@tool(replay="safe")
async def look(order: str) -> str:
    """Look an order up."""
    return f"{order} was paid"

def answer(request):
    asked = request.messages[-1]["role"] == "user"
    return CallTools(call("look", order="A-17")) if asked else Say("It was paid on Monday.")

model = Scripted.by(answer)
'''


@dataclass(frozen=True, slots=True)
class Shown:
    """A cell, and facts that anybody sees below it, whatever shows them."""

    cell: str
    facts: tuple[str, ...] = ()


EVERY_VIEW: Final = (
    Shown("%load_ext pidurable_nb" + CODE),
    Shown("%pi new a.sqlite"),
    Shown("task = %pi start --wait Tick(1, 3)"),
    Shown("%pi status", ("durability barrier", "live: nothing; ended: 1", "models: scripted/teacher")),
    Shown("%pi tasks", ("ticker", "terminal", "completed")),
    Shown("%pi task 7", (
        "ticker 1, in conversation 1", '{"completed":"counted"}', "● terminal|<- here, terminal",
    )),
    Shown("%%pi ask\nWas order A-17 paid?\n", ('look(order="A-17")', "A-17 was paid", "It was paid on Monday.")),
    Shown("%pi transcript", ("Was order A-17 paid?", "offers look", "It was paid on Monday.", "pi.tool-result")),
    Shown("%pi entry 16", ("It was paid on Monday.", "as it is stored", '"kind": "pi.assistant"')),
    Shown("%pi submissions", ("Was order A-17 paid?", "entry 8, answer 16")),
    Shown("%pi inbox", ("nothing waits",)),
    Shown("%pi usage", ("scripted/teacher", "tokens")),
    Shown("%pi agent", ("Agent of conversation 1|scripted/teacher", "look", "the first; none was chosen")),
    Shown("fork = %pi fork 12\n%pi forks", ("1 behind 12", "visible entries")),
    Shown("%pi tree", ("ticker", "completed")),
    Shown("%pi memos", ("none is kept",)),
    Shown("%pi points two-orders", ("act-first#1/actFirst:effect.after", "mail Ada", "M3 E6")),
    Shown("%pi crash ticker", ("Frozen", "ticker#1/tick:effect.after@3", "after|43 points")),
    Shown("%pi why", ("RERUN|rerun", "It runs again from its last checkpoint", "T7 T3 M3|T7")),
    Shown("%pi step", (
        "What ran when it died is pending again, and counted.", "restarts: 1 is new|restarts", "RECONCILE|reconcile",
    )),
    Shown("%pi recover", ("everything was as predicted", "print tick 4")),
    Shown("%pi kill ticker", ("Killed by SIGKILL", "tick 1 / tick 2 / tick 3|tick 3")),
    Shown("swept = %pi sweep --processes 1 two-orders\nswept", (
        "happened twice", "36 points", "as promised", "%pi witness 1",
    )),
    Shown("%pi witness 1", ("before anything recovered it", "mail Ada")),
    Shown("refund = %pi lab refund\nrefund", (
        "frozen at pi.tool#1/execute:effect.after", "The process dies after refund was done",
        "My order A-1017 arrived broken", "ticket-77", "asked 1, applied 1", "C2 T7|C2",
    )),
    Shown(
        'told = predict("N1/screen", "Is it stored?", ["yes", "no"], belief="W5", choose=1, confidence=0.9)\ntold',
        ("Is it stored?", "Locked: yes, at 90 %"),
    ),
    Shown('told.reveal("no", "Its commit had not returned.")', ("differs", "Its commit had not returned.")),
    Shown("%pi study", ("Brier score 0.81", "N1/screen", "what was on the screen is stored")),
    Shown("%pi close"),
)  # fmt: skip
"""A bar in a fact parts two ways of saying it, of which one has to be there: a picture and its text differ in signs."""


def missing(shown: Shown, text: str) -> list[str]:
    """The facts of a cell that are not in a text."""
    return [fact for fact in shown.facts if not any(word in text for word in fact.split("|"))]


def every_view_run(folder: Path) -> nbformat.NotebookNode:
    """A notebook of these cells with its outputs, run once in an empty folder and away from the user's own."""
    cells = [nbformat.v4.new_code_cell(shown.cell) for shown in EVERY_VIEW]  # type: ignore[no-untyped-call]  # untyped
    notebook: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    own = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "run", "IPYTHONDIR": "ip"}
    (folder / "own").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**own, "PIDURABLE_NB_STUDY": "study.sqlite"}.items():
            patch.setenv(name, str(folder / "own" / value))
        patch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        NotebookClient(
            notebook, timeout=100, kernel_name="python3", store_widget_state=False,
            resources={"metadata": {"path": str(folder)}},
        ).execute()  # fmt: skip
    return notebook


def exported(notebook: nbformat.NotebookNode) -> str:
    """What nbconvert makes of it, as it does that for everybody."""
    page: str = HTMLExporter().from_notebook_node(notebook)[0]  # type: ignore[no-untyped-call]  # untyped
    return page
