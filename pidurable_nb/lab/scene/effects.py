"""Owns the question whether each effect happened once: which layer acted, how often it was asked, what the store says.

Of a run of the laboratory the ledger knows how often; of any other file only what its rows prove. Never says more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pidurable_nb.agent.calls.executing import effect_name
from pidurable_nb.agent.stored.recovery import TOOL
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.outside.world import LedgerLine
from pidurable_nb.lab.scene.facts import Facts, named_call
from pidurable_nb.lab.scene.parts import Effect, Layer, Layers, StoreSays, short
from pidurable_nb.lab.scene.rows import diagnostics_of
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import SubmissionRecord

MOST: Final = 60
MOST_REQUESTS: Final = 10
ASK: Final = "ask "
_LABEL: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One time that an effect was begun, in an earlier life or in this recovery. `kept`: a commit of its task followed.

    `again`: its task may have asked for it before. `supposed`: nobody was asked; it was only assumed, or answered
    from a record.
    """

    name: str
    task: TaskId | None
    kept: bool
    here: bool
    again: bool = False
    supposed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known about effects at a position.

    `ledger` is None where nobody keeps one; then `before` may say what another one counted. `done` are the verdicts
    acted on, `policies` the replay policies stored with intents, `spared` the tasks that a memo kept from repeating an
    effect, `lens` what is supposed of the effect of a task.
    """

    happened: Sequence[Happened]
    ledger: Sequence[LedgerLine] | None = None
    before: Mapping[str, int] | None = None
    done: Mapping[TaskId, str] = field(default_factory=dict)
    policies: Mapping[TaskId, str] = field(default_factory=dict)
    spared: frozenset[TaskId] = frozenset()
    lens: Mapping[TaskId, bool] = field(default_factory=dict)
    new: frozenset[str] = frozenset()
    step_effect: str | None = None


def effects_of(facts: Facts, seen: Seen) -> tuple[Effect, ...]:
    """One row for each effect, then one for each request id; the newest where there are very many."""
    tasks: dict[str, TaskId | None] = {}
    for one in seen.happened:
        tasks[one.name] = one.task
    counted = Counted(seen.ledger or ())
    for name in (*counted.asked, *counted.applied):
        if name not in counted.inside:
            tasks.setdefault(name, None)
    for record in _calls(facts):
        if (named := named_call(facts, record)) is not None:
            tasks.setdefault(effect_name(*named), record.id)
    rows = [_effect(facts, seen, counted, name, task) for name, task in list(tasks.items())[-MOST:]]
    requests = [s for s in facts.submissions.values() if s.request_id is not None]
    return (*rows, *(_request(record, seen) for record in requests[-MOST_REQUESTS:]))


def _calls(facts: Facts) -> Iterable[TaskRecord]:
    """The tool tasks that live, and the newest that ended."""
    live = [record for record in facts.live() if record.kind == TOOL][:MOST]
    ended = list(islice((r for r in facts.newest() if r.kind == TOOL and not r.live), MOST // 2))
    return (*reversed(ended), *live)


class Counted:
    """What the ledger says, by effect: asked, answered, applied, with which keys, and the outside's own names."""

    def __init__(self, ledger: Iterable[LedgerLine]) -> None:
        self.asked: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        self.applied: dict[str, int] = {}
        self.keyed: set[str] = set()
        self.inside: dict[str, str] = {}
        names: dict[str, str] = {}
        open_now: list[str] = []
        for line in ledger:
            match line.edge:
                case "before":
                    self.asked[line.effect] = self.asked.get(line.effect, 0) + 1
                    open_now.append(line.effect)
                    if line.key is not None:
                        names[line.key] = line.effect
                        self.keyed.add(line.effect)
                case "after":
                    if line.effect in open_now:
                        open_now.remove(line.effect)
                    if line.error is None:
                        self.answered[line.effect] = self.answered.get(line.effect, 0) + 1
                case edge:
                    name = names.get(line.key or "", line.effect)
                    if name == line.effect and name not in self.asked and len(set(open_now)) == 1:
                        self.inside[line.effect] = open_now[0]
                    name = self.inside.get(name, name)
                    if line.key is not None:
                        self.applied[name] = self.applied.get(name, 0) + (edge == "applied")


def _effect(facts: Facts, seen: Seen, counted: Counted, name: str, task: TaskId | None) -> Effect:
    times = [one for one in seen.happened if one.name == name]
    record = facts.tasks.get(task) if task is not None else None
    here = sum(1 for one in times if one.here and not one.supposed)
    asked, word = _asked(facts, seen, counted, name, record, here)
    applied = counted.applied.get(name)
    if name.startswith(ASK):
        applied, word = (counted.answered.get(name, 0) if seen.ledger is not None else None), "answered"
    supposed = any(one.supposed for one in times)
    if task is not None and task in seen.lens:
        truth = int(seen.lens[task])
        supposed = supposed or applied not in (None, truth)
        applied = truth
    kept = bool(times) and times[-1].kept
    return Effect(
        id=short(name, 400),
        task=task,
        submission=None,
        label=short(name, _LABEL),
        again=any(one.again and not one.supposed for one in times),
        new=seen.step_effect == name or (task is not None and f"tasks/{task}" in seen.new),
        layers=_layers(facts, seen, counted, name, record, kept),
        asked=asked,
        applied=applied,
        word=word or ("applied" if applied is not None else ""),
        store=_store(facts, seen, name, record, kept),
        supposed=supposed,
        outside=tuple(short(own, _LABEL) for own, within in counted.inside.items() if within == name),
    )


def _asked(
    facts: Facts, seen: Seen, counted: Counted, name: str, record: TaskRecord | None, here: int
) -> tuple[int | None, str]:
    if seen.ledger is not None:
        return counted.asked.get(name, 0), ""
    if seen.before is not None:
        return seen.before.get(name, 0) + here, ""
    if record is not None and record.kind == TOOL:
        if _result(facts, record) == "whole":
            return max(here, 1), "" if here else "by record"
        return (here, "in this recovery") if here else (None, "unknown")
    return here, "in this recovery"


def _result(facts: Facts, record: TaskRecord) -> str | None:
    """What is stored of a call's result: `whole`, `interrupted`, or nothing."""
    entry = facts.results.get(record.id)
    kept = facts.entry(entry) if entry is not None else None
    if kept is None:
        return "whole" if not record.live and record.status == "terminal" and "call" in _input(record) else None
    return "interrupted" if any(d.get("code") == "interrupted" for d in diagnostics_of(kept.entry)) else "whole"


def _input(record: TaskRecord) -> Mapping[str, object]:
    return record.input if isinstance(record.input, Mapping) else {}


# --- Layers -----------------------------------------------------------------------------------------------------------


def _layers(facts: Facts, seen: Seen, counted: Counted, name: str, record: TaskRecord | None, kept: bool) -> Layers:
    if record is not None and record.kind == TOOL:
        return _tool_layers(facts, seen, counted, name, record)
    if name.startswith(ASK):
        whole = facts.answers[name.removeprefix(ASK), True]
        stored = Layer(mark="acted", text=f"{whole} {'answer' if whole == 1 else 'answers'} stored")
        return Layers(checkpoint=stored if whole else Layer(mark="off", text="no answer stored"))
    return Layers(
        checkpoint=Layer(mark="acted", text="its task went on") if kept else Layer(mark="off", text="none behind it"),
        memo=_memo(seen, record),
        key=_key(counted, name),
    )


def _memo(seen: Seen, record: TaskRecord | None) -> Layer | None:
    if record is None:
        return None
    if record.id in seen.spared:
        return Layer(mark="acted", text="remembered, not repeated")
    memos = [name for name in record.memos if not name.startswith("pidurable.")]
    if not memos:
        return None
    names = ", ".join(short(memo, 30) for memo in memos[-3:])
    return Layer(mark="waits", text=names)


def _key(counted: Counted, name: str) -> Layer | None:
    if name not in counted.keyed:
        return None
    if counted.asked.get(name, 0) > 1 and name in counted.applied:
        return Layer(mark="acted", text=f"asked twice, applied {counted.applied[name]}")
    return Layer(mark="waits", text="offered to the outside")


def _tool_layers(facts: Facts, seen: Seen, counted: Counted, name: str, record: TaskRecord) -> Layers:
    result, policy = _result(facts, record), seen.policies.get(record.id)
    if result == "whole":
        entry = facts.results.get(record.id)
        checkpoint = Layer(mark="acted", text=f"result, entry {entry}" if entry is not None else "result stored")
    else:
        intent = record.phase == "execute" or result == "interrupted"
        checkpoint = Layer(mark="off", text="intent stored, no result" if intent else "no intent yet")
    replay: Layer | None = None
    if policy is not None:
        match seen.done.get(record.id):
            case "interrupt":
                replay = Layer(mark="acted", text=f"{policy}, not repeated")
            case "replay":
                replay = Layer(mark="acted", text=f"{policy}, repeated")
            case _:
                replay = Layer(mark="waits", text=policy)
    key = _key(counted, name)
    if key is None and policy == "unsafe" and name in counted.asked:
        key = Layer(mark="missing", text="asked without a key")
    return Layers(checkpoint=checkpoint, replay=replay, key=key)


# --- What the store says ----------------------------------------------------------------------------------------------


def _store(facts: Facts, seen: Seen, name: str, record: TaskRecord | None, kept: bool) -> StoreSays:
    if record is not None and record.kind == TOOL:
        match _result(facts, record):
            case "whole":
                return StoreSays(mark="committed", text="1 result")
            case "interrupted":
                return StoreSays(mark="unknown", text="may have run")
            case _:
                if record.phase != "execute":
                    return StoreSays(mark="none", text="not begun" if record.live else "no result stored")
                unsafe = seen.policies.get(record.id) != "safe"
                return StoreSays(mark="unknown" if unsafe else "lost", text="no result stored")
    if name.startswith(ASK):
        ref = name.removeprefix(ASK)
        whole, cut = facts.answers[ref, True], facts.answers[ref, False]
        text = f"{whole} {'answer' if whole == 1 else 'answers'}" + (f", {cut} cut" if cut else "")
        return StoreSays(mark="committed" if whole else "lost", text=text if whole or cut else "no answer stored")
    if kept:
        return StoreSays(mark="committed", text="its task went on")
    if record is not None and record.live and any(not memo.startswith("pidurable.") for memo in record.memos):
        return StoreSays(mark="unknown", text="memos, and nothing behind")
    if record is not None and not record.live:
        return StoreSays(mark="committed", text="its task has ended")
    return StoreSays(mark="lost", text="nothing stored behind it")


def _request(record: SubmissionRecord, seen: Seen) -> Effect:
    """An admission under a request id: asked again, it is found (S1). Who asked how often, nobody counts."""
    name = short(record.request_id or "", _LABEL)
    return Effect(
        id=f"request {record.id}",
        task=None,
        submission=record.id,
        label=f"admit {name}",
        again=False,
        new=f"submissions/{record.id}" in seen.new,
        layers=Layers(request=Layer(mark="waits", text="stored: the same id is the same request")),
        asked=None,
        applied=1,
        word="admitted",
        store=StoreSays(mark="committed", text=record.status),
    )
