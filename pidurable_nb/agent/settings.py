"""Owns what the host decides, as one frozen object. Never read twice for one decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pidurable_nb.agent.live import Ids, RandomIds
from pidurable_nb.clock import Clock, SystemClock
from pidurable_nb.engine.decide import Policy
from pidurable_nb.engine.engine import EngineSettings
from pidurable_nb.probe import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the host decides. The three seams, `clock`, `ids` and `probe`, make a run repeatable and visible.

    `restart_limit`: at how many openings without progress a task is parked (T9). `suspect_ms`: how long a task with
    two or more of them may take, alone, to progress. `after_failed_run`: what a failed run does to its queue (S4).
    """

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    probe: Probe | None = None
    restart_limit: int = 5
    suspect_ms: int = 1000
    after_failed_run: Literal["keep", "withdraw"] = "keep"

    def __post_init__(self) -> None:
        if self.restart_limit < 1:
            raise ValueError(f"restart_limit={self.restart_limit}: parking needs at least one restart")

    @property
    def engine(self) -> EngineSettings:
        """The part that the task machine reads."""
        policy = Policy(restart_limit=self.restart_limit, after_failed_run=self.after_failed_run)
        return EngineSettings(policy=policy, suspect_ms=self.suspect_ms)
