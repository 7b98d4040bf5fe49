"""Owns what a document is to a session: its definition, its address, and bringing a stored value to today's version.

Never loads and never writes one; the typed classes over definitions are those of `documents`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pidurable_nb.errors import DocumentRefused
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.document import (
    Address,
    ConversationScope,
    ForkPolicy,
    History,
    Scope,
    SessionScope,
    TaskScope,
)
from pidurable_nb.records.strict import detach
from pidurable_nb.store.delta import Op

ScopeName = Literal["session", "conversation", "task"]
BaseWhen = Callable[[JsonObject, Sequence[Op], int], bool]

SOME_DELTAS: Final = 50
MOST_DELTAS: Final = 1000
"""With `base_sometimes`, the deltas that are read at most to know a value: few for a small one, else this many."""

SMALL: Final = 4096
"""A value of about as many characters of JSON is small."""


def base_always(value: JsonObject, ops: Sequence[Op], deltas: int) -> bool:
    """Write the whole value on every change: for small documents."""
    return True


def base_never(value: JsonObject, ops: Sequence[Op], deltas: int) -> bool:
    """Write only what changed, always."""
    return False


def base_sometimes(value: JsonObject, ops: Sequence[Op], deltas: int) -> bool:
    """Write what changed, and now and then the whole value: a long one rarely, since that costs its whole length."""
    return deltas >= MOST_DELTAS or (deltas >= SOME_DELTAS and _weight(value, SMALL) < SMALL)


def _weight(value: Json, enough: int) -> int:
    """About how many characters of JSON a value is; counting stops soon after `enough`."""
    if isinstance(value, str):
        return len(value) + 3
    weight = 4
    if isinstance(value, Mapping):
        for key, item in value.items():
            weight += len(key) + 4 + _weight(item, enough - weight)
            if weight >= enough:
                break
    elif isinstance(value, (list, tuple)):
        for item in value:
            weight += 1 + _weight(item, enough - weight)
            if weight >= enough:
                break
    return weight


def empty(seed: Json) -> JsonObject:
    """The initial value of a document that starts empty."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a session has to know to keep documents of one kind.

    `initial` makes the first value from the seed that `edit` was given. `migrate` brings a value of an older version
    to `version`. `base_when(value, ops, deltas)` says whether a change is written as the whole new value; `deltas`
    counts those since the last whole one. `fork` and `history` matter for conversation scope only.

    Raises: DocumentRefused for a combination that cannot be kept.
    """

    kind: str
    version: int = 1
    scope: ScopeName
    history: History = "latest"
    fork: ForkPolicy = "initial"
    family: bool = False
    initial: Callable[[Json], JsonObject] = empty
    migrate: Callable[[JsonObject, int], JsonObject] | None = None
    base_when: BaseWhen = base_sometimes

    def __post_init__(self) -> None:
        if not self.kind:
            raise DocumentRefused("a document needs a kind, such as 'app.todo'")
        if self.version < 1:
            raise DocumentRefused(f"{self.kind}: versions count from 1, not {self.version}")
        if self.scope != "conversation" and (self.history != "latest" or self.fork != "initial"):
            raise DocumentRefused(
                f"{self.kind}: history and fork belong to conversation documents; a {self.scope} document has one value"
            )
        if self.fork == "as_of" and self.history != "rewindable":
            raise DocumentRefused(f"{self.kind}: fork='as_of' reads the past, so it needs history='rewindable'")

    def at(self, scope: Scope, key: str | None = None) -> Address:
        """The address of a document of this kind. Raises: DocumentRefused for the wrong scope, or a key too many."""
        address = Address(self.kind, scope, key)
        self.check(address)
        return address

    def check(self, address: Address) -> None:
        """Raises DocumentRefused when `address` is not one of this kind."""
        if address.kind != self.kind or scope_name(address.scope) != self.scope:
            raise DocumentRefused(
                f"{address.kind} in {address.scope}: the definition says {self.kind} in a {self.scope}"
            )
        if (address.key is not None) != self.family:
            raise DocumentRefused(
                f"{self.kind}: a family, name the member with a key"
                if self.family
                else f"{self.kind}: there is one per {self.scope}, leave out the key {address.key!r}"
            )


def scope_name(scope: Scope) -> ScopeName:
    """The word for the kind of scope."""
    match scope:
        case SessionScope():
            return "session"
        case ConversationScope():
            return "conversation"
        case TaskScope():
            return "task"


def todays(definition: Definition, value: JsonObject, version: int) -> JsonObject:
    """A stored value at the definition's version.

    Raises: DocumentRefused when it is newer, or older and the definition cannot migrate; whatever `migrate` raises.
    """
    if version == definition.version:
        return value
    if version > definition.version:
        raise DocumentRefused(
            f"{definition.kind}: stored by version {version}, and this is version {definition.version}; "
            "install the newer code"
        )
    if definition.migrate is None:
        raise DocumentRefused(
            f"{definition.kind}: stored by version {version}, this is version {definition.version}, "
            "and there is no migrate; add one"
        )
    return as_object(definition.migrate(value, version), definition.kind)


def as_object(value: object, kind: str) -> dict[str, Json]:
    """A detached copy of a document's value. Raises: NotJson (C7), DocumentRefused when it is no object."""
    copy = detach(value)
    if not isinstance(copy, dict):
        raise DocumentRefused(f"{kind}: the value of a document is an object, not {type(value).__name__}")
    return copy
