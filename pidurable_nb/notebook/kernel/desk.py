"""Owns what this kernel has at hand: the host, the open store, the store looked at last, and the code of its cells.

Every subcommand works on it. Never parses a line and never renders.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from IPython.core.error import UsageError

from pidurable_nb.agent.harness import Harness
from pidurable_nb.agent.opening import Durability
from pidurable_nb.engine.graph import PhaseClass
from pidurable_nb.engine.phase import Phase
from pidurable_nb.engine.registry import NotReady
from pidurable_nb.errors import PidurableError
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.scenario import Scenario, find
from pidurable_nb.notebook.kernel.cells import Cells
from pidurable_nb.notebook.kernel.deaths import Died
from pidurable_nb.notebook.kernel.host import Host
from pidurable_nb.notebook.kernel.opened import Opened
from pidurable_nb.notebook.kernel.stepping import Walking
from pidurable_nb.store.copying import copy_store
from pidurable_nb.store.stranger import StoreFile
from pidurable_nb.store.visible import visible

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from pidurable_nb.notebook.kernel.sweeping import Swept

CLOSE_S: Final = 5.0
REFRESH_S: Final = 5.0
SIDE_FILES: Final = ("", "-wal", "-shm", ".lock")
NOTHING_OPEN: Final = "no store is open here: %pi open STORE, or name one (a kernel that was restarted has none open)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What `%config Pi` holds, as it is now."""

    max_rows: int = 200
    handle: str = "pi"
    durability: Durability = "barrier"


class Desk:
    """What one kernel works on. There is one per loaded extension."""

    def __init__(self, shell: InteractiveShell, preferences: Callable[[], Preferences]) -> None:
        self.shell = shell
        self._preferences = preferences
        self.host = Host()
        self.cells = Cells(lambda: shell.user_ns)
        self.cell_id: str | None = None
        """The name that the front end gave to the cell that runs, where it gave one."""
        self.opened: Opened | None = None
        self.current: Path | None = None
        """The store that a command means when it names none."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.bound: str | None = None
        """The name that the open store is bound to."""
        self.walking: Walking | None = None
        """The recovery that is being walked."""
        self.scenarios: dict[str, Scenario] = {}
        """Scenarios that cells of this notebook defined, by name."""
        self.points: list[str] = []
        """The points that were listed or passed last, for completion."""
        self.swept: Swept | None = None
        """The sweep that was shown last."""
        self._died: dict[Path, Died] = {}

    @property
    def preferences(self) -> Preferences:
        """What the user chose, read anew for every command."""
        return self._preferences()

    # -- the open store ----------------------------------------------------------------------------------------------

    @property
    def harness(self) -> Harness | None:
        """The harness of the open store."""
        return self.opened.harness if self.opened is not None and self.opened.open else None

    def is_open(self, path: Path) -> bool:
        """Whether this is the store that is open here."""
        return self.opened is not None and self.opened.path.resolve() == path.resolve()

    def need_open(self) -> Opened:
        """The open store. Raises UsageError when there is none."""
        if self.opened is None:
            raise UsageError(NOTHING_OPEN)
        if not self.opened.open:
            error = self.opened.harness.closed.result().error
            reason = visible(" ".join(str(error).split())) if error is not None else "it was closed"
            raise UsageError(f"%pi: {self.opened.path} is not open any more: {reason}; %pi open it again")
        return self.opened

    def open(
        self,
        path: Path,
        *,
        durability: Durability | None = None,
        run: bool = True,
        name: str | None = None,
        copied_from: Path | None = None,
    ) -> Opened:
        """Open a store with the code and models of this notebook, and bind it to a name. What was open is closed."""
        self.close()
        tasks = tuple(self.tasks_for(copied_from or path).values())
        chosen = durability or self.preferences.durability
        offer = self.cells.offer()

        async def opening() -> Harness:
            return await Harness.open(
                path, tasks=tasks, extensions=offer.extensions, models=offer.models, environment=offer.environment,
                durability=chosen, run=run, on_report=self._report,
            )  # fmt: skip

        harness = self.host.call(opening())
        self._say(offer.remarks)
        self.opened = Opened(self.host, harness, path, durability=chosen, copied_from=copied_from)
        self.current = path
        self._bind(name or self.preferences.handle, self.opened)
        return self.opened

    def close(self) -> bool:
        """Close the open store in order. False when none was open."""
        opened, self.opened = self.opened, None
        self._unbind()
        if opened is None or not opened.open:
            return False
        self.host.call(opened.harness.aclose())
        return True

    def _bind(self, name: str, opened: Opened) -> None:
        self.shell.user_ns[name] = opened
        self.bound = name

    def _unbind(self) -> None:
        name, self.bound = self.bound, None
        if name is not None and isinstance(self.shell.user_ns.get(name), Opened):
            del self.shell.user_ns[name]

    def _report(self, error: BaseException) -> None:
        """Called on the host's thread: what no cell waits for is said where somebody looks."""
        lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-2)
        print("".join(lines).rstrip(), file=sys.stderr, flush=True)

    # -- stores ------------------------------------------------------------------------------------------------------

    def path(self, given: str | Path | None) -> Path:
        """The store that a command means. Raises UsageError when it names none and there is none."""
        if given is not None:
            self.current = Path(given).expanduser()
        if self.current is None:
            raise UsageError(NOTHING_OPEN)
        return self.current

    @contextlib.contextmanager
    def looking(self, given: str | Path | None) -> Generator[StoreFile]:
        """A private copy of the store that a command means. Not a byte of the store changes. Raises StoreRefused."""
        with StoreFile.open(self.path(given)) as file:
            yield file

    def copy(self, source: Path, into: Path | None = None) -> Path:
        """A copy of a store, in a folder of this kernel unless told where. Raises StoreRefused."""
        return copy_store(source, into if into is not None else self.folder(source.stem))

    def folder(self, name: str) -> Path:
        """A new private folder, removed when the extension is unloaded."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="pidurable-", ignore_cleanup_errors=True)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder.name))

    def remove(self, path: Path) -> None:
        """Remove a store that nobody has open. Raises StoreRefused when it is none, or somebody has it open."""
        if self.is_open(path):
            self.close()
        with StoreFile.open(path):
            pass

        async def owned_by_nobody() -> None:
            async with Harness.open(path, run=False):
                pass

        self.host.call(owned_by_nobody())
        for side in SIDE_FILES:
            path.with_name(path.name + side).unlink(missing_ok=True)

    # -- crashes -----------------------------------------------------------------------------------------------------

    def scenario(self, name: str) -> Scenario:
        """A scenario of this notebook, else a built-in one, else `module:name`. Raises UnknownScenario."""
        return self.scenarios[name] if name in self.scenarios else find(name)

    def bury(self, died: Died) -> None:
        """Remember a run that died; its store is the one at hand now."""
        self._died[died.store.resolve()] = died
        self.current = died.store

    def died(self, store: Path) -> Died | None:
        """What is known of a store whose process died here."""
        return self._died.get(store.resolve())

    def ledger_of(self, store: Path) -> Path | None:
        """The ledger of a store whose process died here."""
        died = self.died(store)
        return died.ledger if died is not None else None

    def walk(self, walking: Walking | None) -> None:
        """Walk this recovery from now on; the one before is dropped."""
        before, self.walking = self.walking, walking
        if before is not None:
            before.close()

    # -- code --------------------------------------------------------------------------------------------------------

    def tasks(self) -> Mapping[str, PhaseClass]:
        """The tasks that this notebook defined or imported, by name; its own definitions win."""
        return self.cells.tasks()

    def tasks_for(self, store: Path) -> Mapping[str, PhaseClass]:
        """The code that goes with a store: what it died with here, else this notebook's."""
        died = self.died(store)
        if died is None:
            return self.tasks()
        return {**self.tasks(), **{first._task: first for first in died.tasks() if first._task is not None}}

    def program_for(self, store: Path) -> Program:
        """What goes with a store when it is explained or walked: what it died with here, else this notebook's."""
        tasks, offer = tuple(self.tasks_for(store).values()), self.cells.offer()
        died = self.died(store)
        own = died.scenario.program() if died is not None else Program()
        if own.tools or own.extensions or own.models:
            return replace(own, tasks=tasks)
        return Program(tasks=tasks, extensions=offer.extensions, models=offer.models, settings=own.settings)

    def phase(self, expression: str) -> Phase[object]:
        """What a Python expression makes in this notebook. Raises UsageError when that is no phase of a task."""
        try:
            value: object = eval(expression, self.shell.user_global_ns, self.shell.user_ns)
        except SyntaxError as error:
            raise UsageError(
                f"%pi: {expression!r} is no Python expression; write a phase, such as Tick(1, 5)"
            ) from error
        if not isinstance(value, Phase):
            raise UsageError(f"%pi: {expression!r} is {type(value).__name__}, not a phase such as Tick(1, 5)")
        return value

    def after_cell(self) -> None:
        """Install what a cell defined, and install again what it defined anew: a kept fault goes on then (T10, T11)."""
        tasks = self.tasks()
        if self.walking is not None:
            self.walking.install(tasks)
        harness = self.harness
        if harness is None:
            return

        async def refresh() -> None:
            known = harness.registry.installed
            for name, first in tasks.items():
                if name not in known:
                    harness.install(first)
            changed = harness.registry.refresh()
            # Kept faults are freed by a commit of its own; a wait in the next cell is to find them freed.
            while any(v.name == "faulted" and v.task.kind in changed for v in await harness.verdicts()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

        async def offered() -> list[str]:
            return self.cells.install(harness)

        try:
            self._say(self.host.call(offered(), timeout_s=REFRESH_S))
            self.host.call(refresh(), timeout_s=REFRESH_S)
        except PidurableError as error:
            print(f"%pi: {error}", file=sys.stderr)
        except TimeoutError:
            print("%pi: code on the harness's thread blocks it; new code is not installed yet", file=sys.stderr)

    def _say(self, remarks: Iterable[str]) -> None:
        for remark in self.cells.news(remarks):
            print(f"%pi: {remark}", file=sys.stderr)

    def waiting_code(self) -> Mapping[str, str]:
        """The installed tasks that are not ready, with the reason."""
        harness = self.harness
        installed = harness.registry.installed if harness is not None else {}
        return {name: found.why for name, found in installed.items() if isinstance(found, NotReady)}

    # -- the end -----------------------------------------------------------------------------------------------------

    def shut(self) -> None:
        """Close what is open, end the host and remove private copies. Idempotent."""
        with contextlib.suppress(PidurableError, TimeoutError, RuntimeError):
            opened, self.opened = self.opened, None
            self._unbind()
            if opened is not None and opened.open:
                self.host.call(opened.harness.aclose(), timeout_s=CLOSE_S)
        self.walk(None)
        self.host.shut()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def usage_of(error: PidurableError) -> UsageError:
    """The one line that a cell shows for an error of this package."""
    return UsageError(f"{type(error).__name__}: {visible(' '.join(str(error).split()))}")
