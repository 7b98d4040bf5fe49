"""`predict` and `%pi study` in a shell: asking, locking, revealing, refusals, and that foreign text does nothing."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Protocol

import pandas as pd
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from pidurable_nb.notebook.study.predict import Question
from pidurable_nb.notebook.study.scores import Answer
from pidurable_nb.store.stranger import StoreFile

ASK = 'q = predict("N1/screen", "Is it stored?", ["yes", "no", "half of it"], belief="W5")'


class Shell(Protocol):
    ip: InteractiveShell

    def run(self, source: str) -> object: ...
    def show(self, value: object) -> dict[str, str]: ...
    def knows(self, magic: str) -> bool: ...


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner of one's own."""
    path = tmp_path / "learner" / "study.sqlite"
    monkeypatch.setenv("PIDURABLE_NB_STUDY", str(path))
    for name in ("JPY_SESSION_NAME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.fixture
def room(shell: Shell) -> Shell:
    shell.run("from pidurable_nb.study import predict")
    return shell


def question(shell: Shell, source: str) -> Question:
    found = shell.run(source)
    assert isinstance(found, Question)
    return found


# --- Locking --------------------------------------------------------------------------------------------------------


def test_a_question_is_open_until_it_is_locked(room: Shell, store: Path) -> None:
    q = question(room, f"{ASK}\nq")
    assert q.locked is None
    assert "Choose what happens" in repr(q)
    assert not store.exists()
    room.run("q.lock(2, 0.8)")
    locked = q.require()
    assert (locked.predicted, locked.confidence, locked.beliefs) == ("no", 0.8, ("W5",))
    assert "Locked: no, at 80 %. It is stored" in repr(q)
    assert "2  no   <- predicted, at 80 %" in repr(q)


def test_s1_answering_twice_is_answered_once_and_said(room: Shell) -> None:
    q = question(room, f"{ASK}\nq.lock('yes', 0.9).lock('no', 0.5)")
    assert "Locked before: yes, at 90 %. The first answer stands; no, at 50 %, is not stored." in repr(q)
    again = question(room, f"{ASK}\nq")
    assert "Locked before: yes, at 90 %. The first answer stands." in repr(again)
    same = question(room, "q.lock(1, 0.9)")
    assert "with the same answer: yes, at 90 %. It is stored once." in repr(same)


def test_a_cell_without_widgets_locks_at_once(room: Shell) -> None:
    q = question(room, 'predict("N1/a", "?", ["x", "y"], choose=1, confidence=0.8)')
    assert q.require().predicted == "x"
    rerun = question(room, 'predict("N1/a", "?", ["x", "y"], choose="y", confidence=1)')
    assert rerun.require().predicted == "x"


def test_a_cell_that_runs_can_insist_on_a_prediction(room: Shell) -> None:
    room.run(ASK)
    with pytest.raises(UsageError, match="predict first: N1/screen is not locked yet") as refused:
        room.run("q.require()")
    assert "\n" not in str(refused.value)
    room.run("q.lock(1, 0.5)")
    assert isinstance(room.run("q.require()"), Answer)


def test_a_lock_elsewhere_is_seen_by_an_older_question(room: Shell) -> None:
    one = question(room, f"{ASK}\nq")
    room.run(f"{ASK}\nq.lock(3, 0.7)")
    assert one.require().predicted == "half of it"
    assert "Locked before: half of it" in repr(one)


def test_other_words_of_a_question_are_said(room: Shell) -> None:
    room.run(f"{ASK}\nq.lock(3, 0.7)")
    other = question(room, 'predict("N1/screen", "Is it stored?", ["yes", "no"])')
    assert "The question had other words then." in repr(other)
    assert "Locked before: half of it, at 70 %" in repr(other)


def test_a_seed_makes_another_question(room: Shell) -> None:
    for seed in ("1", "'1'", "2"):
        room.run(f'predict("N1/a", "?", ["x", "y"], seed={seed}, choose=1, confidence=0.8)')
    table = room.run("%pi study")
    assert isinstance(table, pd.DataFrame)
    assert list(table.seed) == ["1", "2"]


@pytest.mark.parametrize(
    ("session", "notebook"),
    [
        ("lessons/N1 Where did it die.ipynb", "N1-Where-did-it-die"),
        ("/elsewhere/N2.ipynb", "N2"),
        ("", "notebook"),
        ("…/<b>.ipynb", "b"),
    ],
)
def test_a_bare_id_belongs_to_the_notebook_by_its_file(
    room: Shell, monkeypatch: pytest.MonkeyPatch, session: str, notebook: str
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", session)
    q = question(room, 'predict("screen", "?", ["x", "y"])')
    assert q.asked.key == f"predict/{notebook}/screen"


def test_the_open_store_has_it_at_hand(shell: Shell) -> None:
    shell.run("%pi new a.sqlite")
    assert isinstance(shell.run('pi.predict("N1/a", "?", ["x", "y"])'), Question)


# --- Revealing ------------------------------------------------------------------------------------------------------


def test_a_reveal_stands_beside_the_prediction(room: Shell) -> None:
    room.run(f"{ASK}\nq.lock(1, 0.9)")
    shown = room.show(room.run('q.reveal("no", because="Its commit had not returned.")'))
    assert "predicted: yes, at 90 %" in shown["text/plain"]
    assert "happened:  no   (differs)" in shown["text/plain"]
    assert "Its commit had not returned." in shown["text/html"]
    assert '.reconcile("W5", "one sentence of your own")' in shown["text/plain"]
    assert "exactly once" not in shown["text/plain"] + shown["text/html"]
    room.run('q.reconcile("W5", "I took the screen for the store.")')
    later = repr(question(room, f"{ASK}\nq"))
    assert "W5: I took the screen for the store." in later
    assert "2  no   <- happened" in later
    assert ".reconcile(" not in later


def test_a_right_prediction_agrees(room: Shell) -> None:
    room.run(f"{ASK}\nq.lock(2, 0.9)")
    assert "(agrees)" in repr(room.run("q.reveal(2)"))


def test_the_first_reveal_counts(room: Shell) -> None:
    room.run(f"{ASK}\nq.lock(2, 0.9)\nq.reveal(2)")
    again = repr(room.run("q.reveal(1)"))
    assert "(agrees)" in again
    assert "Revealed before, with another outcome; the first one counts." in again


KINDLY = (
    "predict first: N1/screen is not locked yet, so nothing is revealed. Choose above and press Lock, then run this "
    "cell again"
)


def test_nothing_is_revealed_before_it_is_locked(room: Shell, store: Path) -> None:
    room.run(ASK)
    for source in ("q.reveal(1)", 'q.reveal("no", because="Its commit had not returned.")', 'q.reconcile("W5", "x")'):
        with pytest.raises(UsageError) as refused:
            room.run(source)
        assert str(refused.value) == KINDLY
    assert not store.exists()
    room.run("q.lock(1, 0.9)")
    with pytest.raises(UsageError, match="not revealed yet; reveal it first"):
        room.run('q.reconcile("W5", "x")')


def test_nothing_is_revealed_of_a_prediction_that_was_removed_and_the_next_reveal_counts(
    room: Shell, store: Path
) -> None:
    room.run(f"{ASK}\nq.lock(1, 0.9)")
    room.run("%pi study --reset --yes")
    with pytest.raises(UsageError) as refused:
        room.run("q.reveal(1)")
    assert str(refused.value) == KINDLY
    assert not store.exists()
    assert "Locked" not in repr(room.run("q"))
    room.run("q.lock(2, 0.8)")
    assert "(agrees)" in repr(room.run("q.reveal(2)"))


# --- Wrong use ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('predict("a b", "?", ["x", "y"])', "is no id"),
        ('predict("a/b/c", "?", ["x", "y"])', "is no id"),
        ('predict("", "?", ["x", "y"])', "is no id"),
        ('predict("../a", "?", ["x", "y"])', "is no id"),
        ('predict(3, "?", ["x", "y"])', "the id is a text, not int"),
        ('predict("a", " ", ["x", "y"])', "the question of a is empty"),
        ('predict("a", "?", ["x"])', "2 to 9 choices"),
        ('predict("a", "?", "xy")', "2 to 9 choices"),
        ('predict("a", "?", ["x", "x"])', "that differ"),
        ('predict("a", "?", ["x", ""])', "2 to 9 choices"),
        ('predict("a", "?", ["x", 3])', "each choice is a text, not int"),
        ('predict("a", "?", list("abcdefghij"))', "2 to 9 choices"),
        ('predict("a", "?", ["x", "y"], belief="W13")', "is no belief"),
        ('predict("a", "?", ["x", "y"], belief=["W1", 2])', "is no belief"),
        ('predict("a", "?", ["x", "y"], seed="a/b")', "the seed of a is a number"),
        ('predict("a", "?", ["x", "y"], seed=True)', "the seed of a is a number"),
        ('predict("a", "?", ["x", "y"], choose=1)', "go together"),
        ('predict("a", "?", ["x", "y"], confidence=0.8)', "go together"),
        ('predict("a", "?", ["x", "y"], choose=3, confidence=0.8)', "is no choice of notebook/a"),
        ('predict("a", "?", ["x", "y"], choose=0, confidence=0.8)', "is no choice"),
        ('predict("a", "?", ["x", "y"], choose=True, confidence=0.8)', "is no choice"),
        ('predict("a", "?", ["x", "y"], choose="z", confidence=0.8)', "a number from 1 to 2, or its text"),
        ('predict("a", "?", ["x", "y"], choose=1, confidence=80)', "from 0.5 to 1"),
        ('predict("a", "?", ["x", "y"], choose=1, confidence=0.4)', "from 0.5 to 1"),
        ('predict("a", "?", ["x", "y"], choose=1, confidence="sure")', "from 0.5 to 1"),
        ('predict("a", "?", ["x", "y"], choose=1, confidence=float("nan"))', "from 0.5 to 1"),
        ('predict("a", "?", ["x", "y"], choose=1, confidence=0.6).reveal("z")', "is no choice"),
        ('predict("a", "?", ["x", "y"], choose=1, confidence=0.6).reveal(1, because=3)', "because= is a text"),
        ("%pi study --reset N1", "removes the answers of all notebooks"),
        ("%pi study N1 N2", "unrecognized arguments"),
    ],
)
def test_wrong_use_is_one_line(room: Shell, source: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        room.run(source)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("note", ['"W13", "x"', '3, "x"', '"W1", " "', '"W1", 3'])
def test_only_a_belief_and_a_sentence_are_kept(room: Shell, note: str) -> None:
    room.run(f"{ASK}\nq.lock(1, 0.9)\nq.reveal(2)")
    with pytest.raises(UsageError):
        room.run(f"q.reconcile({note})")


def test_without_the_extension_it_says_what_to_run(bare: Shell) -> None:
    bare.run("from pidurable_nb.study import predict")
    with pytest.raises(UsageError, match="run %load_ext pidurable_nb first"):
        bare.run(ASK)


def test_after_a_reload_an_older_question_says_what_to_run(room: Shell) -> None:
    room.run(ASK)
    room.run("%reload_ext pidurable_nb")
    with pytest.raises(UsageError, match="and the cell of this prediction again"):
        room.run("q.lock(1, 0.8)")
    room.run(f"{ASK}\nq.lock(1, 0.8)")


def test_another_file_in_the_place_of_the_store_is_one_line(room: Shell, store: Path) -> None:
    store.parent.mkdir()
    store.write_text("shopping list")
    for source in (ASK, "%pi study", "%pi study --reset --yes"):
        with pytest.raises(UsageError, match="NotAStore"):
            room.run(source)
    assert store.read_text() == "shopping list"


def test_f5_a_study_store_that_is_open_here_is_said(room: Shell, store: Path) -> None:
    store.parent.mkdir()
    room.run(f"%pi new {store}")
    q = question(room, f"{ASK}\nq")
    q.study._patience_s = 0.05
    with pytest.raises(UsageError, match=r"this kernel keeps it open; close it here \(%pi close\)"):
        room.run("q.lock(1, 0.8)")
    room.run("%pi close")
    room.run("q.lock(1, 0.8)")
    with StoreFile.open(store) as file:
        assert [entry.kind for entry in file.entries()] == ["study.prediction"]


# --- Foreign text ---------------------------------------------------------------------------------------------------


def test_hostile_text_is_inert_in_every_form(room: Shell, attack: str) -> None:
    room.ip.user_ns["attack"] = attack
    room.run(
        'q = predict("N1/a", attack, [attack, attack + "2"], choose=attack, confidence=0.9)\n'
        "shown = q.reveal(attack + '2', because=attack)\n"
        'noted = q.reconcile("W1", attack)'
    )
    views = [room.run(source) for source in ("q", "shown", "noted", "%pi study")]
    for view in views:
        forms = room.show(view)
        markup, plain = forms["text/html"], forms["text/plain"]
        assert not re.search(r"<(script|img)", markup)
        assert "\x1b" not in markup + plain
        assert "\u202e" not in markup + plain
        assert html.escape("<script>alert(1)</script>") in markup
    assert isinstance(views[0], Question)
    told = str(views[0].widget().get_state())
    assert "\u202e" not in told
    assert "\x1b" not in told


# --- The widget's trait ---------------------------------------------------------------------------------------------


def test_nothing_but_the_question_is_in_the_widget_before_the_lock(room: Shell) -> None:
    q = question(room, f"{ASK}\nq")
    state = q.widget().state
    assert state == {
        "name": "N1/screen", "question": "Is it stored?", "choices": ["yes", "no", "half of it"],
        "said": "Choose what happens, say how sure you are, and lock it.", "locked": None, "revealed": None,
    }  # fmt: skip
    room.run("q.lock(1, 0.9)")
    assert q.widget().state["locked"] == {"choice": 1, "text": "yes", "percent": 90}
    assert q.widget().state["revealed"] is None
    room.run('q.reveal(2, "not yet stored")')
    assert q.widget().state["revealed"]["right"] is False


def test_without_a_kernel_there_is_no_widget_in_the_output(room: Shell) -> None:
    assert set(room.show(room.run(f"{ASK}\nq"))) == {"text/html", "text/plain"}


# --- %pi study ------------------------------------------------------------------------------------------------------


def test_the_table_has_answers_scores_and_calibration(room: Shell) -> None:
    empty = room.run("%pi study")
    assert "Nothing is predicted yet." in room.show(empty)["text/plain"]
    room.run(f"{ASK}\nq.lock(1, 0.9)\nq.reveal(2)")
    room.run('predict("N2/b", "?", ["x", "y"], belief="W1", choose=1, confidence=0.7).reveal(1)')
    room.run('predict("N2/c", "?", ["x", "y"], choose=1, confidence=0.6)')
    table = room.run("t = %pi study\nt")
    assert isinstance(table, pd.DataFrame)
    assert table.penalty.dropna().round(2).tolist() == [0.81, 0.09]
    assert table.right.tolist() == [False, True, None]
    plain = room.show(table)["text/plain"]
    # (0.81 + 0.09) / 2
    assert "Revealed 2, right 1, wrong and sure 1; 1 not revealed. Brier score 0.45." in plain
    assert "70 to 79 %" in plain
    assert "W5: what was on the screen is stored" in plain
    assert "not revealed" in plain
    only = room.run("t = %pi study N2\nt")
    assert isinstance(only, pd.DataFrame)
    assert only.id.tolist() == ["b", "c"]


def test_a_reset_is_typed_twice_or_told_yes(room: Shell, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    room.run(f"{ASK}\nq.lock(1, 0.9)")
    room.run("%pi study --reset")
    assert "every answer in it (1) would be removed" in capsys.readouterr().out
    assert store.exists()
    room.run("%pi study")  # looked again: the question is forgotten
    room.run("%pi study --reset")
    assert store.exists()
    room.run("%pi study --reset")
    assert not store.exists()
    assert "removed:" in capsys.readouterr().out
    room.run(f"{ASK}\nq.lock(2, 0.9)")
    room.run("%pi study --reset --yes")
    assert not store.exists()
    room.run("%pi study --reset --yes")
    assert "nothing to remove" in capsys.readouterr().out
    assert question(room, f"{ASK}\nq").locked is None
