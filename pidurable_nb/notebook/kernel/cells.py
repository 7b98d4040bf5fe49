"""Owns what the cells of a notebook define, and how it reaches the open store: code, models, and an environment.

Whatever has a name in the notebook counts, defined or imported. The tools that are in no extension of their own form
the extension `cells`, which is replaced as a whole. Never opens a store and never runs what it finds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeGuard, TypeVar

from pidurable_nb.agent.extending.extension import Extension, ExtensionRefused, Extensions
from pidurable_nb.agent.harness import Harness
from pidurable_nb.engine.graph import PhaseClass
from pidurable_nb.engine.phase import Phase
from pidurable_nb.errors import PidurableError
from pidurable_nb.models.model import Model, ModelRef
from pidurable_nb.store.visible import visible
from pidurable_nb.tools.environment import Environment
from pidurable_nb.tools.tool import Tool

T = TypeVar("T")

CELLS: Final = "cells"
"""The extension that the tools of cells come in."""
MAIN: Final = "__main__"
_OUTPUT: Final = re.compile(r"_{1,3}|_\d+")
"""The names that IPython gives to what cells showed: old code may hang there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a notebook offers to the open store: extensions with `cells` last, models, where tools work; and remarks."""

    extensions: tuple[Extension, ...] = ()
    models: tuple[Model, ...] = ()
    environment: Environment | None = None
    remarks: tuple[str, ...] = ()


class Cells:
    """The code of one notebook, looked at anew whenever it is asked for.

    Where two objects have one name, the one that came last counts, and the offer says so.
    """

    def __init__(self, names: Callable[[], Mapping[str, object]]) -> None:
        self._names = names
        self._standing: dict[tuple[str, str], _Standing] = {}
        self._said: set[str] = set()

    def tasks(self) -> Mapping[str, PhaseClass]:
        """The tasks that the notebook defined or imported, by name; its own definitions win."""
        found: dict[str, PhaseClass] = {}
        for _, value in self._values():
            if not isinstance(value, type) or not issubclass(value, Phase) or value._task is None:
                continue
            known = found.get(value._task)
            if known is None or (known.__module__ != MAIN and value.__module__ == MAIN):
                found[value._task] = value
        return found

    def offer(self) -> Offer:
        """The tools, extensions, models and environment of the notebook, as of now."""
        values, remarks = list(self._values()), list[str]()
        extensions = self._newest("extension", [(n, v) for n, v in values if isinstance(v, Extension)], _name, remarks)
        if extensions.pop(CELLS, None) is not None:
            remarks.append(f"the extension {CELLS!r} is the notebook's own; give yours another name")
        sound = [extension for extension in extensions.values() if _sound(extension, remarks)]
        bundled = {tool.name for extension in sound for tool in extension.tools}
        tools = self._newest("tool", [(n, v) for n, v in values if isinstance(v, Tool)], _name, remarks)
        loose = [tool for tool in tools.values() if tool.name not in bundled]
        own = (Extension(CELLS, tools=loose),) if loose else ()
        models = self._newest("model", [(n, v) for n, v in values if is_model(v)], _ref, remarks)
        places = self._newest("environment", [(n, v) for n, v in values if is_environment(v)], _unnamed, remarks)
        return Offer(
            extensions=(*sound, *own), models=tuple(models.values()), environment=places.get(_unnamed(None)),
            remarks=tuple(remarks),
        )  # fmt: skip

    def install(self, harness: Harness) -> list[str]:
        """Give the open store what cells defined anew. What is refused leaves what was there before.

        Returns what is to be said of it.
        """
        offer = self.offer()
        said = list(offer.remarks)
        for change in _changes(harness, offer):
            try:
                change()
            except PidurableError as error:
                said.append(_line(error))
        return said

    def news(self, remarks: Iterable[str]) -> list[str]:
        """The remarks that were not made yet."""
        new = [remark for remark in dict.fromkeys(remarks) if remark not in self._said]
        self._said.update(new)
        return new

    def _values(self) -> Iterator[tuple[str, object]]:
        for name, value in list(self._names().items()):
            if not _OUTPUT.fullmatch(name):
                yield name, value

    def _newest(
        self, what: str, found: Iterable[tuple[str, T]], name_of: Callable[[T], str], remarks: list[str]
    ) -> dict[str, T]:
        """One object for each name: of several the one that was not there before, else the one that stood there."""
        by_name: dict[str, list[tuple[str, T]]] = {}
        for variable, value in found:
            by_name.setdefault(name_of(value), []).append((variable, value))
        chosen: dict[str, T] = {}
        for name, several in by_name.items():
            before = self._standing.get((what, name), _NOBODY)
            new = [value for _, value in several if not any(value is known for known in before.known)]
            kept = [value for _, value in several if value is before.chosen]
            chosen[name] = (new or kept or [several[0][1]])[-1]
            self._standing[what, name] = _Standing(chosen[name], tuple(value for _, value in several))
            if any(value is not chosen[name] for _, value in several):
                used = next(variable for variable, value in several if value is chosen[name])
                others = ", ".join(variable for variable, value in several if value is not chosen[name])
                called = f" called {visible(name)}" if name else ""
                remarks.append(f"{used} and {others} are two {what}s{called}: {used} is used")
        return chosen


@dataclass(frozen=True, slots=True)
class _Standing:
    """What had a name when it was looked at last, and which of it counted."""

    chosen: object
    known: tuple[object, ...]


_NOBODY: Final = _Standing(None, ())


def is_model(value: object) -> TypeGuard[Model]:
    """Whether this is a model. Its class is asked first, so that no code of anything else runs."""
    if isinstance(value, type) or not callable(getattr(type(value), "stream", None)):
        return False
    named: object = getattr(value, "ref", None)
    return isinstance(named, ModelRef) and all(hasattr(value, part) for part in ("api", "context_window", "max_tokens"))


_ENVIRONMENT: Final = frozenset(name for name in vars(Environment) if not name.startswith("_"))


def is_environment(value: object) -> TypeGuard[Environment]:
    """Whether this is a place with files and processes. Only its class is asked."""
    return not isinstance(value, type) and all(hasattr(type(value), part) for part in _ENVIRONMENT)


def _name(bundle: Extension | Tool) -> str:
    return bundle.name


def _ref(model: Model) -> str:
    return str(model.ref)


def _unnamed(place: Environment | None) -> str:
    """A notebook has one environment, whatever it is called."""
    return ""


def _sound(extension: Extension, remarks: list[str]) -> bool:
    """Whether it can be installed, as far as it goes by itself; else that is remarked."""
    try:
        Extensions((extension,))
    except ExtensionRefused as error:
        remarks.append(_line(error))
        return False
    return True


def _line(error: PidurableError) -> str:
    return visible(" ".join(str(error).split()))


def _changes(harness: Harness, offer: Offer) -> Iterator[Callable[[], None]]:
    """What is to be done so that the open store has the offer. An extension that is not offered any more stays."""
    installed = harness.shop.extensions.snapshot()
    for extension in offer.extensions:
        if installed.extension(extension.name) != extension:
            yield partial(harness.install, extension)
    if installed.extension(CELLS) is not None and all(each.name != CELLS for each in offer.extensions):
        yield partial(harness.uninstall, CELLS)
    for model in offer.models:
        if harness.shop.models.get(model.ref) is not model:
            yield partial(harness.use, model)
    if offer.environment is not None and harness.shop.environment is not offer.environment:
        yield partial(setattr, harness.shop, "environment", offer.environment)
