"""Owns how a recovery is shown, one step or all of them: the sentence, its law, what it predicted, the rows it changed.

Never takes a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pidurable_nb.engine.decide import Verdict
from pidurable_nb.ids import Json, TaskId
from pidurable_nb.lab.looking.rows import json_of
from pidurable_nb.lab.walking.stepper import RowChange
from pidurable_nb.lab.walking.walk import Step
from pidurable_nb.notebook.views.markup import View, bdi, code, cut, esc, items, quiet, short, table, toned
from pidurable_nb.notebook.views.verdicts import OUTSIDE, of_task, trunk_html, trunk_text
from pidurable_nb.store.visible import visible

MAX_STEPS: Final = 200
FIELDS_SHOWN: Final = 6
Agreement = Literal["agrees", "differs", ""]


# --- Rows -----------------------------------------------------------------------------------------------------------


def row_lines(change: RowChange) -> list[str]:
    """What a step did to one row, as text: `+` made, `-` gone, `~` with the fields that changed."""
    if change.before is None or change.after is None:
        text = change.after if change.before is None else change.before
        return [f"{change.sign} {change.row}  {cut(text or '', 72)}"]
    if change.before == change.after:
        return [f"= {change.row}  as before"]
    fields = list(_changed(json_of(change.before), json_of(change.after), ""))
    lines = [f"~ {change.row}  {line}" for line in fields[:FIELDS_SHOWN]]
    if len(fields) > FIELDS_SHOWN:
        lines.append(f"~ {change.row}  and {len(fields) - FIELDS_SHOWN} more fields")
    return lines or [f"~ {change.row}"]


def _changed(before: Json, after: Json, at: str) -> Iterator[str]:
    """The fields that differ, by their path."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys([*before, *after]):
            path = f"{at}.{name}" if at else str(name)
            if name not in before:
                yield f"{cut(path, 60)}: {short(after[name], 60)} is new"
            elif name not in after:
                yield f"{cut(path, 60)}: {short(before[name], 60)} is gone"
            else:
                yield from _changed(before[name], after[name], path)
    elif before != after or type(before) is not type(after):
        yield f"{cut(at, 60)}: {short(before, 40)} → {short(after, 40)}"


# --- One step -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """One step with what surrounds it: what was predicted for its task, and the rows it changed."""

    step: Step
    changes: Sequence[RowChange]
    predicted: Verdict | None

    @property
    def subject(self) -> str:
        """What the step is about."""
        if self.step.task is None:
            return "session"
        kind = f", {self.predicted.task.kind}" if self.predicted is not None else ""
        return f"task {self.step.task}{kind}"

    @property
    def prediction(self) -> str:
        """What was predicted for its task before anything was opened, where the step acts on that."""
        if self.predicted is None or self.step.verdict is None:
            return ""
        return f"{self.predicted.name}, outside: {OUTSIDE[self.predicted.outside][1]}"

    @property
    def happened(self) -> str:
        """What the step did, in numbers."""
        parts = [self.step.verdict] if self.step.verdict is not None else []
        if self.step.seq is not None:
            parts.append(f"commit {self.step.seq}")
        if self.step.effect is not None:
            parts.append("the outside was asked" if self.step.asked else "the outside was not asked")
        rows = len(self.step.changed)
        parts.append("no row changes" if not rows else f"{rows} {'row' if rows == 1 else 'rows'}")
        return ", ".join(parts)

    @property
    def agreement(self) -> Agreement:
        """Whether what was acted on is what was predicted."""
        if self.predicted is None or self.step.verdict is None or self.step.verdict == "mark":
            return ""
        later = self.predicted.name in ("wait", "sleep") or (self.predicted.name, self.step.verdict) == (
            "abandon",
            "orphan",
        )
        return "agrees" if later or self.predicted.name == self.step.verdict else "differs"

    @property
    def lines(self) -> list[str]:
        """The rows it changed."""
        return [line for change in self.changes for line in row_lines(change)]


class StepView(View):
    """The step that was taken last: what happened, and why. `step` is the record of it."""

    def __init__(self, seen: Seen, *, source: str, upcoming: str, effects: Mapping[str, int]) -> None:
        self.seen = seen
        self._source = source
        self._upcoming = upcoming
        self._effects = effects

    @property
    def step(self) -> Step:
        """The step itself."""
        return self.seen.step

    @property
    def label(self) -> str:
        return f"Step {self.step.n} of the recovery of {self._source}"

    def html(self) -> str:
        step, seen = self.step, self.seen
        where = f"<b>{bdi(cut(self._source))}</b>, walking a copy · step {step.n} · "
        head = f"<p>{quiet(where)}<b>{esc(step.kind)}</b> {code(seen.subject)}</p><h2>{esc(step.text)}</h2>"
        facts = []
        if seen.prediction:
            facts.append((quiet("predicted"), esc(seen.prediction)))
        facts.append((quiet("happened"), f"{esc(seen.happened)} {_agreement(seen.agreement)}"))
        facts.append((quiet("law"), code(" ".join(step.laws))))
        body = "".join(f"<tr><td>{word}</td><td>{value}</td></tr>" for word, value in facts)
        why = trunk_html(of_task(seen.predicted)) if seen.predicted is not None and seen.prediction else ""
        rows = f"<h3>rows</h3><pre>{'<br>'.join(bdi(line) for line in seen.lines)}</pre>" if seen.lines else ""
        return f"{head}<table>{body}</table>{why}{rows}{_effects_html(self._effects)}<p>{quiet(esc(self._next))}</p>"

    def text(self) -> str:
        step, seen = self.step, self.seen
        lines = [
            f"{visible(self._source)}   walking a copy",
            f"step {step.n}   {step.kind.upper()}   {visible(seen.subject)}",
            "",
            f" {step.text}",
            "",
        ]
        if seen.prediction:
            lines.append(f"  predicted  {seen.prediction}")
        lines.append(f"  happened   {seen.happened}" + (f"   {seen.agreement}" if seen.agreement else ""))
        lines.append(f"  law        {' '.join(step.laws)}")
        if seen.predicted is not None and seen.prediction:
            lines += trunk_text(of_task(seen.predicted))
        lines += [f"  {line}" for line in seen.lines]
        lines += [f"  asked      {line}" for line in _effect_lines(self._effects)]
        return "\n".join([*lines, "", self._next])

    @property
    def _next(self) -> str:
        return f"next: {self._upcoming} (%pi step, %pi back)"


def _agreement(word: Agreement) -> str:
    if not word:
        return ""
    return f"<b>✓ {word}</b>" if word == "agrees" else toned("int", f"{word}: an error of this package")


def _effect_lines(effects: Mapping[str, int]) -> list[str]:
    return [f"{cut(name, 60)}: {times}" for name, times in effects.items()]


def _effects_html(effects: Mapping[str, int]) -> str:
    if not effects:
        return ""
    return f"<h3>asked of the outside in this recovery</h3>{items(bdi(line) for line in _effect_lines(effects))}"


# --- All steps ------------------------------------------------------------------------------------------------------


class RecoveryView(View):
    """A recovery from its first step to its last. Behaves as a sequence of `Step`.

    `store` is the recovered copy, folded into one file: the one that was named for it, else one that lives until the
    extension is unloaded. `ledger` is the one that the effects of a scenario went to, those of its earlier life first.
    """

    def __init__(
        self,
        seen: Sequence[Seen],
        *,
        source: str,
        effects: Mapping[str, int],
        before: Mapping[str, int] | None,
        applied: Mapping[str, int],
        disagreements: Sequence[str],
        stopped: Sequence[tuple[TaskId, str]],
        over: bool = True,
        store: Path,
        ledger: Path | None,
        kept: bool,
    ) -> None:
        self.store = store
        self.ledger = ledger
        self.seen = tuple(seen)
        self.effects = dict(effects)
        self.effects_before = dict(before) if before is not None else None
        self.applied = dict(applied)
        self.disagreements = tuple(disagreements)
        self.stopped = tuple(stopped)
        self.over = over
        self._source = source
        self._where = f"recovered on a copy, kept in {cut(str(store), 200)}" if kept else "recovered on a copy"

    @property
    def label(self) -> str:
        return f"Recovery of {self._source}"

    def __len__(self) -> int:
        return len(self.seen)

    def __getitem__(self, n: int) -> Step:
        return self.seen[n].step

    @property
    def headline(self) -> str:
        """What it came to."""
        if not self.seen:
            return "Nothing to recover: every task had ended."
        steps = f"{len(self.seen)} {'step' if len(self.seen) == 1 else 'steps'}"
        agreed = "differently than predicted" if self.disagreements else "and everything was as predicted"
        return f"Recovery is {'over' if self.over else 'halted'} after {steps}, {agreed}."

    def facts(self) -> list[str]:
        """What came of it, as text."""
        found = []
        names = [*(self.effects_before or {}), *self.effects]
        for name in dict.fromkeys(names):
            now = self.effects.get(name, 0)
            kept = f", applied {self.applied[name]}" if name in self.applied else ""
            if self.effects_before is None:
                found.append(f"{cut(name, 60)}: asked {now} in this recovery{kept}")
            else:
                total = now + self.effects_before.get(name, 0)
                found.append(f"{cut(name, 60)}: asked {total} in all, {now} of them in this recovery{kept}")
        found += [f"task {id} stopped: it needs {cut(need, 80)}" for id, need in self.stopped]
        return [*found, *(cut(line, 200) for line in self.disagreements)]

    def html(self) -> str:
        head = f"<p>{quiet(f'<b>{bdi(cut(self._source))}</b>, {bdi(self._where)}')}</p><h2>{esc(self.headline)}</h2>"
        shown = self.seen[:MAX_STEPS]
        rows = [
            (
                str(seen.step.n),
                f"<b>{esc(seen.step.kind)}</b><br>{code(seen.subject)}",
                f"<b>{esc(seen.step.text)}</b>",
                code(" ".join(seen.step.laws)),
                "<br>".join(code(line) for line in seen.lines) or quiet("–"),
                "<br>".join(
                    part for part in (esc(seen.prediction), esc(seen.happened), _agreement(seen.agreement)) if part
                ),
            )
            for seen in shown
        ]
        body = table(("step", "what", "what happened, and why", "law", "rows", "predicted, happened"), rows)
        rest = len(self.seen) - len(shown)
        left = f"<p>{quiet(f'and {rest:,} more steps: index the result to see them')}</p>" if rest else ""
        facts = items(bdi(line) for line in self.facts())
        return head + (body if rows else "") + left + (f"<h3>did it happen once?</h3>{facts}" if self.facts() else "")

    def text(self) -> str:
        lines = [f"{visible(self._source)}   {self._where}", "", f" {self.headline}", ""]
        for seen in self.seen[:MAX_STEPS]:
            laws = " ".join(seen.step.laws)
            lines.append(f"{seen.step.n:>4} {seen.step.kind:<9} {visible(seen.subject)}: {seen.step.text}  [{laws}]")
        if len(self.seen) > MAX_STEPS:
            lines.append(f"and {len(self.seen) - MAX_STEPS:,} more steps: index the result to see them")
        return "\n".join([*lines, "", *self.facts()]).rstrip()
