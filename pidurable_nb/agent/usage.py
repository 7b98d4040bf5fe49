"""Owns what conversations have spent, read from their `pi.usage`. Never counts anything itself.

A conversation counts the requests of its own runs; what its tools spent elsewhere stands in the conversation where it
was spent, so the sum over all conversations counts everything once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pidurable_nb.agent.stored import live
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ConversationId, JsonObject
from pidurable_nb.records.message import added
from pidurable_nb.session.session import Session
from pidurable_nb.store.storage import ConversationQuery

PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was spent, as usages in the stored form: by `provider/model`, and by the name of the tool that said so."""

    models: Mapping[str, JsonObject] = field(default_factory=dict)
    tools: Mapping[str, JsonObject] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """All tokens, of models and tools, in and out."""
        return int(sum(_number(usage, "totalTokens") for usage in self._all()))

    @property
    def cost(self) -> float:
        """What it cost, in the currency of the models' prices."""
        costs = (usage.get("cost") for usage in self._all())
        return float(sum(_number(cost, "total") for cost in costs if isinstance(cost, Mapping)))

    def _all(self) -> Iterable[JsonObject]:
        yield from self.models.values()
        yield from self.tools.values()

    def __add__(self, other: Usage) -> Usage:
        return Usage(models=_summed(self.models, other.models), tools=_summed(self.tools, other.tools))


def usage_in(document: JsonObject | None) -> Usage:
    """What a value of `pi.usage` says; nothing where there is no document."""
    value = document if document is not None else {}
    return Usage(models=_usages(value, "models"), tools=_usages(value, "tools"))


async def usage_of(session: Session, conversation: ConversationId) -> Usage:
    """What one conversation has spent, without those that its tasks own.

    Raises: StorageRequestError when there is no such conversation.
    """
    if await session.conversation(conversation) is None:
        raise StorageRequestError(f"conversation {conversation} does not exist; it has spent nothing")
    return await _stored(session, conversation)


async def total_usage(session: Session) -> Usage:
    """What all conversations have spent, each as it is stored when it is read."""
    total = Usage()
    after: int | None = None
    while True:
        page = await session.scan_conversations(ConversationQuery(), limit=PAGE, after=after)
        for record in page.items:
            total += await _stored(session, record.id)
        if page.next is None:
            return total
        after = page.next


async def _stored(session: Session, conversation: ConversationId) -> Usage:
    return usage_in(await session.snapshot(live.USAGE, live.at(live.USAGE, conversation)))


def _usages(document: JsonObject, member: str) -> dict[str, JsonObject]:
    """A member that holds something else than usages, in a stranger's store, says nothing."""
    kept = document.get(member)
    if not isinstance(kept, Mapping):
        return {}
    return {name: usage for name, usage in kept.items() if isinstance(usage, Mapping)}


def _summed(one: Mapping[str, JsonObject], other: Mapping[str, JsonObject]) -> dict[str, JsonObject]:
    total = dict(one)
    for name, usage in other.items():
        total[name] = added(total[name], usage) if name in total else usage
    return total


def _number(usage: JsonObject, name: str) -> int | float:
    value = usage.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
