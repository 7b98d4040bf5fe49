"""Owns the subcommands about a store: making, opening, copying, closing it, and looking at what is in it.

A look reads a private copy, whether the store is open here or anywhere else. Never decides and never changes a row
that the harness does not change.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from IPython.core.error import UsageError

from pidurable_nb.agent.harness import Harness
from pidurable_nb.engine.graph import NotReady, PhaseClass, edges
from pidurable_nb.engine.phase import TaskRef, phase_name
from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import ROOT, ConversationId, EntryId
from pidurable_nb.notebook.commands.command import Command
from pidurable_nb.notebook.kernel.desk import Desk
from pidurable_nb.notebook.kernel.opened import Opened
from pidurable_nb.notebook.views import reading, tables
from pidurable_nb.notebook.views.conversations import transcript_table
from pidurable_nb.notebook.views.entries import EntryView, write_out
from pidurable_nb.notebook.views.graphs import Figure, Standing, fork_graph, ownership, state_machine
from pidurable_nb.notebook.views.markup import code, esc
from pidurable_nb.notebook.views.tables import Rows, Table
from pidurable_nb.notebook.views.task_views import ForksView, StatusView, TaskView
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord
from pidurable_nb.store.confined import MOST_INTEGER
from pidurable_nb.store.visible import visible

DURABILITIES: Final = ("kill", "barrier", "power")
STORES: Final = ("*.sqlite", "*.sqlite3", "*.db")


# --- Arguments that several share -----------------------------------------------------------------------------------


def add_store(parser: ArgumentParser) -> None:
    """A store that has to be named."""
    parser.add_argument("store", metavar="STORE", help="the database file")


def add_target(parser: ArgumentParser, what: str) -> None:
    """A store and a number, both optional and in any order: `ticker.sqlite 12`, `12`, or nothing."""
    help = f"a database file, default: the one at hand; and the number of a {what}"
    parser.add_argument("target", nargs="*", metavar=f"[STORE] [{what.upper()}]", help=help)


def target(options: Namespace) -> tuple[str | None, int | None]:
    """The store and the number that were named. Raises UsageError for more than one of each."""
    stores = [word for word in options.target if not word.isdigit()]
    numbers = [int(word) for word in options.target if word.isdigit()]
    if len(stores) > 1 or len(numbers) > 1:
        raise UsageError(f"%pi: one store and one number at most, not {' '.join(options.target)}")
    return (stores[0] if stores else None), (numbers[0] if numbers else None)


def stores_at(desk: Desk, fragment: str) -> Sequence[str]:
    """Database files that a path may be completed to, and folders on the way."""
    folder = Path(fragment).expanduser() if fragment.endswith("/") else Path(fragment).expanduser().parent
    shown = fragment[: fragment.rfind("/") + 1]
    found = [shown + path.name for pattern in STORES for path in sorted(folder.glob(pattern))]
    return found + [f"{shown}{path.name}/" for path in sorted(folder.iterdir()) if path.is_dir()]


def tasks_at(desk: Desk, fragment: str) -> Sequence[str]:
    """Numbers of tasks in the store at hand, live ones first; then database files."""
    with desk.looking(None) as file:
        known = sorted(file.tasks(), key=lambda task: not task.live)
    return [*(str(task.id) for task in known[:500]), *stores_at(desk, fragment)]


# --- Opening and closing --------------------------------------------------------------------------------------------


def _opening(parser: ArgumentParser) -> None:
    parser.add_argument("--durability", choices=DURABILITIES, help="what it survives; default: %%config Pi.durability")
    parser.add_argument("--as", dest="name", metavar="NAME", help="bind it to this name; default: %%config Pi.handle")
    parser.add_argument("--paused", action="store_true", help="start no work before pi.resume()")


def _configure_new(parser: ArgumentParser) -> None:
    add_store(parser)
    _opening(parser)
    parser.add_argument("--replace", action="store_true", help="remove the store that is there; it must be one")


def _new(desk: Desk, options: Namespace) -> Opened:
    path = Path(options.store).expanduser()
    if path.exists():
        if not options.replace:
            raise UsageError(f"%pi new: {path} is there already: %pi open {path}, name another, or add --replace")
        desk.remove(path)
    if not path.parent.is_dir():
        raise UsageError(f"%pi new: there is no folder {path.parent}")
    return desk.open(path, durability=options.durability, run=not options.paused, name=options.name)


def _configure_open(parser: ArgumentParser) -> None:
    add_store(parser)
    _opening(parser)
    parser.add_argument("--copy", action="store_true", help="open a copy; the store stays as it is, to the byte")


def _open(desk: Desk, options: Namespace) -> Opened:
    path = desk.path(options.store)
    if not path.exists():
        raise UsageError(f"%pi open: there is no {path}: %pi new {path} makes one")
    source = path if options.copy else None
    opened = desk.copy(path) if options.copy else path
    return desk.open(
        opened, durability=options.durability, run=not options.paused, name=options.name, copied_from=source
    )


def _configure_copy(parser: ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", nargs="?", help="the database file; default: the one at hand")
    parser.add_argument("into", metavar="FOLDER", nargs="?", help="where it goes; default: a folder of this kernel")


def _copy(desk: Desk, options: Namespace) -> Path:
    source = desk.path(options.store)
    copied = desk.copy(source, Path(options.into).expanduser() if options.into is not None else None)
    desk.current = copied
    return copied


def _close(desk: Desk, options: Namespace) -> None:
    if not desk.close():
        raise UsageError("%pi close: no store is open here")


def _status(desk: Desk, options: Namespace) -> StatusView:
    opened, harness = desk.opened, desk.harness
    if opened is None or harness is None:
        looked = str(desk.current) if desk.current is not None else None
        return StatusView(None, None, None, (), (), looked, desk.preferences.handle)
    waiting = desk.waiting_code()
    installed = [
        (name, f"waits: {waiting[name]}" if name in waiting else "ready") for name in harness.registry.installed
    ]
    with desk.looking(opened.path) as file:
        tasks = list(file.tasks())
    return StatusView(
        str(opened.path), str(opened.copied_from) if opened.copied_from is not None else None,
        opened.durability, tasks, installed, str(desk.current), desk.bound or desk.preferences.handle,
        [*_offers(harness)],
    )  # fmt: skip


def _offers(harness: Harness) -> Iterator[str]:
    """What agents work with here: models, and the tools of each extension."""
    if harness.shop.models:
        yield f"models: {', '.join(str(ref) for ref in harness.shop.models)}"
    for extension in harness.shop.extensions.snapshot().extensions:
        yield f"extension {extension.name}: {', '.join(tool.name for tool in extension.tools) or 'no tools'}"


# --- Work -----------------------------------------------------------------------------------------------------------


def _configure_start(parser: ArgumentParser) -> None:
    parser.add_argument("--in", dest="conversation", type=int, metavar="N", help="its conversation; default: the root")
    parser.add_argument("--background", action="store_true", help="it survives the abort of what is above it (O3)")
    parser.add_argument("--wait", action="store_true", help="wait for its end, and give its result")


def _start(desk: Desk, options: Namespace) -> object:
    opened = desk.need_open()
    phase = desk.phase(options.tail)
    desk.after_cell()  # the phase may have been defined above, in this very cell
    harness = opened.harness

    async def start() -> TaskRef[object]:
        where = await (harness.root() if options.conversation is None else harness.conversation(options.conversation))
        return await where.start(phase, background=options.background)

    ref = desk.host.call(start())
    return desk.host.call(harness.wait(ref)) if options.wait else ref


# --- Looking --------------------------------------------------------------------------------------------------------


def _configure_tasks(parser: ArgumentParser) -> None:
    add_target(parser, "task")
    parser.add_argument("--live", action="store_true", help="only those that have not ended")


def _tasks(desk: Desk, options: Namespace) -> Table:
    store, id = target(options)
    with desk.looking(store) as file:
        found = list(file.live_tasks() if options.live else file.tasks())
    if id is not None:
        found = [task for task in found if task.id == id]
    return tables.tasks_table(found, limit=desk.preferences.max_rows)


def _configure_task(parser: ArgumentParser) -> None:
    add_target(parser, "task")


def _task(desk: Desk, options: Namespace) -> TaskView:
    store, id = target(options)
    with desk.looking(store) as file:
        tasks = list(file.tasks())
        conversations = list(file.conversations())
        record = reading.task(file, id) if id is not None else _only(tasks)
        path = file.source
    machine = machine_of(desk.tasks_for(path), record)
    family = reading.family(tasks, record.id)
    tree = ownership(family, conversations, lit=record.id) if len(family) > 1 else None
    without = f"The code of {visible(record.kind)} is not in this notebook, so its states are not drawn."
    return TaskView(record, machine=machine, tree=tree, without=without)


def _only(tasks: Sequence[TaskRecord]) -> TaskRecord:
    if len(tasks) == 1:
        return tasks[0]
    raise UsageError(
        f"%pi task: which of {len(tasks)} tasks? %pi tasks lists them" if tasks else "%pi task: there is none"
    )


def machine_of(code: Mapping[str, PhaseClass], record: TaskRecord) -> Figure | None:
    """The diagram of a task whose code is here, with the state it stands in lit."""
    first = code.get(record.kind)
    if first is None:
        return None
    try:
        arrows = edges(first)
    except PidurableError:
        return None
    if isinstance(arrows, NotReady):
        return None
    return state_machine(record.kind, arrows, phase_name(first), Standing.of(record))


def _configure_memos(parser: ArgumentParser) -> None:
    add_target(parser, "task")


def _memos(desk: Desk, options: Namespace) -> Table:
    store, id = target(options)
    with desk.looking(store) as file:
        found = [reading.task(file, id)] if id is not None else list(file.tasks())
    return tables.memos_table(tables.memos_of(found), limit=desk.preferences.max_rows)


def _configure_transcript(parser: ArgumentParser) -> None:
    add_target(parser, "conversation")


def _transcript(desk: Desk, options: Namespace) -> Table:
    store, id = target(options)
    conversation = ROOT if id is None else ConversationId(id)
    with desk.looking(store) as file:
        entries = reading.transcript(file, conversation)
    return transcript_table(conversation, entries, limit=desk.preferences.max_rows)


def _configure_entry(parser: ArgumentParser) -> None:
    add_target(parser, "entry")
    parser.add_argument("--out", metavar="FILE", help="write all of it to a new file, however long it is")


def _entry(desk: Desk, options: Namespace) -> EntryView | None:
    store, id = target(options)
    if id is None:
        raise UsageError("%pi entry: which one? %pi transcript lists them")
    with desk.looking(store) as file:
        kept = file.entry(EntryId(id)) if id <= MOST_INTEGER else None
    if kept is None:
        raise UsageError(f"%pi entry: there is no entry {id} in {desk.path(store).name}; %pi transcript lists them")
    if options.out is None:
        return EntryView(kept)
    write_out(kept.entry, Path(options.out).expanduser())
    return None


def _configure_forks(parser: ArgumentParser) -> None:
    add_target(parser, "conversation")


def _forks(desk: Desk, options: Namespace) -> Table:
    store, _ = target(options)
    limit = desk.preferences.max_rows
    with desk.looking(store) as file:
        found = list(file.conversations())
        visible = {record.id: file.visible_count(record.id) for record in found}

    def words(record: ConversationRecord) -> Sequence[str]:
        parent = record.parent
        behind = "-" if parent is None else f"{parent.conversation} behind {parent.at}"
        owner = "-" if record.owner is None else str(record.owner.task)
        return (str(record.id), behind, owner, f"{visible[record.id]:,}")

    rows = Rows(
        "Conversations", ("conversation", "fork of", "owned by task", "visible entries"), found,
        lambda r: (code(r.id), *(esc(word) for word in words(r)[1:])), words, "conversations", limit,
    )  # fmt: skip
    view = ForksView(fork_graph(found[:limit], visible), rows)
    return tables.frame(view, tables.FORK_COLUMNS, [tables.forks_facts(record, visible[record.id]) for record in found])


STORE_COMMANDS: Final = (
    Command(
        name="new", help="make a store and open it here", configure=_configure_new, run=_new,
        completes={"store": stores_at},
    ),
    Command(
        name="open", help="open a store here and go on with its work", configure=_configure_open, run=_open,
        completes={"store": stores_at},
    ),
    Command(
        name="copy", help="copy a store, its log with it", configure=_configure_copy, run=_copy,
        completes={"store": stores_at},
    ),
    Command(name="close", help="close the open store in order", run=_close),
    Command(name="status", help="what is open here, and with which code", run=_status),
    Command(
        name="start", help="start a task: %%pi start Tick(1, 5)", configure=_configure_start, run=_start,
        tail="EXPRESSION",
    ),
    Command(
        name="tasks", help="the tasks in a store, as a data frame", configure=_configure_tasks, run=_tasks,
        completes={"target": stores_at},
    ),
    Command(
        name="task", help="one task: where it stands in its state machine, and why", configure=_configure_task,
        run=_task, completes={"target": tasks_at},
    ),
    Command(
        name="memos", help="what tasks decided and keep", configure=_configure_memos, run=_memos,
        completes={"target": tasks_at},
    ),
    Command(
        name="transcript", help="what a conversation sees", configure=_configure_transcript, run=_transcript,
        completes={"target": stores_at},
    ),
    Command(
        name="entry", help="one entry whole: what it says, and the row that is stored", configure=_configure_entry,
        run=_entry, completes={"target": stores_at},
    ),
    Command(
        name="forks", help="which conversation is a fork of which", configure=_configure_forks, run=_forks,
        completes={"target": stores_at},
    ),
)  # fmt: skip
