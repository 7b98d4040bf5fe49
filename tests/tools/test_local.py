"""The environment of this machine: files that are replaced whole, and processes that end with all that they started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from pidurable_nb.tools import Environment, Listed, LocalEnvironment, OutputLimits, Ran, Stream

T = TypeVar("T")
GRACE = timedelta(seconds=0.3)


def run(main: Coroutine[object, object, T]) -> T:
    return asyncio.run(main)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def children() -> set[int]:
    """The child processes of this one, those that nobody collected included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """No descriptor, no process and no zombie outlives a test."""
    before = (open_files(), children())
    yield
    assert (open_files(), children()) == before


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for what has to come; the test's time limit is the only one."""
    while not holds():  # noqa: ASYNC110 - another process does it
        await asyncio.sleep(0.01)


async def pid_in(path: Path) -> int:
    await eventually(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def collected(env: LocalEnvironment, command: str, **chunks: list[bytes]) -> Coroutine[object, object, Ran]:
    def receive(data: bytes, stream: Stream) -> None:
        chunks[stream].append(data)

    return env.run(command, on_output=receive)


# -- files ---------------------------------------------------------------------------------------------------------


def test_it_is_an_environment(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path)
    assert isinstance(env, Environment)
    assert (env.cwd, env.id, repr(env)) == (
        str(tmp_path),
        LocalEnvironment("/").id,
        f"LocalEnvironment({str(tmp_path)!r})",
    )


def test_what_is_written_is_read_and_directories_are_made(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path)
        assert await env.stat("a/b/c") is None
        await env.write_bytes("a/b/c", b"0123456789")
        assert await env.read_bytes("a/b/c") == b"0123456789"
        assert await env.read_bytes("a/b/c", start=2, limit=3) == b"234"
        assert await env.read_bytes("a/b/c", start=20) == b""
        found = await env.stat(str(tmp_path / "a/b/c"))
        assert found is not None
        assert (found.kind, found.size) == ("file", 10)
        assert found.modified.tzinfo is not None
        await env.write_bytes("a/b/c", b"9876543210")
        changed = await env.stat("a/b/c")
        assert changed is not None
        assert changed.version != found.version
        (tmp_path / "a" / "z").symlink_to("b")
        os.mkfifo(tmp_path / "a" / "pipe")
        assert await env.list("a") == (
            Listed(name="b", kind="directory"),
            Listed(name="pipe", kind="other"),
            Listed(name="z", kind="directory"),
        )
        assert await env.canonical("a/z/./c") == os.path.realpath(tmp_path / "a/b/c")
        assert await env.canonical("nowhere/../x") == os.path.realpath(tmp_path / "x")
        assert await env.stat("a/b/c/d") is None

    run(main())


def test_a_replaced_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path)
        (tmp_path / "script").write_text("old")
        (tmp_path / "script").chmod(0o750)
        (tmp_path / "link").symlink_to("script")
        await env.write_bytes("link", b"new")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "script").read_bytes() == b"new"
        assert stat.S_IMODE((tmp_path / "script").stat().st_mode) == 0o750
        await env.write_bytes("fresh", b"")
        mask = os.umask(0)
        os.umask(mask)
        assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o666 & ~mask
        assert sorted(os.listdir(tmp_path)) == ["fresh", "link", "script"]

    run(main())


def test_readers_see_all_of_the_old_or_all_of_the_new(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0" * 300_000)
    seen: set[bytes] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            data = path.read_bytes()
            seen.add(data[:1] if data == data[:1] * 300_000 else b"torn")

    async def main() -> None:
        env = LocalEnvironment(tmp_path)
        for n in range(30):
            await env.write_bytes("file", str(n % 10).encode() * 300_000)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run(main())
    finally:
        done.set()
        watcher.join()
    assert b"torn" not in seen
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_no_file_is_an_os_error_and_blocks_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path)
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "dir").mkdir()
        (tmp_path / "file").write_text("")
        for work in (
            lambda: env.read_bytes("missing"),
            lambda: env.read_bytes("pipe"),
            lambda: env.read_bytes("dir"),
            lambda: env.read_bytes("file/x"),
            lambda: env.read_bytes("nul\0"),
            lambda: env.read_bytes("half\ud800"),
            lambda: env.write_bytes("pipe", b""),
            lambda: env.write_bytes("dir", b""),
            lambda: env.write_bytes("file/x", b""),
            lambda: env.list("file"),
            lambda: env.run("true", cwd="missing"),
            lambda: env.run(["no-such-program-at-all"]),
        ):
            with pytest.raises(OSError):
                await work()
        assert sorted(os.listdir(tmp_path)) == ["dir", "file", "pipe"]

    run(main())


# -- processes -----------------------------------------------------------------------------------------------------


def test_text_goes_through_the_shell_and_a_sequence_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path, env={"ONE": "1"})
        out: list[bytes] = []
        err: list[bytes] = []
        ran = await collected(env, "echo $ONE$HOME_MADE; pwd; echo oops >&2; exit 7", stdout=out, stderr=err)
        assert ran == Ran(exit_code=7)
        assert b"".join(out) == f"1\n{os.path.realpath(tmp_path)}\n".encode()
        assert b"".join(err) == b"oops\n"
        (tmp_path / "sub").mkdir()
        plain: list[bytes] = []
        script = "import os, sys; print(sys.argv[1], os.environ['X'], os.getcwd(), sys.stdin.read())"
        ran = await env.run(
            [sys.executable, "-c", script, "$ONE; rm -rf *"],
            on_output=lambda data, stream: plain.append(data),
            env={"X": "y"},
            cwd="sub",
            stdin=b"in" * 100_000,
        )
        assert ran.exit_code == 0
        assert b"".join(plain).startswith(f"$ONE; rm -rf * y {os.path.realpath(tmp_path / 'sub')} inin".encode())
        assert len(b"".join(plain)) > 200_000
        assert await env.run("cat") == Ran(exit_code=0)  # without input it is at its end at once
        assert await env.run("kill -9 $$") == Ran(exit_code=-9)

    run(main())


def test_output_arrives_while_the_command_runs(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path)
        first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def receive(data: bytes, stream: Stream) -> None:
            if not first.done():
                first.set_result(data)

        running = asyncio.ensure_future(env.run("echo one; while [ ! -e go ]; do sleep 0.02; done", on_output=receive))
        assert await first == b"one\n"
        assert not running.done()
        (tmp_path / "go").touch()
        assert await running == Ran(exit_code=0)

    run(main())


def test_all_of_a_large_output_arrives_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path)
        total = 0
        digits: list[bytes] = []

        def receive(data: bytes, stream: Stream) -> None:
            nonlocal total
            total += len(data)
            digits.append(data[:1])

        assert (await env.run("head -c 20000000 /dev/zero | tr '\\0' x; printf end", on_output=receive)).exit_code == 0
        assert total == 20_000_003
        for _ in range(20):  # a process that ends at once leaves its words in the pipe
            out: list[bytes] = []
            await collected(env, "head -c 60000 /dev/zero", stdout=out, stderr=[])
            assert len(b"".join(out)) == 60_000

    run(main())


def test_timeout_ends_the_whole_group_and_grandchildren_too(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path, grace=GRACE)
        script = "(sleep 1000 & echo $! >grandchild; wait) & echo $! >child; echo started; wait"
        for seconds in (0.3, 1, 5, 30):  # until the machine was fast enough to start them all
            ran = await env.run(script, timeout=timedelta(seconds=seconds))
            assert (ran.exit_code, ran.timed_out) == (-signal.SIGTERM, True)
            if (tmp_path / "child").exists() and (tmp_path / "grandchild").exists():
                break
        for name in ("child", "grandchild"):
            pid = await pid_in(tmp_path / name)
            await eventually(lambda pid=pid: not alive(pid))  # type: ignore[misc]

    run(main())


def test_who_ignores_the_request_to_end_is_ended(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path, grace=GRACE)
        script = "trap '' TERM; (echo $BASHPID >child; while :; do sleep 0.05; done) & while :; do sleep 0.05; done"
        running = asyncio.ensure_future(env.run(script))
        child = await pid_in(tmp_path / "child")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await eventually(lambda: not alive(child))

    run(main())


def test_a_command_may_use_its_grace_to_clean_up(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path, grace=timedelta(seconds=60))
        script = "trap 'echo bye; exit 3' TERM; echo $$ >pid; while :; do sleep 0.02; done"
        out: list[bytes] = []
        running = asyncio.ensure_future(collected(env, script, stdout=out, stderr=[]))
        await pid_in(tmp_path / "pid")
        await env.close()
        assert await running == Ran(exit_code=3)
        assert out == [b"bye\n"]

    run(main())


def test_cancelling_again_and_again_still_ends_the_group(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path, grace=GRACE)
        running = asyncio.ensure_future(env.run("trap '' TERM; echo $$ >pid; while :; do sleep 0.05; done"))
        pid = await pid_in(tmp_path / "pid")
        while not running.done():
            running.cancel()
            await asyncio.sleep(0.01)
        assert running.cancelled()
        assert not alive(pid)

    run(main())


@pytest.mark.parametrize("steps", range(8))
def test_cancelling_at_any_step_of_the_start_leaves_nothing(tmp_path: Path, steps: int) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path, grace=GRACE)
        running = asyncio.ensure_future(env.run("sleep 1000", stdin=b"x"))
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run(main())


def test_a_grandchild_that_keeps_the_pipe_open_holds_up_nobody_and_close_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path, grace=GRACE)
        out: list[bytes] = []
        ran = await collected(env, "sleep 1000 & echo $! >pid; echo done", stdout=out, stderr=[])
        assert (ran, out) == (Ran(exit_code=0), [b"done\n"])
        pid = await pid_in(tmp_path / "pid")
        assert alive(pid)
        await env.close()
        await eventually(lambda: not alive(pid))

    run(main())


def test_a_grandchild_that_writes_for_ever_holds_up_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalEnvironment(tmp_path, grace=GRACE) as env:
            assert await env.run("yes & echo $! >pid") == Ran(exit_code=0)
            pid = await pid_in(tmp_path / "pid")
        await eventually(lambda: not alive(pid))

    run(main())


def test_close_ends_what_runs_and_nothing_starts_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path, grace=GRACE)
        running = [asyncio.ensure_future(env.run(f"echo $$ >pid{n}; sleep 1000")) for n in range(3)]
        pids = [await pid_in(tmp_path / f"pid{n}") for n in range(3)]
        starting = asyncio.ensure_future(env.run("sleep 1000"))
        await asyncio.sleep(0)
        await env.close()
        await env.close()
        assert [(await one).exit_code for one in (*running, starting)] == [-signal.SIGTERM] * 4
        assert not any(map(alive, pids))
        with pytest.raises(RuntimeError, match="closed"):
            await env.run("true")

    run(main())


def test_what_the_receiver_raises_stops_the_command_and_is_raised(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path, grace=GRACE)

        def receive(data: bytes, stream: Stream) -> None:
            raise ValueError("no more")

        with pytest.raises(ValueError, match="no more"):
            await env.run("echo $$ >pid; yes", on_output=receive)
        assert not alive(await pid_in(tmp_path / "pid"))

    run(main())


def test_a_hundred_commands_leave_no_descriptor_no_zombie_and_no_file(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path)
        await env.run("true")
        before = open_files()
        for _ in range(10):
            ran = await asyncio.gather(*(env.run("echo x; exit 1", stdin=b"y") for _ in range(10)))
            assert {one.exit_code for one in ran} == {1}
            assert open_files() <= before
            assert not children()
        assert os.listdir(tmp_path) == []

    run(main())


# -- spilling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "spills"),
    [
        ("printf 'a\\n%.0s' 1 2 3", False),
        ("printf 'a\\n%.0s' 1 2 3 4", True),
        ("printf 'a\\na\\na\\na'", True),
        ("head -c 20 /dev/zero", False),
        ("head -c 21 /dev/zero", True),
        ("true", False),
    ],
)
def test_output_beyond_the_bounds_is_kept_complete(tmp_path: Path, command: str, spills: bool) -> None:
    async def main() -> None:
        async with LocalEnvironment(tmp_path) as env:
            out: list[bytes] = []
            ran = await env.run(
                command, on_output=lambda data, stream: out.append(data), spill_over=OutputLimits(20, 3)
            )
            assert (ran.spilled is not None) == spills
            if ran.spilled is not None:
                kept = Path(ran.spilled)
                assert kept.read_bytes() == b"".join(out)
                assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
        assert ran.spilled is None or not Path(ran.spilled).parent.exists()

    run(main())


def test_a_spill_directory_of_the_users_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalEnvironment(tmp_path, spill_directory=tmp_path / "kept") as env:
            ran = await env.run("seq 1 100000", spill_over=OutputLimits(100, 3))
        assert ran.spilled is not None
        assert Path(ran.spilled).parent == tmp_path / "kept"
        assert Path(ran.spilled).read_text().splitlines() == [str(n) for n in range(1, 100_001)]

    run(main())


def test_a_spill_that_fails_is_told_and_ends_neither_command_nor_output(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "file").write_text("")
        env = LocalEnvironment(tmp_path, spill_directory=tmp_path / "file")
        out: list[bytes] = []
        ran = await env.run(
            "seq 1 1000", on_output=lambda data, stream: out.append(data), spill_over=OutputLimits(100, 3)
        )
        assert (ran.exit_code, ran.spilled, b"".join(out).count(b"\n")) == (0, None, 1000)
        assert ran.spill_error is not None

    run(main())


def test_other_work_goes_on_while_a_command_writes_without_end(tmp_path: Path) -> None:
    async def main() -> None:
        env = LocalEnvironment(tmp_path, grace=GRACE)
        received = 0

        def receive(data: bytes, stream: Stream) -> None:
            nonlocal received
            received += len(data)

        running = asyncio.ensure_future(env.run("yes", on_output=receive))
        seen: set[int] = set()
        while len(seen) < 100:
            await asyncio.sleep(0)
            seen.add(received)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run(main())
