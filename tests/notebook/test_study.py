"""The study store of a learner: one answer for a question, whoever asks, however often, whatever dies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb import Harness
from pidurable_nb.errors import NotAStore, StorageRequestError, StoreOwned, StoreRefused
from pidurable_nb.ids import ROOT, Json
from pidurable_nb.notebook.kernel.host import Host
from pidurable_nb.notebook.study.scores import Answer
from pidurable_nb.notebook.study.study import NotLocked, Study, study_path
from pidurable_nb.store.stranger import StoreFile


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host("study-test")
    yield made
    made.shut()


@pytest.fixture
def study(host: Host, tmp_path: Path) -> Study:
    return Study(host, tmp_path / "learner" / "study.sqlite")


def asked(name: str = "screen", choice: int = 1, confidence: float = 0.8, seed: str | None = None) -> Answer:
    return Answer(
        key=f"predict/N1/{name}" + (f"/{seed}" if seed else ""), notebook="N1", id=name, seed=seed,
        question="Is it stored?", choices=("yes", "no"), choice=choice, confidence=confidence, beliefs=("W5",),
    )  # fmt: skip


def kinds(path: Path) -> list[str]:
    with StoreFile.open(path) as file:
        return [entry.kind for entry in file.entries(ROOT)]


# --- One answer -----------------------------------------------------------------------------------------------------


def test_s1_the_first_answer_stands_and_the_second_is_given_it(study: Study) -> None:
    first = study.host.call(study.lock(asked(choice=1, confidence=0.8)))
    again = study.host.call(study.lock(asked(choice=2, confidence=0.6)))
    same = study.host.call(study.lock(asked(choice=1, confidence=0.8)))
    assert (first.new, again.new, same.new) == (True, False, False)
    assert (again.same, same.same) == (False, True)
    assert first.answer == again.answer == same.answer == study.find("predict/N1/screen")
    assert (first.answer.predicted, first.answer.percent, first.answer.beliefs) == ("yes", 80, ("W5",))
    assert first.answer.at_ms is not None
    assert kinds(study.path) == ["study.prediction"]


def test_s1_the_first_reveal_counts_and_a_note_is_kept_once(study: Study) -> None:
    study.host.call(study.lock(asked()))
    study.host.call(study.reveal("predict/N1/screen", "no", "no commit"))
    again = study.host.call(study.reveal("predict/N1/screen", "yes", "changed"))
    for sentence in ("one", "one", "two"):
        study.host.call(study.note("predict/N1/screen", "W5", sentence))
    found = study.find("predict/N1/screen")
    assert found is not None
    assert (again.new, found.happened, found.because, found.right) == (False, "no", "no commit", False)
    assert [note.sentence for note in found.notes] == ["one", "two"]
    assert kinds(study.path) == ["study.prediction", "study.reveal", "study.belief", "study.belief"]


def test_s1_a_reveal_without_a_prediction_is_refused_and_does_not_become_the_first_one(study: Study) -> None:
    for early in (study.reveal("predict/N1/screen", "no", ""), study.note("predict/N1/screen", "W5", "too early")):
        with pytest.raises(NotLocked, match="N1/screen is not locked yet; lock an answer"):
            study.host.call(early)
    assert study.answers() == {}
    study.host.call(study.lock(asked()))
    kept = study.host.call(study.reveal("predict/N1/screen", "yes", "it was"))
    assert (kept.new, kept.answer.happened) == (True, "yes")


def test_another_seed_is_another_question(study: Study) -> None:
    for seed in ("1", "2", None):
        assert study.host.call(study.lock(asked(seed=seed))).new
    assert list(study.answers()) == ["predict/N1/screen/1", "predict/N1/screen/2", "predict/N1/screen"]


def test_many_answers_are_all_read_back(study: Study) -> None:
    async def write() -> None:
        async with Harness.open(study.path, run=False) as harness:
            root = await harness.root()
            for n in range(700):  # more than one page
                data: dict[str, Json] = {
                    "key": f"k{n}", "notebook": "N1", "id": "a", "question": "?", "choices": ["a", "b"],
                    "choice": 1, "confidence": 1,
                }  # fmt: skip
                await root.write("study.prediction", data=data)

    study.path.parent.mkdir()
    study.host.call(write())
    kept = study.host.call(study.lock(asked()))
    assert kept.new
    assert len(study.answers()) == 701


BROKEN: list[Json] = [
    None, 3, [], {}, {"key": 1}, {"key": "k"},
    {"key": "k", "notebook": "n", "id": "i", "question": "q", "choices": "ab", "choice": 1, "confidence": 0.9},
    {"key": "k", "notebook": "n", "id": "i", "question": "q", "choices": ["a"], "choice": 2, "confidence": 0.9},
    {"key": "k", "notebook": "n", "id": "i", "question": "q", "choices": ["a"], "choice": 0, "confidence": 0.9},
    {"key": "k", "notebook": "n", "id": "i", "question": "q", "choices": ["a"], "choice": True, "confidence": 0.9},
    {"key": "k", "notebook": "n", "id": "i", "question": "q", "choices": ["a"], "choice": 1, "confidence": 7},
]  # fmt: skip


@pytest.mark.parametrize("kind", ["study.prediction", "study.reveal", "study.belief", "other"])
def test_entries_of_another_shape_are_no_answers(study: Study, kind: str) -> None:
    async def write() -> None:
        async with Harness.open(study.path, run=False) as harness:
            root = await harness.root()
            for data in BROKEN:
                await root.write(kind, data=data)

    study.path.parent.mkdir()
    study.host.call(write())
    assert study.answers() == {}


def test_something_else_under_the_request_id_is_said(study: Study) -> None:
    async def write() -> None:
        async with Harness.open(study.path, run=False) as harness:
            await (await harness.root()).write("mine", text="x", request_id="predict/N1/screen")

    study.path.parent.mkdir()
    study.host.call(write())
    with pytest.raises(StorageRequestError, match="holds something else"):
        study.host.call(study.lock(asked()))


# --- Where it is ----------------------------------------------------------------------------------------------------


def test_the_store_is_where_the_user_says_else_in_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIDURABLE_NB_STUDY", str(tmp_path / "mine.sqlite"))
    assert study_path() == tmp_path / "mine.sqlite"
    monkeypatch.setenv("PIDURABLE_NB_STUDY", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert study_path() == tmp_path / "data/pidurable_nb/study.sqlite"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert study_path() == tmp_path / "home/.local/share/pidurable_nb/study.sqlite"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert study_path() == tmp_path / "home/Library/Application Support/pidurable_nb/study.sqlite"


def test_looking_makes_nothing(study: Study) -> None:
    assert study.answers() == {}
    assert not study.path.parent.exists()


def test_the_folder_of_the_store_is_private(study: Study) -> None:
    study.host.call(study.lock(asked()))
    assert study.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_said(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRefused, match="PIDURABLE_NB_STUDY"):
        host.call(Study(host, tmp_path / "file" / "study.sqlite").lock(asked()))


def test_another_file_of_that_name_is_refused_and_stays(study: Study) -> None:
    study.path.parent.mkdir()
    study.path.write_text("shopping list")
    for attempt in (study.answers, study.reset, lambda: study.host.call(study.lock(asked()))):
        with pytest.raises(NotAStore):
            attempt()
    assert study.path.read_text() == "shopping list"


def test_a_store_whose_making_was_cut_off_is_taken_up(study: Study) -> None:
    study.path.parent.mkdir()
    study.path.touch()  # what a kill leaves before the first commit
    study.path.with_name("study.sqlite.lock").write_text('{"pid": 1, "host": "x", "since": "y", "fresh": true}')
    assert study.answers() == {}
    assert study.host.call(study.lock(asked())).new


# --- Others have it open (F5) ---------------------------------------------------------------------------------------


def test_f5_who_keeps_it_open_is_named_and_nothing_is_stored(study: Study, host: Host) -> None:
    study.host.call(study.lock(asked()))
    hasty = Study(host, study.path, patience_s=0.05)

    async def keep_open() -> None:
        async with Harness.open(study.path, run=False):
            await hasty.lock(asked("other"))

    with pytest.raises(StoreOwned, match=r"this kernel keeps it open; close it here .*Nothing was stored"):
        host.call(keep_open())
    assert list(study.answers()) == ["predict/N1/screen"]


def test_f5_a_lock_waits_for_the_other_notebook_and_looking_does_not(study: Study) -> None:
    study.host.call(study.lock(asked()))
    holder = subprocess.Popen([sys.executable, "-c", HOLD, study.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        assert list(study.answers()) == ["predict/N1/screen"]
        with pytest.raises(StoreOwned, match=rf"process {holder.pid} on .* keeps it open; close it there"):
            study.host.call(Study(study.host, study.path, patience_s=0.05).lock(asked("other")))
        with pytest.raises(StoreOwned):
            study.reset()
        waiting = study.host.submit(Study(study.host, study.path, patience_s=60).lock(asked("other")))
        holder.stdin.close()
        assert waiting.result(60).new
    assert len(study.answers()) == 2


HOLD = """
import asyncio, sys
from pidurable_nb import Harness
async def main():
    async with Harness.open(sys.argv[1], run=False):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


def test_f5_notebooks_side_by_side_all_lock_and_each_question_has_one_answer(study: Study) -> None:
    """Four processes answer the same sixteen questions, each in its own way and order, making the store on the way."""
    study.path.parent.mkdir()
    racers = [
        subprocess.Popen([sys.executable, "-c", RACE, study.path, str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    said: dict[str, list[tuple[str, str]]] = {}
    for racer in racers:
        out, _ = racer.communicate(timeout=100)
        assert racer.returncode == 0
        for line in out.splitlines():
            key, new, sure = line.split()
            said.setdefault(key, []).append((new, sure))
    found = study.answers()
    assert len(found) == 16
    assert kinds(study.path) == ["study.prediction"] * 16
    for key, heard in said.items():
        assert len(heard) == 4
        assert [new for new, _ in heard].count("True") == 1, key
        assert {sure for _, sure in heard} == {str(found[key].percent)}, key


RACE = """
import random, sys
from pathlib import Path
from pidurable_nb.notebook.kernel.host import Host
from pidurable_nb.notebook.study.scores import Answer
from pidurable_nb.notebook.study.study import Study
host, me = Host(), int(sys.argv[2])
study = Study(host, Path(sys.argv[1]), patience_s=60)
names = [f"q{n}" for n in range(16)]
random.Random(me).shuffle(names)
for name in names:
    answer = Answer(key=f"predict/N1/{name}", notebook="N1", id=name, seed=None, question="?", choices=("a", "b"),
                    choice=1, confidence=0.5 + me / 10)
    kept = host.call(study.lock(answer))
    print(kept.answer.key, kept.new, kept.answer.percent)
host.shut()
"""


# --- Kills ----------------------------------------------------------------------------------------------------------

ANSWER_ON = """
import sys
from pathlib import Path
from pidurable_nb.notebook.kernel.host import Host
from pidurable_nb.notebook.study.scores import Answer
from pidurable_nb.notebook.study.study import Study
host = Host()
study = Study(host, Path(sys.argv[1]))
n = 0
while True:
    key = f"predict/N1/q{n}"
    study.host.call(study.lock(Answer(key=key, notebook="N1", id=f"q{n}", seed=None, question="?", choices=("a", "b"),
                                      choice=1, confidence=0.9)))
    print(key, flush=True)
    n += 1
"""


@pytest.mark.parametrize("seed", range(6))
def test_s1_what_was_said_to_be_locked_survives_a_kill_at_any_moment(study: Study, seed: int) -> None:
    chance = random.Random(seed)
    child = subprocess.Popen([sys.executable, "-c", ANSWER_ON, study.path], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        said = [child.stdout.readline().strip() for _ in range(chance.randint(0 if seed else 1, 5))]
        if not said:
            while not study.path.exists():
                assert child.poll() is None
        until = asyncio.new_event_loop()
        until.run_until_complete(asyncio.sleep(chance.uniform(0, 0.03)))  # anywhere inside the next answer
        until.close()
        os.kill(child.pid, signal.SIGKILL)
        said += [line.strip() for line in child.stdout if line.endswith("\n")]
    found = study.answers()
    assert list(found)[: len(said)] == said
    assert len(found) <= len(said) + 1  # stored, and killed before it could say so
    for n in range(len(said) + 1):
        again = study.host.call(study.lock(replace(asked(), key=f"predict/N1/q{n}", choice=2, choices=("a", "b"))))
        assert again.new == (f"predict/N1/q{n}" not in found)
        assert again.answer.predicted == ("b" if again.new else "a")
    assert kinds(study.path) == ["study.prediction"] * (len(said) + 1)


# --- Reset ----------------------------------------------------------------------------------------------------------


def test_a_reset_removes_every_answer_and_the_next_one_is_the_first(study: Study) -> None:
    assert not study.reset()
    study.host.call(study.lock(asked(choice=1)))
    assert study.reset()
    assert list(study.path.parent.iterdir()) == []
    assert study.answers() == {}
    assert study.host.call(study.lock(asked(choice=2))).new
