"""The world: an effect leaves a line before and a line after, and nothing passes a shut gate."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import pytest

from pidurable_nb.errors import NotJson
from pidurable_nb.ids import JsonObject, TaskId
from pidurable_nb.lab.outside.world import (
    LedgerLine,
    NoWorld,
    SimulatedCrash,
    World,
    append,
    applied,
    asked,
    copy_ledger,
    crash_this_process,
    current_ledger,
    read_ledger,
)
from pidurable_nb.probe import Mark, TaskSubject
from pidurable_nb.records.codec import BadRecord

T = TypeVar("T")
Do: TypeAlias = Callable[[], T | Awaitable[T]]
TICK = TaskSubject(TaskId(7), "ticker", "tick")


def effect(name: str, key: str | None = None) -> Mark:
    return Mark(TICK, "effect", "before", name=name, key=key)


@dataclass(frozen=True)
class Receipt:
    charge: str
    cents: int


def test_e6_an_effect_leaves_a_line_before_and_a_line_after(tmp_path: Path) -> None:
    ledger = tmp_path / "effects.jsonl"

    async def main() -> None:
        world = World(ledger, life=2)

        def now() -> int:
            assert [line.edge for line in read_ledger(ledger)] == ["before"]
            return 5

        async def receipt() -> Receipt:
            await asyncio.sleep(0)
            return Receipt("charge", 1100)

        later: Do[Receipt] = receipt
        nothing: Do[None] = lambda: None  # noqa: E731
        assert await world.perform(effect("print tick 1"), now) == 5
        assert await world.perform(effect("capture 1", "k"), later) == Receipt("charge", 1100)
        await world.perform(effect("say nothing"), nothing)

    asyncio.run(main())
    assert read_ledger(ledger) == (
        LedgerLine(effect="print tick 1", edge="before", life=2),
        LedgerLine(effect="print tick 1", edge="after", life=2, value=5),
        LedgerLine(effect="capture 1", edge="before", key="k", life=2),
        LedgerLine(effect="capture 1", edge="after", key="k", life=2, value={"charge": "charge", "cents": 1100}),
        LedgerLine(effect="say nothing", edge="before", life=2),
        LedgerLine(effect="say nothing", edge="after", life=2),
    )
    assert asked(ledger) == {"print tick 1": 1, "capture 1": 1, "say nothing": 1}


def test_an_effect_that_raises_was_asked_and_says_so(tmp_path: Path) -> None:
    ledger = tmp_path / "effects.jsonl"

    def fail() -> int:
        raise LookupError("no such account")

    with pytest.raises(LookupError):
        asyncio.run(World(ledger).perform(effect("pay"), fail))
    assert read_ledger(ledger)[1].error == "LookupError: no such account"


def test_c7_a_value_that_no_memo_could_keep_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(NotJson, match="effect 'pay'"):
        asyncio.run(World(tmp_path / "l").perform(effect("pay"), lambda: float("nan")))


def test_nothing_passes_a_shut_gate(tmp_path: Path) -> None:
    ledger = tmp_path / "effects.jsonl"
    happened: list[str] = []

    async def main() -> None:
        world = World(ledger)

        async def shutting() -> None:
            happened.append("begun")
            world.shut()
            await asyncio.sleep(0)

        in_flight: Do[None] = shutting
        with pytest.raises(SimulatedCrash):
            await world.perform(effect("in flight"), in_flight)
        with pytest.raises(SimulatedCrash):
            await world.perform(effect("too late"), lambda: happened.append("late"))

    asyncio.run(main())
    assert happened == ["begun"]
    assert [(line.effect, line.edge) for line in read_ledger(ledger)] == [("in flight", "before")]


def test_a_simulated_crash_is_no_exception() -> None:
    assert not issubclass(SimulatedCrash, Exception)
    assert not issubclass(SimulatedCrash, SystemExit | KeyboardInterrupt)


def test_the_ledger_is_known_inside_an_effect_only(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = World(tmp_path / "one"), World(tmp_path / "two")

        async def look() -> str:
            await asyncio.sleep(0)
            return current_ledger().name

        where: Do[str] = look
        got = tuple(await asyncio.gather(one.perform(effect("a"), where), two.perform(effect("b"), where)))
        assert got == ("one", "two")
        with pytest.raises(NoWorld):
            current_ledger()
        with pytest.raises(NoWorld):
            crash_this_process()

    asyncio.run(main())


def test_code_that_crashes_its_process_ends_this_life_and_leaves_the_kernel(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger")
    with pytest.raises(SimulatedCrash):
        asyncio.run(world.perform(effect("boom"), crash_this_process))
    assert world.is_shut
    assert [line.edge for line in read_ledger(world.ledger)] == ["before"]


def test_lines_of_two_processes_do_not_mix(tmp_path: Path) -> None:
    ledger = tmp_path / "effects.jsonl"
    code = (
        "import sys; from pathlib import Path; from pidurable_nb.lab.outside.world import append\n"
        "for n in range(300): append(Path(sys.argv[1]), {'effect': sys.argv[2] * 200, 'edge': 'before', 'n': n})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(ledger), letter]) for letter in "ab"]
    for _ in range(300):
        append(ledger, {"effect": "c" * 200, "edge": "before"})
    assert [writer.wait() for writer in writers] == [0, 0]
    assert asked(ledger) == dict.fromkeys(sorted(asked(ledger)), 300)
    assert len(read_ledger(ledger)) == 900


def test_a_killed_process_has_asked(tmp_path: Path) -> None:
    ledger = tmp_path / "effects.jsonl"
    code = (
        "import asyncio, os, signal, sys; from pathlib import Path\n"
        "from pidurable_nb.ids import TaskId; from pidurable_nb.lab.outside.world import World\n"
        "from pidurable_nb.probe import Mark, TaskSubject\n"
        "mark = Mark(TaskSubject(TaskId(7), 'ticker', 'tick'), 'effect', 'before', name='boom')\n"
        "die = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(World(Path(sys.argv[1])).perform(mark, die))"
    )
    child = subprocess.run([sys.executable, "-c", code, str(ledger)], check=False)
    assert child.returncode == -signal.SIGKILL
    assert asked(ledger) == {"boom": 1}
    assert [line.edge for line in read_ledger(ledger)] == ["before"]


def test_a_torn_last_line_does_not_count_and_a_foreign_line_is_refused(tmp_path: Path) -> None:
    ledger = tmp_path / "effects.jsonl"
    append(ledger, {"effect": "a", "edge": "before"})
    whole = ledger.read_bytes()
    ledger.write_bytes(whole + b'{"effect": "b", "ed')
    assert asked(ledger) == {"a": 1}
    for foreign in (b"nonsense\n", b"[]\n", b'{"effect": 1, "edge": "before"}\n', b'{"effect": "a", "edge": "x"}\n'):
        ledger.write_bytes(whole + foreign)
        with pytest.raises(BadRecord, match=r"effects\.jsonl"):
            read_ledger(ledger)


def test_applied_counts_what_an_outside_that_honours_keys_did(tmp_path: Path) -> None:
    ledger = tmp_path / "effects.jsonl"
    lines: list[JsonObject] = [
        {"effect": "capture 1", "edge": "before", "key": "k1", "life": 1},
        {"effect": "capture", "edge": "asked", "key": "k1"},
        {"effect": "capture", "edge": "applied", "key": "k1", "value": 1100},
        {"effect": "capture 1", "edge": "before", "key": "k1", "life": 2},
        {"effect": "capture", "edge": "asked", "key": "k1"},
        {"effect": "capture 1", "edge": "after", "key": "k1", "life": 2},
        {"effect": "capture 3", "edge": "before", "key": "k3", "life": 2},
        {"effect": "capture", "edge": "refused", "key": "k3"},
        {"effect": "print", "edge": "before", "key": None, "life": 2},
        {"effect": "mail", "edge": "before", "key": "m", "life": 2},
    ]
    for line in lines:
        append(ledger, line)
    assert asked(ledger) == {"capture 1": 2, "capture 3": 1, "print": 1, "mail": 1}
    assert applied(ledger) == {"capture 1": 1, "capture 3": 0}


def test_a_copy_of_a_ledger_goes_on_by_itself(tmp_path: Path) -> None:
    ledger = tmp_path / "effects.jsonl"
    append(ledger, {"effect": "a", "edge": "before"})
    copy = copy_ledger(ledger, tmp_path / "copy.jsonl")
    append(copy, {"effect": "a", "edge": "before"})
    assert (asked(ledger), asked(copy)) == ({"a": 1}, {"a": 2})
    assert asked(copy_ledger(tmp_path / "none", tmp_path / "empty")) == {}
    assert asked(tmp_path / "none") == {}
