"""Scenes of scenarios that died here: predictions against what happened, counts against the ledger, choices, points."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pidurable_nb.engine.decide import decide_tasks
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import DidNotDie
from pidurable_nb.lab.outside.world import applied, asked
from pidurable_nb.lab.scenario import BUILT_IN, builtin
from pidurable_nb.lab.scene.parts import Effect, Task
from pidurable_nb.lab.scene.scene import Scene
from pidurable_nb.lab.scene.source import CannotDo, ScenarioSource
from pidurable_nb.lab.scene.stage import Stage
from pidurable_nb.store.stranger import StoreFile

MAIN = ["ticker", "refund", "checkout", "support-desk"]


def positions(source: ScenarioSource) -> Iterator[Scene]:
    """The scenes from the first position to the end."""
    source.goto(0)
    while True:
        scene = source.scene()
        yield scene
        if scene.last == scene.position:
            return
        source.next()


def effect(scene: Scene, label: str) -> Effect:
    """The row of the effect whose name begins so."""
    return next(one for one in scene.effects if one.label.startswith(label))


def task(scene: Scene, id: int) -> Task:
    return next(one for one in scene.tasks if one.id == id)


def stage_of(source: ScenarioSource) -> Stage:
    return source._stage


@pytest.mark.parametrize(("name", "kind"), [*((name, "freeze") for name in MAIN), ("refund", "kill")])
def test_what_is_predicted_happens_in_every_step_and_the_counts_are_the_ledgers(name: str, kind: str) -> None:
    with ScenarioSource(builtin(name), kind=kind) as source:
        ledger = stage_of(source)._origin.ledger
        assert ledger is not None
        scene = source.scene()
        for scene in positions(source):
            step = scene.step
            json.dumps(scene.to_json(), ensure_ascii=True)
            assert all(law.text for law in step.laws), step.laws
            if scene.position:
                assert step.agreement in ("agrees", "milder"), step
                assert step.predicted is not None
            assert len(step.say) <= 90
            counted = {one.label: one.asked for one in scene.effects if one.submission is None and one.asked}
            assert counted == asked(ledger)
            for outside, times in applied(ledger).items():
                rows = [one for one in scene.effects if one.label == outside or outside in one.outside]
                assert [one.applied for one in rows] == [times]
        assert scene.how is not None
        assert ("SIGKILL" in scene.how) == (kind == "kill")
        assert scene.next is None


def but_for_how_it_died(scene: Scene) -> Scene:
    """The scene without the words that say whether its lives were frozen or killed."""
    same = {"killed by SIGKILL at": "died at", "frozen at": "died at"}

    def said(text: str | None) -> str | None:
        for how, died in same.items():
            text = text.replace(how, died) if text is not None else None
        return text

    return replace(
        scene,
        how=said(scene.how),
        timeline=tuple(replace(col, detail=said(col.detail) or "") for col in scene.timeline),
        step=replace(scene.step, verb="died" if scene.position == 0 else scene.step.verb),
    )


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_freeze_and_kill_leave_the_same_scenes_but_for_the_words_how_they_died(name: str) -> None:
    with ScenarioSource(builtin(name), kind="freeze") as frozen, ScenarioSource(builtin(name), kind="kill") as killed:
        assert frozen.scene() != killed.scene()
        for one, other in zip(positions(frozen), positions(killed), strict=True):
            assert but_for_how_it_died(one) == but_for_how_it_died(other)


@pytest.mark.parametrize("name", ["refund", "checkout", "subagent"])
def test_freeze_and_kill_tell_the_same_at_every_place_where_a_life_may_die(name: str) -> None:
    with ScenarioSource(builtin(name), kind="freeze") as source:
        every = [row.point for row in source.points() if row.point[:2] != "2!"]
        for point in every[:: max(1, len(every) // 10)]:
            frozen = but_for_how_it_died(source.run([point], "freeze"))
            assert frozen == but_for_how_it_died(source.run([point], "kill"))


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_back_and_forth_gives_the_same_scene_at_every_position_of_every_scenario(name: str) -> None:
    with ScenarioSource(builtin(name)) as source:
        end = source.finish()
        assert end.last == end.position
        assert stage_of(source).walking._stepper.disagreements() == ()
        source.goto(0)
        first = [source.scene() for scene in positions(source)]
        for at in (*reversed(range(len(first))), *range(len(first))):
            assert source.goto(at) == first[at]
        assert [scene.position for scene in first] == list(range(len(first)))


def test_e3_the_money_moved_once_and_only_the_ledger_can_tell() -> None:
    with ScenarioSource(builtin("refund")) as source:
        start = source.scene()
        assert start.step.verb == "frozen"
        assert start.step.outside == "unknown"
        assert start.step.say == "The process dies after refund was done, and before the store hears of it."
        assert [(row.task, row.verdict) for row in start.step.table or ()][:2] == [(9, "wait"), (12, "interrupt")]
        call = next(call for row in start.entries.rows for call in row.calls)
        assert (call.name, call.policy, call.output) == ("refund", "unsafe", "")
        assert call.lost == "paid, receipt R-A-1017-1"
        refund = effect(start, "refund(")
        assert (refund.asked, refund.applied, refund.store.mark) == (1, 1, "unknown")
        assert refund.outside == ("pay back A-1017",)
        cut = source.goto(2)
        assert cut.step.verb == "interrupt"
        supposed = source.choose("not")
        assert supposed.step.diff == cut.step.diff
        assert (effect(supposed, "refund(").applied, effect(supposed, "refund(").supposed) == (0, True)
        assert source.choose("happened") == cut
        end = source.finish()
        assert effect(end, "refund(").asked == 1
        assert effect(end, "refund(").store.text == "may have run"
        assert effect(end, "refund(").layers.replay is not None


def test_t7_the_way_of_a_task_tells_its_crash_and_is_whole_where_every_commit_was_heard() -> None:
    with ScenarioSource(builtin("refund")) as source:
        source.goto(2)
        cut = task(source.scene(), 12)
    path = [(move.from_, move.to, move.crash) for move in cut.path]
    assert path == [
        ("pending", "running", False), ("running", "pending", True), ("pending", "running", False),
        ("running", "terminal", False),
    ]  # fmt: skip
    assert cut.whole
    assert (cut.done, cut.verdict, cut.outcome) == ("interrupt", None, "failed")
    with ScenarioSource(builtin("refund"), kind="kill") as source:
        source.goto(2)
        assert task(source.scene(), 12) == cut


def test_m1_memos_say_who_wrote_them_and_stay_shown_when_their_task_ends() -> None:
    with ScenarioSource(builtin("ticker")) as source:
        start = source.scene().tasks[0]
        assert start.memos[-1].by == "life 1 · commit 8"
        assert {edge.to for edge in start.edges} == {"tick", "done"}
        end = source.finish().tasks[0]
    assert all(memo.gone for memo in end.memos)
    assert [memo.name for memo in end.memos] == [f"printed-{n}" for n in range(1, 6)]
    assert end.memos[-1].by is not None
    assert end.memos[-1].by.startswith("this recovery")


def test_the_timeline_has_the_life_its_lost_work_its_end_and_the_steps_that_are_known() -> None:
    with ScenarioSource(builtin("refund")) as source:
        start = source.scene()
        assert [col.kind for col in start.timeline] == ["commit"] * 4 + ["lost", "kill"]
        assert [col.n for col in start.timeline] == [1, 2, 3, 4, None, None]
        cut = next(bar for bar in start.bars if bar.cut)
        assert cut.applied == 5.5
        assert cut.to == 6.5
        source.finish()
        back = source.goto(3)
    steps = [col for col in back.timeline if col.kind == "step"]
    assert [col.position for col in steps] == list(range(1, 12))
    assert [col.mark == "future" for col in steps] == [False] * 3 + [True] * 8
    assert back.last == 11


# --- Choices ----------------------------------------------------------------------------------------------------------


def at_effect(source: ScenarioSource) -> Scene:
    """The scene of the first effect that the recovery comes to."""
    return next(scene for scene in positions(source) if scene.step.verb == "effect")


@pytest.mark.parametrize("kind", ["freeze", "kill"])
def test_e2_a_choice_takes_the_step_again_from_the_image_before_it(kind: str) -> None:
    with ScenarioSource(builtin("support-desk"), kind=kind) as source:
        ledger = stage_of(source)._origin.ledger
        assert ledger is not None
        ran = at_effect(source)
        assert ran.step.agreement == "agrees"
        assert effect(ran, "look_up(").asked == 2
        assert effect(ran, "look_up(").again
        finished = source.finish()
        source.goto(ran.position)
        kept = source.choose("record")
        assert kept.step.agreement == "choice"
        assert effect(kept, "look_up(").asked == 1
        assert asked(ledger)['look_up(order="A-17")'] == 1
        assert kept.last is None
        assert all(col.mark != "future" for col in kept.timeline)
        end = source.finish()
        assert [row.text for row in end.entries.rows] == [row.text for row in finished.entries.rows]
        source.goto(ran.position)
        failed = source.choose("not")
        assert failed.step.outside == "none"
        told = next(row for row in source.next().entries.rows if row.role == "tool")
        assert told.state == "failed"
        source.goto(ran.position)
        again = source.choose("run")
        assert again.step == ran.step
        assert effect(again, "look_up(").asked == 2


def test_a_choice_that_is_impossible_is_refused_with_its_reason() -> None:
    with ScenarioSource(builtin("refund")) as source:
        scene = at_effect(source)
        assert scene.step.choice is not None
        happened = next(option for option in scene.step.choice.options if option.id == "happened")
        assert happened.disabled is not None
        with pytest.raises(CannotDo, match="no answer of a model"):
            source.choose("happened")
        with pytest.raises(CannotDo, match="no option"):
            source.choose("maybe")
        source.goto(1)
        with pytest.raises(CannotDo, match="nothing to choose"):
            source.choose("run")


def test_a_recovery_that_crashes_its_process_ends_there_and_does_so_each_time() -> None:
    with ScenarioSource(builtin("restart-storm")) as source:
        end = source.finish()
        assert end.step.mark == "crash"
        assert end.next is None
        assert "next opening counts it" in (end.step.note or "")
        source.goto(end.position - 2)
        assert source.finish() == end


# --- Points and runs --------------------------------------------------------------------------------------------------


def test_points_are_told_in_words_and_each_can_be_run() -> None:
    with ScenarioSource(builtin("ticker")) as source:
        rows = source.points()
        assert all(row.text and row.kinds == ("freeze", "kill") for row in rows)
        words = {row.point: row.text for row in rows}
        assert words["ticker#1/tick:effect.after@3"] == "inside ticker, tick, after the outside answered: print tick 3"
        assert [row.point for row in rows if row.armed] == ["ticker#1/tick:effect.after@3"]
        first = [row for row in rows if "!" not in row.point]
        assert {Point.parse(row.point).life for row in rows} == {1, 2}
        for row in first[8::5]:
            scene = source.run([row.point], "freeze")
            assert scene.how == f"frozen at {row.point}"
            assert [one.point for one in scene.points if one.armed] == [row.point]
            assert source.finish().last is not None


@pytest.mark.parametrize("kind", ["freeze", "kill"])
def test_s1_two_lives_die_one_after_the_other_and_the_last_crash_is_looked_at(kind: str) -> None:
    with ScenarioSource(builtin("refund"), kind=kind) as source:
        second = next(row.point for row in source.points() if row.point == "2!pi.generation#2/request:effect.after")
        scene = source.run(["pi.tool#1/execute:effect.after", second], kind)
        assert scene.how is not None
        assert scene.how.endswith(second)
        assert sum(1 for col in scene.timeline if col.kind == "kill") == 2
        assert [row.point for row in scene.points if row.armed] == ["pi.tool#1/execute:effect.after", second]
        assert effect(scene, "refund(").asked == 1
        assert all(one.step.agreement in ("agrees", "milder", None) for one in positions(source))
        asks = effect(source.scene(), "ask ")
        assert asks.asked == 4
        assert asks.again


def test_a_point_that_no_life_passes_is_refused_and_the_scene_stays() -> None:
    with ScenarioSource(builtin("ticker")) as source:
        before = source.scene()
        with pytest.raises(DidNotDie, match="not reached"):
            source.run(["ticker#1/tick:effect.after@77"], "freeze")
        with pytest.raises(DidNotDie, match="not reached"):
            source.run(["ticker#1/tick:effect.after@77"], "kill")
        with pytest.raises(CannotDo, match="one point, or two"):
            source.run([], "freeze")
        with pytest.raises(CannotDo, match="freeze or kill"):
            source.run(["ticker#1/tick:effect.after"], "power")
        assert source.scene() == before


STANDS = {
    "pending": "before {}", "running": "inside {}", "waiting": "while {} waits", "sleeping": "while {} sleeps",
    "completing": "after {} was decided", "terminal": "after {} ended",
}  # fmt: skip


@pytest.mark.parametrize("name", ["refund", "sleeper", "checkout"])
def test_the_title_says_inside_only_where_the_dead_file_has_the_task_running(name: str) -> None:
    with ScenarioSource(builtin(name)) as source:
        every = [row.point for row in source.points() if row.point[:2] != "2!"]
        seen: set[str] = set()
        for point in every[:: max(1, len(every) // 25)]:
            scene = source.run([point], "freeze")
            if scene.step.task is None:
                continue
            dead = task(scene, scene.step.task)
            assert scene.step.title.startswith(STANDS[dead.state].format(dead.name)), (point, scene.step.title)
            seen.add(dead.state)
        assert "running" in seen
        assert len(seen) > 1


def test_c1_a_life_that_dies_behind_the_commit_of_a_result_died_after_the_call_and_lost_nothing() -> None:
    with ScenarioSource(builtin("refund"), points=["pi.tool#1/execute:commit.after"]) as source:
        scene = source.scene()
        assert scene.step.title == "after refund ended"
        assert scene.step.say == "The process dies after a commit is stored: all of it is there."
        assert not [col for col in scene.timeline if col.kind == "lost"]
        assert effect(scene, "refund(").store.text == "1 result"
        assert source.run(["pi.tool#1/execute:effect.after"], "freeze").step.title == "inside refund"
        assert source.run(["pi.tool#1/execute:commit.before"], "freeze").step.title == "inside refund"


@pytest.mark.parametrize("kind", ["freeze", "kill"])
def test_an_effect_that_ends_its_own_process_was_asked(kind: str) -> None:
    own, planned = "poison#1/poison:effect.after", "poison#1/poison:effect.before"
    with ScenarioSource(builtin("restart-storm"), points=[own], kind=kind) as source:
        scene = source.scene()
        assert scene.step.say == "The process dies while the outside is asked: crash the process."
        assert effect(scene, "crash the process").asked == 1
        assert [bar.label for bar in scene.bars if bar.cut][-1] == "crash the process"
        before = source.run([planned], kind)
        assert before.step.say == "The process dies before the outside is asked: crash the process."
        assert not [one for one in before.effects if one.label == "crash the process"]


def test_a_life_that_dies_before_its_first_task_is_stored_says_so() -> None:
    with ScenarioSource(builtin("ticker"), points=["ticker#1/tick:reserve.before"]) as source:
        assert source.scene().words == "Nothing to recover: there is no task."


def test_two_laboratories_have_banks_of_their_own() -> None:
    one, other = ScenarioSource(builtin("checkout")), ScenarioSource(builtin("refund"))
    try:
        one.next()
        other.next()
        one.close()
        assert other.finish().step.agreement == "agrees"
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_the_table_before_any_step_is_what_decide_says_of_the_dead_file(name: str) -> None:
    with ScenarioSource(builtin(name)) as source:
        walking = stage_of(source).walking
        with StoreFile.open(walking._stepper.source) as file:
            code = walking._program.code_for(file)
        said = decide_tasks(walking._stepper.snapshot, code, walking.policy, walking._stepper.now_ms)
        table = source.scene().step.table
        assert table is not None
        told = {row.task: (row.verdict, row.because, row.outside) for row in table if row.task is not None}
        assert told == {id: (verdict.name, verdict.because, verdict.outside) for id, verdict in said.items()}
