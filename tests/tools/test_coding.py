"""read, write, edit and bash, with real files and processes."""

from __future__ import annotations

import asyncio
import json
import os
import tracemalloc
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidurable_nb.errors import InvalidArguments, ToolError
from pidurable_nb.ids import Json
from pidurable_nb.tools import LocalEnvironment, Output, Tool, coding_tools
from pidurable_nb.tools.coding import _turns
from pidurable_nb.tools.editing import Edit, edited

if TYPE_CHECKING:
    from tests.tools.conftest import Call

T = TypeVar("T")
TOOLS = {tool.name: tool for tool in coding_tools()}


def run(main: Coroutine[object, object, T]) -> T:
    return asyncio.run(main)


async def use(name: str, arguments: Json, call: Call) -> Output:
    """As the harness does it: what was validated is stored, and executed with what was stored."""
    tool: Tool = TOOLS[name]
    return await tool.execute(tool.validated(arguments), call)


class Desk:
    """A directory, and tools that work in it."""

    def __init__(self, path: Path, new_call: type[Call]) -> None:
        self.path = path
        self.new_call = new_call
        self.call = new_call(LocalEnvironment(path))

    def use(self, name: str, arguments: Json) -> Output:
        self.call = self.new_call(LocalEnvironment(self.path))
        return run(use(name, arguments, self.call))

    def refused(self, name: str, arguments: Json, *words: str) -> None:
        with pytest.raises(ToolError) as caught:
            self.use(name, arguments)
        for word in words:
            assert word in str(caught.value)

    def codes(self, output: Output) -> list[str | None]:
        return [diagnostic.code for diagnostic in output.diagnostics]


@pytest.fixture
def desk(tmp_path: Path, new_call: type[Call]) -> Desk:
    return Desk(tmp_path, new_call)


def test_e2_only_reading_is_safe_to_repeat() -> None:
    assert {name: tool.replay for name, tool in TOOLS.items()} == {
        "read": "safe",
        "write": "unsafe",
        "edit": "unsafe",
        "bash": "unsafe",
    }
    assert all(tool.needs_call for tool in TOOLS.values())
    assert TOOLS["bash"].limits.retain == "tail"


def test_every_parameter_is_described() -> None:
    for tool in TOOLS.values():
        declared = json.loads(json.dumps(tool.declaration()))
        assert all("description" in of for of in declared["parameters"]["properties"].values())
        assert "$defs" not in declared["parameters"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read", {"path": "x"}),
        ("write", {"path": "x", "content": ""}),
        ("edit", {"path": "x", "edits": []}),
        ("bash", {"command": "true"}),
    ],
)
def test_without_an_environment_the_error_says_what_to_pass(name: str, arguments: Json, new_call: type[Call]) -> None:
    with pytest.raises(ToolError, match=r"Harness\.open\(\.\.\., environment=LocalEnvironment"):
        run(use(name, arguments, new_call(None)))


# -- read ----------------------------------------------------------------------------------------------------------


def test_read_gives_the_file_exactly(desk: Desk) -> None:
    for data in (b"one\ntwo\n", b"no newline", b"dos\r\nlines\r\n", "é€😀\tx\x0c\n".encode()):
        (desk.path / "f").write_bytes(data)
        assert desk.use("read", {"path": "f"}) == Output(content=data.decode())
    (desk.path / "f").write_bytes(b"\xef\xbb\xbfmarked\n")
    assert desk.use("read", {"path": "f"}).content == "marked\n"


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_read_says_that_a_file_is_empty(desk: Desk, data: bytes) -> None:
    (desk.path / "f").write_bytes(data)
    empty = desk.use("read", {"path": str(desk.path / "f")})
    assert (empty.content, desk.codes(empty)) == ("", ["empty"])


def test_read_takes_lines_by_offset_and_limit(desk: Desk) -> None:
    lines = [f"line {n}\n" for n in range(1, 101)]
    (desk.path / "f").write_text("".join(lines))
    for offset, limit in ((1, 1), (1, 100), (50, 10), (100, 5), (91, 10), (3, None)):
        found = desk.use("read", {"path": "f", "offset": offset, "limit": limit})
        end = 100 if limit is None else min(100, offset - 1 + limit)
        assert found.content == "".join(lines[offset - 1 : end])
        if end < 100:
            assert desk.codes(found) == ["more"]
            assert found.diagnostics[0].message == f"the file has 100 lines; read on with offset={end + 1}"
        else:
            assert found.diagnostics == ()
    desk.refused("read", {"path": "f", "offset": 101}, "f: it has 100 lines", "no line 101")
    desk.refused("read", {"path": "f", "offset": 0}, "counted from 1")
    desk.refused("read", {"path": "f", "limit": 0}, "at least one")


def test_read_on_leads_through_the_whole_file(desk: Desk) -> None:
    text = "".join(f"{n} {'x' * (n % 97)}\n" for n in range(9000)) + "last"
    (desk.path / "f").write_text(text)
    got, offset = "", 1
    while True:
        found = desk.use("read", {"path": "f", "offset": offset})
        assert isinstance(found.content, str)
        assert len(found.content.encode()) <= 51200
        got += found.content
        if not found.diagnostics:
            break
        (said,) = found.diagnostics
        assert (said.severity, said.code) == ("warn", "truncated")
        dropped = text.count("\n") + 1 - got.count("\n")
        assert said.message.startswith(f"output truncated: {dropped:,} lines, {len(text) - len(got):,} bytes dropped; ")
        offset = int(said.message.rpartition("=")[2])
    assert got == text


def test_read_says_that_one_line_is_too_long(desk: Desk) -> None:
    (desk.path / "f").write_text("a\n" + "€" * 100_000 + "\nb\n")
    found = desk.use("read", {"path": "f", "offset": 2})
    assert found.content == "€" * (51200 // 3)
    assert "line 2 alone is too long" in found.diagnostics[0].message


def test_read_of_a_huge_file_takes_bounded_memory(desk: Desk) -> None:
    with (desk.path / "huge").open("wb") as file:
        for _ in range(100):
            file.write((b"x" * 99 + b"\n") * 10_000)
    tracemalloc.start()
    try:
        found = desk.use("read", {"path": "huge", "offset": 999_990})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.content == ("x" * 99 + "\n") * 11
    assert peak < 5_000_000


def test_read_refuses_what_is_no_text_file(desk: Desk) -> None:
    (desk.path / "dir").mkdir()
    (desk.path / "binary").write_bytes(b"\x89PNG\0\0")
    os.mkfifo(desk.path / "pipe")
    desk.refused("read", {"path": "missing"}, "missing", "no such file", str(desk.path))
    desk.refused("read", {"path": "dir"}, "dir: it is a directory", "bash")
    desk.refused("read", {"path": "binary"}, "binary file of 6 bytes")
    desk.refused("read", {"path": "pipe"}, "no regular file")
    desk.refused("read", {"path": "x\0"}, "null character")
    desk.refused("read", {"path": "binary/x"}, "no such file")


def test_read_shows_what_is_no_utf8_and_says_so(desk: Desk) -> None:
    (desk.path / "f").write_bytes(b"caf\xe9\n")
    found = desk.use("read", {"path": "f"})
    assert (found.content, desk.codes(found)) == ("caf\ufffd\n", ["encoding"])


class Restless(LocalEnvironment):
    """Somebody appends to the file whenever it is read to its end, so many times."""

    def __init__(self, cwd: Path, times: int) -> None:
        super().__init__(cwd)
        self.times = times

    async def read_bytes(self, path: str, *, start: int = 0, limit: int | None = None) -> bytes:
        data = await super().read_bytes(path, start=start, limit=limit)
        if not data and self.times:
            self.times -= 1
            with (Path(self.cwd) / path).open("a") as file:
                file.write("more\n")
        return data


def test_a_file_that_changes_while_it_is_read_is_read_once_more(tmp_path: Path, new_call: type[Call]) -> None:
    (tmp_path / "f").write_text("a\n")
    assert run(use("read", {"path": "f"}, new_call(Restless(tmp_path, 1)))).content == "a\nmore\n"
    with pytest.raises(ToolError, match="changes while it is read"):
        run(use("read", {"path": "f"}, new_call(Restless(tmp_path, 2))))


# -- write ---------------------------------------------------------------------------------------------------------


def test_write_makes_or_replaces_a_file(desk: Desk) -> None:
    assert desk.use("write", {"path": "a/b.txt", "content": "é\r\n"}).content == "created a/b.txt: 4 bytes"
    assert (desk.path / "a/b.txt").read_bytes() == "é\r\n".encode()
    assert desk.use("write", {"path": "a/b.txt", "content": "x" * 1500}).content == "replaced a/b.txt: 1,500 bytes"
    desk.refused("write", {"path": "a", "content": ""}, "a: ", "directory")


# -- edit ----------------------------------------------------------------------------------------------------------


def edits(*pairs: tuple[str, str]) -> list[Json]:
    return [{"old_text": old, "new_text": new} for old, new in pairs]


def test_edit_replaces_all_pieces_found_in_the_file_as_it_was(desk: Desk) -> None:
    (desk.path / "f").write_text("one\ntwo\nthree\n")
    said = desk.use("edit", {"path": "f", "edits": edits(("three", "one"), ("two\n", ""), ("one", "two"))})
    assert said.content == "made 3 edits in f, the first in line 1"
    assert (desk.path / "f").read_text() == "two\none\n"


def test_edit_is_all_or_nothing_and_says_what_it_found(desk: Desk) -> None:
    text = "a\nb\naaa\nb\n"
    (desk.path / "f").write_text(text)
    for pairs, words in (
        ((("b\na", "x"), ("zz", "y")), ("f: edits[1].old_text was found 0 times", "Nothing was changed")),
        ((("b", "x"),), ("edits[0].old_text was found 2 times (lines 2, 4)",)),
        ((("aa", "x"),), ("found 2 times (lines 3, 3)",)),
        ((("", "x"),), ("edits[0].old_text is empty",)),
        ((("aaa", "aaa"),), ("by itself",)),
        ((("aaa\nb", "x"), ("a\nb\naaa", "y")), ("edits[1] and edits[0] overlap",)),
        ((), ("no edits",)),
    ):
        desk.refused("edit", {"path": "f", "edits": edits(*pairs)}, *words)
        assert (desk.path / "f").read_text() == text
    (desk.path / "binary").write_bytes(b"a\0")
    desk.refused("edit", {"path": "binary", "edits": edits(("a", "b"))}, "binary file")
    desk.refused("edit", {"path": "missing", "edits": edits(("a", "b"))}, "no such file")
    desk.refused("edit", {"path": ".", "edits": edits(("a", "b"))}, "directory")


@pytest.mark.parametrize(
    ("before", "pairs", "after"),
    [
        (b"a\r\nb\r\nc\r\n", [("a\nb", "x\ny\nz")], b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", [("a\r\nb", "x\r\ny")], b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\n", [("b", "x\ny")], b"a\r\nx\r\ny\r\n"),
        (b"a\nb\n", [("a\r\nb", "x\r\ny")], b"x\ny\n"),
        (b"a\r\nb\nc\n", [("b\nc", "x\ny")], b"a\r\nx\ny\n"),
        (b"\r\n\r\na\r\n\r\n", [("\na\n", "\n")], b"\r\n\r\n\r\n"),
        (b"\xef\xbb\xbfa\nb", [("a", "x")], b"\xef\xbb\xbfx\nb"),
        (b"caf\xe9 a\r\xe9", [("a\r", "b")], b"caf\xe9 b\xe9"),
    ],
)
def test_edit_keeps_line_endings_mark_and_foreign_bytes(
    desk: Desk, before: bytes, pairs: list[tuple[str, str]], after: bytes
) -> None:
    (desk.path / "f").write_bytes(before)
    desk.use("edit", {"path": "f", "edits": edits(*pairs)})
    assert (desk.path / "f").read_bytes() == after


@given(st.lists(st.sampled_from(["a", "b", "\n", "\r\n", "\r", "é"]), max_size=20), st.data())
def test_an_edit_changes_nothing_else(parts: Sequence[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(parts)))
    before, after = "".join(parts[:at]), "".join(parts[at:])
    whole = (before + "<mark>" + after).encode()
    new, line = edited(whole, [Edit(old_text="<mark>", new_text="<x>")], path="f")
    assert new == (before + "<x>" + after).encode()
    assert line == before.count("\n") + 1


def test_edits_are_accepted_as_models_send_them(desk: Desk) -> None:
    for sent in (json.dumps(edits(("a", "b"))), edits(("a", "b"))[0], json.dumps(edits(("a", "b"))[0])):
        (desk.path / "f").write_text("a")
        assert TOOLS["edit"].validated({"path": "f", "edits": sent}) == {"path": "f", "edits": edits(("a", "b"))}
        desk.use("edit", {"path": "f", "edits": sent})
        assert (desk.path / "f").read_text() == "b"
    wrong: list[Json] = [
        {"path": "f"},
        {"path": "f", "edits": "[not json"},
        {"path": "f", "edits": [{"old_text": "a"}]},
    ]
    for arguments in wrong:
        with pytest.raises(InvalidArguments, match="edits"):
            TOOLS["edit"].validated(arguments)


class Slow(LocalEnvironment):
    """Between reading and writing there is time for others."""

    async def write_bytes(self, path: str, data: bytes) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        await super().write_bytes(path, data)


def test_edits_of_one_file_take_turns_whatever_its_name_and_environment(tmp_path: Path, new_call: type[Call]) -> None:
    async def main() -> None:
        (tmp_path / "f").write_text("".join(f"<{n}>\n" for n in range(20)))
        (tmp_path / "link").symlink_to("f")
        names = ("f", "link", "./f", str(tmp_path / "f"))
        await asyncio.gather(
            *(
                use("edit", {"path": names[n % 4], "edits": edits((f"<{n}>", f"[{n}]"))}, new_call(Slow(tmp_path)))
                for n in range(20)
            )
        )
        assert (tmp_path / "f").read_text() == "".join(f"[{n}]\n" for n in range(20))
        assert (tmp_path / "link").is_symlink()
        assert len(_turns) == 0

    run(main())


def test_other_files_never_wait(tmp_path: Path, new_call: type[Call]) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path)
        async with _turns.turn((env.id, await env.canonical("held"))):
            held = asyncio.ensure_future(use("write", {"path": "held", "content": "x"}, new_call(env)))
            await use("write", {"path": "free", "content": "x"}, new_call(env))
            assert not held.done()
            assert not (tmp_path / "held").exists()
        await held
        assert (tmp_path / "held").exists()

    run(main())


# -- bash ----------------------------------------------------------------------------------------------------------


def test_bash_gives_its_output_to_the_call(desk: Desk) -> None:
    assert desk.use("bash", {"command": "printf 'a\\033[1mb\\n'; pwd"}) == Output()
    assert desk.call.kept.text == f"a[1mb\n{os.path.realpath(desk.path)}\n"
    assert desk.call.diagnostics == []


def test_bash_raises_on_failure_and_the_output_stays(desk: Desk) -> None:
    desk.refused("bash", {"command": "echo out; echo err >&2; exit 3"}, "exit code 3")
    assert sorted(desk.call.kept.text.splitlines()) == ["err", "out"]
    desk.refused("bash", {"command": "kill -9 $$"}, "exit code -9 (SIGKILL)")
    desk.refused("bash", {"command": "sh -c 'kill -9 $$'; exit $?"}, "exit code 137 (SIGKILL)")
    desk.refused("bash", {"command": "no-such-command-at-all"}, "exit code 127")
    assert "no-such-command-at-all" in desk.call.kept.text


def test_bash_ends_a_command_that_takes_too_long(desk: Desk) -> None:
    desk.refused("bash", {"command": "sleep 1000", "timeout_seconds": "0.2"}, "ended after 0.2 seconds")
    desk.refused("bash", {"command": "true", "timeout_seconds": 0}, "more than 0")


def test_bash_keeps_the_last_lines_and_names_the_file_with_all(tmp_path: Path, new_call: type[Call]) -> None:
    async def main() -> None:
        async with LocalEnvironment(tmp_path) as env:
            call = new_call(env)
            with pytest.raises(ToolError, match="exit code 1"):
                await use("bash", {"command": "seq 1 100000; exit 1"}, call)
            assert call.kept.text == "".join(f"{n}\n" for n in range(98_001, 100_001))
            assert call.said == ["spilled"]
            path = Path(call.diagnostics[0].message.removeprefix("complete output: "))
            assert path.read_text().count("\n") == 100_000

    run(main())


def test_bash_says_that_the_complete_output_could_not_be_kept(tmp_path: Path, new_call: type[Call]) -> None:
    (tmp_path / "file").write_text("")
    call = new_call(LocalEnvironment(tmp_path, spill_directory=tmp_path / "file"))
    run(use("bash", {"command": "seq 1 5000"}, call))
    assert call.said == ["spill_failed"]


def test_bash_joins_characters_that_arrive_in_pieces_between_two_streams(desk: Desk) -> None:
    script = (
        "printf '\\xe2\\x82'; sleep 0.1; printf '\\xc3' >&2; sleep 0.1; printf '\\xac'; sleep 0.1; printf '\\xa9' >&2"
    )
    desk.use("bash", {"command": script})
    assert sorted(desk.call.kept.text) == ["é", "€"]


def test_bash_that_is_cancelled_ends_its_processes(tmp_path: Path, new_call: type[Call]) -> None:
    async def main() -> None:
        call = new_call(LocalEnvironment(tmp_path))
        running = asyncio.ensure_future(use("bash", {"command": "echo $$ >pid; sleep 1000 & wait"}, call))
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
        group = int((tmp_path / "pid").read_text())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(ProcessLookupError):
            while True:
                os.killpg(group, 0)
                await asyncio.sleep(0.01)

    run(main())
