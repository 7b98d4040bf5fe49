"""Owns loading the code that a store is explained or recovered with: one module, and what is found in it.

Never runs a task of it. Importing a module runs the module: only name code that you trust, unlike a store.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeGuard

from pidurable_nb.agent.recovery import AssumedCode, Replay
from pidurable_nb.agent.settings import Settings
from pidurable_nb.engine.decide import Policy
from pidurable_nb.engine.phase import Phase
from pidurable_nb.engine.registry import Registry
from pidurable_nb.errors import PidurableError
from pidurable_nb.lab.explain import tool_name
from pidurable_nb.lab.world import World
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.stranger import StoreFile


class CodeNotLoaded(PidurableError):
    """The module cannot be imported, or holds nothing that a store needs: mend it, or name another."""


class DeclaredTool(Protocol):
    """What is read of a tool here: its name, and whether a cut call of it may run again (E2)."""

    @property
    def name(self) -> str: ...

    @property
    def replay(self) -> Replay: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a module holds: the first phases of its tasks, its tools, and what else a harness is opened with."""

    name: str
    tasks: tuple[type[Phase[object]], ...] = ()
    tools: tuple[DeclaredTool, ...] = ()
    extensions: tuple[object, ...] = ()
    models: tuple[object, ...] = ()
    settings: Settings | None = None
    world: World | None = None

    @property
    def policy(self) -> Policy:
        """What its settings say about restarts and queues; the defaults without settings."""
        return self.settings.engine.policy if self.settings is not None else Policy()

    def registry(self) -> Registry:
        """A registry with its tasks installed. Raises: DuplicateTask, PhaseRefused."""
        registry = Registry()
        for first in self.tasks:
            registry.install(first)
        return registry

    def code_for(self, file: StoreFile) -> AssumedCode:
        """The code that decisions about this file ask: the module's tasks and tools, and nothing assumed."""
        declared: dict[str, Replay] = {tool.name: tool.replay for tool in self.tools}

        def current_replay(record: TaskRecord) -> Replay | None:
            name = tool_name(file, record)
            return declared.get(name) if name is not None else None

        return AssumedCode(
            installed=self.registry(), current_replay=current_replay, hooked=lambda record: bool(self.extensions)
        )


def load_code(module: str) -> Loaded:
    """Import `module`, an importable name or a `.py` file, and collect what it holds.

    What the module prints goes to standard error. Raises: CodeNotLoaded, from the module's own error.
    """
    with contextlib.redirect_stdout(sys.stderr):
        found = _file(Path(module)) if module.endswith(".py") else _named(module)
    return collect(found, name=module)


def collect(module: ModuleType, *, name: str) -> Loaded:
    """What a module that is imported already holds. Names that start with an underscore are its own affair."""
    public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    return Loaded(
        name=name,
        tasks=tuple(dict.fromkeys(value for value in public.values() if _is_task(value))),
        tools=tuple({id(value): value for value in public.values() if _is_tool(value)}.values()),
        extensions=_listed(public, "extensions"),
        models=_listed(public, "models"),
        settings=_settings(public.get("settings"), name),
        world=next((value for value in public.values() if isinstance(value, World)), None),
    )


def _is_task(value: object) -> TypeGuard[type[Phase[object]]]:
    return isinstance(value, type) and issubclass(value, Phase) and value._task is not None


def _is_tool(value: object) -> TypeGuard[DeclaredTool]:
    if isinstance(value, type | ModuleType):
        return False
    return isinstance(getattr(value, "name", None), str) and getattr(value, "replay", None) in ("safe", "unsafe")


def _settings(value: object, name: str) -> Settings | None:
    if value is None or isinstance(value, Settings):
        return value
    raise CodeNotLoaded(f"settings of {name} is a {type(value).__name__}; make it a Settings, or give it another name")


def _listed(public: Mapping[str, object], name: str) -> tuple[object, ...]:
    value = public.get(name)
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


# --- Importing --------------------------------------------------------------------------------------------------------


def _named(name: str) -> ModuleType:
    with _beside(Path.cwd()), _blaming(name):
        return importlib.import_module(name)


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CodeNotLoaded(f"{path} is no file; name a .py file or an importable module")
    place = path.resolve()
    name = _module_name(place)
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise CodeNotLoaded(f"{path} is no Python module; name a .py file or an importable module")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # phases look up their annotations there
    with _beside(place.parent), _blaming(str(path)):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
            raise
    return module


def _module_name(place: Path) -> str:
    """The file's own name, the same at every load (T10), unless another module has it."""
    name = place.stem
    known = sys.modules.get(name)
    free = known is None and (name not in sys.stdlib_module_names)
    if name.isidentifier() and (free or getattr(known, "__file__", None) == str(place)):
        return name
    return f"_code_{zlib.crc32(os.fsencode(place)):08x}"


@contextlib.contextmanager
def _beside(folder: Path) -> Generator[None]:
    """What stands beside the module can be imported while it is loaded, as when Python runs it."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


@contextlib.contextmanager
def _blaming(name: str) -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CodeNotLoaded(f"there is no module {name}; name an importable module or a .py file") from error
        raise CodeNotLoaded(f"{name} cannot be loaded: {error}; mend it") from error
    except (Exception, SystemExit) as error:
        raise CodeNotLoaded(f"{name} cannot be loaded: {type(error).__name__}: {error}; mend it") from error
