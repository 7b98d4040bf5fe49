"""Looking up what was said long ago: everything of one's own is found, whatever moved the head, in bounded steps."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import pytest

from pidurable_nb import Answered, Conversation, Harness
from pidurable_nb.agent.ready import history as module
from pidurable_nb.agent.ready.history import history
from pidurable_nb.ids import ROOT, Json
from pidurable_nb.models import Answer, CallTools, ModelRequest, PlannedCall, Say, Scripted
from pidurable_nb.records.message import role_of, text_of
from tests.agent.conftest import Lives


def parrot(request: ModelRequest) -> Answer:
    """Searches when it is told to, and says what was found; anything else is heard."""
    last = request.messages[-1]
    text = text_of(last)
    if role_of(last) == "toolResult":
        return Say(text)
    if not text.startswith("search "):
        return Say(f"heard {text}")
    words, limit, before = re.fullmatch(r"search ([^/]*)(?:/(\d*)/(\d*))?", text).groups()  # type: ignore[union-attr]
    arguments: dict[str, Json] = {"query": words}
    if limit:
        arguments["limit"] = int(limit)
    if before:
        arguments["before"] = int(before)
    return CallTools(PlannedCall("search_history", arguments))


def play(story: Callable[[Harness], Awaitable[None]]) -> None:
    lives = Lives(story)
    lives.extensions, lives.models = [history()], [Scripted.by(parrot)]
    lives.live()
    assert lives.reports == []


async def ask(conversation: Conversation, text: str) -> str:
    answer = await (await conversation.submit(text)).wait()
    assert isinstance(answer, Answered)
    return answer.text


async def search(conversation: Conversation, words: str, limit: int | str = "", before: int | str = "") -> list[str]:
    return (await ask(conversation, f"search {words}/{limit}/{before}")).splitlines()


def numbers(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.match(r"\[(\d+)\] ", line))]


def test_v1_what_was_said_before_a_reset_is_found() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        await ask(root, "the key is under the BLUE stone")
        await (await root.reset("start again")).wait()
        assert [text_of(m) for m in (await root.context()).messages if role_of(m) == "user"] == ["start again"]
        lines = await search(root, "stone blue")
        assert [re.sub(r"\d+", "N", line) for line in lines] == [
            "[N] user: search stone blue//",
            "[N] assistant: heard the key is under the BLUE stone",
            "[N] user: the key is under the BLUE stone",
            "That is all.",
        ]
        for id in numbers(lines):
            entry = await h.engine.session.entry(id)  # type: ignore[arg-type]
            assert entry is not None

    play(story)


def test_v3_a_fork_finds_what_it_shares_with_its_parent_and_nothing_else() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        await ask(root, "a shared stone")
        fork = await root.fork(at=(await root.entries(limit=1)).items[0].id)
        await ask(root, "a stone of the parent")
        await ask(fork, "a stone of the fork")
        assert [line.partition(": ")[2] for line in await search(fork, "stone")][:-1] == [
            "search stone//", "heard a stone of the fork", "a stone of the fork", "heard a shared stone",
            "a shared stone",
        ]  # fmt: skip

    play(story)


def test_pages_go_back_to_the_beginning_and_show_everything_once() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        for n in range(6):
            await ask(root, f"stone {n}")
        await (await root.reset()).wait()
        found: list[int] = []
        before: int | str = ""
        for _ in range(10):
            lines = await search(root, "stone heard", 2, before)
            found += numbers(lines)
            if lines[-1] in ("That is all.", "Nothing was found."):
                break
            assert len(numbers(lines)) == 2
            before = int(lines[-1].rpartition("=")[2].rstrip("."))
        page = await root.entries(limit=1000)
        said = [
            entry.id for entry in page.items for message in entry.model or () if text_of(message).startswith("heard st")
        ]
        assert [id for id in found if id in said] == said
        assert len(found) == len(set(found))

    play(story)


def test_searches_do_not_find_themselves() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        assert await search(root, "unicorn") == ["[7] user: search unicorn//", "That is all."]
        lines = await search(root, "unicorn")
        assert [line.partition(": ")[2] for line in lines] == [
            "search unicorn//", "[7] user: search unicorn// That is all.", "search unicorn//", "",
        ]  # fmt: skip

    play(story)


def test_entries_without_a_message_and_calls_are_found_too() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        await (await root.write("app.note", data={"where": "under the stone"})).wait()
        assert (await search(root, "UNDER"))[1] == '[8] app.note: {"where":"under the stone"}'

    play(story)


def test_long_texts_are_shown_around_the_words() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        await (await root.write("app.note", text="sand " * 3000 + "\n\n a   stone\nhere " + "sand " * 3000)).wait()
        [_, line, _] = await search(root, "stone")
        assert re.fullmatch(r"\[8\] user: …[and]*( sand)+ a stone here (sand )+[sand]*…", line), line
        assert len(line) < 300

    play(story)


def test_one_call_looks_at_so_many_entries_and_says_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_READ", 300)
    monkeypatch.setattr(module, "PAGE", 40)

    async def story(h: Harness) -> None:
        root = await h.root()
        await ask(root, "a stone")
        for _ in range(4):
            async with root.commit() as tx:
                for _ in range(100):
                    tx.append("app.note", text="sand")
        first, stopped = await search(root, "stone")
        assert first.endswith("search stone//")
        assert stopped.startswith("Looked at 300 entries only: to go on, search again with before=")
        before = int(stopped.rpartition("=")[2].rstrip("."))
        lines = await search(root, "stone", before=before)
        assert [line.partition(": ")[2] for line in lines] == ["heard a stone", "a stone", ""]

    play(story)


@pytest.mark.parametrize("words", ["(", "a.c", "ß", "İ", "[7]", "\\"])
def test_words_are_words_and_no_patterns(words: str) -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        await ask(root, f"xx {words} yy abc")
        lines = await search(root, words)
        assert [line.partition(": ")[2] for line in lines][1:3] == [f"heard xx {words} yy abc", f"xx {words} yy abc"]
        assert len(lines) == 4

    play(story)


def test_e2_a_search_that_a_crash_cut_is_made_again() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        await (await root.submit("a stone", request_id="1")).wait()
        answer = await (await root.submit("search stone", request_id="2")).wait()
        assert isinstance(answer, Answered)
        assert [line.partition(": ")[2] for line in answer.text.splitlines()] == [
            "search stone", "heard a stone", "a stone", "",
        ]  # fmt: skip
        assert root.id == ROOT

    lives = Lives(story)
    lives.extensions, lives.models = [history()], [Scripted.by(parrot)]
    assert len(list(lives.sweep(deaths=1))) >= 10
