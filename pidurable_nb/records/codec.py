"""Owns the one import for what is on disk: text to records and back. Never does I/O.

Only the modules behind it know a stored name. Text that comes from anywhere is read strictly: what a record must have
has its shape, or `BadRecord` names record and field; what this version does not know is kept and written back. Writing
is fast and trusts its values: they passed `records.strict.detach` where they entered.
"""

from __future__ import annotations

from pidurable_nb.records.codec_document import (
    decode_document,
    document_json,
    document_of,
    encode_document,
    scope_json,
)
from pidurable_nb.records.codec_task import (
    decode_task,
    encode_task,
    outcome_json,
    state_json,
    task_json,
    task_of,
)
from pidurable_nb.records.codec_transcript import (
    conversation_json,
    conversation_of,
    decode_conversation,
    decode_entry,
    decode_submission,
    encode_conversation,
    encode_entry,
    encode_submission,
    entry_json,
    entry_of,
    submission_json,
    submission_of,
)
from pidurable_nb.records.jsontext import STORED_DEPTH, BadRecord, both_spellings, dumps, indexed, loads

__all__ = [
    "STORED_DEPTH",
    "BadRecord",
    "both_spellings",
    "conversation_json",
    "conversation_of",
    "decode_conversation",
    "decode_document",
    "decode_entry",
    "decode_submission",
    "decode_task",
    "document_json",
    "document_of",
    "dumps",
    "encode_conversation",
    "encode_document",
    "encode_entry",
    "encode_submission",
    "encode_task",
    "entry_json",
    "entry_of",
    "indexed",
    "loads",
    "outcome_json",
    "scope_json",
    "state_json",
    "submission_json",
    "submission_of",
    "task_json",
    "task_of",
]
