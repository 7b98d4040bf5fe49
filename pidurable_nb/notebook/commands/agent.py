"""Owns the subcommands about agents: asking, what was asked, what waits, ending it, forking, spending, choosing.

What changes anything works on the store that is open here; a look reads a private copy. Never decides anything.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Final

from IPython.core.error import UsageError

from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.extending.configuring import UNCHANGED, AgentChange
from pidurable_nb.agent.harness import Harness
from pidurable_nb.agent.inbox.admission import WhenBusy
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.usage import Usage, usage_in
from pidurable_nb.engine.phase import TaskRef
from pidurable_nb.ids import ROOT, ConversationId, EntryId, JsonObject, SubmissionId, TaskId
from pidurable_nb.notebook.commands.command import Command
from pidurable_nb.notebook.commands.store import add_target, stores_at, target
from pidurable_nb.notebook.kernel.asking import EVERY_S, Question, Screen, Settled, follow, request_of
from pidurable_nb.notebook.kernel.desk import Desk
from pidurable_nb.notebook.views import conversations
from pidurable_nb.notebook.views.agents import AgentView
from pidurable_nb.notebook.views.answers import AnswerView, Asked
from pidurable_nb.notebook.views.conversations import Request, Waiting
from pidurable_nb.notebook.views.messages import said
from pidurable_nb.notebook.views.tables import Table
from pidurable_nb.records.document import ConversationScope
from pidurable_nb.records.transcript import Answered, Placed, Queued, SubmissionRecord, Unanswered, Written
from pidurable_nb.store.stranger import StoreFile

# --- What may be typed ----------------------------------------------------------------------------------------------


def conversations_at(desk: Desk, fragment: str) -> Sequence[str]:
    """Numbers of conversations in the store at hand, the newest first; then database files."""
    return [*_conversations(desk), *stores_at(desk, fragment)]


def _conversations(desk: Desk) -> list[str]:
    with desk.looking(None) as file:
        return [str(record.id) for record in file.conversations()][::-1][:200]


def _endable(desk: Desk, fragment: str) -> Sequence[str]:
    """What can be ended: live tasks, open submissions, conversations."""
    with desk.looking(None) as file:
        found = [str(task.id) for task in file.live_tasks()]
        found += [str(submission.id) for submission in file.open_submissions()]
        return [*found, *(str(record.id) for record in file.conversations()), "task", "submission"]


def _entries_at(desk: Desk, fragment: str) -> Sequence[str]:
    with desk.looking(None) as file:
        return [str(entry.id) for entry in file.entries()][::-1][:200]


def _models(desk: Desk, fragment: str) -> Sequence[str]:
    return [str(ref) for ref in desk.harness.shop.models] if desk.harness is not None else []


# --- Asking ---------------------------------------------------------------------------------------------------------


def _configure_ask(parser: ArgumentParser) -> None:
    parser.add_argument("--to", type=int, default=ROOT, metavar="CONV", help="the conversation; default: the root")
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--request-id", metavar="ID", help="admit it once under this id, however often it is run (S1)")
    once.add_argument("--once", action="store_true", help="the same, under an id of this cell")
    busy = parser.add_mutually_exclusive_group()
    busy.add_argument("--steer", action="store_true", help="where a run is active: join it behind its tool round")
    busy.add_argument("--reject", action="store_true", help="where a run is active: ask nothing")
    parser.add_argument("--as", dest="name", metavar="NAME", help="bind how it ended to this name")


def _ask(desk: Desk, options: Namespace) -> None:
    text = (options.body or "").strip("\n")
    if not text.strip():
        raise UsageError("%%pi ask: the cell says nothing; write the question below the first line")
    if options.name is not None and not options.name.isidentifier():
        raise UsageError(f"%%pi ask: --as takes a Python name, not {options.name!r}")
    harness = desk.need_open().harness
    desk.after_cell()
    busy: WhenBusy = "steer" if options.steer else "reject" if options.reject else "follow_up"
    question = Question(
        text=text, conversation=ConversationId(options.to), when_busy=busy,
        request_id=request_of(desk.cell_id, text) if options.once else options.request_id,
    )  # fmt: skip
    settled = _followed(desk, harness, question)
    if options.name is not None:
        desk.shell.user_ns[options.name] = settled.outcome


def _followed(desk: Desk, harness: Harness, question: Question) -> Settled:
    """Ask and show how it goes. An interrupt says how to end what goes on."""
    screen, seen = Screen(desk.shell), list[Asked]()

    def show(asked: Asked) -> None:
        seen[:] = [asked]
        screen.show(AnswerView(asked))

    async def work(tell: Callable[[Asked], None]) -> Settled:
        return await follow(harness, await _conversation(harness, question.conversation), question, tell)

    try:
        settled = desk.host.follow(work, show, EVERY_S)
    except KeyboardInterrupt:
        if seen:
            screen.show(AnswerView(seen[-1], notes=[_goes_on(seen[-1].record)]), last=True)
        raise
    screen.show(AnswerView(settled.asked), last=True)
    return settled


def _goes_on(record: SubmissionRecord) -> str:
    if isinstance(record.state, Queued):
        return f"the cell was interrupted; it still waits. %pi abort {record.id} takes it back"
    return (
        "the cell was interrupted, the run was not: it goes on. "
        f"%pi abort {record.conversation} ends it, %pi transcript {record.conversation} shows what became of it"
    )


async def _conversation(harness: Harness, id: ConversationId) -> Conversation:
    return await (harness.root() if id == ROOT else harness.conversation(id))


# --- Ending and forking ---------------------------------------------------------------------------------------------


def _configure_abort(parser: ArgumentParser) -> None:
    parser.add_argument(
        "target", nargs="*", metavar="[task | submission] [NUMBER]",
        help="a task, a submission or a conversation, whichever has the number; default: the root conversation",
    )  # fmt: skip
    parser.add_argument("--background", action="store_true", help="its work in the background too (O3)")


def _abort(desk: Desk, options: Namespace) -> None:
    harness = desk.need_open().harness
    words, number = options.target[:-1], (options.target or [str(ROOT)])[-1]
    if not number.isdigit() or words not in ([], ["task"], ["submission"], ["conversation"]):
        raise UsageError(f"%pi abort: name a number, with task or submission before it, not {' '.join(options.target)}")
    print(desk.host.call(_ended(harness, words[0] if words else "", int(number), options.background)))


async def _ended(harness: Harness, what: str, id: int, background: bool) -> str:
    """End what has this number: all of them are numbered together (C6). Returns what became of it."""
    session = harness.engine.session
    if what in ("", "conversation") and await session.conversation(ConversationId(id)) is not None:
        await (await harness.conversation(id)).abort(background=background)
        return f"conversation {id}: everything that ran here has ended"
    if what in ("", "task") and await session.task(TaskId(id)) is not None:
        asked = await harness.abort(TaskRef[object](TaskId(id)), background=background)
        return f"task {id} is asked to end" if asked else f"task {id} had ended already"
    if what in ("", "submission") and (found := await session.submission(SubmissionId(id))) is not None:
        if await (await harness.submission(id)).abort():
            return f"submission {id} is withdrawn"
        run = f"; %pi abort {found.conversation} ends its run" if isinstance(found.state, Placed) else ""
        return f"submission {id} is {found.status} and cannot be withdrawn{run}"
    raise UsageError(f"%pi abort: no {what or 'task, submission or conversation'} has the number {id}")


def _configure_fork(parser: ArgumentParser) -> None:
    parser.add_argument("entry", type=int, metavar="ENTRY", help="the last entry that the fork sees")
    parser.add_argument(
        "--from", dest="parent", type=int, metavar="CONV", help="through which conversation; default: the entry's own"
    )


def _fork(desk: Desk, options: Namespace) -> Conversation:
    harness = desk.need_open().harness

    async def fork() -> Conversation:
        parent = options.parent
        if parent is None:
            found = await harness.engine.session.entry(EntryId(options.entry))
            if found is None:
                raise UsageError(f"%pi fork: there is no entry {options.entry}; %pi transcript lists them")
            parent = found.entry.conversation
        return await (await harness.conversation(parent)).fork(at=EntryId(options.entry))

    return desk.host.call(fork())


# --- Choosing -------------------------------------------------------------------------------------------------------


def _configure_agent(parser: ArgumentParser) -> None:
    parser.add_argument("conversation", nargs="?", type=int, default=ROOT, metavar="CONV", help="default: the root")
    parser.add_argument("--model", metavar="PROVIDER/NAME", help="ask this model from now on")
    parser.add_argument("--tools", metavar="NAMES", help="offer these tools only: names with commas between them")


def _agent(desk: Desk, options: Namespace) -> AgentView:
    harness = desk.need_open().harness
    desk.after_cell()
    try:
        change = AgentChange(
            model=UNCHANGED if options.model is None else options.model,
            tools=UNCHANGED if options.tools is None else [name for name in options.tools.split(",") if name],
        )
    except ValueError as error:
        raise UsageError(f"%pi agent: {error}") from error

    async def chosen() -> AgentView:
        conversation = await _conversation(harness, ConversationId(options.conversation))
        await conversation.configure(change)
        agent = await conversation.agent()
        return AgentView(conversation.id, agent, harness.shop.model(agent.model), tuple(harness.shop.models))

    return desk.host.call(chosen())


# --- Looking --------------------------------------------------------------------------------------------------------


def _configure_look(parser: ArgumentParser) -> None:
    add_target(parser, "conversation")


def _submissions(desk: Desk, options: Namespace) -> Table:
    store, id = target(options)
    with desk.looking(store) as file:
        records = [record for record in file.submissions() if id is None or record.conversation == id]
        waiting = {item.id: item.text for item in _waiting(file, id)}
        requests = [Request(record, waiting.get(record.id) or _text(file, record)) for record in records]
    return conversations.submissions_table(requests, limit=desk.preferences.max_rows)


def _text(file: StoreFile, record: SubmissionRecord) -> str:
    match record.state:
        case Placed(entry=entry) | Answered(entry=entry) | Written(entry=entry):
            at: EntryId | None = entry
        case Unanswered(entry=entry):
            at = entry
        case _:
            at = None
    found = file.entry(at) if at is not None else None
    return said(found.entry) if found is not None else ""


def _inbox(desk: Desk, options: Namespace) -> Table:
    store, id = target(options)
    with desk.looking(store) as file:
        waiting = _waiting(file, id)
    return conversations.inbox_table(waiting, limit=desk.preferences.max_rows)


def _waiting(file: StoreFile, id: int | None) -> list[Waiting]:
    inboxes = _documents(file, live.INBOX.kind, id)
    return [item for where, value in inboxes for item in conversations.inbox_of(where, value)]


def _usage(desk: Desk, options: Namespace) -> Table:
    store, id = target(options)
    with desk.looking(store) as file:
        spent = sum((usage_in(value) for _, value in _documents(file, live.USAGE.kind, id)), Usage())
    return conversations.usage_table(spent, limit=desk.preferences.max_rows)


def _documents(file: StoreFile, kind: str, id: int | None) -> list[tuple[ConversationId, JsonObject]]:
    """The built-in documents of a kind, of one conversation or of all, with where they belong."""
    found: list[tuple[ConversationId, JsonObject]] = []
    for record in file.documents():
        scope = record.scope
        if record.kind != kind or not isinstance(scope, ConversationScope) or id not in (None, scope.conversation):
            continue
        held = file.document_value(record.id)
        if held is not None:
            found.append((scope.conversation, held[1]))
    return found


AGENT_COMMANDS: Final = (
    Command(
        name="ask", help="say what stands in this cell, and show the answer as it comes", configure=_configure_ask,
        run=_ask, body=True, completes={"to": lambda desk, fragment: _conversations(desk)},
    ),
    Command(
        name="submissions", help="what somebody asked for, and what became of it", configure=_configure_look,
        run=_submissions, completes={"target": conversations_at},
    ),
    Command(
        name="inbox", help="what waits behind a run", configure=_configure_look, run=_inbox,
        completes={"target": conversations_at},
    ),
    Command(
        name="abort", help="end a task or what runs in a conversation; take back a submission",
        configure=_configure_abort, run=_abort, completes={"target": _endable},
    ),
    Command(
        name="fork", help="a conversation that sees another one up to an entry", configure=_configure_fork, run=_fork,
        completes={"entry": _entries_at, "parent": lambda desk, fragment: _conversations(desk)},
    ),
    Command(
        name="usage", help="what models and tools have spent", configure=_configure_look, run=_usage,
        completes={"target": conversations_at},
    ),
    Command(
        name="agent", help="what a conversation works with; choose its model and tools", configure=_configure_agent,
        run=_agent, completes={"model": _models, "conversation": lambda desk, fragment: _conversations(desk)},
    ),
)  # fmt: skip
