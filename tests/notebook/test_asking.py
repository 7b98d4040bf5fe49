"""Asking from a cell: one display that the answer streams into, asked once where that is wanted, text that is text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Protocol

import pandas as pd
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from pidurable_nb import Answered, Conversation, Unanswered
from pidurable_nb.notebook.kernel.asking import request_of

ECHO = """
from pidurable_nb.models import Scripted
def last(request):
    return next(m["content"] for m in reversed(request.messages) if m["role"] == "user")
model = Scripted.by(lambda request: f"heard: {last(request)}")
"""
GATE = """
import asyncio
from pidurable_nb import Call, tool
from pidurable_nb.models import CallTools, Say, Scripted, call
go = False
@tool()
async def wait(n: int, call: Call) -> str:
    '''Wait.'''
    call.progress(f"waits for {n}\\n")
    while not go:
        await asyncio.sleep(0.01)
    return "over"
def answer(request):
    results = sum(m["role"] == "toolResult" for m in request.messages)
    return Say("done", chunks=2) if results else CallTools(call("wait", n=7), text="One moment.")
model = Scripted.by(answer)
"""
FIRST = "async def first():\n    return await (await pi.root()).submit('first')\ns = await first()\n"
UNTIL = (
    "async def until():\n    while not any(t.kind == 'pi.tool' for t in await pi.tasks(live=True)):\n"
    "        await asyncio.sleep(0.01)\nawait until()"
)


class Shell(Protocol):
    ip: InteractiveShell

    def run(self, source: str) -> object: ...
    def show(self, value: object) -> dict[str, str]: ...
    def complete(self, line: str) -> list[str]: ...


class Page(CapturingDisplayPublisher):
    """What cells published. `plain` is the text of each display as it stands, updates made."""

    def latest(self) -> dict[str, dict[str, str]]:
        shown: dict[str, dict[str, str]] = {}
        for output in self.outputs:
            id = output["transient"]["display_id"]
            assert output["update"] == (id in shown), "a display is made once, and then updated"
            shown[id] = output["data"]
        return shown

    @property
    def plain(self) -> list[str]:
        return [data["text/plain"] for data in self.latest().values()]


@pytest.fixture
def page(shell: Shell) -> Page:
    """What the shell publishes from now on."""
    page = Page()  # type: ignore[no-untyped-call]  # half typed
    shell.ip.display_pub = page
    return page


def outcome(shell: Shell, line: str, text: str) -> Answered | Unanswered:
    """How a question ended."""
    shell.run(f"%%pi ask {line} --as ended\n{text}\n")
    ended = shell.ip.user_ns["ended"]
    assert isinstance(ended, Answered | Unanswered)
    return ended


# --- the answer -------------------------------------------------------------------------------------------------------


def test_v4_an_answer_streams_into_one_display_that_is_updated_in_place(shell: Shell, page: Page) -> None:
    shell.run(
        "from datetime import timedelta\nfrom pidurable_nb.models import Say, Scripted\n"
        "model = Scripted(Say('one two three\\n\\n    four', chunks=3, delay=timedelta(milliseconds=250)))"
    )
    shell.run("%pi new a.sqlite")
    assert shell.run("%%pi ask\n\nhello\n    there\n") is None
    (plain,) = page.plain
    assert plain == "submission 8 in conversation 1   answered\n\none two three\n\n    four"
    seen = [output["data"]["text/plain"] for output in page.outputs]
    assert len(seen) >= 3
    assert any("under way" in text and "[…]" in text and "four" not in text for text in seen)
    frame = shell.run("%pi transcript")
    assert isinstance(frame, pd.DataFrame)
    assert frame.text[0] == "hello\n    there"


def test_a_tool_call_is_one_line_with_its_state(shell: Shell, page: Page) -> None:
    shell.run(GATE)
    shell.run("%pi new a.sqlite")
    shell.run("import threading\nthreading.Timer(1.0, lambda: globals().update(go=True)).start()")
    shell.run("%%pi ask\nplease\n")
    seen = [output["data"]["text/plain"] for output in page.outputs]
    assert any("One moment.\n  wait(n=7)  running: waits for 7" in text for text in seen)
    (plain,) = page.plain
    assert "One moment.\n  wait(n=7)  done, " in plain
    assert plain.endswith(": over\ndone")


def test_e4_what_a_call_came_to_is_said_in_its_line(shell: Shell, page: Page) -> None:
    shell.run(
        "from pidurable_nb import tool\nfrom pidurable_nb.models import CallTools, Scripted, call\n"
        "@tool()\nasync def broken() -> str:\n    '''Break.'''\n    raise ValueError('no way')\n"
        "@tool()\nasync def long() -> str:\n    '''Say much.'''\n    return 'much\\n' * 60\n"
        "model = Scripted(CallTools(call('broken'), call('long'), call('gone')), 'well')"
    )
    shell.run("%pi new a.sqlite")
    shell.run("%%pi ask\nplease\n")
    (data,) = page.latest().values()
    lines = data["text/plain"].splitlines()[2:]
    assert [line.split(",")[0].strip() for line in lines[:2]] == ["broken  failed", "long  done"]
    assert [line.rpartition(": ")[2] for line in lines[:2]] == ["no way", "much"]
    assert lines[2:] == ["  gone  failed: the tool 'gone' is not available; it was not offered", "well"]
    assert data["text/html"].count("<details>") == 1
    assert "much\nmuch\n" in data["text/html"]


def test_s2_without_an_answer_reason_and_detail_stand_there_plainly(shell: Shell, page: Page) -> None:
    shell.run("from pidurable_nb.models import Break, Scripted\nmodel = Scripted(Break('401 bad key', after='Well, '))")
    shell.run("%pi new a.sqlite")
    ended = outcome(shell, "", "hello")
    assert isinstance(ended, Unanswered)
    (plain,) = page.plain
    assert plain == "submission 8 in conversation 1   unanswered: model_error\n\nWell, \n401 bad key"


def test_without_a_model_the_page_says_how_to_bring_one(shell: Shell, page: Page) -> None:
    shell.run("%pi new a.sqlite")
    shell.run("%%pi ask\nhello\n")
    assert "unanswered: no_model" in page.plain[0]
    assert "model = ..." in page.plain[0]
    shell.run(ECHO)
    shell.run("%%pi ask\nhello\n")
    assert page.plain[1].endswith("heard: hello")


def test_g1_an_attempt_that_was_cut_stands_apart_and_a_retry_is_announced(shell: Shell, page: Page) -> None:
    shell.run(
        "from datetime import timedelta\nfrom pidurable_nb.models import Attempts, Break, Scripted\n"
        "wait = timedelta(milliseconds=400)\n"
        "model = Scripted(Attempts(Break('503 overloaded', after='Hal', retry_after=wait), 'Hello'))"
    )
    shell.run("%pi new a.sqlite")
    shell.run("%%pi ask\nhello\n")
    seen = [output["data"]["text/plain"] for output in page.outputs]
    assert any("attempt 1 failed and is made again: 503 overloaded" in text for text in seen)
    (plain,) = page.plain
    assert plain.endswith("Hal\n[failed: 503 overloaded]\nHello")


def test_a_paused_store_says_what_holds_the_run_up(shell: Shell, page: Page) -> None:
    shell.run(ECHO)
    shell.run("%pi new a.sqlite --paused")
    shell.run("import threading\nthreading.Timer(3.0, pi.resume).start()")
    shell.run("%%pi ask\nhello\n")
    seen = [output["data"]["text/plain"] for output in page.outputs]
    assert any("pi.resume() starts its work" in text for text in seen)
    assert page.plain[0].endswith("heard: hello")


def test_a_terminal_shows_the_end_as_plain_text(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run(ECHO)
    shell.run("%pi new a.sqlite")
    capsys.readouterr()
    kind = type(shell.ip)
    shell.ip.__class__ = type("TerminalInteractiveShell", (kind,), {})
    shell.run("%%pi ask\nhello\n")
    assert capsys.readouterr().out == "submission 8 in conversation 1   answered\n\nheard: hello\n"


def test_the_page_of_the_repository_asks_as_it_says(shell: Shell, page: Page) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").partition("## Asking in a notebook")[2]
    for cell in re.findall(r"^```ipython\n(.*?)^```$", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL):
        shell.run(cell)
    assert page.plain[0].endswith("answered\n\nA conversation that outlives its kernel.")


# --- once -------------------------------------------------------------------------------------------------------------


def test_s1_a_cell_asks_once_across_openings_and_says_same_or_differs(shell: Shell, page: Page) -> None:
    def cell(text: str, id: str | None) -> None:
        shell.ip.run_cell(f"%%pi ask --once\n{text}\n", cell_id=id).raise_error()  # type: ignore[no-untyped-call]

    shell.run(ECHO)
    shell.run("%pi new a.sqlite")
    cell("hello", "aa-1")
    shell.run("%pi close")
    shell.run("%pi open a.sqlite")
    cell("hello", "aa-1")
    cell("hello there", "aa-1")
    cell("hello", "aa-2")
    cell("hello", None)
    cell("hello", None)
    first, same, differs, other, text, again = page.plain
    assert first == "submission 8 in conversation 1   answered\n\nheard: hello"
    assert same.splitlines()[1] == "same: asked before under cell:aa-1, with this very text; it is not asked again"
    assert differs.splitlines()[1].startswith("differs: asked before under cell:aa-1, with another text")
    assert all(view.endswith("\n\nheard: hello") for view in page.plain)
    assert "submission 8 in" not in other + text
    assert again.splitlines()[1].startswith("same: asked before under text:")
    frame = shell.run("%pi submissions")
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.request_id) == ["cell:aa-1", "cell:aa-2", request_of(None, "hello")]


def test_s1_a_request_id_is_admitted_once_in_each_conversation(shell: Shell, page: Page) -> None:
    shell.run(ECHO)
    shell.run("%pi new a.sqlite")
    shell.run("%%pi ask --request-id r1\nhello\n")
    shell.run("child = %pi fork 7")
    child = shell.ip.user_ns["child"]
    assert isinstance(child, Conversation)
    shell.run(f"%%pi ask --to {child.id} --request-id r1\nhello\n")
    shell.run(f"%%pi ask --to {child.id} --request-id r1\nhello\n")
    assert ["same: " in plain for plain in page.plain] == [False, False, True]


# --- while something runs ---------------------------------------------------------------------------------------------


def test_s3_a_cell_may_wait_join_or_be_refused_while_a_run_is_active(shell: Shell, page: Page) -> None:
    shell.run(GATE)
    shell.run("%pi new a.sqlite")
    shell.run(FIRST + UNTIL)
    with pytest.raises(UsageError, match="ConversationBusy"):
        shell.run("%%pi ask --reject\nno\n")
    shell.run("import threading\nthreading.Timer(1.5, lambda: globals().update(go=True)).start()")
    shell.run("%%pi ask --steer\njoin\n")
    assert "queued behind the run" in page.outputs[0]["data"]["text/plain"]
    assert page.plain[0].endswith("answered\n\ndone")
    frame = shell.run("%pi submissions")
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.status) == ["done", "done"]
    assert frame.answer.nunique() == 1
    assert list(frame.text) == ["first", "join"]


def test_o2_what_runs_and_what_waits_is_ended_by_its_number(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run(GATE)
    shell.run("%pi new a.sqlite")
    shell.run(FIRST + UNTIL)
    shell.run("root = await pi.root()\nq = await root.submit('second')\nw = await root.write('app.note', text='note')")
    inbox = shell.run("%pi inbox")
    assert isinstance(inbox, pd.DataFrame)
    assert list(inbox["mode"]) == ["followUp", "write"]
    assert list(inbox.text) == ["second", "note"]
    assert "starts the next run" in str(inbox)
    q = shell.ip.user_ns["q"].id
    assert str(q) in shell.complete("%pi abort ")
    capsys.readouterr()
    shell.run(f"%pi abort {q}")
    assert capsys.readouterr().out == f"submission {q} is withdrawn\n"
    shell.run("%pi abort submission 8")
    assert "placed and cannot be withdrawn; %pi abort 1 ends its run" in capsys.readouterr().out
    shell.run("%pi abort task 9")
    assert capsys.readouterr().out == "task 9 is asked to end\n"
    shell.run("%pi abort")
    assert capsys.readouterr().out == "conversation 1: everything that ran here has ended\n"
    frame = shell.run("%pi submissions")
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.reason)[:2] == ["aborted", "aborted"]
    assert "the inbox" not in str(frame)


WRONG = {
    "%pi ask hello": "takes a cell",
    "%%pi ask\n  \n": "the cell says nothing",
    "%%pi ask --as 1x\nhello": "takes a Python name",
    "%%pi ask --once --request-id x\nhello": "not allowed with argument",
    "%%pi ask --steer --reject\nhello": "not allowed with argument",
    "%%pi ask --to 99\nhello": "conversation 99 does not exist",
    "%pi abort 99": "no task, submission or conversation has the number 99",
    "%pi abort task 1": "no task has the number 1",
    "%pi abort everything": "name a number",
    "%pi fork 99": "there is no entry 99",
    "%pi agent --model teacher": "provider/model",
}


def test_wrong_use_is_one_line(shell: Shell) -> None:
    with pytest.raises(UsageError, match="no store is open here"):
        shell.run("%%pi ask\nhello\n")
    shell.run("%pi new a.sqlite")
    shell.run("root = await pi.root()")
    for line, said in WRONG.items():
        with pytest.raises(UsageError) as refused:
            shell.run(line)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)


# --- choosing and counting --------------------------------------------------------------------------------------------


def test_an_agent_is_shown_and_its_model_and_tools_are_chosen(shell: Shell, page: Page) -> None:
    shell.run(GATE)
    shell.run("%pi new a.sqlite")
    text = str(shell.run("%pi agent"))
    assert "model: scripted/teacher (the first; none was chosen)" in text
    assert "tools: wait (unsafe)" in text
    assert shell.complete("%pi agent --model s") == ["scripted/teacher"]
    text = str(shell.run("%pi agent --model other/one --tools gone"))
    assert "model: other/one is not here; known: scripted/teacher" in text
    assert "tools: none" in text
    shell.run("from pidurable_nb.models import Scripted\none = Scripted('I am', provider='other', name='one')")
    shell.run("%%pi ask\nwho?\n")
    assert page.plain[0].endswith("I am")
    usage = shell.run("%pi usage")
    assert isinstance(usage, pd.DataFrame)
    assert list(usage.name) == ["other/one"]
    assert usage.totalTokens[0] == usage.input[0] + usage.output[0] > 0
    assert "extension cells: wait" in str(shell.run("%pi status"))


# --- foreign text -----------------------------------------------------------------------------------------------------

HOSTILE = """
from pidurable_nb import Extension, tool
from pidurable_nb.models import CallTools, Say, Scripted, call
BAD = '<script>alert(1)</script><img src=x onerror="x"></bdi></pre>\\u202e\\u2066\\x1b[31m\\x07&amp;\\r\\n\\t<b>x'
@tool()
async def leak(text: str) -> str:
    '''Leak.'''
    return BAD
@tool()
async def fail(text: str) -> str:
    '''Fail.'''
    raise ValueError(BAD)
model = Scripted(CallTools(call("leak", text=BAD), call("fail", text=BAD), call(BAD), text=BAD), Say(BAD))
"""


ALLOWED = {
    "style", "section", "p", "span", "b", "pre", "bdi", "code", "details", "summary", "table", "thead", "tbody", "tr",
    "th", "td", "h3", "ul", "li", "br",
}  # fmt: skip


class Tags(HTMLParser):
    """Refuses what the page of an answer never has."""

    words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        assert {name for name, _ in attrs} <= {"class", "aria-label", "style", "scope"}

    def handle_data(self, data: str) -> None:
        self.words += data


def test_hostile_text_is_shown_and_does_nothing(shell: Shell, page: Page) -> None:
    shell.run(HOSTILE)
    shell.run("%pi new a.sqlite")
    shell.run("%%pi ask --request-id <b>\u202e\nhello <script>\u202e\n")
    shell.run("%%pi ask --request-id <b>\u202e\nhello <script>\n")
    tables = [shell.show(shell.run(f"%pi {look}")) for look in ("transcript", "submissions", "usage", "agent", "inbox")]
    for data in [*(output["data"] for output in page.outputs), *tables]:
        reader = Tags()
        reader.feed(data["text/html"])
        for form in (reader.words, data["text/plain"]):
            assert not any(char in form for char in "\u202e\u2066\x1b\x07\r\t")
    first, again = page.plain
    for form in (first, again):
        assert "<script>alert(1)</script>" in form
        assert "\\u202e" in form
        assert "    <b>x" in form
    assert "differs: asked before under <b>\\u202e" in again


@pytest.mark.parametrize("chunks", [1, 20])
def test_a_text_of_five_million_characters_is_cut_with_its_size(shell: Shell, page: Page, chunks: int) -> None:
    shell.run(
        "from pidurable_nb import tool\nfrom pidurable_nb.models import CallTools, Say, Scripted, call\n"
        "LONG = '\\u202e<x>' * 1_250_000\n"
        "@tool()\nasync def dump() -> str:\n    '''Dump.'''\n    return LONG\n"
        f"model = Scripted(CallTools(call('dump')), Say(LONG, chunks={chunks}))"
    )
    shell.run("%pi new a.sqlite")
    ended = outcome(shell, "", "hello")
    assert isinstance(ended, Answered)
    assert len(ended.text) == 5_000_000
    data = next(iter(page.latest().values()))
    assert "(5,000,000 characters in all)" in data["text/plain"]
    for output in page.outputs:
        assert all(len(form) < 500_000 for form in output["data"].values())
    for look in ("transcript", "submissions"):
        assert all(len(form) < 20_000 for form in shell.show(shell.run(f"%pi {look}")).values())
