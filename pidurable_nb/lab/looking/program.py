"""Owns what a store is opened with in the laboratory: code, models and settings; and which code decisions then ask.

The same program explains a file that nobody opened and runs on it afterwards, so that both ask the same code. Never
opens a store by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

from pidurable_nb.agent.extending.extension import Extension
from pidurable_nb.agent.extending.resolution import Agent, model_of, resolve
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.harness import Harness, Opening
from pidurable_nb.agent.opening import Parts, extensions_of, models_of, register_built_in
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.live import Ids
from pidurable_nb.agent.stored.recovery import COMPACTION, GENERATION, KNOWN, AssumedCode
from pidurable_nb.clock import Clock
from pidurable_nb.engine.phase import Phase
from pidurable_nb.engine.registry import BuiltIn, Code, Fit, Fits, Refined, Registry
from pidurable_nb.engine.snapshot import LiveRun
from pidurable_nb.ids import ConversationId, JsonObject
from pidurable_nb.lab.looking.explain import documents_in
from pidurable_nb.models.model import Model
from pidurable_nb.probe import Probe
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.storage import Storage
from pidurable_nb.store.stranger import StoreFile
from pidurable_nb.tools.tool import Tool

__all__ = ["Program"]


def _unheard(_error: BaseException) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a harness is opened with, as `Harness.open` takes it. The seams in `settings` belong to whoever opens it."""

    tasks: tuple[type[Phase[object]], ...] = ()
    tools: tuple[Tool, ...] = ()
    extensions: tuple[Extension, ...] = ()
    models: tuple[Model, ...] = ()
    settings: Settings = field(default_factory=Settings)

    @property
    def empty(self) -> bool:
        """Whether there is no code and no model in it: then nothing can be said about what is installed."""
        return not (self.tasks or self.tools or self.extensions or self.models)

    def open(
        self,
        storage: Storage,
        *,
        clock: Clock,
        ids: Ids,
        probe: Probe,
        code: Callable[[Code, Workshop], Code] | None = None,
        on_report: Callable[[BaseException], None] = _unheard,
    ) -> Opening:
        """A harness with this code and these seams; `code` may stand between what is installed and who decides by it.

        Raises what `Harness.open` raises.
        """
        settings = replace(self.settings, clock=clock, ids=ids, probe=probe)

        async def opening() -> Harness:
            installed = extensions_of(self.tools, self.extensions)
            parts = Parts(self.tasks, installed, models_of(self.models), code=code)
            return await Harness.of_parts(storage, lambda: settings, parts, True, on_report)

        return Opening(opening)

    def code_for(self, file: StoreFile) -> Code:
        """The code that decisions about a file ask: what a harness that is opened with this program would answer.

        Tools are those that the conversation's stored choices come to, with wraps. Nothing is assumed. The file is not
        read later. Raises: DuplicateTask, PhaseRefused, ExtensionRefused.
        """
        states, runs = _documents(file)
        installed = extensions_of(self.tools, self.extensions)

        @cache
        def agent(conversation: ConversationId) -> Agent:
            state = states.get(conversation, {})
            return resolve(state, installed.snapshot(), self.settings.extensions, lambda error: None)

        registry = Registry()
        register_built_in(
            registry, lambda record: agent(record.conversation), lambda record: runs.get(record.conversation)
        )
        for first in (*installed.tasks, *self.tasks):
            registry.install(first)
        return _Able(registry, lambda record: self.lacks(record, states.get(record.conversation, {})))

    def able(self, code: Code, shop: Workshop) -> Code:
        """The code that a recovery of a copy asks: what is installed, but nothing begins for which a model is missing.

        Of an empty program everything counts as it was stored, and nothing of it is run.
        """
        if self.empty:
            return AssumedCode(installed=code)
        return _Able(code, lambda record: self.lacks(record, shop.states.get(record.conversation, {})))

    def lacks(self, record: TaskRecord, state: JsonObject) -> str | None:
        """The model that a task cannot go on without and that is not here. `state` is its conversation's agent."""
        if record.kind not in (GENERATION, COMPACTION) or record.abort_requested or record.phase == "tools":
            return None
        checkpoint = record.checkpoint if record.checkpoint is not None else stored.NOTHING
        ref = model_of(checkpoint.get("model")) or model_of(state.get("model"))
        if ref is None:
            return None if self.models else "a model"
        return None if any(model.ref == ref for model in self.models) else f"model {ref}"

    def needs(self, record: TaskRecord, state: JsonObject) -> str:
        """What a task that this program cannot run is in need of."""
        lacks = self.lacks(record, state) if not self.empty else None
        return lacks if lacks is not None else f"{record.kind} {record.version}"


class _Able:
    """Installed code, as far as there is a model for it: without one a kind is known, and its code is not at hand."""

    def __init__(self, code: Code, lacks: Callable[[TaskRecord], str | None]) -> None:
        self._code = code
        self._lacks = lacks

    def fit(self, record: TaskRecord) -> Fit:
        """Whether code for the task is at hand (T8), and the model that it needs."""
        fit = self._code.fit(record)
        if record.kind not in KNOWN or not isinstance(fit, Fits) or self._lacks(record) is None:
            return fit
        checkpoint = record.checkpoint if record.checkpoint is not None else stored.NOTHING
        return BuiltIn(
            kind=record.kind,
            version=fit.definition.version,
            input=fit.input,
            checkpoint=checkpoint,
            migrated=fit.migrated,
        )

    def refine(self, record: TaskRecord) -> Refined | None:
        """What the task's kind makes of a rerun."""
        return self._code.refine(record)

    def hooked(self, record: TaskRecord) -> bool:
        """Whether hooks of the user's run inside this built-in task."""
        return self._code.hooked(record)

    def was_safe(self, record: TaskRecord) -> bool:
        """Whether the stored policy of a tool call is safe."""
        return self._code.was_safe(record)


def _documents(file: StoreFile) -> tuple[dict[ConversationId, JsonObject], dict[ConversationId, LiveRun]]:
    """What the conversations in which something lives say about their agent and their run."""
    states: dict[ConversationId, JsonObject] = {}
    runs: dict[ConversationId, LiveRun] = {}
    for conversation, record in documents_in(file, {record.conversation for record in file.live_tasks()}):
        if record.kind not in (live.AGENT.kind, live.LIVE.kind):
            continue
        found = file.document_value(record.id)
        value = found[1] if found is not None else None
        if record.kind == live.AGENT.kind:
            states[conversation] = value if value is not None else {}
        else:
            runs[conversation] = live.live_run(record.id, value)
    return states, runs
