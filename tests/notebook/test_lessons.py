"""The first three lessons run from an empty folder: with right answers, with wrong ones, and with nobody there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
MOST_SAVED, MOST_RUN = 60_000, 500_000
ASKS = re.compile(r"^(\w+) = predict\(", re.MULTILINE)
LOCKED_FIRST = "Lock your prediction above first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A notebook, what is locked at its questions, and what a learner puts in place of its code."""

    file: str
    name: str
    right: Mapping[str, int]
    wrong: Mapping[str, int]
    repairs: Mapping[str, str] = field(default_factory=dict)


LESSONS = (
    Lesson(
        file="01_where_did_it_die.ipynb", name="N1", right={"screen": 3, "resume": 2}, wrong={"screen": 1, "resume": 1},
        repairs={
            "records[0]  # your answer": 'next(one for one in records if one["state"]["status"] != "terminal")  # mine',
            'return next_seq, task["state"]': 'return next_seq - 1, task["state"]',
        },
    ),
    Lesson(
        file="02_two_crashes_one_refund.ipynb", name="N2", right={"between": 2, "told": 3},
        wrong={"between": 1, "told": 2},
        repairs={
            '"safe":   [1,      1,       1]': '"safe": [1, 2, 1]',
            '"unsafe": [1,      1,       1]': '"unsafe": [0, 1, 1]',
            "return 1  # your answer": (
                'return int(case.done > case.steps.index(case.pays)) + (case.policy == "safe")  # mine'
            ),
        },
    ),
    Lesson(
        file="03_make_it_effectively_once.ipynb", name="N3", right={"survive": 3, "mine": 2},
        wrong={"survive": 1, "mine": 3},
        repairs={
            "@tool()  # your answer": '@tool(replay="safe")  # mine',
            "key=secrets.token_hex(8))  # your answer": 'key=call.key("refund"))  # mine',
        },
    ),
)  # fmt: skip

whole = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


@pytest.fixture(autouse=True)
def _learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner of one's own, and a folder for what the kernel throws away."""
    (tmp_path / "thrown").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "thrown"))
    monkeypatch.setenv("PIDURABLE_NB_STUDY", str(tmp_path / "learner" / "study.sqlite"))


def read(lesson: Lesson) -> nbformat.NotebookNode:
    notebook: nbformat.NotebookNode = nbformat.read(NOTEBOOKS / lesson.file, as_version=4)  # type: ignore[no-untyped-call]  # untyped
    return notebook


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def repair(notebook: nbformat.NotebookNode, repairs: Mapping[str, str]) -> None:
    """Put a learner's code in its place; each place is there once."""
    for old, new in repairs.items():
        (cell,) = [cell for cell in code(notebook) if old in cell.source]
        assert cell.source.count(old) == 1
        cell.source = cell.source.replace(old, new)


def lock(notebook: nbformat.NotebookNode, answers: Mapping[str, int]) -> None:
    """A cell behind each question that locks an answer, as a click does."""
    asked = [name for cell in code(notebook) for name in ASKS.findall(cell.source)]
    assert sorted(asked) == sorted(answers)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        for name in ASKS.findall(cell.source):
            locks: nbformat.NotebookNode = nbformat.v4.new_code_cell(f"{name}.lock({answers[name]}, 0.9)")  # type: ignore[no-untyped-call]  # untyped
            cells.append(locks)
    notebook.cells = cells


def run(notebook: nbformat.NotebookNode) -> str:
    """Run it in a real kernel, in the current folder, and give all that it printed and showed. No cell may fail."""
    client = NotebookClient(
        notebook, timeout=90, kernel_name="python3", store_widget_state=False,
        resources={"metadata": {"path": str(Path.cwd())}},
    )  # fmt: skip
    client.execute()
    assert list(Path.cwd().iterdir()) == []  # beside the notebook it writes nothing
    written: str = nbformat.writes(notebook)  # type: ignore[no-untyped-call]  # untyped
    assert len(written) < MOST_RUN
    parts = []
    for output in (output for cell in code(notebook) for output in cell.outputs):
        assert output.output_type != "error", output
        assert output.output_type != "stream" or output.name == "stdout", output
        parts.append(output.text if output.output_type == "stream" else output.data.get("text/plain", ""))
    return "\n".join(parts)


# --- As they are saved ----------------------------------------------------------------------------------------------


@whole
def test_a_lesson_is_short_saved_without_outputs_and_names_no_place_of_this_machine(lesson: Lesson) -> None:
    notebook = read(lesson)
    text = (NOTEBOOKS / lesson.file).read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_SAVED
    assert 12 <= len(notebook.cells) <= 20
    assert all(not cell.outputs and cell.execution_count is None for cell in code(notebook))
    assert not any(word in text for word in ("http:", "https:", "/tmp", "--kernel", str(Path.home())))
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert notebook.metadata == nbformat.read(NOTEBOOKS / "00_tour.ipynb", as_version=4).metadata  # type: ignore[no-untyped-call]  # untyped


@whole
def test_a_lesson_asks_before_it_shows_kills_for_real_and_checks(lesson: Lesson) -> None:
    sources = [cell.source for cell in code(read(lesson))]
    asked = {name: n for n, source in enumerate(sources) for name in ASKS.findall(source)}
    for name in asked:
        (shown,) = [n for n, source in enumerate(sources) if f"{name}.reveal(" in source]
        assert shown > asked[name]
        assert re.search(rf"^if .*{name}\.locked.*:", sources[shown], re.MULTILINE)
    assert any("%pi kill " in source for source in sources)
    assert any("# your answer" in source for source in sources)
    assert sum(source.count("check(") for source in sources) == 1


# --- With a learner -------------------------------------------------------------------------------------------------


def right(lesson: Lesson) -> str:
    notebook = read(lesson)
    repair(notebook, lesson.repairs)
    lock(notebook, lesson.right)
    shown = run(notebook)
    assert shown.count("(agrees)") == len(lesson.right)
    assert "(differs)" not in shown
    assert LOCKED_FIRST not in shown
    assert "Killed by SIGKILL" in shown
    return shown


@pytest.mark.slow
def test_c1_lesson_1_shows_the_kill_between_two_commits_and_the_check_says_yes() -> None:
    shown = right(LESSONS[0])
    assert "printed  screen: the scales show 1200 g / screen: P-7 weighs 1200 g." in shown
    assert re.search(r"commit 5   pi\.tool#1/execute\n- - - - - killed here.*\ncommit 6   pi\.generation#2", shown)
    assert "RESEND" in shown
    assert "ask scripted/clerk: asked 3 in all, 1 of them in this recovery" in shown
    assert 'weigh(parcel="P-7"): asked 1 in all, 0 of them in this recovery' in shown
    assert "(5, 'request')" in shown
    assert "N1: holds in 3 of 3 hidden runs." in shown


@pytest.mark.slow
def test_e2_e3_lesson_2_fills_the_table_from_the_ledger_and_the_check_says_yes() -> None:
    shown = right(LESSONS[1])
    assert re.search(r"\nsafe +1 +2 +1\nunsafe +0 +1 +1\n", shown)
    assert "your table agrees" in shown
    assert re.search(r"unsafe +before +paid 0 +told: .*cut off by a crash and may have run in part", shown)
    assert re.search(r"unsafe +between +paid 1 +told: .*cut off by a crash and may have run in part", shown)
    assert re.search(r"safe +between +paid 2 +told: receipt 2", shown)
    assert "N2: holds in 2 of 2 hidden runs." in shown


@pytest.mark.slow
def test_e6_m1_lesson_3_shows_the_keys_side_by_side_and_the_check_says_yes() -> None:
    shown = right(LESSONS[2])
    (thrown,) = re.findall(r"A: a random key +(\w{12}) +(\w{12}) +2\n", shown)
    assert thrown[0] != thrown[1]
    for kept in ("B: from the task", "C: kept as a memo"):
        ((first, following),) = re.findall(rf"{kept} +(\w{{12}}) +(\w{{12}}) +1\b", shown)
        assert first == following
    assert "1 thing happened that must not, in 58 crashes." in shown
    assert "random_key paid 2 times" in shown
    assert "task_key paid" not in shown
    assert "memo_key paid" not in shown
    assert "N3: holds in 2 of 2 hidden runs." in shown


WRONG = {
    "N1": ("N1: holds in 0 of 3 hidden runs.", "the store ends with"),
    "N2": ("N2: holds in 0 of 2 hidden runs.", "2 paid, not 1", "your table differs"),
    "N3": ("N3: holds in 0 of 2 hidden runs.", "was paid 0 times, after a crash at"),
}


@pytest.mark.slow
@whole
def test_a_lesson_says_no_to_wrong_answers_and_goes_on(lesson: Lesson) -> None:
    notebook = read(lesson)
    lock(notebook, lesson.wrong)
    shown = run(notebook)
    assert shown.count("(differs)") == len(lesson.wrong)
    assert shown.count("Which belief led there?") == len(lesson.wrong)
    assert "(agrees)" not in shown
    for said in WRONG[lesson.name]:
        assert said in shown


@pytest.mark.slow
@whole
def test_a_lesson_runs_to_its_end_with_nobody_there_and_gives_nothing_away(lesson: Lesson, tmp_path: Path) -> None:
    notebook = read(lesson)
    shown = run(notebook)
    gated = [cell for cell in code(notebook) if ".locked:" in cell.source]
    assert shown.count(LOCKED_FIRST) == len(gated)
    assert "(agrees)" not in shown
    assert "(differs)" not in shown
    assert f"{lesson.name}: holds in 0 of " in shown
    assert not (tmp_path / "learner").exists()
