"""S1: a request id admits once per conversation, across races, threads, kills and restarts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pidurable_nb import Answered, Harness, Json, Settings
from pidurable_nb.errors import NotJson, RequestConflict, SessionFailed, StorageError, StorageRequestError
from pidurable_nb.ids import SubmissionId
from pidurable_nb.models import Break, Say, Scripted
from pidurable_nb.records.message import text_of
from tests.agent.conftest import Lives, inbox_of, sound, submissions_of

if TYPE_CHECKING:
    from tests.agent.conftest import Home

Asking = Callable[[Harness], Awaitable[None]]


def echo() -> Scripted:
    return Scripted.by(lambda request: Say(f"heard: {text_of(request.messages[-1])}"))


async def said(h: Harness) -> list[str]:
    page = await (await h.root()).entries(limit=1000, order="ascending")
    return [text_of((entry.model or ({},))[0]) for entry in page.items if entry.kind in ("pi.user", "pi.assistant")]


# --- B10 (a), (b): at once, and across a kill -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_s1_b10_fifty_submits_at_once_with_one_request_id_are_one_entry_and_one_answer(
    home: Home, seed: int | None
) -> None:
    async def main() -> SubmissionId:
        async with home.agent(echo()) as h:
            root = await h.root()
            found = await asyncio.gather(*[root.submit("hello", request_id="r") for _ in range(50)])
            assert len({each.id for each in found}) == 1
            assert sorted(each.match for each in found) == ["new", *["same"] * 49]
            settled = await asyncio.gather(*[each.wait() for each in found])
            assert len({each.answer for each in settled if isinstance(each, Answered)}) == 1
            await h.wait_idle()
            assert await said(h) == ["hello", "heard: hello"]
            await sound(h)
            return found[0].id

    id = home.run(main(), seed=seed)

    async def again() -> None:
        async with home.agent(echo()) as h:
            root = await h.root()
            found = await root.submit("hello", request_id="r")
            assert (found.id, found.match) == (id, "same")
            assert isinstance(await found.wait(), Answered)
            assert await said(h) == ["hello", "heard: hello"]

    home.run(again(), seed=seed)


def test_s1_b10_submits_from_several_threads_with_one_request_id_are_one(tmp_path: Path) -> None:
    ids: list[tuple[SubmissionId, str]] = []

    async def main() -> None:
        async with Harness.open(tmp_path / "store.sqlite", models=[echo()], durability="kill") as h:
            root = await h.root()

            def client() -> None:
                async def ask() -> None:
                    found = await asyncio.gather(*[root.submit("hello", request_id="r") for _ in range(10)])
                    ids.extend((each.id, each.match) for each in found)
                    assert isinstance(await found[-1].wait(), Answered)

                asyncio.run(ask())

            threads = [threading.Thread(target=client) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            await h.wait_idle()
            assert len({id for id, _ in ids}) == 1
            assert sorted(match for _, match in ids) == ["new", *["same"] * 49]
            assert await said(h) == ["hello", "heard: hello"]
            await sound(h)

    asyncio.run(main())


def test_s1_b10_a_request_that_is_sent_again_by_every_life_is_answered_once_wherever_a_process_dies() -> None:
    seen: set[SubmissionId] = set()

    async def story(h: Harness) -> None:
        root = await h.root()
        found = await asyncio.gather(*[root.submit("hello", request_id="r") for _ in range(3)])
        assert len({each.id for each in found}) == 1
        assert isinstance(await found[0].wait(), Answered)
        await h.wait_idle()
        assert await said(h) == ["hello", "heard: hello"]
        assert len(await submissions_of(h)) == 1
        await sound(h)
        seen.add(found[0].id)

    lives = Lives(story)
    lives.models = [echo()]
    assert list(lives.sweep(deaths=2)).count(2) >= 6
    assert len(seen) == 1


# --- B10 (c): other content, another type -----------------------------------------------------------------------------


def test_s1_b10_other_content_with_the_same_request_id_differs_and_changes_nothing(home: Home) -> None:
    cases: list[tuple[str, str | list[dict[str, Json]], str | None, Json | None]] = [
        ("same", "hello", None, None),
        ("same", [{"type": "text", "text": "hello"}], None, None),
        ("differs", "Hello", None, None),
        ("differs", [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}], None, None),
        ("differs", "hello", "app.hello", None),
        ("differs", "hello", "app.hello", 1),
    ]

    async def compare(h: Harness, id: SubmissionId) -> None:
        root = await h.root()
        for match, content, kind, data in cases:
            more: dict[str, Json] = {} if data is None else {"data": data}
            again = await root.submit(content, kind=kind, request_id="r", **more)  # type: ignore[arg-type]
            assert (again.id, again.match) == (id, match), content

    async def main() -> SubmissionId:
        async with home.agent(Scripted(Say("busy", delay=Settings().retry.delay), "second")) as h:
            root = await h.root()
            await root.submit("first")
            asked = await root.submit("hello", request_id="r")
            await compare(h, asked.id)  # queued
            assert len(await inbox_of(root)) == 1
            await h.wait_idle()
            await compare(h, asked.id)  # answered
            assert await said(h) == ["first", "busy", "hello", "second"]
            return asked.id

    id = home.run(main())

    async def again() -> None:
        async with home.agent(Scripted("unused")) as h:
            await compare(h, id)
            assert len(await submissions_of(h)) == 2
            await sound(h)

    home.run(again())


def test_s1_what_was_queued_and_withdrawn_is_no_longer_known_and_not_admitted_again(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(Scripted(Say("busy", delay=Settings().retry.delay))) as h:
            root = await h.root()
            await root.submit("first")
            asked = await root.submit("hello", request_id="r")
            assert await asked.abort()
            again = await root.submit("hello", request_id="r")
            assert (again.id, again.match, await again.status()) == (asked.id, "unknown", "unanswered")

    memory.run(main())


def test_s1_b10_the_other_type_is_refused_before_any_write_and_the_first_stays_intact(home: Home) -> None:
    async def main() -> None:
        async with home.agent(echo()) as h:
            root = await h.root()
            asked = await root.submit("hello", request_id="r")
            with pytest.raises(RequestConflict, match=r"'r'.*input"):
                await root.write("app.note", text="hello", request_id="r")
            written = await root.write("app.note", request_id="w")
            with pytest.raises(RequestConflict, match=r"'w'.*write"):
                await root.submit("hello", request_id="w")
            assert len(await submissions_of(h)) == 2
            assert isinstance(await asked.wait(), Answered)
            assert await written.status() == "done"
            await h.wait_idle()
            await sound(h)

    home.run(main())


def test_s1_b10_the_scope_of_a_request_id_is_one_conversation(home: Home) -> None:
    async def main() -> None:
        async with home.agent(echo()) as h:
            root, other = await h.root(), await h.create()
            first, second = await root.submit("here", request_id="r"), await other.submit("there", request_id="r")
            assert (first.match, second.match, first.id == second.id) == ("new", "new", False)
            assert isinstance(await first.wait(), Answered)
            assert isinstance(await second.wait(), Answered)
            await h.wait_idle()
            await sound(h)

    home.run(main())


def test_s1_an_input_that_cannot_be_stored_admits_nothing(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(echo()) as h:
            root = await h.root()
            with pytest.raises(NotJson, match=r"\$"):
                await root.submit([{"type": "text", "text": float("nan")}], request_id="r")
            with pytest.raises(NotJson, match=r"\$"):
                await root.submit("x", kind="app.x", data={"a": float("inf")}, request_id="r")
            assert await submissions_of(h) == []
            assert await h.tasks() == ()
            assert (await root.submit("x", request_id="r")).match == "new"

    memory.run(main())


def test_s1_what_is_no_content_no_kind_and_no_answer_to_busy_is_refused(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(echo()) as h:
            root = await h.root()
            wrong: list[object] = [["hello"], {"type": "text", "text": "x"}, [{"text": "x"}], [None]]
            for content in wrong:
                with pytest.raises(StorageRequestError, match="content"):
                    await root.submit(content)  # type: ignore[arg-type]
            with pytest.raises(StorageRequestError, match="when_busy"):
                await root.submit("x", when_busy="later")  # type: ignore[arg-type]
            for kind in ("", "pi.user"):
                with pytest.raises(StorageRequestError, match="kind"):
                    await root.submit("x", kind=kind)
                with pytest.raises(StorageRequestError, match="kind"):
                    await root.write(kind)
            assert await submissions_of(h) == []

    memory.run(main())


def test_e5_s1_the_admission_of_a_request_with_an_id_is_a_barrier_and_of_one_without_is_none(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(echo()) as h:
            root = await h.root()
            barriers: list[bool] = []
            h.engine.session.subscribe(
                lambda changes: barriers.append(changes.barrier) if changes.submissions else None
            )
            await root.write("app.note")
            await root.write("app.note", request_id="w")
            found = await root.submit("x", request_id="r")
            await found.wait()
            await (await root.submit("x")).wait()
            assert barriers == [False, True, True, False, False, False]

    memory.run(main())


@pytest.mark.parametrize("request_id", ["", "é", "\u0000", "👋", "\ud800", 'quo"ted', "x" * 5000])
def test_s1_b19_any_text_is_a_request_id(home: Home, request_id: str) -> None:
    async def main() -> SubmissionId:
        async with home.agent(echo()) as h:
            found = await (await h.root()).submit("hello", request_id=request_id)
            await h.wait_idle()
            return found.id

    id = home.run(main())

    async def again() -> None:
        async with home.agent(echo()) as h:
            found = await (await h.root()).submit("hello", request_id=request_id)
            assert (found.id, found.match) == (id, "same")

    home.run(again())


# --- S2, S5: waiting --------------------------------------------------------------------------------------------------


def test_s5_a_wait_of_an_earlier_life_s_submission_ends_when_this_one_answers_it(home: Home) -> None:
    async def main() -> SubmissionId:
        async with home.agent(echo(), run=False) as h:
            found = await (await h.root()).submit("hello")
            assert await found.status() == "placed"
            return found.id

    id = home.run(main())

    async def again() -> None:
        async with home.agent(echo(), run=False) as h:
            waiting = asyncio.ensure_future((await h.submission(id)).wait())
            await asyncio.sleep(10)
            assert not waiting.done()
            h.resume()
            found = await waiting
            assert isinstance(found, Answered)
            assert found.text == "heard: hello"

    home.run(again())


def test_f1_every_wait_ends_when_the_storage_fails(tmp_path: Path) -> None:
    async def main() -> None:
        h = await Harness.open(tmp_path / "store.sqlite", models=[Scripted(Break("503 busy"), Say("x"))])
        root = await h.root()
        found = await root.submit("hello")
        waiting = asyncio.ensure_future(found.wait())
        idle = asyncio.ensure_future(root.wait_idle())
        await asyncio.sleep(0.05)
        h.engine.session.poison(StorageError("gone", stored="unknown"))
        ended = await asyncio.gather(waiting, idle, return_exceptions=True)
        assert [type(error) for error in ended] == [SessionFailed, SessionFailed]
        await h.closed
        await h.aclose()

    asyncio.run(main())
