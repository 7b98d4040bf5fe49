"""Owns how a death and the places where one may happen are shown. Never makes anything die."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pidurable_nb.lab.dying.crash import Passed
from pidurable_nb.lab.dying.crash_points import PointInfo, described
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.notebook.kernel.deaths import Died
from pidurable_nb.notebook.views.markup import View, bdi, code, cut, esc, items, quiet, toned
from pidurable_nb.notebook.views.tables import MAX_ROWS, Rows, Table, frame

POINT_COLUMNS = ("n", "point", "task", "phase", "what", "edge", "laws", "commit", "name", "seq")
SIGKILL = 9
OUTPUT_LINES = 20


class DeathView(View):
    """What is known of a run that died: how, where, what it had printed, and what it had asked of the outside."""

    def __init__(self, died: Died) -> None:
        self.died = died

    @property
    def store(self) -> Path:
        """The store as it was at death. Nobody has it open."""
        return self.died.store

    @property
    def ledger(self) -> Path:
        """The ledger of the outside, as it was at death."""
        return self.died.ledger

    @property
    def signal(self) -> int | None:
        """The signal that ended the child process; None for a freeze."""
        return self.died.signal

    @property
    def asked(self) -> Mapping[str, int]:
        """How often the outside was asked for what."""
        return self.died.asked()

    @property
    def label(self) -> str:
        return f"Death of {self.died.scenario.name}"

    @property
    def headline(self) -> str:
        """How and where it died, in one sentence."""
        if self.died.kind == "freeze":
            return "Frozen: from this point on nothing reached the file or the outside, and this kernel lives."
        name = "SIGKILL" if self.died.signal == SIGKILL else f"signal {self.died.signal}"
        return f"Killed by {name}: the child process got no chance to tidy up."

    def facts(self) -> Sequence[tuple[str, str]]:
        """What else is known, as (word, foreign text)."""
        died = self.died
        found = [("at", died.point), ("after", f"{len(died.passed):,} points")]
        printed = died.output.split("\n")[:-1] if died.output.endswith("\n") else died.output.split("\n")
        if died.output:
            found.append(("printed", " / ".join(printed[-OUTPUT_LINES:])))
        found += [("asked", f"{name}: {times}") for name, times in self.asked.items()]
        return [*found, ("store", str(died.store))]

    def html(self) -> str:
        mark = toned("int", "killed" if self.died.kind == "kill" else "frozen")
        title = bdi(cut(self.died.scenario.title, 160))
        head = f"<p>{mark} {quiet(f'<b>{bdi(self.died.store.name)}</b>, {title}')}</p>"
        facts = items(f"{quiet(esc(word))} {code(cut(text, 300))}" for word, text in self.facts())
        return f"{head}<h2>{esc(self.headline)}</h2>{facts}<p>{quiet(esc(self._next))}</p>"

    def text(self) -> str:
        facts = [f"  {word:<8} {cut(text, 300)}" for word, text in self.facts()]
        head = f"{self.died.store.name}   {cut(self.died.scenario.title, 160)}"
        return "\n".join([head, "", f" {self.headline}", "", *facts, "", self._next])

    @property
    def _next(self) -> str:
        return "next: %pi why reads its verdicts without opening it; %pi step walks its recovery on a copy"


def points_table(scenario: Scenario, passed: Sequence[Passed], *, limit: int = MAX_ROWS) -> Table:
    """The points of an undisturbed first life, in order, with what is at stake at each."""
    infos = described(passed)
    view = Rows(
        f"Points of {scenario.name}", ("n", "point", "task", "law", "commit", "what it is"), list(enumerate(infos, 1)),
        lambda one: (str(one[0]), code(one[1].point), *map(bdi, _words(one[1]))),
        lambda one: (str(one[0]), str(one[1].point), *_words(one[1])),
        "points", limit, empty="nothing happens in it.", widest=80,
    )  # fmt: skip
    return frame(
        view, POINT_COLUMNS, [_facts(n, info, one) for n, (info, one) in enumerate(zip(infos, passed, strict=True), 1)]
    )


def _words(info: PointInfo) -> tuple[str, str, str, str]:
    about = info.about if info.point.what[:4] != "vfs." else "before an operation on the file"
    return (
        "-" if info.id is None else str(info.id),
        " ".join(info.laws),
        "-" if info.commit is None else str(info.commit),
        cut(about, 70),
    )


def _facts(n: int, info: PointInfo, passed: Passed) -> Mapping[str, object]:
    mark = passed.mark
    return {
        "n": n,
        "point": str(info.point),
        "task": info.task,
        "phase": info.phase,
        "what": info.point.what,
        "edge": info.point.edge,
        "laws": list(info.laws),
        "commit": info.commit,
        "name": mark.name if mark is not None else None,
        "seq": mark.seq if mark is not None else None,
    }
