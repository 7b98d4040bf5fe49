"""Which extensions are installed: order, replacement, what is refused, who is told, and several threads at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import pytest

from pidurable_nb import Done, Phase, Runtime
from pidurable_nb.agent.extending.extension import (
    Extension,
    ExtensionRefused,
    Extensions,
    Hooks,
    Installed,
    PromptInput,
    section,
    wrap_section,
    wrap_tool,
)
from pidurable_nb.tools.tool import Tool, tool


def named(name: str) -> Tool:
    @tool(name=name)
    async def run(text: str) -> str:
        """Say it."""
        return text

    return run


def text(about: PromptInput) -> str:
    return "text"


class Reporter(Phase[str], task="app.reporter"):
    async def run(self, rt: Runtime) -> Done[str]:
        return Done("ok")


class Twice(Phase[str], task="app.twice"):
    async def run(self, rt: Runtime) -> Done[str]:
        return Done("ok")


class Later(Phase[str]):
    async def run(self, rt: Runtime) -> Done[str]:
        return Done("ok")


class Impostor(Phase[str], task="app.reporter"):
    async def run(self, rt: Runtime) -> Done[str]:
        return Done("ok")


def names(installed: Installed) -> list[str]:
    return [extension.name for extension in installed.extensions]


# --- Installing -------------------------------------------------------------------------------------------------------


def test_extensions_stand_in_install_order_and_a_new_one_of_a_name_takes_the_place_of_the_old() -> None:
    extensions = Extensions([Extension("a"), Extension("b")])
    extensions.install(Extension("c"))
    assert names(extensions.snapshot()) == ["a", "b", "c"]
    replaced = Extension("b", tools=[named("read")])
    extensions.install(replaced)
    assert names(extensions.snapshot()) == ["a", "b", "c"]
    assert extensions.snapshot().extension("b") is replaced
    extensions.uninstall(Extension("a"))
    assert names(extensions.snapshot()) == ["b", "c"]
    extensions.install(Extension("a"))
    assert names(extensions.snapshot()) == ["b", "c", "a"]
    extensions.uninstall("c")
    assert names(extensions.snapshot()) == ["b", "a"]
    assert extensions.snapshot().extension("c") is None


def test_a_snapshot_never_changes() -> None:
    tools = [named("read")]
    extension = Extension("a", tools=tools)
    extensions = Extensions([extension])
    before = extensions.snapshot()
    tools.append(named("write"))
    extensions.install(Extension("b"))
    extensions.install(Extension("a"))
    extensions.uninstall("a")
    assert names(before) == ["a"]
    found = before.extension("a")
    assert found is not None
    assert found is extension
    assert [tool.name for tool in found.tools] == ["read"]
    with pytest.raises(FrozenInstanceError):
        extension.name = "other"  # type: ignore[misc]


def test_tasks_are_those_of_every_extension_in_install_order() -> None:
    class Other(Phase[str], task="app.other"):
        async def run(self, rt: Runtime) -> Done[str]:
            return Done("ok")

    extensions = Extensions([Extension("a", tasks=[Other]), Extension("b", tasks=[Reporter])])
    assert extensions.tasks == extensions.snapshot().tasks == (Other, Reporter)


def test_tool_names_and_section_keys_may_repeat_across_extensions() -> None:
    one = Extension("a", tools=[named("read")], sections=[section("role", text)])
    other = Extension("b", tools=[named("read")], sections=[section("role", text)])
    assert names(Extensions([one, other]).snapshot()) == ["a", "b"]


def test_objects_stand_for_their_names_as_targets_of_wraps() -> None:
    assert wrap_tool(named("read"), lambda tool: tool).tool == wrap_tool("read", lambda tool: tool).tool == "read"
    assert wrap_section(section("role", text), lambda found: found).section == "role"
    assert wrap_section("role", lambda found: found).section == "role"


# --- What is refused --------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Extension, str]] = {
    "no name": (Extension(""), "its name is a text that is not empty"),
    "a name that is no text": (Extension(5), "its name is a text"),  # type: ignore[arg-type]
    "two tools of one name": (
        Extension("x", tools=[named("read"), named("write"), named("read")]),
        r"two tools are named 'read', tools\[0\] and tools\[2\]",
    ),
    "two sections of one key": (
        Extension("x", sections=[section("role", text), section("role", text)]),
        r"two sections have the key 'role', sections\[0\] and sections\[1\]",
    ),
    "a key with a capital": (Extension("x", sections=[section("Role", text)]), r"sections\[0\] has the key 'Role'"),
    "an empty key": (Extension("x", sections=[section("", text)]), "has the key ''"),
    "a key with a newline": (Extension("x", sections=[section("role\n", text)]), "has the key"),
    "a key that begins with a digit": (Extension("x", sections=[section("1st", text)]), "has the key '1st'"),
    "the reserved key": (Extension("x", sections=[section("instructions", text)]), "which is the agent's own"),
    "a function that is no tool": (Extension("x", tools=[text]), r"decorate the function with @tool\(\)"),  # type: ignore[list-item]
    "a text that is no section": (Extension("x", sections=["role"]), "make one with section"),  # type: ignore[list-item]
    "hooks that are none": (Extension("x", hooks=text), r"make them with Hooks"),  # type: ignore[arg-type]
    "a wrap that is none": (Extension("x", wraps=[text]), "make one with wrap_tool"),  # type: ignore[list-item]
    "a later phase": (Extension("x", tasks=[Later]), "name the first phase"),
    "a task that is no phase": (Extension("x", tasks=[str]), "name the first phase"),  # type: ignore[list-item]
    "a task twice": (
        Extension("x", tasks=[Twice, Twice]),
        r"tasks\[1\] is the task 'app.twice', as is extension 'x': tasks\[0\]",
    ),
    "a task of another extension": (
        Extension("x", tasks=[Impostor]),
        r"extension 'x': tasks\[0\] is the task 'app.reporter', as is extension 'a': tasks\[0\]",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_valid_is_refused_with_its_place_and_nothing_is_published(why: str) -> None:
    refused, message = REFUSED[why]
    extensions = Extensions([Extension("a", tasks=[Reporter]), Extension("x")])
    told: list[Installed] = []
    extensions.subscribe(lambda: told.append(extensions.snapshot()))
    before = extensions.snapshot()
    with pytest.raises(ExtensionRefused, match=message):
        extensions.install(refused)
    assert extensions.snapshot() is before
    assert told == []


@pytest.mark.parametrize("key", ["a", "agents-md", "cwd_2", "z9"])
def test_a_key_of_small_letters_digits_and_dashes_is_taken(key: str) -> None:
    assert names(Extensions([Extension("x", sections=[section(key, text)])]).snapshot()) == ["x"]


def test_t8_no_extension_takes_the_name_of_a_built_in_task() -> None:
    with pytest.raises(ExtensionRefused, match="which is built in"):
        Extensions([Extension("x", tasks=[Reporter])], built_in=["app.reporter"])


def test_a_replacement_is_judged_without_what_it_replaces() -> None:
    extensions = Extensions([Extension("a", tasks=[Reporter], tools=[named("read")])])
    extensions.install(Extension("a", tasks=[Impostor], tools=[named("read")]))
    assert [task.__name__ for task in extensions.tasks] == ["Impostor"]
    extensions.install(Extension("a"))
    extensions.install(Extension("b", tasks=[Reporter]))
    assert [task.__name__ for task in extensions.tasks] == ["Reporter"]


# --- Publication ------------------------------------------------------------------------------------------------------


def test_every_change_is_told_once_with_the_change_already_made() -> None:
    extensions = Extensions()
    told: list[list[str]] = []
    stop = extensions.subscribe(lambda: told.append(names(extensions.snapshot())))
    extensions.install(Extension("a"))
    extensions.install(Extension("b"))
    extensions.install(Extension("a"))
    extensions.uninstall("b")
    extensions.uninstall("b")
    assert told == [["a"], ["a", "b"], ["a", "b"], ["a"]]
    stop()
    stop()
    extensions.install(Extension("c"))
    assert len(told) == 4


def test_one_listener_may_subscribe_twice_and_end_one_of_them() -> None:
    extensions = Extensions()
    told: list[int] = []

    def listen() -> None:
        told.append(1)

    stop = extensions.subscribe(listen)
    extensions.subscribe(listen)
    stop()
    extensions.install(Extension("a"))
    assert told == [1]


def test_a_listener_that_raises_keeps_nobody_else_from_hearing_and_the_change_stands() -> None:
    extensions = Extensions()
    told: list[str] = []

    def broken() -> None:
        raise ValueError("deaf")

    extensions.subscribe(broken)
    extensions.subscribe(lambda: told.append("heard"))
    with pytest.raises(ValueError, match="deaf"):
        extensions.install(Extension("a"))
    assert told == ["heard"]
    assert names(extensions.snapshot()) == ["a"]


def test_a_listener_may_change_the_extensions_itself() -> None:
    extensions = Extensions()

    def follow() -> None:
        if extensions.snapshot().extension("b") is None:
            extensions.install(Extension("b"))

    extensions.subscribe(follow)
    extensions.install(Extension("a"))
    assert names(extensions.snapshot()) == ["a", "b"]


def test_publishing_runs_no_code_of_an_extension() -> None:
    def never(*args: object) -> str:
        raise AssertionError("an extension's code ran")

    async def never_asked(*args: object) -> None:
        never()

    extensions = Extensions()
    extensions.install(
        Extension(
            "a",
            tools=[named("read")],
            sections=[section("role", never)],
            hooks=Hooks(before_tool=never_asked),
            wraps=[wrap_tool("read", lambda tool: named(never())), wrap_section("role", lambda found: found)],
        )
    )
    assert names(extensions.snapshot()) == ["a"]


# --- Threads ----------------------------------------------------------------------------------------------------------


def test_threads_that_change_at_once_lose_nothing_and_no_snapshot_is_torn() -> None:
    extensions = Extensions()
    torn: list[list[str]] = []
    told: list[None] = []
    start = threading.Barrier(8)

    def listen() -> None:
        seen = names(extensions.snapshot())
        told.append(None)
        if len(seen) != len(set(seen)):
            torn.append(seen)

    extensions.subscribe(listen)

    def work(number: int) -> None:
        start.wait()
        for turn in range(50):
            extensions.install(Extension(f"kept-{number}-{turn}"))
            extensions.install(Extension(f"gone-{number}"))
            extensions.install(Extension("shared"))
            extensions.uninstall(f"gone-{number}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    seen = names(extensions.snapshot())
    assert torn == []
    assert len(told) == 8 * 50 * 4
    assert sorted(seen) == sorted([*(f"kept-{number}-{turn}" for number in range(8) for turn in range(50)), "shared"])
    for number in range(8):
        mine = [name for name in seen if name.startswith(f"kept-{number}-")]
        assert mine == [f"kept-{number}-{turn}" for turn in range(50)]
