"""Points: a name and its place are the same thing, and the name does not depend on ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidurable_nb.ids import ConversationId, Seq, SubmissionId, TaskId
from pidurable_nb.lab.dying.point import BadPoint, Namer, Numbered, Place, Point, PointWhat, StorePlace, TaskPlace
from pidurable_nb.lab.dying.vfs import FileOp
from pidurable_nb.probe import (
    ConversationSubject,
    Edge,
    Mark,
    SessionSubject,
    Subject,
    SubmissionSubject,
    TaskSubject,
    What,
)
from pidurable_nb.records.task import Pending, TaskRecord
from pidurable_nb.session.changes import Changes, TaskChange

counts = st.integers(1, 10**6)
names = st.one_of(st.text(min_size=1), st.sampled_from(["demo.payment", "-", "a/b#1", "%2d;", "2!x:effect.after@3"]))
places: st.SearchStrategy[Place] = st.one_of(
    st.builds(StorePlace),
    st.builds(Numbered, st.sampled_from(["submission", "conversation"]), counts),
    st.builds(TaskPlace, names, counts, st.one_of(st.just(""), names)),
)


@st.composite
def points(draw: st.DrawFn) -> Point:
    whats: list[PointWhat] = ["reserve", "phase", "memo", "commit", "effect", "publish", "open"]
    what = draw(st.sampled_from(whats))
    edge: Edge = draw(st.sampled_from(["before", "after"]))
    return Point(place=draw(places), what=what, edge=edge, n=draw(counts), life=draw(counts))


@given(points())
def test_a_name_parses_to_the_point_that_it_names(point: Point) -> None:
    assert Point.parse(str(point)) == point


@pytest.mark.parametrize(
    "name",
    [
        "ticker#1/tick:effect.after@3",
        "2!payment#4/capture:commit.before",
        "payment#2/abort:phase.before",
        "checkout#1/-:commit.after",
        "session:open.before",
        "session:vfs.write@7",
        "3!session:vfs.truncate",
        "submission#2:commit.after",
        "conversation#1:publish.before@12",
        "demo.agent#1/generate:chunk@5",
    ],
)
def test_names_are_written_as_the_grammar_has_them(name: str) -> None:
    assert str(Point.parse(name)) == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a point"),
        ("ticker", "is not a point"),
        ("ticker#1/tick", "is not a point"),
        ("ticker:effect.after", "a subject is TASK#N/PHASE"),
        ("ticker#x/tick:effect.after", "a subject is"),
        ("ticker#1/tick:lunch.after", "nothing is called 'lunch.after'; there are reserve"),
        ("ticker#1/tick:effect.during", "an edge is before or after, not 'during'"),
        ("ticker#1/tick:effect", "needs .before or .after"),
        ("session:vfs.write.before", "has no edge"),
        ("ticker#1/tick:vfs.write", "write session:vfs.write"),
        ("ticker#0/tick:effect.after", "count from 1"),
        ("ticker#1/tick:effect.after@0", "count from 1"),
        ("0!ticker#1/tick:effect.after", "count from 1"),
    ],
)
def test_what_is_no_name_is_refused_with_the_part_that_is_wrong(text: str, said: str) -> None:
    with pytest.raises(BadPoint, match=said.replace(".", r"\.")):
        Point.parse(text)


def mark(subject: Subject, what: What = "commit", edge: Edge = "before") -> Mark:
    return Mark(subject, what, edge)


def created(*tasks: tuple[int, str]) -> Changes:
    records = {
        TaskId(id): TaskChange(
            None,
            TaskRecord(
                id=TaskId(id), conversation=ConversationId(1), kind=kind, version=1, input={},
                state=Pending(checkpoint={"phase": "a"}),
            ),
        )
        for id, kind in tasks
    }  # fmt: skip
    return Changes(Seq(1), False, records, (), (), {}, ())


def test_ordinals_follow_creation_and_not_the_order_of_being_seen() -> None:
    namer = Namer()
    namer.follow(created((9, "payment"), (12, "payment"), (10, "parent")))
    assert str(namer.name(mark(TaskSubject(TaskId(12), "payment", "a"), "reserve"))) == "payment#2/a:reserve.before"
    assert str(namer.name(mark(TaskSubject(TaskId(9), "payment", "a"), "reserve"))) == "payment#1/a:reserve.before"
    assert str(namer.name(mark(TaskSubject(TaskId(10), "parent", "a"), "reserve"))) == "parent#1/a:reserve.before"
    assert str(namer.name(mark(ConversationSubject(ConversationId(1))))) == "conversation#1:commit.before"
    assert str(namer.name(mark(ConversationSubject(ConversationId(40))))) == "conversation#2:commit.before"
    assert str(namer.name(mark(SubmissionSubject(SubmissionId(41))))) == "submission#1:commit.before"


def test_ordinals_survive_other_ids() -> None:
    named: list[list[str]] = []
    for first in (7, 700):
        namer = Namer()
        namer.follow(created(*((first + 3 * n, "payment") for n in range(4))))
        subjects = [TaskSubject(TaskId(first + 3 * n), "payment", "a") for n in (2, 0, 3, 1)]
        named.append([str(namer.name(mark(subject, "effect"))) for subject in subjects])
    assert named[0] == named[1]


def test_occurrences_count_within_subject_edge_and_life() -> None:
    namer = Namer(life=2)
    tick = TaskSubject(TaskId(7), "ticker", "tick")
    said = [str(namer.name(mark(tick, "effect", edge))) for edge in ("before", "after", "before", "after")]
    assert said == [
        "2!ticker#1/tick:effect.before",
        "2!ticker#1/tick:effect.after",
        "2!ticker#1/tick:effect.before@2",
        "2!ticker#1/tick:effect.after@2",
    ]
    assert str(namer.name(mark(TaskSubject(TaskId(7), "ticker", "tock"), "effect"))).endswith("tock:effect.before")


def test_what_settles_without_code_is_a_commit_of_its_subject() -> None:
    namer = Namer()
    task = TaskSubject(TaskId(7), "checkout", "")
    assert str(namer.name(mark(task, "reconcile"))) == "checkout#1/-:commit.before"
    assert str(namer.name(mark(task, "commit"))) == "checkout#1/-:commit.before@2"
    assert str(namer.name(mark(SessionSubject(), "open", "after"))) == "session:open.after"


def test_file_operations_are_counted_by_kind() -> None:
    namer = Namer()
    ops = [FileOp(n=n, op=op, file="store.sqlite") for n, op in enumerate(("write", "sync", "write"), 1)]  # type: ignore[arg-type]
    assert [str(namer.name_file_op(op)) for op in ops] == [
        "session:vfs.write",
        "session:vfs.sync",
        "session:vfs.write@2",
    ]


def test_a_piece_of_an_answer_is_a_point_without_an_edge() -> None:
    namer = Namer()
    mark = Mark(TaskSubject(TaskId(7), "pi.generation", "request"), "chunk", "after")
    first, second = namer.name(mark), namer.name(mark)
    assert [str(first), str(second)] == ["pi.generation#1/request:chunk", "pi.generation#1/request:chunk@2"]
    assert Point.parse(str(second)) == second
