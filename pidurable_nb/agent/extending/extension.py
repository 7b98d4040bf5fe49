"""Owns extensions: named bundles of tools, prompt sections, hooks, wraps and tasks, and which of them are installed.

Nothing here is stored and nothing here runs an extension's code: a conversation stores names, and whoever needs its
agent resolves them against a snapshot. Never decides which conversation uses what.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from pidurable_nb.agent.extending.hooking import Hooks, NamedHooks
from pidurable_nb.agent.stored.recovery import KNOWN
from pidurable_nb.engine.phase import Phase
from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import ConversationId, EntryId
from pidurable_nb.session.documents import Document
from pidurable_nb.tools.tool import Tool

if TYPE_CHECKING:
    from pidurable_nb.agent.extending.resolution import Agent
    from pidurable_nb.tools.environment import Environment

__all__ = [
    "INSTRUCTIONS", "Extension", "ExtensionRefused", "Extensions", "FirstPhase", "Hooks", "Installed", "NamedHooks",
    "PromptInput", "ReadDocument", "Section", "SectionWrap", "ToolWrap", "Wrap", "section", "wrap_section", "wrap_tool",
]  # fmt: skip

D = TypeVar("D", bound=Document)
FirstPhase: TypeAlias = type[Phase[object]]

INSTRUCTIONS: Final = "instructions"
"""The key of the section that an agent's own instructions become; closed to extensions."""
_KEY: Final = re.compile(r"[a-z][a-z0-9_-]*")


class ExtensionRefused(PidurableError, ValueError):
    """An extension that cannot be installed as it is, or a wrap that gave something else than its target."""


# -- prompt sections ---------------------------------------------------------------------------------------------------


class ReadDocument(Protocol):
    """Reads the stored value of a document, its defaults where it was never written; `Runtime.read` is one."""

    async def __call__(
        self, doc: type[D], /, *, of: ConversationId | None = None, key: str | None = None, at: EntryId | None = None
    ) -> D: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """What a section may depend on.

    `agent` is the request's resolution, `shown` the sections that are in effect in the transcript, by key.
    """

    conversation: ConversationId
    agent: Agent
    environment: Environment | None
    shown: Mapping[str, str]
    read: ReadDocument


Render: TypeAlias = Callable[[PromptInput], "str | None | Awaitable[str | None]"]
"""Gives the section's text, or None to leave it out. Equal inputs give equal text, or the prompt grows at each turn."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the system prompt under a name. `tag`: its text stands between `<key>` and `</key>`."""

    key: str
    render: Render
    _: KW_ONLY
    tag: bool = True


def section(key: str, render: Render, *, tag: bool = True) -> Section:
    """A part of the system prompt. Nothing is checked before it is installed."""
    return Section(key, render, tag=tag)


# -- wraps -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolWrap:
    """Decorates whichever tool has this name where the extension is selected."""

    tool: str
    wrap: Callable[[Tool], Tool]


@dataclass(frozen=True, slots=True)
class SectionWrap:
    """Decorates whichever section has this key where the extension is selected."""

    section: str
    wrap: Callable[[Section], Section]


Wrap: TypeAlias = ToolWrap | SectionWrap


def wrap_tool(tool: Tool | str, wrap: Callable[[Tool], Tool]) -> ToolWrap:
    """Decorate a tool, wherever it comes from; an object stands for its name. `wrap` gives a new tool of that name."""
    return ToolWrap(tool if isinstance(tool, str) else tool.name, wrap)


def wrap_section(key: Section | str, wrap: Callable[[Section], Section]) -> SectionWrap:
    """Decorate a prompt section; a section object stands for its key. `wrap` gives a new section with the same key."""
    return SectionWrap(key if isinstance(key, str) else key.key, wrap)


# -- extensions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extension:
    """A named bundle. Its tools, sections, hooks and wraps act in the conversations that select it.

    `tasks` are first phases. They act wherever such a task is stored, whichever conversations select the extension.
    """

    name: str
    _: KW_ONLY
    tools: Sequence[Tool] = ()
    sections: Sequence[Section] = ()
    hooks: Hooks = field(default_factory=Hooks)
    wraps: Sequence[Wrap] = ()
    tasks: Sequence[FirstPhase] = ()

    def __post_init__(self) -> None:
        """Lists are taken as they are now: a snapshot never changes."""
        for name in ("tools", "sections", "wraps", "tasks"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Installed:
    """The installed extensions at one moment, in install order. Never changes."""

    extensions: tuple[Extension, ...] = ()

    def extension(self, name: str) -> Extension | None:
        """The installed extension of that name."""
        return next((extension for extension in self.extensions if extension.name == name), None)

    @property
    def tasks(self) -> tuple[FirstPhase, ...]:
        """The first phases of every installed task, in install order."""
        return tuple(task for extension in self.extensions for task in extension.tasks)


class Extensions:
    """The extensions of one process. May be changed from any thread, and outlive a harness.

    Every change is one publication: `snapshot` gives it from then on, and every subscriber has heard of it on return.
    """

    def __init__(self, extensions: Iterable[Extension] = (), *, built_in: Iterable[str] = KNOWN) -> None:
        """`built_in`: the task names that no extension may take."""
        self._built_in = frozenset(built_in)
        self._lock = threading.Lock()
        self._installed = Installed()
        self._listeners: tuple[Callable[[], None], ...] = ()
        for extension in extensions:
            self.install(extension)

    def install(self, extension: Extension) -> None:
        """Add an extension at the end, or put it in the place of the installed one of its name.

        Runs no code of the extension. Raises: ExtensionRefused when it is not valid, or would not be beside the
        others; nothing was published then.
        """
        _check(extension)
        with self._lock:
            known = self._installed.extensions
            if any(other.name == extension.name for other in known):
                changed = tuple(extension if other.name == extension.name else other for other in known)
            else:
                changed = (*known, extension)
            _check_tasks(changed, self._built_in)
            self._installed = Installed(changed)
        self._publish()

    def uninstall(self, extension: Extension | str) -> None:
        """Remove the installed extension of that name, whichever object it is; nothing happens when there is none.

        Work that took its code keeps it. Installed again, it stands at the end.
        """
        name = extension if isinstance(extension, str) else extension.name
        with self._lock:
            known = self._installed.extensions
            kept = tuple(other for other in known if other.name != name)
            if len(kept) == len(known):
                return
            self._installed = Installed(kept)
        self._publish()

    def snapshot(self) -> Installed:
        """What is installed now."""
        return self._installed

    @property
    def tasks(self) -> tuple[FirstPhase, ...]:
        """The first phases of every installed task, in install order."""
        return self._installed.tasks

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every publication, in the thread that made it. Returns what ends that.

        It takes its own snapshot: two threads that change at once may be heard in either order. What it raises reaches
        whoever made the change, after everybody has heard; the change stands.
        """

        def subscribed() -> None:
            listener()

        with self._lock:
            self._listeners = (*self._listeners, subscribed)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not subscribed)

        return unsubscribe

    def _publish(self) -> None:
        errors: list[Exception] = []
        for listener in self._listeners:
            try:
                listener()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


# -- what is refused ---------------------------------------------------------------------------------------------------


def _check(extension: Extension) -> None:
    """What an extension alone must be."""
    name: object = extension.name
    if not isinstance(name, str) or not name:
        raise ExtensionRefused(f"extension {name!r}: its name is a text that is not empty")
    where = f"extension {name!r}"
    _check_kinds(where, "tools", extension.tools, Tool, "decorate the function with @tool()")
    _check_kinds(where, "sections", extension.sections, Section, "make one with section(key, render)")
    _check_kinds(where, "wraps", extension.wraps, (ToolWrap, SectionWrap), "make one with wrap_tool or wrap_section")
    _check_kinds(where, "hooks", (extension.hooks,), Hooks, "make them with Hooks(before_tool=...)")
    _check_unique(where, "tools", "tools are named", [tool.name for tool in extension.tools])
    _check_unique(where, "sections", "sections have the key", [each.key for each in extension.sections])
    for index, each in enumerate(extension.sections):
        key: object = each.key
        if not isinstance(key, str) or _KEY.fullmatch(key) is None:
            raise ExtensionRefused(
                f"{where}: sections[{index}] has the key {key!r}; a key is a small letter, then small letters, digits, "
                "_ and -"
            )
        if key == INSTRUCTIONS:
            raise ExtensionRefused(
                f"{where}: sections[{index}] has the key {INSTRUCTIONS!r}, which is the agent's own; take another"
            )


def _check_kinds(
    where: str, member: str, items: Sequence[object], wanted: type | tuple[type, ...], instead: str
) -> None:
    for index, item in enumerate(items):
        if not isinstance(item, wanted):
            raise ExtensionRefused(f"{where}: {member}[{index}] is {item!r}; {instead}")


def _check_unique(where: str, member: str, what: str, names: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in first:
            raise ExtensionRefused(
                f"{where}: two {what} {name!r}, {member}[{first[name]}] and {member}[{index}]; rename or remove one"
            )
        first[name] = index


def _check_tasks(extensions: Sequence[Extension], built_in: frozenset[str]) -> None:
    """The task names of all of them together (T8)."""
    taken: dict[str, str] = {}
    for extension in extensions:
        for index, task in enumerate(extension.tasks):
            where = f"extension {extension.name!r}: tasks[{index}]"
            name = _task_name(task)
            if name is None:
                raise ExtensionRefused(f"{where} is {task!r}; name the first phase, the class with task=")
            if name in built_in:
                raise ExtensionRefused(f"{where} is the task {name!r}, which is built in; rename it")
            if name in taken:
                raise ExtensionRefused(f"{where} is the task {name!r}, as is {taken[name]}; rename or remove one")
            taken[name] = where


def _task_name(task: object) -> str | None:
    return task._task if isinstance(task, type) and issubclass(task, Phase) else None
