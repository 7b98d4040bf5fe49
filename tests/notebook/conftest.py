"""What the tests of the notebook share: a shell with the extension, a hostile store, a real kernel. Tests nothing."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import queue
import signal
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets.config import Config

from pidurable_nb import Done, Harness, Phase, Runtime

TICK = """
from pidurable_nb import Done, Input, Phase, Runtime

class Tick(Phase[str], task="ticker", version=1):
    n: int
    to: Input[int]

    async def run(self, rt: Runtime) -> "Tick | Done[str]":
        if await rt.recall(f"printed-{self.n}", bool) is None:
            await rt.memo(f"printed-{self.n}", True, barrier=True)
            await rt.effect(f"print tick {self.n}", lambda: print("tick", self.n))
        async with rt.commit() as tx:
            if self.n == self.to:
                return tx.become(Done(f"counted to {self.to}"))
            return tx.become(Tick(self.n + 1, self.to))
"""
HOSTILE = '<script>alert(1)</script><img src=x onerror="x">\u202e\x1b[31m&amp;"\'\n'


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's Jupyter is read or written."""
    (tmp_path / ".jupyter").mkdir()
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / ".jupyter" / name.lower()))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@dataclass
class Shell:
    """A shell with the extension loaded. `run` gives the cell's result and raises what the cell raised."""

    ip: InteractiveShell

    def run(self, source: str) -> object:
        result = self.ip.run_cell(source, store_history=False)  # type: ignore[no-untyped-call]  # half typed
        result.raise_error()
        value: object = result.result
        return value

    def show(self, value: object) -> dict[str, str]:
        """The forms that a notebook would store."""
        formatter = self.ip.display_formatter
        assert isinstance(formatter, DisplayFormatter)
        data: dict[str, str] = formatter.format(value)[0]  # type: ignore[no-untyped-call]  # half typed
        return data

    def knows(self, magic: str) -> bool:
        """Whether there is such a line or cell magic."""
        return any(magic in magics for magics in self.ip.magics_manager.magics.values())

    def complete(self, line: str) -> list[str]:
        with provisionalcompleter():
            return [found.text for found in self.ip.Completer.completions(line, len(line))]


@pytest.fixture
def bare() -> Iterator[Shell]:
    """A shell without the extension."""
    config = Config()
    config.HistoryManager.enabled = False
    config.TerminalInteractiveShell.simple_prompt = True
    ip = InteractiveShell(config=config)  # type: ignore[no-untyped-call]  # half typed
    yield Shell(ip)
    ip.run_line_magic("unload_ext", "pidurable_nb")
    atexit.unregister(ip.atexit_operations)
    ip.atexit_operations()  # type: ignore[no-untyped-call]  # half typed


@pytest.fixture
def tick() -> str:
    """A cell that defines the ticker."""
    return TICK


@pytest.fixture
def attack() -> str:
    """Text that does harm where it is not escaped."""
    return HOSTILE


@pytest.fixture
def shell(bare: Shell) -> Shell:
    """A shell with the extension loaded and nothing open."""
    bare.run("%load_ext pidurable_nb")
    return bare


class Nasty(Phase[str], task=HOSTILE.strip()):
    note: str

    async def run(self, rt: Runtime) -> Done[str]:
        await rt.memo(HOSTILE, HOSTILE)
        async with rt.commit() as tx:
            tx.append(HOSTILE, text=HOSTILE)
        await asyncio.Event().wait()
        return Done(HOSTILE)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A store whose every word is an attack; its one task was killed while it ran."""
    path = tmp_path / "hostile.sqlite"

    async def main() -> None:
        harness = await Harness.open(path, tasks=[Nasty])
        root = await harness.root()
        await root.start(Nasty(HOSTILE))
        while not (await root.entries()).items:  # noqa: ASYNC110 - another process would not set an event either
            await asyncio.sleep(0.01)
        os._exit(0)

    child = os.fork()
    if child == 0:
        try:
            asyncio.run(main())
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return path


@dataclass
class Ran:
    """What a cell printed, showed and ended with; `elsewhere` is what was printed meanwhile for another cell.

    `data` are its displays as they stand at the end, `updates` how often one was changed.
    """

    text: str = ""
    error: str | None = None
    elsewhere: str = ""
    data: list[dict[str, str]] = field(default_factory=list)
    updates: int = 0


@dataclass
class Kernel:
    """A real kernel, in a process of its own."""

    manager: KernelManager
    client: BlockingKernelClient

    def run(self, source: str, *, fails: bool = False, timeout_s: float = 60.0, cell_id: str | None = None) -> Ran:
        """Run a cell, and collect what came out of it. An error fails the test, unless the cell `fails`."""
        ran = self._run(source, timeout_s, cell_id)
        assert fails == (ran.error is not None), f"{source}\n{ran.error}\n{ran.text}"
        return ran

    def _execute(self, source: str, cell_id: str | None) -> str:
        """Send a cell, with the name that a front end gives it."""
        content = {"code": source, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = self.client.session.msg("execute_request", content, metadata={"cellId": cell_id} if cell_id else {})
        self.client.shell_channel.send(message)
        id: str = message["header"]["msg_id"]
        return id

    def _run(self, source: str, timeout_s: float, cell_id: str | None) -> Ran:
        id = self._execute(source, cell_id)
        ran, shown = Ran(), dict[str, int]()
        while True:
            message = self.client.get_iopub_msg(timeout=timeout_s)
            content, kind = message["content"], message["msg_type"]
            if message["parent_header"].get("msg_id") != id:
                ran.elsewhere += content["text"] if kind == "stream" else ""
            elif kind == "stream":
                ran.text += content["text"]
            elif kind in ("execute_result", "display_data"):
                shown[content.get("transient", {}).get("display_id", "")] = len(ran.data)
                ran.data.append(content["data"])
            elif kind == "update_display_data":
                ran.data[shown[content["transient"]["display_id"]]] = content["data"]
                ran.updates += 1
            elif kind == "status" and content["execution_state"] == "idle":
                break
        while (reply := self.client.get_shell_msg(timeout=timeout_s))["parent_header"].get("msg_id") != id:
            continue
        if reply["content"]["status"] != "ok":
            ran.error = f"{reply['content']['ename']}: {reply['content']['evalue']}"
        return ran

    def tell(self, model_id: str, content: dict[str, object]) -> None:
        """What the page of a widget sends to its kernel."""
        data = {"comm_id": model_id, "data": {"method": "custom", "content": content}}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", data))

    def run_until_dead(self, source: str) -> str:
        """Run a cell that kills the kernel; what it had printed."""
        self.client.execute(source)
        text = ""
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if not self.manager.is_alive():
                    return text
                continue
            text += message["content"].get("text", "")

    def interrupt(self) -> None:
        """What the stop button does. Of a thread's own accord: the manager would leave an event loop in it."""
        provisioner = self.manager.provisioner
        assert isinstance(provisioner, LocalProvisioner)
        assert provisioner.pid is not None
        os.kill(provisioner.pid, signal.SIGINT)

    def restart(self) -> None:
        """What the restart button does: an orderly end where there is still something to end."""
        self.manager.restart_kernel(now=False)
        self.client.wait_for_ready(timeout=60)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """A kernel in this test's folder."""
    with running("python3") as kernel:
        yield kernel


@pytest.fixture
def other_kernel() -> Iterator[Kernel]:
    """Another one, in the same folder."""
    with running("python3") as kernel:
        yield kernel


@pytest.fixture
def kernel_of() -> Iterator[Callable[[Path], Kernel]]:
    """A kernel of another Python, in this test's folder."""
    with contextlib.ExitStack() as kernels:

        def start(python: Path) -> Kernel:
            spec = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / "another" / "kernel.json"
            spec.parent.mkdir(parents=True)
            command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            spec.write_text(json.dumps({"argv": command, "display_name": "another", "language": "python"}))
            return kernels.enter_context(running("another"))

        yield start


@contextlib.contextmanager
def running(name: str) -> Generator[Kernel]:
    """A kernel until the block ends."""
    manager = KernelManager(kernel_name=name)
    manager.start_kernel(cwd=os.getcwd())
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
