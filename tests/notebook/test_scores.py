"""The arithmetic of predictions, against numbers that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pidurable_nb.notebook.study.beliefs import BELIEFS
from pidurable_nb.notebook.study.scores import GUESSING, Answer, score, scores


def answer(confidence: float, happened: str | None, *beliefs: str) -> Answer:
    """Somebody who predicted `yes`."""
    return Answer(
        key="predict/N1/a", notebook="N1", id="a", seed=None, question="?", choices=("yes", "no"), choice=1,
        confidence=confidence, beliefs=beliefs, happened=happened,
    )  # fmt: skip


def test_the_brier_score_is_the_mean_square_of_confidence_against_outcome() -> None:
    # 0.9 right: 0.01; 0.6 wrong: 0.36; 1.0 right: 0; 0.8 wrong: 0.64. Sum 1.01, of four 0.2525.
    found = score([answer(0.9, "yes"), answer(0.6, "no"), answer(1.0, "yes"), answer(0.8, "no")])
    assert found.brier == pytest.approx(0.2525)
    assert (found.answers, found.right, found.wrong_and_sure, found.share) == (4, 2, 1, 0.5)
    assert found.confidence == pytest.approx(0.825)


@pytest.mark.parametrize(
    ("confidence", "happened", "penalty"),
    [(1.0, "yes", 0.0), (1.0, "no", 1.0), (0.5, "yes", 0.25), (0.5, "no", 0.25), (0.7, "no", 0.49), (0.7, "yes", 0.09)],
)
def test_one_answer_costs_the_square_of_its_error(confidence: float, happened: str, penalty: float) -> None:
    assert answer(confidence, happened).penalty == pytest.approx(penalty)


def test_always_guessing_scores_a_quarter() -> None:
    assert score([answer(0.5, "yes"), answer(0.5, "no")]).brier == pytest.approx(GUESSING)


def test_what_is_not_revealed_counts_nowhere_but_as_open() -> None:
    found = scores([answer(0.9, None), answer(0.9, None)])
    assert (found.open, found.all.answers, found.all.brier, found.all.share, found.bands) == (2, 0, None, None, ())


def test_wrong_and_sure_begins_at_eighty_percent() -> None:
    assert [answer(sure, "no").wrong_and_sure for sure in (0.75, 0.79, 0.8, 1.0)] == [False, False, True, True]
    assert not answer(1.0, "yes").wrong_and_sure


def test_a_band_holds_its_first_percent_and_not_the_next_one() -> None:
    sures = (0.5, 0.59, 0.6, 0.69, 0.7, 0.8, 0.89, 0.9, 1.0)
    found = scores([answer(sure, "yes") for sure in sures])
    assert [(band.low, band.high, band.score.answers) for band in found.bands] == [
        (50, 59, 2), (60, 69, 2), (70, 79, 1), (80, 89, 2), (90, 100, 2),
    ]  # fmt: skip


def test_an_answer_counts_for_each_of_its_beliefs_in_their_order() -> None:
    found = scores([answer(0.9, "no", "W10", "W2"), answer(0.6, "yes", "W2")])
    assert [(name, one.answers, one.right, one.wrong_and_sure) for name, one in found.beliefs] == [
        ("W2", 2, 1, 1), ("W10", 1, 0, 1),
    ]  # fmt: skip
    assert found.beliefs[0][1].brier == pytest.approx((0.81 + 0.16) / 2)


def test_right_is_told_by_the_text_so_that_another_order_changes_nothing() -> None:
    turned = replace(answer(0.9, "no"), choices=("no", "yes"))
    assert turned.predicted == "no"
    assert turned.right is True


def test_there_are_twelve_beliefs() -> None:
    assert list(BELIEFS) == [f"W{n}" for n in range(1, 13)]
