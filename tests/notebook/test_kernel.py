"""A real kernel: interrupts, where output goes, a restart, and a kill from which the next kernel goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Protocol

import pytest

pytestmark = pytest.mark.slow


class Ran(Protocol):
    text: str
    error: str | None
    elsewhere: str
    data: list[dict[str, str]]
    updates: int


class Kernel(Protocol):
    def run(self, source: str, *, fails: bool = ..., timeout_s: float = ..., cell_id: str | None = ...) -> Ran: ...
    def interrupt(self) -> None: ...
    def restart(self) -> None: ...
    def run_until_dead(self, source: str) -> str: ...


PATIENT = """
import asyncio
from pathlib import Path
from pidurable_nb import Done, Phase, Runtime
class Patient(Phase[str], task="patient"):
    n: int
    async def run(self, rt: Runtime) -> "Patient | Done[str]":
        await rt.effect(f"wait {self.n}", wait)
        return Done("rested")
async def wait() -> None:
    Path("waiting").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
"""
COUNTER = """
import time
from pidurable_nb import Done, Phase, Runtime
seen = []
class Count(Phase[str], task="count"):
    n: int
    async def run(self, rt: Runtime) -> "Count | Done[str]":
        await rt.effect(f"count {self.n}", lambda: [print("count", self.n), seen.append(self.n)] and None)
        return Count(self.n + 1) if self.n < 3 else Done("counted")
"""
AGENT = """
import asyncio
from datetime import timedelta
from pathlib import Path
from pidurable_nb import tool
from pidurable_nb.models import CallTools, Say, Scripted, call
@tool()
async def gate() -> str:
    '''Wait until the gate is open.'''
    Path("waiting").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    print("opened")
    return "open"
def answer(request):
    asked = [m["content"] for m in request.messages if m["role"] == "user"][-1]
    if asked == "open the gate" and request.messages[-1]["role"] == "user":
        return CallTools(call("gate"))
    return Say(f"heard {asked}", chunks=6, delay=timedelta(milliseconds=120))
model = Scripted.by(answer)
"""
UNTIL_WAITING = "import time\nwhile not Path('waiting').exists():\n    time.sleep(0.01)"


def test_an_interrupt_stops_a_waiting_magic_and_the_work_goes_on(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")
    kernel.run(PATIENT)
    kernel.run("%pi new a.sqlite")

    def interrupt() -> None:
        while not Path("waiting").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        kernel.interrupt()

    threading.Thread(target=interrupt, daemon=True).start()
    stopped = kernel.run("%pi start --wait Patient(1)", fails=True)
    assert (stopped.error or "").startswith("KeyboardInterrupt")
    assert kernel.run("print((await pi.tasks())[0].status)").text == "running\n"
    Path("go").touch()
    assert kernel.run("from pidurable_nb import TaskRef\nprint(await pi.wait(TaskRef(7)))").text == "rested\n"


def test_what_a_task_prints_appears_below_the_cell_that_waits_for_it(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")
    kernel.run(COUNTER)
    opened = kernel.run("%pi new a.sqlite")
    ran = kernel.run("ref = %pi start Count(1)\nprint(await pi.wait(ref))")
    assert "count" not in opened.text
    assert ran.text == "count 1\ncount 2\ncount 3\ncounted\n"
    again = kernel.run("x = %pi start --wait Count(3)")
    assert (again.text, again.elsewhere) == ("count 3\n", "")


def test_a_blocking_cell_does_not_stop_durable_work(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")
    kernel.run(COUNTER)
    kernel.run("%pi new a.sqlite")
    ran = kernel.run("ref = %pi start Count(1)\nwhile len(seen) < 3:\n    time.sleep(0.01)\nprint('done')")
    assert ran.text == "count 1\ncount 2\ncount 3\ndone\n"


def test_a_killed_kernel_is_followed_by_one_that_goes_on_at_the_same_step(kernel: Kernel) -> None:
    cell = """
import asyncio
from pathlib import Path
from pidurable_nb import Done, Input, Phase, Runtime
class Walk(Phase[str], task="walk"):
    n: int
    to: Input[int]
    async def run(self, rt: Runtime) -> "Walk | Done[str]":
        await rt.effect(f"pace {self.n}", lambda: print("pace", self.n, flush=True))
        if self.n == 3 and not GO:
            Path("waiting").touch()
            await asyncio.Event().wait()
        return Done("there") if self.n == self.to else Walk(self.n + 1, self.to)
"""
    kernel.run("%load_ext pidurable_nb")
    kernel.run("GO = False" + cell)
    kernel.run("%pi new a.sqlite")
    first = kernel.run(f"ref = %pi start Walk(1, 5)\n{UNTIL_WAITING}")
    assert first.text.split("\n") == ["pace 1", "pace 2", "pace 3", ""]
    assert "SIGKILL to this kernel" in kernel.run_until_dead("%pi kill --kernel")
    kernel.restart()
    kernel.run("%load_ext pidurable_nb")
    nothing = kernel.run("%pi tasks", fails=True)
    assert nothing.error is not None
    assert "a kernel that was restarted has none open" in nothing.error
    why = kernel.run("%pi why a.sqlite")
    assert "RERUN" in why.data[0]["text/plain"]
    kernel.run("GO = True" + cell)
    opened = kernel.run("%pi open a.sqlite\nfrom pidurable_nb import TaskRef\nprint(await pi.wait(TaskRef(7)))")
    assert opened.text == "pace 3\npace 4\npace 5\nthere\n"


def test_a_shut_down_closes_in_order_so_that_nothing_counts_as_a_crash(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")
    kernel.run(PATIENT)
    kernel.run("%pi new a.sqlite")
    kernel.run(f"ref = %pi start Patient(1)\n{UNTIL_WAITING}")
    kernel.restart()
    kernel.run("%load_ext pidurable_nb")
    kernel.run("x = %pi tasks a.sqlite")
    assert kernel.run("print(x.status.tolist(), x.restarts.tolist())").text == "['pending'] [0]\n"


def test_a_task_that_leaves_the_interpreter_leaves_the_kernel_answering(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")
    kernel.run(
        "from pidurable_nb import Done, Phase, Runtime\n"
        "class Exit(Phase[str], task='exit'):\n"
        "    async def run(self, rt: Runtime) -> Done[str]:\n"
        "        raise SystemExit(3)\n"
        "class Other(Phase[str], task='other'):\n"
        "    async def run(self, rt: Runtime) -> Done[str]:\n"
        "        return Done('alive')\n"
    )
    kernel.run("%pi new a.sqlite")
    kernel.run("%pi start Exit()")
    assert kernel.run("print(pi.call(lambda: 'called'))").text == "called\n"
    refused = kernel.run("%pi start Other()", fails=True)
    assert "the session was ended by SystemExit(3)" in (refused.error or "")
    kernel.run("%pi new b.sqlite")
    kernel.run("x = %pi start --wait Other()")
    assert kernel.run("print(x)").text == "alive\n"


def test_a_scenario_is_killed_from_a_kernel_and_frozen_in_it(kernel: Kernel, tick: str) -> None:
    kernel.run("%load_ext pidurable_nb")
    killed = kernel.run("%pi kill ticker").data[0]["text/plain"]
    assert "Killed by SIGKILL" in killed
    assert "tick 1 / tick 2 / tick 3\n" in killed
    kernel.run(tick)
    frozen = kernel.run("%pi crash ticker#1/tick:effect.after@2 Tick(1, 3)").data[0]["text/plain"]
    assert "Frozen" in frozen
    assert kernel.run("x = %pi recover").text == "tick 3\n"


def test_a_cell_asks_streams_is_interrupted_and_asks_once(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")
    kernel.run(AGENT)
    kernel.run("%pi new a.sqlite")
    asked = kernel.run("%%pi ask --once\nhello\n", cell_id="c-1")
    assert asked.updates >= 3
    assert [data["text/plain"].splitlines()[-1] for data in asked.data] == ["heard hello"]
    assert "heard hello" in asked.data[0]["text/html"]

    def interrupt() -> None:
        while not Path("waiting").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        kernel.interrupt()

    threading.Thread(target=interrupt, daemon=True).start()
    stopped = kernel.run("%%pi ask\nopen the gate\n", fails=True)
    assert (stopped.error or "").startswith("KeyboardInterrupt")
    assert "the run was not: it goes on. %pi abort 1 ends it" in stopped.data[-1]["text/plain"]
    assert "gate  running" in stopped.data[-1]["text/plain"]
    assert kernel.run("print((await pi.tasks(kind='pi.tool'))[0].status)").text == "running\n"
    Path("go").touch()
    assert kernel.run("await pi.wait_idle()\nx = %pi submissions\nprint(*x.status)").text.endswith("done done\n")

    for name in ("go", "waiting"):
        Path(name).unlink()
    kernel.run(f"await (await pi.root()).submit('open the gate', request_id='cell:c-2')\n{UNTIL_WAITING}")
    kernel.run_until_dead("%pi kill --kernel")
    kernel.restart()
    kernel.run("%load_ext pidurable_nb")
    kernel.run(AGENT)
    kernel.run("%pi open a.sqlite")
    for text, cell in (("hello", "c-1"), ("open the gate", "c-2")):
        again = kernel.run(f"%%pi ask --once\n{text}\n", cell_id=cell)
        assert f"same: asked before under cell:{cell}" in again.data[0]["text/plain"]
        assert again.data[0]["text/plain"].endswith(f"heard {text}")
        assert ("gate  interrupted" in again.data[0]["text/plain"]) == (cell == "c-2")
    assert kernel.run("x = %pi submissions\nprint(*x.status)").text == "done done done\n"
