"""Owns a ready extension: reminders that a conversation sets itself, and that survive restarts. Never keeps a timer.

A reminder is a task that sleeps until an absolute time (T12). That of a process that was down rings when it is back.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import Field

from pidurable_nb.agent.calls.call import Call
from pidurable_nb.agent.extending.extension import Extension
from pidurable_nb.agent.household import conversation_of
from pidurable_nb.engine.phase import Done, Input, Phase, Sleeping
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.errors import ToolError
from pidurable_nb.tools.tool import tool

REMINDER: Final = "reminder"
"""The kind of the entries that reminders become."""
FURTHEST: Final = timedelta(days=3650)


class Alarm(Phase[None], task="reminding.alarm"):
    """Sleep until the reminder is due."""

    text: Input[str]
    due: Input[datetime]

    async def run(self, rt: Runtime) -> Sleeping[Ring]:
        return Sleeping(until=self.due, then=Ring(self.text, self.due))


class Ring(Phase[None]):
    """Say it in the conversation. Cut off and run again, it finds what it said, by the same key (S1)."""

    text: Input[str]
    due: Input[datetime]

    async def run(self, rt: Runtime) -> Done[None]:
        here = conversation_of(rt, rt.conversation)
        await here.submit(
            f"Reminder: {self.text}",
            request_id=rt.key("ring"),
            when_busy="follow_up",
            kind=REMINDER,
            data={"due": shown(self.due)},
        )
        return Done(None)


@tool(replay="safe")
async def remind(
    text: Annotated[str, "what you want to be told"],
    call: Call,
    at: Annotated[str | None, "when, as ISO 8601 with an offset: 2026-03-01T09:00:00+01:00"] = None,
    in_minutes: Annotated[float | None, Field(ge=0, description="or how long from now, in minutes")] = None,
) -> str:
    """Set a reminder. When it is due, this conversation gets it as a message, even if you have stopped by then."""
    kept = await call.recall("due", str)
    if kept is None:  # the clock is read once: a rerun keeps to what the first attempt said
        kept = await call.memo("due", shown(due_time(call.now(), at, in_minutes)))
    await call.spawn(Alarm(text, datetime.fromisoformat(kept)), background=True)
    return f"The reminder is set for {kept}."


def due_time(now: datetime, at: str | None, in_minutes: float | None) -> datetime:
    """When a reminder is due. Raises ToolError for what is no time to come, in words for the model."""
    if (at is None) == (in_minutes is None):
        raise ToolError("Give either at or in_minutes.")
    try:
        due = datetime.fromisoformat(at) if at is not None else now + timedelta(minutes=in_minutes or 0.0)
    except (ValueError, OverflowError) as error:
        raise ToolError(f"That is no time: {error}.") from error
    if due.tzinfo is None:
        raise ToolError(f"{at} has no offset from UTC. Write {at}Z for UTC, or {at}+01:00.")
    if due < now:
        raise ToolError(f"{shown(due)} has passed; it is {shown(now)} now.")
    if due - now > FURTHEST:
        raise ToolError(f"{shown(due)} is more than ten years away.")
    return due


def shown(time: datetime) -> str:
    """A time as texts show it."""
    return time.isoformat(timespec="milliseconds")


def reminding() -> Extension:
    """Reminders: the tool `remind` gives the conversation an input at a later time, once.

    Durability: a reminder is a task, stored when the tool's result is. One that was due while no process ran rings at
    the next opening. Setting the clock back delays it, and never repeats it (T12).
    """
    return Extension("reminding", tools=[remind], tasks=[Alarm])
