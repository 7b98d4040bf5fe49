"""Owns how a sweep is shown: while it goes on, when it is done, and a story of it that was laid out again.

Never runs one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from IPython.core.error import UsageError

from pidurable_nb.lab.sweeping.matrix import KIND_WORDS, WORDS
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.sweep import Progress
from pidurable_nb.lab.sweeping.tally import OutcomeClass
from pidurable_nb.notebook.kernel.deaths import Died
from pidurable_nb.notebook.kernel.sweeping import Story, Swept
from pidurable_nb.notebook.views.comforts import EXTRA, Comfort, is_here
from pidurable_nb.notebook.views.markup import Tone, View, bdi, code, cut, esc, items, quiet, toned

if TYPE_CHECKING:
    import pandas as pd

TONES: Final[dict[OutcomeClass, Tone]] = {
    "as_promised": "com",
    "lost_within_bound": "lost",
    "effect_twice": "again",
    "lost_acknowledged": "int",
    "stuck": "unk",
    "corrupt": "int",
    "broken": "int",
}
SHOWN: Final = 12
"""Stories on a page; `x.stories` has all."""
NOWHERE: Final = "no crash at all"


class ProgressView(View):
    """How far a sweep has come."""

    def __init__(self, progress: Progress, *, stopping: bool) -> None:
        self.progress = progress
        self._stopping = stopping

    @property
    def label(self) -> str:
        return f"Sweep of {self.progress.scenario}"

    @property
    def line(self) -> str:
        """One line."""
        return f"{self.progress}{'; stopping, when what is in hand is done' if self._stopping else ''}"

    def html(self) -> str:
        return f"<p>{quiet(esc(cut(self.line, 200)))}</p>"

    def text(self) -> str:
        return cut(self.line, 200)


class SweepView(View):
    """What a sweep found. `result` is it; `frame()` its matrix as a data frame, `save(FILE)` all of it as one file.

    `witness("effect_twice")`, or of a number, lays the story out again: `%pi why` and `%pi step` then work on it.
    """

    def __init__(self, swept: Swept, reopen: Callable[[Swept, Story], View]) -> None:
        self.swept = swept
        self._reopen = reopen

    @property
    def result(self) -> SweepResult:
        """What was found."""
        return self.swept.result

    @property
    def stories(self) -> Sequence[Story]:
        """A story for each class that is not as promised, and for each violation."""
        return self.swept.stories

    def witness(self, which: str | int) -> View:
        """Lay out the story of that class, or number, and begin to walk its recovery. Raises: NoSuchStory, and more."""
        return self._reopen(self.swept, self.swept.story(which))

    def frame(self) -> pd.DataFrame:
        """The matrix, a row for each point and kind. Raises UsageError in one line, where pandas is not installed."""
        if not is_here(Comfort.FRAMES):
            raise UsageError(f"frame: {Comfort.FRAMES.package} is not installed here; {EXTRA}")
        return self.result.frame()

    def save(self, path: Path | str) -> None:
        """Write all of it to one file that another person can load: `%pi sweep --load FILE`."""
        self.result.save(path)

    @property
    def label(self) -> str:
        return f"Sweep of {self.result.scenario}"

    @property
    def headline(self) -> str:
        """What it came to."""
        found = self.result
        wrong = len(found.violations)
        if not found.complete:
            so_far = f"{wrong:,} violations" if wrong else "nothing that is not allowed"
            return f"Stopped after {found.done} of {found.pieces} pieces; so far {so_far}, in {found.images:,} crashes."
        if wrong:
            return (
                f"{wrong:,} {'thing' if wrong == 1 else 'things'} happened that must not, in {found.images:,} crashes."
            )
        return f"Nothing happened that is not allowed, in {found.images:,} crashes."

    @property
    def facts(self) -> Sequence[tuple[str, str]]:
        """The conditions of the claim, as (word, text)."""
        found = self.result
        kinds = ", ".join(KIND_WORDS[kind] for kind in found.kinds)
        facts = [
            ("crashed", f"{kinds}{', and again in every recovery' if found.second else ''}"),
            ("model", f"durability {found.durability}, SQLite {found.sqlite}, seed {found.seed}"),
            ("counted", f"{found.points:,} points, {found.images:,} images, {found.runs:,} lives"),
        ]
        if found.byte_identical is not None:
            facts.append(("same bytes", f"{found.byte_identical} places, however it died"))
        rates = ", ".join(f"{what} {took.rate:,.0f}" for what, took in found.rates.items())
        facts.append(("took", f"{found.seconds:.1f} s{f'; a second, by one pair of hands: {rates}' if rates else ''}"))
        if found.note is not None:
            facts.append(("note", found.note))
        return facts

    @property
    def _next(self) -> str:
        if not self.stories:
            return "x.frame() is the matrix as a data frame, x.save(FILE) keeps it all, where x = %pi sweep ..."
        return "%pi witness N lays a story out; %pi why and %pi step then work on it. x.save(FILE) keeps it all"

    def _told(self) -> Iterator[tuple[int, Story, str]]:
        """Each story with its number and what to type in a shell, where a shell can import the scenario."""
        in_cell = self.result.scenario.startswith("__main__:")
        for n, story in enumerate(self.stories[:SHOWN], 1):
            yield n, story, "" if in_cell else self.result.replay(story.witness)

    @property
    def _rest(self) -> str:
        left = len(self.stories) - SHOWN
        return f"and {left:,} more stories: x.stories has them all" if left > 0 else ""

    def html(self) -> str:
        found = self.result
        head = f"<p>{quiet(f'<b>{bdi(cut(found.scenario))}</b>')}</p><h2>{esc(self.headline)}</h2>"
        classes = items(
            f"{toned(TONES[kind], WORDS[kind])}: {count:,}" for kind, count in found.counts.items() if count
        )
        facts = items(f"{quiet(esc(word))} {esc(cut(text, 400))}" for word, text in self.facts)
        stories = items(_story_html(n, story, replay) for n, story, replay in self._told())
        told = f"<h3>Stories</h3>{stories}<p>{quiet(esc(self._rest))}</p>" if self.stories else ""
        return f"{head}{classes}{told}<h3>Where</h3>{found.picture()}{facts}<p>{quiet(esc(self._next))}</p>"

    def text(self) -> str:
        lines = [cut(self.result.scenario), "", f" {self.headline}", ""]
        for n, story, replay in self._told():
            because = f", {cut(story.because, 300)}" if story.because else ""
            lines += [f"  %pi witness {n}   {WORDS[story.kind]}{because}", f"      at {cut(story.at or NOWHERE, 200)}"]
            if replay:
                lines.append(f"      {cut(replay, 300)}")
        if self._rest:
            lines.append(f"  {self._rest}")
        lines += ["", self.result.text(), ""]
        lines += [f"  {word:<10} {cut(text, 400)}" for word, text in self.facts]
        return "\n".join([*lines, "", self._next])


def _story_html(n: int, story: Story, replay: str) -> str:
    because = f": {bdi(cut(story.because, 300))}" if story.because else ""
    head = f"{code(f'%pi witness {n}')} {toned(TONES[story.kind], WORDS[story.kind])}{because}"
    again = f"<br>{quiet(code(cut(replay, 300)))}" if replay else ""
    return f"{head}<br>at {code(cut(story.at or NOWHERE, 200))}{again}"


class WitnessView(View):
    """A story that was laid out again: the store as the crash left it is at hand, and nothing was recovered yet."""

    def __init__(self, story: Story, died: Died) -> None:
        self.story = story
        self.died = died

    @property
    def store(self) -> Path:
        """The store as it was left. Nobody has it open."""
        return self.died.store

    @property
    def ledger(self) -> Path:
        """What the outside had been asked by then."""
        return self.died.ledger

    @property
    def label(self) -> str:
        return f"A story of {self.died.scenario.name}"

    @property
    def facts(self) -> Sequence[tuple[str, str]]:
        """What is known of it, as (word, foreign text)."""
        facts = [("crashed", self.story.at)]
        if self.story.because:
            facts.append(("because", self.story.because))
        facts += [("asked", f"{name}: {times}") for name, times in self.died.asked().items()]
        return [*facts, ("store", str(self.store))]

    def html(self) -> str:
        head = toned(TONES[self.story.kind], WORDS[self.story.kind])
        facts = items(f"{quiet(esc(word))} {code(cut(text, 300))}" for word, text in self.facts)
        return f"<p>{head}</p><h2>{esc(self._headline)}</h2>{facts}<p>{quiet(esc(self._next))}</p>"

    def text(self) -> str:
        facts = [f"  {word:<8} {cut(text, 300)}" for word, text in self.facts]
        return "\n".join([WORDS[self.story.kind], "", f" {self._headline}", "", *facts, "", self._next])

    _headline = "This is the store as that crash left it, before anything recovered it."
    _next = "next: %pi why reads its verdicts; %pi step walks its recovery on a copy, and shows where it happens"
