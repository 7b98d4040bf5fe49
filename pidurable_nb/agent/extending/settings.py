"""Owns what the host decides, as one frozen object or a provider of it. Never read twice for one decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias

from pidurable_nb.agent.inbox.boundary import QueueMode, QueueModes
from pidurable_nb.agent.stored.live import Ids, RandomIds
from pidurable_nb.clock import Clock, SystemClock
from pidurable_nb.engine.decide import Policy
from pidurable_nb.engine.engine import EngineSettings
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.probe import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often an answer that failed is asked for again, each time after twice the delay, at most `most` (G2)."""

    retries: int = 3
    delay: timedelta = timedelta(seconds=2)
    most: timedelta = timedelta(seconds=60)

    def delay_after(self, attempt: int) -> timedelta:
        """The delay behind the attempt of this number, from 1."""
        return min(self.delay * (1 << min(attempt - 1, 30)), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When context is summarized by itself, in tokens (K1).

    A generation waits for it above `context_window - reserve`; it runs in the background from `background` below that
    on, 0 for never. About `keep_recent` of the newest stays as it is.
    """

    enabled: bool = True
    reserve: int = 16_384
    keep_recent: int = 20_000
    background: int = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the host decides. The three seams, `clock`, `ids` and `probe`, make a run repeatable and visible.

    They are read once, when a store is opened; everything else whenever it is needed.

    `restart_limit`: at how many openings without progress a task is parked (T9). `suspect_ms`: how long a task with
    two or more of them may take, alone, to progress. `after_failed_run`: what a failed run does to its queue (S4).
    `extensions`: the names that conversations select unless they say otherwise; None for all that are installed.
    `request`: options of every model request, in the stored spelling (`timeoutMs`, `maxRetries`, `headers`, …).
    `progress_every`: how often partial answers and tool output are stored at most (V5).
    """

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    probe: Probe | None = None
    restart_limit: int = 5
    suspect_ms: int = 1000
    after_failed_run: Literal["keep", "withdraw"] = "keep"
    extensions: tuple[str, ...] | None = None
    request: JsonObject = field(default_factory=dict[str, Json])
    retry: Retry = field(default_factory=Retry)
    compaction: Compaction = field(default_factory=Compaction)
    tool_execution: Literal["parallel", "sequential"] = "parallel"
    steering_mode: QueueMode = "one_at_a_time"
    follow_up_mode: QueueMode = "one_at_a_time"
    progress_every: timedelta = timedelta(milliseconds=100)

    def __post_init__(self) -> None:
        if self.restart_limit < 1:
            raise ValueError(f"restart_limit={self.restart_limit}: parking needs at least one restart")
        if self.progress_every <= timedelta(0):
            raise ValueError(f"progress_every={self.progress_every}: a commit per moment needs more than no time")

    @property
    def engine(self) -> EngineSettings:
        """The part that the task machine reads."""
        policy = Policy(restart_limit=self.restart_limit, after_failed_run=self.after_failed_run)
        return EngineSettings(policy=policy, suspect_ms=self.suspect_ms)

    @property
    def queues(self) -> QueueModes:
        """The part that boundaries read."""
        return QueueModes(steering=self.steering_mode, follow_up=self.follow_up_mode)


SettingsSource: TypeAlias = Settings | Callable[[], Settings]
"""The settings, or what gives them: then they follow whoever changes them, without a write."""
