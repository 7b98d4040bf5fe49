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
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TypeGuard, TypeVar

from pidurable_nb.agent.extending.extension import Extension
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.engine.decide import Policy
from pidurable_nb.engine.phase import Phase
from pidurable_nb.engine.registry import Code
from pidurable_nb.errors import PidurableError
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.outside.world import World
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.models.model import Model, ModelRef
from pidurable_nb.store.stranger import StoreFile
from pidurable_nb.tools.tool import Tool

T = TypeVar("T")


class CodeNotLoaded(PidurableError):
    """The module cannot be imported, or holds nothing that a store needs: mend it, or name another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a module holds: the code and models that a harness is opened with, and what stands for its outside.

    The program of a scenario is that of its module. Tools of its extensions come with these.
    """

    name: str
    program: Program = field(default_factory=Program)
    world: World | None = None
    scenario: Scenario | None = None

    @property
    def tasks(self) -> tuple[type[Phase[object]], ...]:
        """The first phases of its tasks."""
        return self.program.tasks

    @property
    def policy(self) -> Policy:
        """What its settings say about restarts and queues; the defaults without settings."""
        return self.program.settings.engine.policy

    def code_for(self, file: StoreFile) -> Code:
        """The code that decisions about this file ask: the module's, resolved as a harness does; nothing is assumed.

        Raises: DuplicateTask, PhaseRefused, ExtensionRefused.
        """
        return self.program.code_for(file)


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
    scenarios = {id(value): value for value in public.values() if isinstance(value, Scenario)}
    own = [scenario for scenario in scenarios.values() if scenario.module == module.__name__]
    scenario = own[0] if len(own) == 1 else None
    program = program_in(public, name=name, given=scenario.program() if scenario is not None else None)
    world = next((value for value in public.values() if isinstance(value, World)), None)
    return Loaded(name=name, program=program, world=world, scenario=scenario)


def program_in(names: Mapping[str, object], *, name: str, given: Program | None = None) -> Program:
    """What these names hold, added to what is `given`. `extensions` and `models` may list theirs; else each counts.

    Raises: CodeNotLoaded for a list that holds something else, and for settings that are none.
    """
    base = given if given is not None else Program()
    values = tuple({id(value): value for value in names.values()}.values())
    extensions = _listed(names, "extensions", _is_extension, name) or base.extensions
    theirs = {tool for extension in extensions for tool in extension.tools}
    tools = (*base.tools, *(value for value in values if isinstance(value, Tool) and value not in theirs))
    settings = _settings(names.get("settings"), name)
    return Program(
        tasks=tuple(dict.fromkeys((*(value for value in values if _is_task(value)), *base.tasks))),
        tools=tuple(dict.fromkeys(tools)),
        extensions=extensions,
        models=_listed(names, "models", _is_model, name) or base.models,
        settings=settings if settings is not None else base.settings,
    )


def _is_task(value: object) -> TypeGuard[type[Phase[object]]]:
    return isinstance(value, type) and issubclass(value, Phase) and value._task is not None


def _is_model(value: object) -> TypeGuard[Model]:
    return isinstance(getattr(value, "ref", None), ModelRef) and callable(getattr(value, "stream", None))


def _settings(value: object, name: str) -> Settings | None:
    if value is None or isinstance(value, Settings):
        return value
    raise CodeNotLoaded(f"settings of {name} is a {type(value).__name__}; make it a Settings, or give it another name")


def _listed(names: Mapping[str, object], what: str, fits: Callable[[object], TypeGuard[T]], name: str) -> tuple[T, ...]:
    """Those that `what` lists, else those that have names of their own."""
    if what in names:
        return _each(names[what], what, fits, name)
    return tuple({id(value): value for value in names.values() if fits(value)}.values())


def _is_extension(value: object) -> TypeGuard[Extension]:
    return isinstance(value, Extension)


def _each(value: object, what: str, fits: Callable[[object], TypeGuard[T]], name: str) -> tuple[T, ...]:
    """One or several of them. Raises: CodeNotLoaded for anything else, since it would be left out in silence."""
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    found: list[T] = []
    for each in several:
        if not fits(each):
            raise CodeNotLoaded(f"{what} of {name} holds a {type(each).__name__}; give it another name, or mend it")
        found.append(each)
    return tuple(found)


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
