"""Changing a conversation's choices: in the stored form, in a commit, and by a tool that adds tools."""

from typing import TYPE_CHECKING

import pytest

from pidurable_nb.agent.extending.configuring import (
    UNCHANGED,
    Adjusted,
    AgentChange,
    Without,
    added_tools,
    apply_change,
    configure,
)
from pidurable_nb.agent.extending.extension import Extension, Extensions
from pidurable_nb.agent.extending.resolution import resolve
from pidurable_nb.agent.stored import live
from pidurable_nb.ids import ConversationId, Json, JsonObject
from pidurable_nb.models.model import ModelRef, Thinking
from pidurable_nb.tools.tool import tool

if TYPE_CHECKING:
    from pidurable_nb import Harness
    from tests.agent.conftest import Home


@tool()
async def read(path: str) -> str:
    """Read a file."""
    return path


@tool()
async def write(path: str) -> str:
    """Write a file."""
    return path


FILES = Extension("files", tools=[read, write])
GUARD = Extension("guard")

# --- The stored form --------------------------------------------------------------------------------------------------

FORMS: list[tuple[AgentChange, JsonObject]] = [
    (AgentChange(), {}),
    (AgentChange(model="p/m"), {"model": {"provider": "p", "modelId": "m"}}),
    (AgentChange(model="p/m/1"), {"model": {"provider": "p", "modelId": "m/1"}}),
    (AgentChange(model=ModelRef("a/b", "m")), {"model": {"provider": "a/b", "modelId": "m"}}),
    (AgentChange(thinking="xhigh"), {"thinkingLevel": "xhigh"}),
    (AgentChange(extensions=[FILES, "guard"]), {"extensions": ["files", "guard"]}),
    (AgentChange(extensions=()), {"extensions": []}),
    (AgentChange(extensions=Adjusted(add=[GUARD])), {"extensions": {"add": ["guard"]}}),
    (AgentChange(extensions=Adjusted(remove=["files"])), {"extensions": {"remove": ["files"]}}),
    (
        AgentChange(extensions=Adjusted(add=["guard"], remove=[FILES])),
        {"extensions": {"add": ["guard"], "remove": ["files"]}},
    ),
    (AgentChange(tools=[read, "bash"]), {"tools": ["read", "bash"]}),
    (AgentChange(tools=[]), {"tools": []}),
    (AgentChange(tools=Without([write, "bash"])), {"tools": {"remove": ["write", "bash"]}}),
    (AgentChange(model_tools=[read]), {"modelTools": ["read"]}),
    (AgentChange(model_tools=Without(["read"])), {"modelTools": {"remove": ["read"]}}),
    (AgentChange(instructions="Be kind."), {"instructions": "Be kind."}),
    (AgentChange(instructions=""), {"instructions": ""}),
    (AgentChange(cwd="/src"), {"cwd": "/src"}),
]


@pytest.mark.parametrize(("change", "wanted"), FORMS)
def test_a_field_that_is_given_is_stored_by_name(change: AgentChange, wanted: JsonObject) -> None:
    assert apply_change({}, change) == wanted


FULL: JsonObject = {
    "model": {"provider": "old", "modelId": "old"},
    "thinkingLevel": "low",
    "extensions": {"add": ["old"], "remove": ["older"]},
    "tools": ["old"],
    "modelTools": ["old"],
    "instructions": "old",
    "cwd": "/old",
    "stranger": {"keeps": "this"},
}


@pytest.mark.parametrize(("change", "wanted"), FORMS)
def test_a_field_that_is_given_replaces_the_stored_one_whole_and_the_others_stay(
    change: AgentChange, wanted: JsonObject
) -> None:
    before = dict(FULL)
    assert apply_change(before, change) == {**FULL, **wanted}
    assert before == FULL


def test_none_clears_and_unchanged_leaves() -> None:
    cleared = AgentChange(
        model=None, thinking=None, extensions=None, tools=None, model_tools=None, instructions=None, cwd=None
    )
    assert apply_change(FULL, cleared) == {"stranger": {"keeps": "this"}}
    assert apply_change({}, cleared) == {}
    assert apply_change(FULL, AgentChange(cwd=UNCHANGED)) == FULL


def test_a_change_shows_only_what_it_changes() -> None:
    assert repr(AgentChange()) == "AgentChange()"
    assert repr(AgentChange(thinking="low", cwd=None)) == "AgentChange(thinking='low', cwd=None)"


@pytest.mark.parametrize("model", ["", "m", "/m", "p/", "/", ModelRef("", "m"), ModelRef("p", "")])
def test_a_model_without_provider_or_name_is_refused_where_the_change_is_made(model: str | ModelRef) -> None:
    with pytest.raises(ValueError, match="name one as 'provider/model'"):
        AgentChange(model=model)


def test_what_cannot_be_a_choice_is_refused_where_the_change_is_made() -> None:
    with pytest.raises(ValueError, match=r"thinking='enormous': one of off, minimal"):
        AgentChange(thinking="enormous")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"extensions='files': a list of names or objects"):
        AgentChange(extensions="files")
    with pytest.raises(ValueError, match=r"tools='read'"):
        AgentChange(tools=Without("read"))
    with pytest.raises(ValueError, match=r"extensions='files'"):
        AgentChange(extensions=Adjusted(add="files"))
    with pytest.raises(ValueError, match="neither a name nor something installed"):
        AgentChange(tools=[5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="neither a name nor something installed"):
        AgentChange(tools=[""])
    with pytest.raises(ValueError, match="instructions=5"):
        AgentChange(instructions=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cwd="):
        AgentChange(cwd=["/"])  # type: ignore[arg-type]


def test_what_is_stored_resolves_to_what_was_chosen() -> None:
    installed = Extensions([FILES, GUARD]).snapshot()
    thinking: Thinking
    for thinking in ("off", "minimal", "low", "medium", "high", "xhigh", "max"):
        state = apply_change({}, AgentChange(model="p/m", thinking=thinking, tools=[write], extensions=[FILES]))
        found = resolve(state, installed, None, lambda error: None)
        assert (found.model, found.thinking, found.tools) == (ModelRef("p", "m"), thinking, (write,))
        assert [extension.name for extension in found.extensions] == ["files"]


def test_an_edit_is_of_the_default_and_never_of_a_stored_selection() -> None:
    state = apply_change({"extensions": ["files"]}, AgentChange(extensions=Adjusted(add=["guard"])))
    found = resolve(state, Extensions([FILES, GUARD]).snapshot(), [], lambda error: None)
    assert [extension.name for extension in found.extensions] == ["guard"]


# --- A commit ---------------------------------------------------------------------------------------------------------


async def stored(h: "Harness", conversation: ConversationId) -> "JsonObject | None":
    return await h.engine.session.snapshot(live.AGENT, live.at(live.AGENT, conversation))


def test_c1_a_change_lands_with_its_block_and_survives_a_restart(home: "Home") -> None:
    async def first() -> None:
        async with home.open() as h:
            root = await h.root()
            async with root.commit() as tx:
                await configure(tx.rows, root.id, AgentChange(model="p/m", tools=Without([write]), cwd="/src"))
                await configure(tx.rows, root.id, AgentChange(cwd=None, thinking="low"))
            assert await stored(h, root.id) == {
                "model": {"provider": "p", "modelId": "m"},
                "tools": {"remove": ["write"]},
                "thinkingLevel": "low",
            }

    async def second() -> None:
        async with home.open() as h:
            root = await h.root()
            async with root.commit() as tx:
                await configure(tx.rows, root.id, AgentChange(tools=None, model=None))
            assert await stored(h, root.id) == {"thinkingLevel": "low"}

    home.run(first())
    home.run(second())


def test_c4_a_block_that_raises_leaves_the_choices_as_they_were(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            with pytest.raises(ValueError, match="changed my mind"):
                async with root.commit() as tx:
                    await configure(tx.rows, root.id, AgentChange(cwd="/src"))
                    raise ValueError("changed my mind")
            assert await stored(h, root.id) == {}

    home.run(main())


def test_a_change_of_nothing_writes_nothing(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            changes: list[object] = []
            h.engine.session.subscribe(changes.append)
            async with root.commit() as tx:
                await configure(tx.rows, root.id, AgentChange())
            assert changes == []
            assert await stored(h, root.id) == {}

    home.run(main())


def test_v3_a_fork_keeps_the_choices_of_its_entry_and_can_change_them_in_the_commit_that_makes_it(
    home: "Home",
) -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            async with root.commit() as tx:
                await configure(tx.rows, root.id, AgentChange(cwd="/one", thinking="low"))
                entry = tx.append("app.note", text="here")
            async with root.commit() as tx:
                await configure(tx.rows, root.id, AgentChange(cwd="/two"))
            async with root.commit() as tx:
                child = await tx.fork(root.id, at=entry)
                await configure(tx.rows, child, AgentChange(thinking=None, tools=[read]))
            assert await stored(h, child) == {"cwd": "/one", "tools": ["read"]}
            assert await stored(h, root.id) == {"cwd": "/two", "thinkingLevel": "low"}

    home.run(main())


# --- A tool that adds tools -------------------------------------------------------------------------------------------

ADDED: list[tuple[Json, list[str], Json]] = [
    (["a"], ["b"], ["a", "b"]),
    (["a"], ["b", "a", "c", "b"], ["a", "b", "c"]),
    ([], ["b"], ["b"]),
    (("a",), ["b"], ["a", "b"]),
    (["a", "b"], ["b"], "nothing"),
    (("a", "b"), ["b", "a"], "nothing"),
    ({"remove": ["a", "b"]}, ["b"], {"remove": ["a"]}),
    ({"remove": ["a", "b", "a"]}, ["a"], {"remove": ["b"]}),
    ({"remove": ["a"]}, ["a"], {"remove": []}),
    ({"remove": ["a"]}, ["c"], "nothing"),
    ({"add": ["x"], "remove": ["a"]}, ["a"], {"add": ["x"], "remove": []}),
    ({"add": ["x"]}, ["a"], "nothing"),
    (["a"], [], "nothing"),
    (None, ["a"], "nothing"),
    ("a", ["b"], "nothing"),
    (5, ["a"], "nothing"),
    ({"remove": "a"}, ["a"], "nothing"),
]


@pytest.mark.parametrize("field", ["tools", "modelTools"])
@pytest.mark.parametrize(("choice", "names", "wanted"), ADDED)
def test_added_tools_join_an_array_and_leave_what_is_removed(
    field: str, choice: Json, names: list[str], wanted: Json
) -> None:
    state: JsonObject = {"cwd": "/", field: choice}
    before = repr(state)
    found = added_tools(state, names)
    assert found == (None if wanted == "nothing" else {"cwd": "/", field: wanted})
    assert repr(state) == before


def test_an_unset_filter_keeps_nothing_back_so_nothing_is_written() -> None:
    assert added_tools({}, ["a"]) is None
    assert added_tools({"cwd": "/"}, ["a"]) is None


def test_an_added_tool_is_offered_by_the_next_resolution() -> None:
    installed = Extensions([FILES]).snapshot()
    state: JsonObject = {"tools": ["read"], "modelTools": {"remove": ["write"]}}
    changed = added_tools(state, ["write"])
    assert changed is not None
    assert resolve(state, installed, None, lambda error: None).offered == (read,)
    assert resolve(changed, installed, None, lambda error: None).offered == (read, write)
