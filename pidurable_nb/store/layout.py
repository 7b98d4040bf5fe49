"""Owns what the tables of a foreign store may look like, told from the schema text alone. Never runs it.

A store has nine ordinary tables and some indexes. Their text differs between writers in spacing, quotes, comments and
order, so it is read as words: a known table may say only what a plain table says, and nothing in the file may be a
view, a trigger, a virtual table or a generated column. Ordinary tables of others may stand beside them and are never
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from pidurable_nb.errors import HostileStore, NotAStore, StoreRefused
from pidurable_nb.store.copying import named
from pidurable_nb.store.visible import visible

NEWEST_FORMAT: Final = 2

TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "durable_schema": {"singleton": "INTEGER", "version": "INTEGER"},
    "durable_metadata": {"singleton": "INTEGER", "next_id": "TEXT", "next_seq": "INTEGER"},
    "record_ids": {"id": "INTEGER", "record_type": "TEXT"},
    "conversations": {
        "id": "INTEGER",
        "owner_conversation_id": "INTEGER",
        "owner_task_id": "INTEGER",
        "record": "TEXT",
    },
    "entries": {
        "id": "INTEGER",
        "conversation_id": "INTEGER",
        "head": "INTEGER",
        "commit_seq": "INTEGER",
        "record": "TEXT",
    },
    "tasks": {
        "id": "INTEGER",
        "conversation_id": "INTEGER",
        "kind": "TEXT",
        "status": "TEXT",
        "abort_requested": "INTEGER",
        "background": "INTEGER",
        "record": "TEXT",
    },
    "submissions": {
        "id": "INTEGER",
        "conversation_id": "INTEGER",
        "request_id": "TEXT",
        "status": "TEXT",
        "record": "TEXT",
    },
    "documents": {
        "id": "INTEGER",
        "kind": "TEXT",
        "family": "INTEGER",
        "key_value": "TEXT",
        "scope_kind": "TEXT",
        "owner_id": "INTEGER",
        "created_at": "INTEGER",
        "retired_at": "INTEGER",
        "record": "TEXT",
    },
    "document_revisions": {
        "document_id": "INTEGER",
        "seq": "INTEGER",
        "kind": "TEXT",
        "version": "INTEGER",
        "content": "TEXT",
    },
}
"""Every table of the format and its columns; the same in versions 1 and 2."""

_TABLE_WORDS: Final = re.compile(
    r"INTEGER|TEXT|PRIMARY|KEY|NOT|NULL|CHECK|IN|IS|AND|OR|BETWEEN|UNIQUE|CONSTRAINT|ASC|DESC|STRICT|WITHOUT|ROWID"
    r"|JSON_VALID|TYPEOF|LENGTH"
)
_INDEX_WORDS: Final = re.compile(r"CREATE|UNIQUE|INDEX|ON|ASC|DESC|WHERE|IS|NOT|NULL|AND|IN")
_CONSTRAINT_WORDS: Final = re.compile(r"PRIMARY|CHECK|UNIQUE|CONSTRAINT|FOREIGN")

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      |(?P<string>'(?:[^']|'')*')
      |(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
      |(?P<word>[^\W\d][\w$]*)
      |(?P<number>\d+)
      |(?P<sign>==|<=|>=|<>|!=|[(),=<>])
      |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Thing:
    """One row of `sqlite_schema`."""

    type: str
    name: str
    table: str
    sql: str | None


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        """The keyword that an unquoted word may be."""
        return self.text.upper() if self.kind == "word" else ""


def find_prefix(things: Sequence[Thing], path: Path) -> str:
    """What stands before every table name of the store in this file; usually nothing.

    Raises: NotAStore without a store, or with several.
    """
    found = [
        thing.name for thing in things if thing.name.endswith("durable_schema") and thing.type in ("table", "view")
    ]
    if not found:
        what = "is a database without the tables of a store" if things else "is a database in which nothing is stored"
        raise NotAStore(f"{named(path)} {what}; name the file of a store", path=path)
    if len(found) > 1 and "durable_schema" not in found:
        raise NotAStore(f"{named(path)} holds {len(found)} stores under different table prefixes", path=path)
    return "" if "durable_schema" in found else found[0].removesuffix("durable_schema")


def check_table(things: Sequence[Thing], prefix: str, name: str, path: Path) -> None:
    """Accept the table `name` of the format as a plain one with exactly its columns.

    Raises: NotAStore when it or a column is missing, HostileStore when it is or says anything more.
    """
    thing = next((thing for thing in things if thing.name == prefix + name and thing.type != "index"), None)
    if thing is None:
        raise NotAStore(f"{named(path)} has no table {name}; it is another kind of database", path=path)
    if thing.type != "table" or thing.sql is None:
        raise _hostile(path, f"{name} is a {thing.type} where a table belongs")
    tokens = _tokens(thing.sql)
    if len(tokens) < 3 or [token.word for token in tokens[:2]] != ["CREATE", "TABLE"]:
        raise _hostile(path, f"{name} is no ordinary table")
    if tokens[2].text != thing.name:
        raise _hostile(path, f"the table {name} is declared under another name")
    columns = TABLES[name]
    for token in tokens[3:]:
        if not _is_plain(token, _TABLE_WORDS, columns):
            raise _hostile(path, f"the table {name} is declared with {visible(token.text)[:60]!r}")
    given = _columns(tokens)
    for column, kind in columns.items():
        if column not in given:
            raise NotAStore(f"{named(path)} has no column {name}.{column}; it is another kind of database", path=path)
        if given[column] != kind:
            raise _hostile(path, f"the column {name}.{column} is {given[column] or 'untyped'}, not {kind}")


def check_rest(things: Iterable[Thing], prefix: str, path: Path) -> None:
    """Accept everything that is no table of the format: plain indexes, and ordinary tables of others.

    Raises: HostileStore for a view, a trigger, a virtual table, a generated column, an index on an expression.
    """
    ours = {prefix + name: columns for name, columns in TABLES.items()}
    for thing in things:
        if thing.type not in ("table", "index"):
            raise _hostile(path, f"it carries the {visible(thing.type)} {visible(thing.name)}")
        if thing.sql is None or thing.name in ours or thing.name.startswith("sqlite_"):
            continue
        tokens = _tokens(thing.sql)
        if thing.type == "table":
            if [token.word for token in tokens[:2]] != ["CREATE", "TABLE"]:
                raise _hostile(path, f"it carries the virtual table {visible(thing.name)}")
            if any(token.word in ("AS", "GENERATED") for token in tokens):
                raise _hostile(path, f"the table {visible(thing.name)} has a generated column")
        elif thing.table in ours:
            names = {*ours[thing.table], thing.name, thing.table}
            if not all(_is_plain(token, _INDEX_WORDS, names) for token in tokens):
                raise _hostile(path, f"the index {visible(thing.name)} is on more than columns")


def _is_plain(token: _Token, words: re.Pattern[str], names: Iterable[str]) -> bool:
    match token.kind:
        case "word":
            return words.fullmatch(token.word) is not None or token.text in names
        case "quoted":
            return token.text in names
        case "other":
            return False
        case _:
            return True


def _columns(tokens: Sequence[_Token]) -> dict[str, str]:
    """Column name -> declared type, from the words of a CREATE TABLE."""
    given: dict[str, str] = {}
    depth, fresh = 0, False
    for token, after in zip(tokens, [*tokens[1:], _Token("end", "")], strict=True):
        if fresh and depth == 1 and not _CONSTRAINT_WORDS.fullmatch(token.word):
            given[token.text] = after.word
        depth += (token.text == "(") - (token.text == ")") if token.kind == "sign" else 0
        fresh = depth == 1 and token.kind == "sign" and token.text in "(,"
    return given


@lru_cache(maxsize=64)  # the texts of one format come again with every store; those of a hostile one are bounded
def _tokens(sql: str) -> tuple[_Token, ...]:
    tokens = []
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup or "other"
        if kind == "quoted":
            tokens.append(_Token(kind, _unquoted(match[0])))
        elif kind != "space":
            tokens.append(_Token(kind, match[0]))
    return tuple(tokens)


def _unquoted(text: str) -> str:
    inner = text[1:-1]
    return inner if text[0] == "[" else inner.replace(text[0] * 2, text[0])


def _hostile(path: Path, what: str) -> StoreRefused:
    return HostileStore(f"{named(path)} is not opened: {what}, which no store has; do not open it", path=path)
