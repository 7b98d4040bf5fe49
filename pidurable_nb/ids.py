"""Owns the names of numbers: ids, sequence numbers, and what JSON is. Never holds behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NewType, TypeAlias

ConversationId = NewType("ConversationId", int)
EntryId = NewType("EntryId", int)
TaskId = NewType("TaskId", int)
SubmissionId = NewType("SubmissionId", int)
DocumentId = NewType("DocumentId", int)

Seq = NewType("Seq", int)
"""Number of a commit. Grows, with gaps; 0 means before the first."""

ROOT = ConversationId(1)
"""The root conversation (C6). Minting starts behind it."""

MAX_INTEGER = 2**53 - 1
"""The largest integer that every reader of the format understands (C7)."""

Json: TypeAlias = "None | bool | int | float | str | Sequence[Json] | Mapping[str, Json]"
JsonObject: TypeAlias = "Mapping[str, Json]"


class Absent(Enum):
    """The type of `ABSENT`."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent.ABSENT
"""A field that is not there, where an explicit null would be something else."""
