"""The graph of live tasks: what runs, what waits for what, and who owns what, from the first commit to the last."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pidurable_nb import Done, Failed, Harness, Phase, Runtime, Sleeping, TaskRef, Waiting
from pidurable_nb.agent.watching import task_graph
from pidurable_nb.agent.watching.task_graph import Active, Completing, GraphWatch, TaskGraph, graph_of, watch_graph
from pidurable_nb.errors import SessionClosed, TaskEnded
from pidurable_nb.ids import ROOT, ConversationId, Seq, TaskId
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.storage import ConversationQuery

if TYPE_CHECKING:
    from tests.agent.conftest import Home


class Boss(Phase[int], task="boss"):
    """Makes a conversation with work in it, waits for its own work, and is done while the background works on."""

    naps: int = 1

    async def run(self, rt: Runtime) -> Waiting[Reading]:
        async with rt.commit() as tx:
            mine = await tx.create_conversation()
            await tx.create_conversation(owned=False)
            tx.spawn(Napper(self.naps + 3), conversation=mine)
            work = (tx.spawn(Napper(self.naps)), tx.spawn(Napper(self.naps + 1)))
            tx.spawn(Napper(self.naps + 5), background=True)
            return tx.become(Waiting(on=work, then=Reading(), fail_fast=False))


class Reading(Phase[int]):
    async def run(self, rt: Runtime) -> Done[int] | Failed:
        async with rt.commit() as tx:
            await tx.create_conversation()
            return tx.become(Done(1))


class Napper(Phase[int], task="napper"):
    seconds: int = 1

    async def run(self, rt: Runtime) -> Sleeping[Waking]:
        return Sleeping(until=rt.now() + timedelta(seconds=self.seconds), then=Waking(self.seconds))


class Waking(Phase[int]):
    seconds: int

    async def run(self, rt: Runtime) -> Done[int] | Failed:
        await rt.memo("awake", True)  # changes the task and no node
        if self.seconds % 4 == 3:
            return Failed("overslept")
        return Done(self.seconds)


class Oracle:
    """Every stored commit, and the graph after any of them, computed from all of its history."""

    def __init__(self, h: Harness) -> None:
        self.commits: list[Changes] = []
        h.engine.session.subscribe(self.commits.append)

    def graph(self, seq: Seq) -> TaskGraph:
        tasks: dict[TaskId, TaskRecord] = {}
        conversations: list[ConversationRecord] = []
        for changes in self.commits:
            if changes.seq is None or changes.seq > seq:
                break
            tasks.update((id, change.after) for id, change in changes.tasks.items())
            conversations += changes.conversations
        return graph_of(tasks.values(), conversations)

    def changing(self) -> list[TaskGraph]:
        """The graphs that differ from the one before."""
        graphs = [TaskGraph(tasks={})]
        for changes in self.commits:
            assert changes.seq is not None
            graph = self.graph(changes.seq)
            if graph != graphs[-1]:
                graphs.append(graph)
        return graphs[1:]


async def rest(watch: GraphWatch) -> list[TaskGraph]:
    return [graph async for graph in watch]


async def stored_graph(h: Harness) -> TaskGraph:
    """The graph as the store itself gives it."""
    session = h.engine.session
    conversations = await session.scan_conversations(ConversationQuery(), limit=1000)
    return graph_of(await h.tasks(live=True), conversations.items)


def by_kind(graph: TaskGraph, kind: str) -> list[TaskId]:
    return [id for id, node in graph.tasks.items() if node.kind == kind]


# --- Nodes ------------------------------------------------------------------------------------------------------------


def test_o1_a_node_says_what_its_task_is_and_owns_and_what_it_waits_for(home: Home) -> None:
    async def main() -> None:
        async with home.open(Boss, Napper) as h:
            root = await h.root()
            watch = await watch_graph(h.engine)
            assert watch.value == TaskGraph(tasks={})
            boss = await root.start(Boss(2))
            new = (await anext(watch)).tasks[boss.id]
            assert (new.kind, new.conversation, new.owner, new.background) == ("boss", ROOT, None, False)
            assert new.state == Active(status="pending", phase="boss")
            assert new.conversations == ()
            assert (await anext(watch)).tasks[boss.id].state == Active(status="running", phase="boss")
            graph = await anext(watch)
            waiting = graph.tasks[boss.id]
            nappers = [graph.tasks[id] for id in by_kind(graph, "napper")]
            mine, *_ = waiting.conversations
            assert waiting.state == task_graph.Waiting(
                phase="reading", on=tuple(node.id for node in nappers if node.owner == boss.id), fail_fast=False
            )
            assert [(node.owner, node.conversation, node.background) for node in nappers] == [
                (None, mine, False), (boss.id, ROOT, False), (boss.id, ROOT, False), (None, ROOT, True),
            ]  # fmt: skip
            while not isinstance((graph := await anext(watch)).tasks[boss.id].state, Completing):
                pass
            assert graph.tasks[boss.id].state == Completing(outcome="completed")
            assert len(graph.tasks[boss.id].conversations) == 2
            assert await h.wait(boss) == 1
            await asyncio.sleep(10)
            assert watch.value == TaskGraph(tasks={}) == await stored_graph(h)
            watch.stop()

    home.run(main())


def test_t12_o2_a_sleeping_task_and_one_that_is_to_be_aborted_say_so(home: Home) -> None:
    async def main() -> None:
        async with home.open(Boss, Napper) as h:
            task = await (await h.root()).start(Napper(8))
            await asyncio.sleep(1)
            watch = await watch_graph(h.engine)
            node = watch.value.tasks[task.id]
            assert isinstance(node.state, task_graph.Sleeping)
            assert node.state.phase == "waking"
            assert node.state.until_ms == home.clock.now_ms() + 7000
            assert not node.abort_requested
            await h.abort(task)
            assert (await anext(watch)).tasks[task.id].abort_requested
            with pytest.raises(TaskEnded):
                await h.wait(task)
            assert watch.value.tasks == {}

    home.run(main())


def test_v4_a_commit_that_changes_no_node_makes_no_graph(memory: Home) -> None:
    async def main() -> None:
        async with memory.open(Boss, Napper) as h:
            root = await h.root()
            watch = await watch_graph(h.engine)
            async with root.commit() as tx:
                tx.append("app.note", data=1)
                await tx.create_conversation()
            assert len(watch._frames) == 0
            task = await root.start(Napper(1))
            await h.wait(task)
            watch.stop()
            states = [graph.tasks[task.id].state if graph.tasks else None for graph in await rest(watch)]
            words = [(type(state).__name__, getattr(state, "phase", None)) for state in states]
            assert words == [
                ("Active", "napper"), ("Active", "napper"), ("Sleeping", "waking"), ("Active", "waking"),
                ("NoneType", None),
            ]  # fmt: skip

    memory.run(main())


def test_t7_after_a_restart_the_graph_is_that_of_the_store_with_the_conversations(home: Home) -> None:
    async def life() -> tuple[TaskRef[int], TaskGraph]:
        async with home.open(Boss, Napper) as h:
            boss = await (await h.root()).start(Boss(50))
            await asyncio.sleep(1)
            watch = await watch_graph(h.engine)
            return boss, watch.value

    async def second(boss: TaskRef[int], kept: TaskGraph) -> None:
        async with home.open(Boss, Napper, run=False) as h:
            watch = await watch_graph(h.engine)
            assert watch.value == kept == await stored_graph(h)
            assert len(watch.value.tasks[boss.id].conversations) == 1

    home.run(second(*home.run(life())))


def test_v4_a_graph_watch_ends_with_the_session(home: Home) -> None:
    async def main() -> None:
        h = await home.open(Boss, Napper)
        watch = await watch_graph(h.engine)  # there is no conversation yet
        waiting = asyncio.create_task(rest(watch))
        task = await (await h.root()).start(Napper(1000))
        await asyncio.sleep(1)
        await h.aclose()
        assert [len(graph.tasks) for graph in await waiting][-1] == 1
        assert watch.ended == "session_closed"
        assert isinstance(watch.value.tasks[task.id].state, task_graph.Sleeping)
        with pytest.raises(SessionClosed):
            await watch_graph(h.engine)

    home.run(main())


# --- Sweeps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_v4_every_watched_graph_is_the_one_that_the_whole_history_gives(memory: Home, seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        async with memory.open(Boss, Napper) as h:
            oracle = Oracle(h)
            root = await h.root()
            started: list[TaskRef[int]] = []

            async def work() -> None:
                for _ in range(6):
                    started.append(await root.start(chance.choice((Boss, Napper))(chance.randint(1, 6))))
                    await asyncio.sleep(chance.random() * 3)
                    if chance.random() < 0.3:
                        await h.abort(chance.choice(started), background=chance.random() < 0.5)

            working = asyncio.create_task(work())
            watches: list[tuple[TaskGraph, asyncio.Task[list[TaskGraph]], GraphWatch]] = []
            for _ in range(5):
                await asyncio.sleep(chance.random() * 3)
                watch = await watch_graph(h.engine)
                watches.append((watch.value, asyncio.create_task(rest(watch)), watch))
            await working
            await asyncio.sleep(60)
            assert not h.engine.table.live()
            graphs = oracle.changing()
            for first, reading, watch in watches:
                watch.stop()
                seen = [first, *await reading]
                assert seen[-1] == watch.value == TaskGraph(tasks={})
                expected = [TaskGraph(tasks={}), *graphs][-len(seen) :]
                assert seen == expected, "a commit was missed or shown twice"
                for graph in seen[1:]:
                    assert graph == oracle.graph(graph.seq)

    memory.run(main(), seed=seed)


def test_v4_a_slow_observer_of_the_graph_converges(memory: Home) -> None:
    async def main() -> None:
        async with memory.open(Boss, Napper) as h:
            root = await h.root()
            watch = await watch_graph(h.engine)
            for n in range(60):
                await root.start(Napper(1 + n % 3))
            await asyncio.sleep(2.5)
            watch.stop()
            frames = await rest(watch)
            assert len(frames) <= 100
            assert frames[-1] == watch.value == await stored_graph(h)
            assert len(watch.value.tasks) == 20

    memory.run(main())


def test_o1_many_conversations_of_one_task_are_all_found(memory: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_graph, "PAGE", 2)

    class Collector(Phase[int], task="collector"):
        async def run(self, rt: Runtime) -> Sleeping[Waking]:
            async with rt.commit() as tx:
                for _ in range(7):
                    await tx.create_conversation()
                return tx.become(Sleeping(until=rt.now() + timedelta(seconds=9), then=Waking(1)))

    async def main() -> None:
        async with memory.open(Collector) as h:
            task = await (await h.root()).start(Collector())
            early = await watch_graph(h.engine)
            await asyncio.sleep(1)
            late = await watch_graph(h.engine)
            assert len(late.value.tasks[task.id].conversations) == 7
            assert late.value == early.value
            assert late.value.tasks[task.id].conversations[0] > ConversationId(task.id)

    memory.run(main())
