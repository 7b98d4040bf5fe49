"""The resolution table: what stored names come to with what is installed, row by row."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pidurable_nb.agent.extending.extension import (
    Extension,
    ExtensionRefused,
    Extensions,
    Hooks,
    Installed,
    PromptInput,
    Section,
    section,
    wrap_section,
    wrap_tool,
)
from pidurable_nb.agent.extending.hooking import Block, HookApi
from pidurable_nb.agent.extending.resolution import Agent, resolve
from pidurable_nb.ids import ConversationId, EntryId, Json, JsonObject
from pidurable_nb.models.model import ModelRef
from pidurable_nb.records.message import ToolCall
from pidurable_nb.session.documents import Document
from pidurable_nb.tools.tool import Tool, tool


def named(name: str, description: str = "plain") -> Tool:
    @tool(name=name)
    async def run(text: str) -> str:
        """Say it."""
        return text

    return replace(run, description=description)


def said(key: str, text: str) -> Section:
    return section(key, lambda about: text)


async def no(call: ToolCall, api: HookApi) -> Block:
    return Block("no")


FILES = Extension(
    "files", tools=[named("read"), named("write")], sections=[said("role", "files"), said("cwd", "files")]
)
SHELL = Extension("shell", tools=[named("bash")], hooks=Hooks(before_tool=no))
OTHER = Extension("other", tools=[named("read", "other's")], sections=[said("role", "other's"), said("skills", "x")])
GUARD = Extension("guard", hooks=Hooks(before_tool=no))
ALL = Extensions([FILES, SHELL, OTHER, GUARD]).snapshot()


def quiet(error: BaseException) -> None:
    raise AssertionError("nothing was to be reported") from error


def agent(state: JsonObject, installed: Installed = ALL, default: Sequence[str] | None = None) -> Agent:
    return resolve(state, installed, default, quiet)


async def read_nothing(
    doc: type[Document], /, *, of: ConversationId | None = None, key: str | None = None, at: EntryId | None = None
) -> Document:
    raise NotImplementedError


def rendered(found: Agent) -> list[tuple[str, object, bool]]:
    about = PromptInput(
        conversation=ConversationId(1),
        agent=found,
        environment=None,
        shown={},
        read=read_nothing,  # type: ignore[arg-type]
    )
    return [(each.key, each.render(about), each.tag) for each in found.sections]


def selection(found: Agent) -> list[str]:
    return [extension.name for extension in found.extensions]


def reachable(found: Agent) -> list[str]:
    return [f"{tool.name} ({tool.description})" for tool in found.tools]


# --- extensions -------------------------------------------------------------------------------------------------------

SELECTIONS: list[tuple[Json, Sequence[str] | None, list[str]]] = [
    (None, None, ["files", "shell", "other", "guard"]),
    (None, ["shell", "files"], ["shell", "files"]),
    (None, [], []),
    (None, ["gone", "shell", "shell", "files"], ["shell", "files"]),
    (["guard", "files"], None, ["guard", "files"]),
    (["guard", "files"], ["shell"], ["guard", "files"]),
    (["guard", "gone", "files", "guard"], None, ["guard", "files"]),
    ([], None, []),
    ({"add": ["guard"]}, ["files", "shell"], ["files", "shell", "guard"]),
    ({"add": ["files", "guard"]}, ["shell", "files"], ["shell", "files", "guard"]),
    ({"remove": ["shell"]}, None, ["files", "other", "guard"]),
    ({"add": ["guard", "other"], "remove": ["guard", "files"]}, ["files", "shell"], ["shell", "other"]),
    ({"add": ["gone"], "remove": ["never"]}, ["files"], ["files"]),
    ({}, ["files"], ["files"]),
]


@pytest.mark.parametrize(("choice", "default", "wanted"), SELECTIONS)
def test_extensions_are_the_default_an_array_or_an_edit_of_the_default(
    choice: Json, default: Sequence[str] | None, wanted: list[str]
) -> None:
    state: JsonObject = {} if choice is None else {"extensions": choice}
    assert selection(agent(state, default=default)) == wanted


def test_a_name_takes_effect_again_when_it_is_installed_again() -> None:
    extensions = Extensions([FILES])
    state: JsonObject = {"extensions": ["guard", "files"]}
    assert selection(agent(state, extensions.snapshot())) == ["files"]
    extensions.install(GUARD)
    assert selection(agent(state, extensions.snapshot())) == ["guard", "files"]


# --- tools ------------------------------------------------------------------------------------------------------------


def test_a_later_tool_of_a_name_stands_in_the_place_of_the_earlier_one() -> None:
    assert reachable(agent({})) == ["read (other's)", "write (plain)", "bash (plain)"]
    assert reachable(agent({"extensions": ["other", "files"]})) == ["read (plain)", "write (plain)"]


FILTERS: list[tuple[Json, list[str]]] = [
    (["bash", "read"], ["bash", "read"]),
    (["bash", "gone", "read", "bash"], ["bash", "read"]),
    ([], []),
    ({"remove": ["read", "gone"]}, ["write", "bash"]),
    ({"remove": []}, ["read", "write", "bash"]),
    ({"add": ["read"]}, ["read", "write", "bash"]),
    ({"add": ["bash"], "remove": ["bash"]}, ["read", "write"]),
]


@pytest.mark.parametrize(("choice", "wanted"), FILTERS)
def test_the_filter_keeps_exactly_an_array_or_drops_what_it_removes(choice: Json, wanted: list[str]) -> None:
    found = agent({"tools": choice})
    assert [tool.name for tool in found.tools] == [tool.name for tool in found.offered] == wanted
    for name in ("read", "write", "bash"):
        assert (found.tool(name) is not None) == (name in wanted)


@pytest.mark.parametrize(("choice", "wanted"), FILTERS)
def test_the_filter_for_the_model_narrows_what_is_offered_and_not_what_is_reached(
    choice: Json, wanted: list[str]
) -> None:
    found = agent({"modelTools": choice})
    assert [tool.name for tool in found.tools] == ["read", "write", "bash"]
    assert [tool.name for tool in found.offered] == wanted


def test_the_model_is_never_offered_what_the_first_filter_dropped() -> None:
    found = agent({"tools": {"remove": ["bash"]}, "modelTools": ["bash", "write"]})
    assert [tool.name for tool in found.tools] == ["read", "write"]
    assert [tool.name for tool in found.offered] == ["write"]
    assert found.tool("bash") is None


# --- wraps ------------------------------------------------------------------------------------------------------------


def marking(mark: str, *targets: str) -> Extension:
    wraps = [
        wrap_tool(target, lambda tool: replace(tool, description=f"{tool.description}{mark}")) for target in targets
    ]
    return Extension(f"marks-{mark}", wraps=wraps)


def test_wraps_apply_to_whichever_tool_won_in_extension_order_then_in_the_extensions_own() -> None:
    first, second = marking("1", "read", "read", "gone"), marking("2", "read")
    installed = Extensions([first, FILES, second, OTHER]).snapshot()
    assert reachable(agent({}, installed)) == ["read (other's112)", "write (plain)"]
    assert reachable(agent({"extensions": ["marks-2", "files", "marks-1"]}, installed)) == [
        "read (plain211)",
        "write (plain)",
    ]


def test_the_filter_comes_after_the_wraps() -> None:
    installed = Extensions([FILES, marking("1", "read")]).snapshot()
    assert reachable(agent({"tools": ["read"]}, installed)) == ["read (plain1)"]


def raising(tool: Tool) -> Tool:
    raise ValueError("broken wrap")


def renaming(tool: Tool) -> Tool:
    return replace(tool, name="better")


def nothing(tool: Tool) -> Tool:
    return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("wrap", "kind", "message"),
    [
        (raising, ValueError, "broken wrap"),
        (renaming, ExtensionRefused, "it gives a tool of the same name"),
        (nothing, ExtensionRefused, "gave None"),
    ],
)
def test_e4_a_wrap_that_raises_or_renames_loses_its_tool_and_is_reported(
    wrap: Callable[[Tool], Tool], kind: type[BaseException], message: str
) -> None:
    breaks = Extension("breaks", wraps=[wrap_tool("read", wrap)])
    installed = Extensions([FILES, breaks, marking("1", "read", "write"), SHELL]).snapshot()
    reports: list[BaseException] = []
    found = resolve({"tools": ["read", "write"]}, installed, None, reports.append)
    assert reachable(found) == ["write (plain1)"]
    assert found.tool("read") is None
    [error] = reports
    assert isinstance(error, kind)
    assert message in str(error)
    assert error.__notes__ == ["in extension 'breaks', its wrap of 'read', which is left out of this resolution"]


def test_e4_a_wrap_that_breaks_loses_its_section_and_is_reported() -> None:
    def raises(found: Section) -> Section:
        raise ValueError("broken")

    breaks = Extension(
        "breaks",
        wraps=[wrap_section("role", raises), wrap_section("cwd", lambda found: replace(found, key="dir"))],
        sections=[said("kept", "x")],
    )
    reports: list[BaseException] = []
    found = resolve({}, Extensions([FILES, breaks]).snapshot(), None, reports.append)
    assert [each.key for each in found.sections] == ["kept"]
    assert [type(error) for error in reports] == [ValueError, ExtensionRefused]


# --- sections ---------------------------------------------------------------------------------------------------------


def test_sections_are_replaced_in_place_then_wrapped_and_instructions_are_last() -> None:
    def shout(found: Section) -> Section:
        return replace(found, render=lambda about: f"{found.render(about)}!", tag=False)

    loud = Extension("loud", wraps=[wrap_section("role", shout), wrap_section("instructions", shout)])
    installed = Extensions([loud, FILES, OTHER]).snapshot()
    found = agent({"instructions": "Be kind."}, installed)
    assert found.instructions == "Be kind."
    assert rendered(found) == [
        ("role", "other's!", False),
        ("cwd", "files", True),
        ("skills", "x", True),
        ("instructions", "Be kind.", True),
    ]


def test_without_instructions_there_is_no_such_section() -> None:
    found = agent({})
    assert found.instructions is None
    assert [each.key for each in found.sections] == ["role", "cwd", "skills"]


# --- hooks ------------------------------------------------------------------------------------------------------------


def test_hooks_stand_in_extension_order_under_the_names_of_their_extensions() -> None:
    assert [(named.extension, named.hooks) for named in agent({}).hooks] == [
        ("shell", SHELL.hooks),
        ("guard", GUARD.hooks),
    ]
    assert [named.extension for named in agent({"extensions": ["guard", "files", "shell"]}).hooks] == ["guard", "shell"]
    assert agent({"extensions": ["files"]}).hooks == ()


# --- the rest, and strangers ------------------------------------------------------------------------------------------


def test_model_thinking_and_cwd_are_what_is_stored() -> None:
    found = agent(
        {"model": {"provider": "p", "modelId": "m/1"}, "thinkingLevel": "high", "cwd": "/src", "instructions": ""}
    )
    assert found.model == ModelRef("p", "m/1")
    assert found.thinking == "high"
    assert found.cwd == "/src"
    assert found.instructions == ""


def test_an_absent_document_leaves_everything_to_the_host() -> None:
    found = agent({}, Installed())
    assert found == Agent()
    assert (found.model, found.thinking, found.cwd) == (None, "off", None)


NO_CHOICE: list[Json] = [None, 5, True, "files", 1.5]
NO_NAMES: list[Json] = [None, 5, "files", {"files": 1}, [5, None, {}, []]]
ILLEGIBLE: dict[str, list[Json]] = {
    **{
        field: [*NO_CHOICE, *({"add": value, "remove": value} for value in NO_NAMES)]
        for field in ("extensions", "tools", "modelTools")
    },
    "model": [
        None,
        5,
        "p/m",
        ["p", "m"],
        {},
        {"provider": "p"},
        {"provider": 1, "modelId": 2},
        {"provider": "", "modelId": "m"},
    ],
    "thinkingLevel": [None, 5, "enormous", "", ["low"], {"level": "low"}],
    "instructions": [None, 5, ["x"], {"x": 1}],
    "cwd": [None, 5, ["x"], {"x": 1}],
    "unknown": [{"anything": [1, 2]}],
}


@pytest.mark.parametrize("field", ILLEGIBLE)
def test_a_strangers_illegible_value_counts_as_unset(field: str) -> None:
    for value in ILLEGIBLE[field]:
        assert agent({field: value}) == agent({}), value


def test_what_is_no_name_in_an_array_names_nothing() -> None:
    found = agent({"extensions": ["files", 5, None], "tools": [{"name": "read"}, "write", 7]})
    assert selection(found) == ["files"]
    assert [tool.name for tool in found.tools] == ["write"]


def test_the_same_state_and_installation_resolve_to_an_equal_agent() -> None:
    state: JsonObject = {"instructions": "x", "tools": {"remove": ["bash"]}, "thinkingLevel": "low"}
    assert agent(state) == agent(state)
