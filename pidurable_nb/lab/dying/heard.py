"""Owns what a life was heard to do besides passing points: what its commits changed, and the memos that came second.

As records, and as lines of a journal, which a kill cannot take. Never writes a journal itself and never judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pidurable_nb.ids import EntryId, Json, JsonObject, SubmissionId, TaskId
from pidurable_nb.probe import Mark, TaskSubject
from pidurable_nb.records.codec import task_json, task_of
from pidurable_nb.session.changes import Changes, TaskChange

__all__ = ["Heard", "lost_json", "lost_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What one stored commit changed: tasks before and after, and of all else which rows it was.

    Submissions come with their new status, documents by their kind.
    """

    seq: int
    barrier: bool
    tasks: Mapping[TaskId, TaskChange]
    entries: tuple[EntryId, ...] = ()
    submissions: Mapping[SubmissionId, str]
    documents: tuple[str, ...] = ()

    @classmethod
    def of(cls, changes: Changes) -> Heard | None:
        """What is kept of the changes; None for a commit that is only staged."""
        if changes.seq is None:
            return None
        return cls(
            seq=changes.seq,
            barrier=changes.barrier,
            tasks=dict(changes.tasks),
            entries=tuple(entry.id for entry in changes.entries),
            submissions={id: change.after.status for id, change in changes.submissions.items()},
            documents=tuple(change.record.kind for change in changes.documents),
        )

    def to_json(self) -> JsonObject:
        """A line of a journal."""
        tasks: list[Json] = [
            {"before": None if one.before is None else task_json(one.before), "after": task_json(one.after)}
            for one in self.tasks.values()
        ]
        return {
            "commit": self.seq,
            "barrier": self.barrier,
            "tasks": tasks,
            "entries": list(self.entries),
            "submissions": [[id, status] for id, status in self.submissions.items()],
            "documents": list(self.documents),
        }

    @classmethod
    def of_json(cls, line: Json) -> Heard | None:
        """The commit that a line of a journal tells of; None for any other line. Raises: BadRecord."""
        match line:
            case {
                "commit": int(seq),
                "barrier": bool(barrier),
                "tasks": [*tasks],
                "entries": [*entries],
                "submissions": [*submissions],
                "documents": [*documents],
            }:
                changes = [_task_of(one) for one in tasks]
                return cls(
                    seq=seq,
                    barrier=barrier,
                    tasks={change.after.id: change for change in changes if change is not None},
                    entries=tuple(EntryId(id) for id in entries if isinstance(id, int)),
                    submissions=dict(found for one in submissions for found in _submission_of(one)),
                    documents=tuple(kind for kind in documents if isinstance(kind, str)),
                )
            case _:
                return None


def _task_of(value: Json) -> TaskChange | None:
    match value:
        case {"before": before, "after": after}:
            return TaskChange(None if before is None else task_of(before), task_of(after))
        case _:
            return None


def _submission_of(value: Json) -> tuple[tuple[SubmissionId, str], ...]:
    match value:
        case [int(id), str(status)]:
            return ((SubmissionId(id), status),)
        case _:
            return ()


def lost_json(mark: Mark) -> JsonObject:
    """The line of a journal for a memo that came second (M1), with the value that is stored nowhere."""
    subject = mark.subject
    assert isinstance(subject, TaskSubject)
    return {"lost": mark.name, "task": subject.id, "kind": subject.kind, "phase": subject.phase, "value": mark.text}


def lost_of(line: Json) -> Mark | None:
    """The memo that came second by a line of a journal; None for any other line."""
    match line:
        case {"lost": str(name), "task": int(task), "kind": str(kind), "phase": str(phase), "value": str(text)}:
            return Mark(TaskSubject(TaskId(task), kind, phase), "lost", "after", name, laws=("M1",), text=text)
        case _:
            return None
