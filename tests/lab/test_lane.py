"""A thread of one's own: in order, with what was raised, and still there when the interpreter begins to end."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from pidurable_nb.lab.dying.lane import Lane

AT_EXIT = """
import atexit
from concurrent.futures import ThreadPoolExecutor
from pidurable_nb.lab.dying.lane import Lane
ThreadPoolExecutor(1).submit(int).result()
lane = Lane("walk")
atexit.register(lambda: (print(lane.call(lambda: "called")), lane.close()))
"""


class Crash(BaseException):
    pass


def test_a_lane_works_on_one_thread_and_hands_back_what_was_raised() -> None:
    lane = Lane("walk")
    there = [lane.call(threading.current_thread) for _ in range(3)]
    assert [thread.name for thread in there] == ["walk"] * 3
    assert len(set(there)) == 1

    def crash() -> None:
        raise Crash("cut")

    with pytest.raises(Crash, match="cut"):
        lane.call(crash)
    assert lane.call(lambda: 1) == 1, "no crash of what it does ends it"
    lane.close()
    lane.close()
    assert not there[0].is_alive()
    with pytest.raises(RuntimeError, match="walk is closed"):
        lane.call(lambda: 1)


def test_a_forgotten_lane_keeps_no_thread() -> None:
    lane = Lane("forgotten")
    thread = lane.call(threading.current_thread)
    del lane
    thread.join(10)
    assert not thread.is_alive()


def test_a_lane_still_works_when_the_interpreter_ends() -> None:
    ran = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "called\n", "")
