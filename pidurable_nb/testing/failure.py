"""Owns how a broken promise is told in a failing test: what broke and where, the story, and how to see it again.

A story is cut to what matters: what a life did last before it died, and what recovery decided and did. Its texts come
from stores and scenarios, and are shown inert. Never judges anything.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pidurable_nb.lab.scenario import Scenario, find
from pidurable_nb.lab.sweeping.points import SweepKind, Where, named
from pidurable_nb.lab.sweeping.replay import LifeTold, Replayed, StepTold, replay
from pidurable_nb.lab.sweeping.result import SweepResult, Violation, replay_command
from pidurable_nb.lab.sweeping.tally import Witness
from pidurable_nb.store.visible import visible

__all__ = ["of_story", "of_sweep"]

_SHOWN: Final = 8
"""Violations that are listed; there is a story for the first."""
_LAST: Final = 5
"""Steps before a death that are shown."""
_MOST: Final = 14
"""Steps of a life that are shown."""
_DIED: Final[dict[SweepKind, str]] = {
    "freeze": "frozen", "kill": "killed by SIGKILL", "power": "its power was cut", "fault": "its disk failed",
}  # fmt: skip


def of_sweep(found: SweepResult, scenario: Scenario | str | None) -> str:
    """What a failing test says of a sweep: every broken promise, and the story of the first."""
    return "\n".join(_sweep(found, scenario))


def of_story(told: Replayed) -> str:
    """What a failing test says of one story that is told already."""
    crashes = tuple(life.died for life in told.lives if life.died is not None)
    lines = [f"{visible(told.scenario)}: {visible(told.problems[0].text)}", ""]
    lines += [f"{problem.kind}: {visible(problem.text)}" for problem in told.problems[1:]]
    lines.append(f"{told.how} at {_at(crashes)}; durability {told.durability}, seed {told.seed}")
    return "\n".join([*lines, "", *_story(told)])


def _sweep(found: SweepResult, scenario: Scenario | str | None) -> Iterator[str]:
    if not found.violations:
        yield f"{visible(found.scenario)}: the sweep did not come to its end: {found.note or 'nothing was done'}"
        return
    first, *more = found.violations
    yield f"{visible(found.scenario)}: {visible(first.text)}"
    yield ""
    yield f"{first.kind}: {first.witness.how} at {_at(first.witness.crashes)}"
    for violation in more[: _SHOWN - 1]:
        yield f"{violation.kind}: {visible(violation.text)}"
        yield f"    {violation.witness.how} at {_at(violation.witness.crashes)}"
    if len(more) >= _SHOWN:
        yield f"and {len(more) - _SHOWN + 1} more sentences like these"
    yield ", ".join(f"{count} {kind}" for kind, count in found.classes.items()) + (
        f"; durability {found.durability}, seed {found.seed}" + ("" if found.complete else f"; {found.note}")
    )
    yield ""
    yield from _told(found, first, scenario)


def _at(crashes: Sequence[Where]) -> str:
    return visible(named(crashes)) or "no crash at all"


# The story of the first.


def _told(found: SweepResult, violation: Violation, scenario: Scenario | str | None) -> Iterator[str]:
    """Its story, and how to see it again. A story that cannot be told again must not hide what was found."""
    witness = violation.witness
    try:
        there = scenario if isinstance(scenario, Scenario) else find(scenario or found.scenario)
        told = replay(there, witness.crashes, how=witness.how, durability=found.durability, seed=found.seed)
    except Exception as error:
        yield f"Its story cannot be told: {type(error).__name__}: {visible(str(error))}"
    else:
        yield from _story(told)
        if told.ok:
            yield "When it was told again every promise held: the scenario does not repeat itself."
    yield ""
    yield from _again(found, witness)


def _story(told: Replayed) -> Iterator[str]:
    for life in told.lives:
        yield from _life(life, told.how)
    yield "Outside"
    for effect, times in told.asked.items():
        applied = f", applied {told.applied[effect]}" if effect in told.applied else ""
        yield f"  asked {times}{applied}   {visible(effect)}"
    if not told.asked:
        yield "  nothing was asked"


def _life(life: LifeTold, how: SweepKind) -> Iterator[str]:
    foretold = ", ".join(f"task {id} {verdict}" for id, verdict in life.foretold.items())
    yield f"Life {life.number}" + (f", foretold: {foretold}" if foretold else "")
    shown = _chosen(life)
    width = max((len(str(step.point)) for step in shown), default=0)
    before = 0
    for step in shown:
        if step.n > before + 1:
            yield _left_out(step.n - before - 1)
        said = " ".join(filter(None, [step.verdict and step.verdict.upper(), visible(step.text), *step.laws]))
        yield f"  {step.n:>3}  {visible(str(step.point)):<{width}}  {said}".rstrip()
        before = step.n
    if before < len(life.steps):
        yield _left_out(len(life.steps) - before)
    yield f"       {_DIED[how]} at {visible(str(life.died))}" if life.died is not None else "       ended by itself"


def _left_out(count: int) -> str:
    return f"    …  {count} step{'s' if count > 1 else ''}"


def _chosen(life: LifeTold) -> list[StepTold]:
    """What the life did last, if it died; what it acted on, what it remembered and what it did outside, if not."""
    if life.died is not None:
        return list(life.steps[-_LAST:])
    told = [each for each in life.steps if each.verdict is not None or _touches(each)]
    return told[:_MOST]


def _touches(step: StepTold) -> bool:
    """Whether it is an effect, or what is remembered of one."""
    return step.point.what in ("effect", "memo")


# How to see it again.


def _again(found: SweepResult, witness: Witness) -> Iterator[str]:
    command = replay_command(found.scenario, witness, seed=found.seed, durability=found.durability)
    yield "Again"
    yield f"  {_from_folder(found.scenario)}python -m pidurable_nb {visible(command.partition(' ')[2])}"
    yield "or, as a test that stays:"
    yield "  from pidurable_nb.testing import check_crash"
    told = [repr(found.scenario), *(repr(str(crash)) for crash in witness.crashes)]
    if witness.how != "freeze":
        told.append(f"kind={witness.how!r}")
    if found.durability != "barrier":
        told.append(f"durability={found.durability!r}")
    if found.seed != 1:
        told.append(f"seed={found.seed}")
    yield f"  check_crash({', '.join(told)})"


def _from_folder(scenario: str) -> str:
    """The step into the folder from which the module can be imported, where that is not this one."""
    module, colon, _ = scenario.partition(":")
    file = getattr(sys.modules.get(module), "__file__", None) if colon else None
    if not isinstance(file, str):
        return ""
    path = Path(file)
    depth = module.count(".") + (path.name == "__init__.py")
    folder = path.parents[depth]
    if folder == Path.cwd() or "site-packages" in folder.parts:
        return ""
    return f"cd {shlex.quote(os.path.relpath(folder))} && "
