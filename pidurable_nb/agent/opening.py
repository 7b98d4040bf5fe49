"""Owns putting a harness together: session, extensions, models, built-in tasks and the task machine. Wiring only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from pidurable_nb.agent.calls.tool_task import Begin
from pidurable_nb.agent.extending.extension import Extension, Extensions, Hooks
from pidurable_nb.agent.extending.resolution import Agent
from pidurable_nb.agent.extending.settings import Settings, SettingsSource
from pidurable_nb.agent.extending.workshop import EnvironmentSource, Workshop
from pidurable_nb.agent.generating.compaction import Select
from pidurable_nb.agent.generating.generation import Prepare
from pidurable_nb.agent.household import ConversationRules
from pidurable_nb.agent.request.context import Contexts
from pidurable_nb.agent.stored.recovery import COMPACTION, GENERATION, TOOL, Replay, register
from pidurable_nb.agent.stored.stored_call import nested_name
from pidurable_nb.engine.engine import Engine
from pidurable_nb.engine.graph import PhaseClass
from pidurable_nb.engine.phase import Phase
from pidurable_nb.engine.registry import Code, Registry
from pidurable_nb.engine.snapshot import LiveRun
from pidurable_nb.models.model import Model, ModelRef
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.session import Session
from pidurable_nb.store.storage import Storage
from pidurable_nb.tools.tool import Tool

Durability = Literal["kill", "barrier", "power"]
DURABILITIES: Final[Mapping[str, Durability]] = {each: each for each in get_args(Durability)}
HOST: Final = "host"
"""The extension that the tools of `Harness.open(tools=...)` come in."""
CODE: Final[Mapping[str, PhaseClass]] = {GENERATION: Prepare, TOOL: Begin, COMPACTION: Select}


def storage_of(store: Path | str | Storage, durability: Durability) -> Storage:
    """A path is a SQLite store, or with a slash at its end, or where there is a folder, a JSONL store (`folder/`).

    Anything else is a storage already. Raises ValueError for a JSONL store with durability `power`: it syncs barriers.
    """
    if not isinstance(store, str | Path):
        return store
    if str(store).endswith(("/", os.sep)) or Path(store).is_dir():
        from pidurable_nb.store.jsonl import JsonlStorage

        if durability == "power":
            raise ValueError(f"{store} is a JSONL store, which has no durability power; choose barrier or kill")
        return JsonlStorage(Path(store), fsync=durability == "barrier")
    from pidurable_nb.store.sqlite import SqliteStorage  # aiosqlite loads when it is used

    return SqliteStorage(Path(store), durability=durability)


def settings_source(settings: SettingsSource | None) -> Callable[[], Settings]:
    """What gives the settings whenever they are needed."""
    if callable(settings):
        return settings
    chosen = settings if settings is not None else Settings()
    return lambda: chosen


def extensions_of(tools: Sequence[Tool], extensions: Sequence[Extension]) -> Extensions:
    """The extensions of the host, its own tools first. Raises ExtensionRefused."""
    own = (Extension(HOST, tools=tools),) if tools else ()
    return Extensions((*own, *extensions))


def models_of(models: Sequence[Model]) -> Mapping[ModelRef, Model]:
    """The models by their names. Raises ValueError for two of one name."""
    found: dict[ModelRef, Model] = {}
    for model in models:
        if model.ref in found:
            raise ValueError(f"two models are called {model.ref}; give one another name")
        found[model.ref] = model
    return found


@dataclass(frozen=True, slots=True)
class Parts:
    """What the host brings: code and models. `code` may stand between what is installed and whoever decides by it."""

    tasks: tuple[type[Phase[object]], ...]
    extensions: Extensions
    models: Mapping[ModelRef, Model]
    environment: EnvironmentSource | None = None
    code: Callable[[Code, Workshop], Code] | None = None


def build(session: Session, settings: Callable[[], Settings], parts: Parts) -> tuple[Engine, Workshop]:
    """The task machine of a session, and what its built-in tasks work with. Raises DuplicateTask, PhaseRefused."""
    first = settings()
    registry = Registry()
    shop = Workshop(
        session=session, settings=settings, extensions=parts.extensions, models=parts.models,
        contexts=Contexts(session), report=session.report, environment=parts.environment,
    )  # fmt: skip
    rules = ConversationRules(first.ids, first.clock, shop)
    engine = Engine(
        session, registry, rules, clock=first.clock, probe=first.probe, report=session.report,
        settings=lambda: settings().engine,
    )  # fmt: skip

    register_built_in(
        registry,
        lambda record: shop.resolved(shop.states.get(record.conversation, {})),
        lambda record: engine.table.run(record.conversation),
    )
    for task in (*parts.extensions.tasks, *parts.tasks):
        registry.install(task)
    if parts.code is not None:
        engine.code = parts.code(registry, shop)
    return engine, shop


def register_built_in(
    registry: Registry, agent: Callable[[TaskRecord], Agent], run: Callable[[TaskRecord], LiveRun | None]
) -> None:
    """Make the built-in kinds known with their code. `agent` and `run` are those of a task's conversation.

    What a tool declares now, and which hooks run inside a task, is what the agent says (E2).
    """

    def current_replay(record: TaskRecord) -> Replay | None:
        name = nested_name(record.input)
        if name is None and (live := run(record)) is not None:
            name = live.tools.get(record.id)
        tool = agent(record).tool(name) if name is not None else None
        return tool.replay if tool is not None else None

    def hooked(record: TaskRecord) -> bool:
        return any(_asks(named.hooks, record.kind) for named in agent(record).hooks)

    register(registry, current_replay=current_replay, hooked=hooked, firsts=CODE)


def _asks(hooks: Hooks, kind: str) -> bool:
    """Whether an extension is asked in a task of this kind."""
    asked: tuple[object, ...]
    match kind:
        case "pi.generation":
            asked = (hooks.before_request, hooks.after_response, hooks.on_yield, hooks.after_tools)
        case "pi.tool":
            asked = (hooks.before_tool, hooks.after_tool, hooks.on_abort)
        case _:
            asked = (hooks.before_compact,)
    return any(hook is not None for hook in asked)
