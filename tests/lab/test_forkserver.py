"""The fork server: children are forked warm, die as they please, and are reported as `waitpid` saw them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pidurable_nb.ids import Json
from pidurable_nb.lab.dying.forkserver import Ended, ForkServer, ForkServerError, UnknownTarget

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(["test_forkserver"], extra_path=[HERE]) as running:
        yield running


# What the children run; the server imports this file as `test_forkserver`.


def kill_itself(argument: Json) -> None:
    print(f"about to die of {argument}", end="")
    os.kill(os.getpid(), signal.SIGKILL)


def leave(argument: Json) -> None:
    assert argument is None or isinstance(argument, int | str)
    sys.exit(argument)


def fail(argument: Json) -> None:
    raise RuntimeError(f"failed with {argument}")


def shout(argument: Json) -> None:
    assert isinstance(argument, int)
    print("o" * argument)
    print("e" * argument, file=sys.stderr)


def sleep(_argument: Json) -> None:
    time.sleep(600)


def sleep_with_offspring(argument: Json) -> None:
    offspring = subprocess.Popen(["sleep", "600"])
    Path(str(argument)).write_text(f"{os.getpid()} {offspring.pid}")
    time.sleep(600)


def say_who_forked(_argument: Json) -> None:
    print(os.getppid(), len(os.listdir("/proc/self/task")))


def echo(argument: Json) -> None:
    print(repr(argument))


def is_running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def wait_until_gone(*pids: int) -> None:
    while any(is_running(pid) for pid in pids):  # pytest's time limit is the limit
        time.sleep(0.01)


def wait_for_text(path: Path) -> str:
    while not (path.exists() and path.read_text()):
        time.sleep(0.01)
    return path.read_text()


def test_a_child_that_kills_itself_is_reported_by_the_signal_that_waitpid_saw(server: ForkServer) -> None:
    ended = server.run("test_forkserver:kill_itself", {"n": 7}, timeout_s=30)
    assert ended == Ended(signal=signal.SIGKILL, exit_code=None, output="about to die of {'n': 7}", error="")


def test_a_child_ends_with_the_exit_code_it_asked_for(server: ForkServer) -> None:
    codes = [server.run("test_forkserver:leave", code, timeout_s=30).exit_code for code in (None, 0, 3, 255)]
    assert codes == [0, 0, 3, 255]
    assert server.run("test_forkserver:leave", "words", timeout_s=30) == Ended(
        signal=None, exit_code=1, output="", error="words\n"
    )


def test_an_exception_ends_a_child_with_its_traceback(server: ForkServer) -> None:
    ended = server.run("test_forkserver:fail", 5, timeout_s=30)
    assert (ended.signal, ended.exit_code) == (None, 1)
    assert "RuntimeError: failed with 5" in ended.error


def test_a_child_that_takes_too_long_is_killed_with_everything_it_started(server: ForkServer, tmp_path: Path) -> None:
    ended = server.run("test_forkserver:sleep_with_offspring", str(tmp_path / "pids"), timeout_s=0.5)
    assert (ended.signal, ended.exit_code, ended.timed_out) == (signal.SIGKILL, None, True)
    wait_until_gone(*map(int, wait_for_text(tmp_path / "pids").split()))


def test_a_megabyte_on_both_streams_is_captured_whole(server: ForkServer) -> None:
    size = 1 << 20
    ended = server.run("test_forkserver:shout", size, timeout_s=30)
    assert ended.output == "o" * size + "\n"
    assert ended.error == "e" * size + "\n"


def test_a_large_argument_arrives_whole(server: ForkServer) -> None:
    argument: Json = {"text": "ü" * 500_000, "list": [1, 2.5, None, True]}
    assert server.run("test_forkserver:echo", argument, timeout_s=30).output == f"{argument!r}\n"


def test_one_server_survives_many_killed_children(server: ForkServer) -> None:
    before = server.pid
    for n in range(100):
        assert server.run("test_forkserver:kill_itself", n, timeout_s=30).signal == signal.SIGKILL
    assert server.pid == before
    assert Path(f"/proc/{before}/task/{before}/children").read_text() == ""


def test_every_child_is_forked_from_the_server_and_has_one_thread(server: ForkServer) -> None:
    assert server.run("test_forkserver:say_who_forked", None, timeout_s=30).output == f"{server.pid} 1\n"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("test_forkserver:no_such_function", "module test_forkserver has no function no_such_function"),
        ("no_such_module:run", "module no_such_module cannot be imported: ModuleNotFoundError"),
        ("test_forkserver", "a target is written module:function"),
    ],
)
def test_an_unknown_target_is_an_error_that_says_what_is_missing(server: ForkServer, target: str, reason: str) -> None:
    with pytest.raises(UnknownTarget, match=reason):
        server.run(target, None, timeout_s=30)
    assert server.run("test_forkserver:echo", 1, timeout_s=30).output == "1\n"


def test_a_module_that_was_not_named_is_imported_by_each_child_anew(server: ForkServer, tmp_path: Path) -> None:
    with ForkServer([], extra_path=[tmp_path]) as fresh:
        for text in ("before", "behind"):
            (tmp_path / "typed_in_a_cell.py").write_text(f"def run(argument):\n    print({text!r}, argument)\n")
            assert fresh.run("typed_in_a_cell:run", 1, timeout_s=30).output == f"{text} 1\n"


def test_a_module_that_cannot_be_imported_is_refused_on_entering_with_its_traceback() -> None:
    with pytest.raises(ForkServerError, match="module no_such_module cannot be imported"):
        with ForkServer(["no_such_module"]):
            pass


def test_a_module_that_starts_a_thread_is_refused_on_entering(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    with pytest.raises(ForkServerError, match="module threaded started a thread"):
        with ForkServer(["threaded"], extra_path=[tmp_path]):
            pass


def test_leaving_the_context_ends_the_server_and_refuses_further_runs() -> None:
    server = ForkServer([])
    with server:
        pid = server.pid
        assert pid is not None
        assert is_running(pid)
    assert not is_running(pid)
    with pytest.raises(ForkServerError, match="not running"):
        server.run("test_forkserver:echo", 1, timeout_s=30)


def test_a_server_that_was_killed_is_an_error_and_takes_its_child_along(tmp_path: Path) -> None:
    with ForkServer(["test_forkserver"], extra_path=[HERE]) as server:
        assert server.pid is not None
        pids = tmp_path / "pids"
        program = (
            "import os, sys, time\n"
            "while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])): time.sleep(0.01)\n"
            "os.kill(int(sys.argv[2]), 9)"
        )
        killer = subprocess.Popen([sys.executable, "-c", program, str(pids), str(server.pid)])
        with pytest.raises(ForkServerError, match="ended"):
            server.run("test_forkserver:sleep_with_offspring", str(pids), timeout_s=60)
        assert killer.wait() == 0
        child, offspring = map(int, pids.read_text().split())
        wait_until_gone(child)
        os.kill(offspring, signal.SIGKILL)  # only a living server can end a grandchild


def test_the_death_of_the_parent_ends_the_server_and_the_child_it_waits_for(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from pathlib import Path\n"
        "from pidurable_nb.lab.dying.forkserver import ForkServer\n"
        f"with ForkServer(['test_forkserver'], extra_path=[Path({str(HERE)!r})]) as server:\n"
        "    print(server.pid, flush=True)\n"
        f"    server.run('test_forkserver:sleep_with_offspring', {str(pids)!r}, timeout_s=600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert select.select([parent.stdout], [], [], 60)[0]
        server = int(parent.stdout.readline())
        child, offspring = map(int, wait_for_text(pids).split())
        assert all(map(is_running, (server, child, offspring)))
        parent.kill()
        assert parent.wait() == -signal.SIGKILL
    wait_until_gone(server, child, offspring)


warmed: list[Json] = []


def warm_up(argument: Json) -> None:
    warmed.append(argument)


def say_warmed(argument: Json) -> None:
    print(warmed, end="")


def test_what_warms_the_server_is_called_once_and_every_child_begins_with_it() -> None:
    with ForkServer(["test_forkserver"], warm=["test_forkserver:warm_up"], extra_path=[HERE]) as warm:
        assert [warm.run("test_forkserver:say_warmed", None, timeout_s=10).output for _ in range(2)] == ["[None]"] * 2


def test_a_server_that_cannot_be_warmed_says_why() -> None:
    with pytest.raises(ForkServerError, match="has no function nowhere"):
        ForkServer(["test_forkserver"], warm=["test_forkserver:nowhere"], extra_path=[HERE]).__enter__()


def test_a_server_that_was_begun_is_entered_when_it_is_needed_and_ends_without_being_entered() -> None:
    server = ForkServer(["test_forkserver"], extra_path=[HERE])
    server.begin()
    pid = server.pid
    with server as entered:
        assert entered.pid == pid is not None
        assert entered.run("test_forkserver:leave", 3, timeout_s=30).exit_code == 3
    unused = ForkServer(["test_forkserver"], extra_path=[HERE])
    unused.begin()
    number = unused.pid
    assert number is not None
    unused.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_a_begun_server_refuses_on_entering_what_it_could_not_import() -> None:
    server = ForkServer(["no_such_module_anywhere"])
    server.begin()
    with pytest.raises(ForkServerError, match="no_such_module_anywhere"), server:
        pass


def test_a_begun_server_is_waited_for_by_its_first_run() -> None:
    server = ForkServer(["test_forkserver"], extra_path=[HERE])
    server.begin()
    try:
        assert [server.run("test_forkserver:leave", code, timeout_s=30).exit_code for code in (3, 4)] == [3, 4]
    finally:
        server.close()
