"""Owns how verdicts are shown: the sentence first, then the facts that it rests on. Never decides one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pidurable_nb.engine.decide import Outside, Verdict
from pidurable_nb.engine.submissions import SubmissionVerdict
from pidurable_nb.ids import TaskId
from pidurable_nb.notebook.views.markup import Tone, View, bdi, code, cut, esc, items, quiet, table, toned
from pidurable_nb.store.visible import visible

MAX_VERDICTS: Final = 200
OUTSIDE: Final[Mapping[Outside, tuple[Tone, str]]] = {
    "none": ("quiet", "nothing"),
    "again": ("again", "can happen again"),
    "unknown": ("unk", "unknown"),
}
"""What a recovery causes in the world outside: three words, each with its colour."""
OUTSIDE_SIGNS: Final[Mapping[Outside, str]] = {"none": "-", "again": ">", "unknown": "?"}
LIMITS: Final = (
    "What a power cut takes is not in the file: with durability kill a barrier is an ordinary commit (E5). "
    "Effects outside World are not counted."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One verdict as it is shown."""

    subject: Literal["task", "submission"]
    id: int
    kind: str
    state: str
    verdict: str
    laws: Sequence[str]
    because: str
    outside: Outside
    rows: Sequence[str]
    asked: Sequence[tuple[str, bool]] = ()
    held_by: Sequence[TaskId] = ()
    needs: str | None = None


def of_task(verdict: Verdict) -> Said:
    """What is shown of a task's verdict. Its state is the stored one, before any reopening."""
    was = verdict.facts.was
    state = was.status if was.phase is None else f"{was.status} in {was.phase}"
    return Said(
        subject="task",
        id=verdict.id,
        kind=was.kind,
        state=state,
        verdict=verdict.name,
        laws=verdict.laws,
        because=verdict.because,
        outside=verdict.outside,
        rows=verdict.reads,
        asked=verdict.asked,
        held_by=verdict.held_by,
        needs=verdict.needs,
    )


def of_submission(verdict: SubmissionVerdict) -> Said:
    """What is shown of a submission's verdict."""
    record = verdict.submission
    return Said(
        subject="submission",
        id=verdict.id,
        kind=record.type,
        state=record.status,
        verdict=verdict.name,
        laws=verdict.laws,
        because=verdict.because,
        outside=verdict.outside,
        rows=verdict.reads,
    )


class WhyView(View):
    """What will happen to what is live in a store, and why. Behaves as a sequence of `Said`."""

    def __init__(
        self, said: Sequence[Said], *, source: str, assumed: str, how: str = "read from a copy, nothing was opened"
    ) -> None:
        self.said = tuple(said)
        self._source = source
        self._assumed = assumed
        self._how = how

    @property
    def label(self) -> str:
        return f"Why: {self._source}"

    def __len__(self) -> int:
        return len(self.said)

    def __getitem__(self, n: int) -> Said:
        return self.said[n]

    def about(self, id: int) -> WhyView:
        """Only what is said about the task or submission with that number."""
        chosen = [said for said in self.said if said.id == id]
        return WhyView(chosen, source=self._source, assumed=self._assumed, how=self._how)

    @property
    def headline(self) -> str:
        """The sentence when there is one verdict, else how many there are of each."""
        if not self.said:
            return "Nothing to recover: every task had ended."
        if len(self.said) == 1:
            return self.said[0].because
        counts = Counter(said.verdict for said in self.said)
        return f"{len(self.said)} live: " + ", ".join(f"{count} {word}" for word, count in counts.most_common()) + "."

    def html(self) -> str:
        where = f"<b>{bdi(cut(self._source))}</b>: {esc(self._how)}. Code: {bdi(self._assumed)}."
        head = f"<p>{quiet(where)}</p><h2>{esc(self.headline)}</h2>"
        if not self.said:
            return head
        if len(self.said) == 1:
            return head + _one(self.said[0]) + f"<p>{quiet(esc(LIMITS))}</p>"
        shown = self.said[:MAX_VERDICTS]
        rows = [
            (
                f"{code(f'{s.subject} {s.id}')}<br>{bdi(cut(s.kind, 40))}<br>{quiet(bdi(cut(s.state, 40)))}",
                f"<b>{esc(s.because)}</b><br>{quiet(_last(s))}",
                code(s.verdict),
                code(" ".join(s.laws)),
                code(" ".join(s.rows)),
                toned(*OUTSIDE[s.outside]),
            )
            for s in shown
        ]
        body = table(("subject", "what happens, and why", "verdict", "law", "rows read", "outside"), rows)
        rest = len(self.said) - len(shown)
        left = f"<p>{quiet(f'and {rest:,} more: index the result to see them')}</p>" if rest else ""
        return head + body + left + f"<p>{quiet(esc(LIMITS))}</p>"

    def text(self) -> str:
        lines = [f"{visible(self._source)}   {self._how}; code: {visible(self._assumed)}", ""]
        if not self.said:
            return "\n".join([*lines, self.headline])
        for said in self.said[:MAX_VERDICTS]:
            lines += verdict_text(said, trunk=len(self.said) == 1)
            lines.append("")
        if len(self.said) > MAX_VERDICTS:
            lines.append(f"and {len(self.said) - MAX_VERDICTS:,} more: index the result to see them")
        return "\n".join(lines).rstrip()


def _one(said: Said) -> str:
    tone, word = OUTSIDE[said.outside]
    facts = (
        f"{code(f'{said.subject} {said.id}')} {bdi(cut(said.kind))}, {bdi(cut(said.state))} · "
        f"verdict <b>{esc(said.verdict)}</b> · outside: {toned(tone, word)}"
    )
    return f"<p>{facts}</p>{trunk_html(said)}<p>{quiet('rows read')} {code(' '.join(said.rows))}</p>"


def trunk_html(said: Said) -> str:
    """The decision as it was asked, question by question; earlier noes are one line that unfolds."""
    if not said.asked:
        return f"<p>{quiet('law')} {code(' '.join(said.laws))}</p>"
    *before, (last, _) = said.asked
    noes = ""
    if before:
        asked = items(f"{esc(question)} <b>no</b>" for question, _ in before)
        noes = f"<details><summary>{quiet(f'{len(before)} earlier questions: no')}</summary>{quiet(asked)}</details>"
    held = f"<br>{quiet('after')} {code(' '.join(str(id) for id in said.held_by))}" if said.held_by else ""
    needs = f"<br>{quiet('needs')} {code(said.needs)}" if said.needs is not None else ""
    end = f"{esc(last)} <b>yes</b> ⇒ <b>{esc(said.verdict)}</b> {code(' '.join(said.laws))}{held}{needs}"
    return f"{noes}<p>{end}</p>"


def _last(said: Said) -> str:
    if not said.asked:
        return ""
    return f"{esc(said.asked[-1][0])} <b>yes</b>" + (
        f", after {code(' '.join(str(id) for id in said.held_by))}" if said.held_by else ""
    )


def verdict_text(said: Said, *, trunk: bool) -> list[str]:
    """One verdict as lines of text."""
    outside = f"outside: {OUTSIDE_SIGNS[said.outside]} {OUTSIDE[said.outside][1]}"
    head = f"{said.subject} {said.id}   {said.verdict.upper()}   {cut(said.kind, 40)}, {cut(said.state, 40)}"
    lines = [f"{head}   {outside}", f"  {said.because}"]
    if trunk and said.asked:
        lines += trunk_text(said)
    lines.append(f"  {' '.join(said.laws)}   from {' '.join(said.rows)}")
    return lines


def trunk_text(said: Said) -> list[str]:
    """The questions as lines of text."""
    *before, (last, _) = said.asked
    lines = [f"  why    {len(before)} earlier questions: no"] if before else []
    lines.append(f"         {last}  yes")
    if said.held_by:
        lines.append(f"         after {' '.join(str(id) for id in said.held_by)}")
    if said.needs is not None:
        lines.append(f"         needs {visible(said.needs)}")
    lines.append(f"         => {said.verdict}")
    return lines
