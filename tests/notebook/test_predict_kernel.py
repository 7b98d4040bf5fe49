"""Predictions in real kernels: clicks on the widget, a kill between lock and reveal, and two kernels at one moment."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from pidurable_nb.ids import ROOT
from pidurable_nb.store.stranger import StoreFile

pytestmark = pytest.mark.slow

VIEW = "application/vnd.jupyter.widget-view+json"
ASK = """
%load_ext pidurable_nb
from pidurable_nb.study import predict
q = predict("N1/screen", "Is it stored?", ["yes", "no"], belief="W5")
"""


class Ran(Protocol):
    text: str
    error: str | None
    data: list[dict[str, dict[str, str]]]


class Client(Protocol):
    def execute(self, source: str) -> str: ...
    def get_iopub_msg(self, *, timeout: float) -> dict[str, object]: ...


class Kernel(Protocol):
    client: Client

    def run(self, source: str, *, fails: bool = ..., timeout_s: float = ...) -> Ran: ...
    def restart(self) -> None: ...
    def run_until_dead(self, source: str) -> str: ...
    def tell(self, model_id: str, content: dict[str, object]) -> None: ...


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner of one's own, for every kernel of the test."""
    path = tmp_path / "learner" / "study.sqlite"
    monkeypatch.setenv("PIDURABLE_NB_STUDY", str(path))
    return path


def shown(kernel: Kernel, source: str) -> str:
    """Show the widget; the name by which its page calls the kernel."""
    live, saved = kernel.run(source).data
    forms = [{form for form, shown in output.items() if shown} for output in (live, saved)]
    assert forms == [{VIEW}, {"text/html", "text/plain"}], "the saved form is an output of its own"
    return live[VIEW]["model_id"]


def kinds(path: Path) -> list[str]:
    with StoreFile.open(path) as file:
        return [entry.kind for entry in file.entries(ROOT)]


def test_s1_a_click_is_stored_before_the_next_cell_asks_for_it(kernel: Kernel, store: Path) -> None:
    model = shown(kernel, ASK + "q")
    assert "predict first" in (kernel.run("q.require()", fails=True).error or "")
    kernel.tell(model, {"do": "hello", "id": 1})
    kernel.tell(model, {"do": "lock", "id": 2, "choice": 2, "confidence": 85})
    assert kernel.run("print(q.require().predicted, q.locked.percent)").text == "no 85\n"
    kernel.tell(model, {"do": "lock", "id": 3, "choice": 1, "confidence": 50})
    assert kernel.run("print(q.require().predicted)").text == "no\n"
    told = kernel.run("print(q.widget().state['locked'], q.widget().state['said'])").text
    assert "'choice': 2" in told
    assert "The first answer stands; yes, at 50 %, is not stored." in told
    assert kinds(store) == ["study.prediction"]


def test_the_page_hears_its_answers_and_what_was_stored(kernel: Kernel) -> None:
    model = shown(kernel, ASK + "q")
    kernel.tell(model, {"do": "hello", "id": 11})
    kernel.tell(model, {"do": "lock", "id": 12, "choice": 2, "confidence": 85})
    kernel.tell(model, {"do": "lock", "id": 13, "choice": 9, "confidence": 85})
    heard: dict[object, object] = {}
    states: list[str] = []
    while len(heard) < 3:
        match kernel.client.get_iopub_msg(timeout=60)["content"]:
            case {"data": {"method": "custom", "content": {"id": id, "error": error}}}:
                heard[id] = error
            case {"data": {"method": "custom", "content": {"id": id}}}:
                heard[id] = len(states)
            case {"data": {"method": "update", "state": {"state": state}}}:
                states.append(str(state))
            case _:
                pass
    assert heard[11] == 0
    assert heard[12] == 1  # the state came before the answer
    assert "9 is no choice of N1/screen" in str(heard[13])
    assert "Locked: no, at 85 %" in states[0]


def test_what_a_page_sends_that_is_no_answer_stores_nothing(kernel: Kernel, store: Path) -> None:
    model = shown(kernel, ASK + "q")
    bad: list[dict[str, object]] = [
        {"do": "lock", "id": 1, "choice": 3, "confidence": 80},
        {"do": "lock", "id": 2, "choice": 1, "confidence": 30},
        {"do": "lock", "id": 3, "choice": "1", "confidence": 80},
        {"do": "lock"},
        {"do": "reveal", "id": 4},
    ]
    for message in bad:
        kernel.tell(model, message)
    assert kernel.run("print(q.locked)").text == "None\n"
    assert not store.exists()


def test_s1_a_kill_between_lock_and_reveal_leaves_one_answer(kernel: Kernel, store: Path) -> None:
    model = shown(kernel, ASK + "q")
    kernel.tell(model, {"do": "lock", "id": 1, "choice": 1, "confidence": 90})
    kernel.run("q.require()")
    kernel.run_until_dead("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    kernel.restart()
    _, forms = kernel.run(ASK + "q").data
    assert "Locked before: yes, at 90 %. The first answer stands." in forms["text/plain"]
    assert kernel.run("print(q.lock('no', 0.6).require().predicted)").text == "yes\n"
    (revealed,) = kernel.run("q.reveal('no', 'Its commit had not returned.')").data
    assert VIEW not in revealed
    assert "happened:  no   (differs)" in revealed["text/plain"]
    assert kinds(store) == ["study.prediction", "study.reveal"]


@pytest.mark.parametrize(
    ("moment", "stored"), [("Harness.root", False), ("Session.submission", True), ("Harness.aclose", True)]
)
def test_s1_a_kill_in_the_middle_of_a_lock_leaves_one_answer_or_none(
    kernel: Kernel, store: Path, moment: str, stored: bool
) -> None:
    """The kill comes from inside the lock: when the store is open, when the entry is looked up, when it is told."""
    dies = f"""
import os, signal
from pidurable_nb.session.session import Session
from pidurable_nb.agent.harness import Harness
{moment} = lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL)
"""
    kernel.run(ASK + dies)
    kernel.run_until_dead("q.lock(1, 0.9)")
    kernel.restart()
    found = kernel.run(f"{ASK}print(q.locked is not None, q.lock(2, 0.6).require().predicted)").text
    assert found == ("True yes\n" if stored else "False no\n")
    assert kinds(store) == ["study.prediction"]


def test_s1_two_kernels_that_lock_at_one_moment_show_one_answer(
    kernel: Kernel, other_kernel: Kernel, store: Path
) -> None:
    for each in (kernel, other_kernel):
        each.run("%load_ext pidurable_nb\nfrom pidurable_nb.study import predict\nimport os")
    for n in range(8):

        def cell(mine: str, other: str, n: int = n) -> str:
            return (
                f'q = predict("N1/q{n}", "?", ["yes", "no"])\nopen("ready-{n}-{mine}", "w").close()\n'
                f'while not os.path.exists("ready-{n}-{other}"):\n    pass\nshown = repr(q.lock("{mine}", 0.9))'
            )

        other_kernel.client.execute(cell("no", "yes"))
        kernel.run(cell("yes", "no"))
        heard = {"yes": kernel.run("print(shown)").text, "no": other_kernel.run("print(shown)").text}
        winner, loser = ("yes", "no") if "Locked: yes" in heard["yes"] else ("no", "yes")
        assert f"Locked: {winner}, at 90 %." in heard[winner]
        assert f"Locked before: {winner}, at 90 %. The first answer stands; {loser}, at 90 %, is not" in heard[loser]
        assert f"{winner}   <- predicted, at 90 %" in heard[loser]
    assert kinds(store) == ["study.prediction"] * 8
