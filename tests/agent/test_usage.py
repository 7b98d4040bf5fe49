"""What conversations have spent, one by one and all together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pidurable_nb import Harness
from pidurable_nb.agent import usage
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.usage import Usage, total_usage, usage_in, usage_of
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ROOT, ConversationId, JsonObject
from pidurable_nb.probe import ConversationSubject
from pidurable_nb.records.message import no_usage

if TYPE_CHECKING:
    from tests.agent.conftest import Home


def spent(tokens: int, cost: float) -> JsonObject:
    return {
        **no_usage(), "input": tokens, "totalTokens": tokens,
        "cost": {"input": cost, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": cost},
    }  # fmt: skip


async def spend(h: Harness, where: ConversationId, member: str, name: str, tokens: int, cost: float) -> None:
    async with h.engine.session.block(ConversationSubject(where), conversation=where) as tx:
        draft = await tx.edit(live.USAGE, live.at(live.USAGE, where))
        kept = draft[member]
        assert isinstance(kept, dict)
        kept[name] = spent(tokens, cost)


def test_a_conversation_knows_what_it_spent_by_model_and_by_tool(home: Home) -> None:
    async def main() -> None:
        async with home.open() as h:
            await h.root()
            session = h.engine.session
            assert await usage_of(session, ROOT) == Usage() == await total_usage(session)
            await spend(h, ROOT, "models", "acme/large", 100, 0.5)
            await spend(h, ROOT, "models", "acme/small", 10, 0.25)
            await spend(h, ROOT, "tools", "search", 1, 0.125)
            found = await usage_of(session, ROOT)
            assert set(found.models) == {"acme/large", "acme/small"}
            assert found.tools == {"search": spent(1, 0.125)}
            assert (found.tokens, found.cost) == (111, 0.875)
        async with home.open() as h:
            assert await usage_of(h.engine.session, ROOT) == found

    home.run(main())


def test_the_total_sums_all_conversations_over_many_pages(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "PAGE", 3)

    async def main() -> None:
        async with home.open() as h:
            await h.root()
            session = h.engine.session
            where = [ROOT, *[(await h.create()).id for _ in range(9)]]
            for n, conversation in enumerate(where):
                await spend(h, conversation, "models", f"acme/{n % 2}", n, n / 4)
            async with session.block(ConversationSubject(where[5])) as tx:
                await tx.retire(live.USAGE, live.at(live.USAGE, where[5]))  # has spent nothing that is known
            total = await total_usage(session)
            assert set(total.models) == {"acme/0", "acme/1"}
            assert (total.tokens, total.cost) == (45 - 5, (45 - 5) / 4)
            assert total == sum([await usage_of(session, each) for each in where], Usage())
            with pytest.raises(StorageRequestError, match="999"):
                await usage_of(session, ConversationId(999))

    home.run(main())


def test_what_a_stranger_stored_in_another_shape_says_nothing() -> None:
    found = usage_in({"models": {"a/b": {"totalTokens": True, "cost": 3}, "c": 4}, "tools": []})
    assert (found.tokens, found.cost, set(found.models), dict(found.tools)) == (0, 0, {"a/b"}, {})
    assert usage_in(None) == Usage()
