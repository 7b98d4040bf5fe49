"""Owns the subcommand about all tasks at once: `%pi tree`. Never decides and never renders."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from pidurable_nb.notebook.commands.command import Command
from pidurable_nb.notebook.commands.store import add_target, target, tasks_at
from pidurable_nb.notebook.kernel.desk import Desk
from pidurable_nb.notebook.views import reading
from pidurable_nb.notebook.views.graphs import FOLDED_OVER, ownership
from pidurable_nb.notebook.views.task_tree import SmallTree, TaskTree


def _configure(parser: ArgumentParser) -> None:
    add_target(parser, "task")
    parser.add_argument(
        "--all", action="store_true", help=f"those that have ended too, where there are more than {FOLDED_OVER}"
    )


def _tree(desk: Desk, options: Namespace) -> SmallTree | TaskTree:
    store, id = target(options)
    with desk.looking(store) as file:
        tasks = list(file.tasks())
        conversations = list(file.conversations())
        if id is not None:
            tasks = list(reading.family(tasks, reading.task(file, id).id))
    if len(tasks) <= FOLDED_OVER:
        return SmallTree(ownership(tasks, conversations))
    return TaskTree(tasks, conversations, every=options.all, limit=desk.preferences.max_rows)


TREE_COMMANDS: Final = (
    Command(
        name="tree", help="who owns what, and who waits for whom, drawn", configure=_configure, run=_tree,
        completes={"target": tasks_at},
    ),
)  # fmt: skip
