"""Owns the way from a cell to a scenario that a child process can import: a module file in the working folder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Final, TypeGuard

from IPython.core.error import UsageError

from pidurable_nb.agent.harness import Harness
from pidurable_nb.lab.code import program_in
from pidurable_nb.lab.scenario import EffectPolicy, Facts, Roots, Scenario
from pidurable_nb.notebook.views.markup import View, bdi, code, cut, esc, quiet

MARK: Final = "# Written by %%pi scenario, from a cell: change the cell, not this file."
_TAIL: Final = """

# --- what makes it a scenario ---
from pidurable_nb.notebook.kernel.scenarios import scenario_of as _scenario_of

_scenario = _scenario_of(globals(), {name!r})
"""
_HEAD: Final = "from pidurable_nb import *\n"


def source_of(name: str, body: str, folder: Path) -> Path:
    """Write the cell to `scenario_NAME.py`. Raises UsageError for a bad name, or somebody else's file."""
    stem = f"scenario_{name.replace('-', '_')}"
    if not stem.isidentifier():
        raise UsageError(f"%%pi scenario: {name!r} is no name; use letters, digits, - and _")
    path = folder.resolve() / f"{stem}.py"
    if path.exists() and not path.read_text(encoding="utf-8").startswith(MARK):
        raise UsageError(f"%%pi scenario: {path} is there already and was not written by a cell; choose another name")
    path.write_text(f"{MARK}\n{_HEAD}\n{body.rstrip()}\n{_TAIL.format(name=name)}", encoding="utf-8")
    return path


def module_of(module: ModuleType, name: str) -> Scenario:
    """The scenario that a module made of itself."""
    found: object = vars(module)["_scenario"]
    assert isinstance(found, Scenario)
    return found


def scenario_of(names: dict[str, object], name: str) -> Scenario:
    """The scenario that a cell describes: its own `Scenario` of that name, else one made of its functions.

    A cell needs a task or a model, and `async def begin(harness)`; `attend`, `invariants`, `kill_point`, `policy` and
    `asks` as Scenario has them. Raises UsageError when it has no code or no begin.
    """
    own = next((value for value in names.values() if isinstance(value, Scenario) and value.name == name), None)
    if own is not None:
        return own
    public = {key: value for key, value in names.items() if not key.startswith("_")}
    program, begin = program_in(public, name=name), names.get("begin")
    code = program.tasks or program.models
    if not code or not _is_begin(begin):
        lacks = "no task and no model: write a phase with task=, or a Scripted(...)"
        missing = lacks if not code else "no begin: write async def begin(harness)"
        raise UsageError(f"%%pi scenario {name}: the cell has {missing}")
    kill_point, policy = names.get("kill_point"), names.get("policy")
    made = Scenario(
        name=name,
        title=_title(names),
        module=str(names["__name__"]),
        tasks=lambda: program.tasks,
        tools=lambda: program.tools,
        extensions=lambda: program.extensions,
        models=lambda: program.models,
        settings=program.settings,
        begin=begin,
        asks=names.get("asks") is True,
        kill_point=kill_point if isinstance(kill_point, str) else None,
    )
    attend, invariants = names.get("attend"), names.get("invariants")
    made = replace(made, attend=attend) if _is_attend(attend) else made
    made = replace(made, invariants=invariants) if _is_invariants(invariants) else made
    return replace(made, policy=policy) if _is_policy(policy) else made


def _is_begin(value: object) -> TypeGuard[Callable[[Harness], Awaitable[None]]]:
    return callable(value)


def _is_attend(value: object) -> TypeGuard[Callable[[Harness, Roots], Awaitable[None]]]:
    return callable(value)


def _is_invariants(value: object) -> TypeGuard[Callable[[Facts], Iterable[str]]]:
    return callable(value)


def _is_policy(value: object) -> TypeGuard[Mapping[str, EffectPolicy]]:
    return isinstance(value, Mapping)


def _title(names: dict[str, object]) -> str:
    said = names.get("title") or names.get("__doc__")
    return str(said).strip().partition("\n")[0] if said else "from a cell"


class ScenarioView(View):
    """A scenario that a cell became. `scenario` is it."""

    def __init__(self, scenario: Scenario, path: Path) -> None:
        self.scenario = scenario
        self.path = path

    @property
    def label(self) -> str:
        return f"Scenario {self.scenario.name}"

    @property
    def _next(self) -> str:
        name = self.scenario.name
        return f"%pi points {name} lists where it may die; %pi kill POINT {name} kills it"

    def html(self) -> str:
        said = f"{code(self.scenario.name)}: {bdi(cut(self.scenario.title, 160))}, in {code(self.path.name)}"
        return f"<p>{said}</p><p>{quiet(esc(self._next))}</p>"

    def text(self) -> str:
        return f"{self.scenario.name}: {cut(self.scenario.title, 160)}, in {self.path.name}\n{self._next}"
