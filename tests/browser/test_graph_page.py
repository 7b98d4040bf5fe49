"""The picture of all tasks in the Lab view: a thousand boxes, selected by click and by key, light, dark, and inert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # ships no annotations
from playwright.sync_api import expect

from pidurable_nb.ids import ConversationId, Json, TaskId
from pidurable_nb.lab.scene.graph import Graph, graph_of
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from tests.browser.seat import Seat, Seats

FIRST = 1001
"""The tasks of the picture; 22, which the scenes list, is among them."""
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">\u202e\u2066\x1b[31mred\x1b[0m\0\u200b&amp;"\''


def record(id: int, state: stored.State, owner: int | None, kind: str = "charge") -> TaskRecord:
    return TaskRecord(
        id=TaskId(id), conversation=ConversationId(1), kind=kind, version=1, input={}, state=state,
        owner=TaskId(owner) if owner is not None else None,
    )  # fmt: skip


def ended(n: int) -> stored.State:
    error = stored.TaskError(message="no")
    outcomes: Sequence[stored.Outcome] = (
        stored.Failed(error=error), stored.Orphaned(reason="no_code"), stored.Faulted(error=error), stored.Aborted(),
    )  # fmt: skip
    return stored.Terminal(outcome=outcomes[n // 10 % 4] if n % 10 == 0 else stored.Completed(result=None))


def thousand(kind: str = "charge", size: int = 1000) -> Graph:
    """An owner that waits for two of its children; one child waits for a task of another; and all that has ended."""
    point = {"phase": "p"}
    live: list[stored.State] = [
        stored.Waiting(checkpoint=point, on=(TaskId(FIRST + 1), TaskId(FIRST + 2)), fail_fast=False),
        stored.Running(checkpoint=point), stored.Sleeping(checkpoint=point, until_ms=1.0),
        stored.Waiting(checkpoint=point, on=(TaskId(22),), fail_fast=False), stored.Pending(checkpoint=point),
    ]  # fmt: skip
    records = [record(22, stored.Running(checkpoint=point), None, kind)]
    for n in range(size - 1):
        owner = None if n == 0 else FIRST if n < 0.6 * size else FIRST + (n - int(0.6 * size)) // 5
        records.append(record(FIRST + n, live[n] if n < 5 else ended(n), owner, kind))
    return graph_of(records, {}, lambda one: one.kind)


FAR = """lab.kernels[0].far = id => id < 2000 || id > 2998 ? null
    : {...lab.kernels[0].scenes[0].tasks[0], id, name: 'told', kind: 'told by the kernel', memos: []}"""


def begin(seat: Seat, graph: Graph | None = None, *, tasks: int = 1000, change: str = "") -> None:
    """A lab of a store with that many tasks, whose kernel has this picture."""
    seat.start(change=f"for (const s of scenes) s.totals.tasks = {tasks}; {change}")
    picture: Json = (graph if graph is not None else thousand()).to_json()
    seat.page.evaluate("picture => { lab.kernels[0].graph = picture; }", picture)
    seat.page.evaluate(FAR.replace("2000", str(FIRST)).replace("2998", str(FIRST + 998)))


def opened(seat: Seat, graph: Graph | None = None, **options: int | str) -> None:
    begin(seat, graph, **options)  # type: ignore[arg-type]  # a number of tasks, or a change
    seat.page.get_by_role("button", name="Draw all").click()
    expect(seat.page.locator(".tk").first).to_be_visible()


def selected(seat: Seat) -> list[str]:
    found: list[str] = seat.page.evaluate(
        "[...document.querySelectorAll('.tk[aria-selected=true]')].map(el => el.dataset.task)"
    )
    return found


def shown(seat: Seat, id: int) -> None:
    """Wait until that task is the selected one, here and in the rest of the lab."""
    expect(seat.page.locator(".head .pin")).to_contain_text(f"showing task {id}")
    expect(seat.page.locator(".task .blk h3").first).to_contain_text(f"Task {id}")
    assert selected(seat) == [str(id)]


def test_a_thousand_tasks_are_drawn_counted_and_light(seat: Seat, measured: Callable[[str], None]) -> None:
    begin(seat)
    took = seat.page.evaluate(
        """async () => {
            const before = performance.now();
            document.querySelector("[data-k=graph]").click();
            while (document.querySelectorAll(".tk").length < 1000) await new Promise(requestAnimationFrame);
            return performance.now() - before;
        }"""
    )
    measured(f"1,000 tasks: drawn in {took:.0f} ms")
    assert seat.page.locator(".tk").count() == 1000
    assert seat.text(".graph h3") == "1,000 tasks"
    assert "895 completed" in seat.text(".graph .rh")
    assert "2 running" in seat.text(".graph .rh")
    most = seat.page.evaluate(
        "Math.max(...[...document.querySelectorAll('.tk')].map(el => 1 + el.querySelectorAll('*').length))"
    )
    assert most <= 4
    assert seat.page.evaluate("document.querySelectorAll('.graph *').length") <= 4 * 1000 + 120
    lines = "kind => document.querySelector(`.graph path.${kind}:not(.own)`).getAttribute('d').match(/M/g).length"
    assert seat.page.evaluate(lines, "owns") == 998
    assert seat.page.evaluate(lines, "waits") == 3 * 3, "each with the two strokes of its tip"
    dashes = "getComputedStyle(document.querySelector('.graph path.waits')).strokeDasharray"
    assert seat.page.evaluate(dashes) == "5px, 3px"


def test_no_box_overlaps_another_on_the_page_at_any_zoom(seat: Seat) -> None:
    opened(seat)
    for key in ("0", "+", "+", "+", "+"):
        seat.press(key)
        overlap = seat.page.evaluate(
            """() => {
                const boxes = [...document.querySelectorAll(".tk")].map(el => el.getBoundingClientRect());
                boxes.sort((a, b) => a.top - b.top);
                return boxes.some((a, n) => boxes.slice(n + 1, n + 300).some(b =>
                    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
            }"""
        )
        assert not overlap


def test_a_click_selects_a_task_that_the_scene_does_not_list(seat: Seat) -> None:
    opened(seat)
    seat.page.locator(f".tk[data-task='{FIRST + 500}']").click()
    shown(seat, FIRST + 500)
    expect(seat.page.locator(".task .blk h3").first).to_contain_text("told by the kernel")
    assert seat.focused() == f"n{FIRST + 500}"
    seat.page.locator(".tk[data-task='22']").click()
    shown(seat, 22)
    assert "order_policy" in seat.text(".tt li.sel-l"), "one selection everywhere"
    asked = [message["task"] for message in seat.sent() if message["do"] == "task"]
    assert asked == [FIRST + 500]
    assert seat.presses() == ["graph", "task"], "selecting takes no step"


def test_arrows_home_and_end_move_the_selection_and_keys_stay_here(seat: Seat) -> None:
    seat.page.evaluate("document.addEventListener('keydown', event => { (window.leaked ??= []).push(event.key); })")
    opened(seat)
    seat.page.locator(f".tk[data-task='{FIRST + 300}']").focus()
    seat.press("Enter")
    shown(seat, FIRST + 300)
    places = """() => Object.fromEntries([...document.querySelectorAll(".tk")].map(el =>
        [el.dataset.task, [parseFloat(el.style.left), parseFloat(el.style.top)]]))"""
    place: dict[str, list[float]] = seat.page.evaluate(places)
    here = str(FIRST + 300)
    for key, axis, sign in (("ArrowRight", 0, 1), ("ArrowDown", 1, 1), ("ArrowLeft", 0, -1), ("ArrowUp", 1, -1)):
        seat.press(key)
        [there] = selected(seat)
        assert (place[there][axis] - place[here][axis]) * sign > 0, key
        assert place[there][1 - axis] == place[here][1 - axis], "in a grid it goes straight"
        here = there
    shown(seat, FIRST + 300)
    seat.press("Home")
    shown(seat, 22)
    seat.press("End")
    shown(seat, FIRST + 998)
    assert seat.page.locator(".tk[tabindex='0']").count() == 1, "one stop for the tab key"
    seat.press("x", "p", "1", "+", "0", "Escape")
    expect(seat.page.locator(".graph")).to_be_hidden()
    assert seat.page.evaluate("window.leaked") is None
    assert set(seat.presses()) == {"graph", "task"}


def test_the_selected_box_is_in_sight_wherever_it_is(seat: Seat) -> None:
    opened(seat)
    seat.press(*["+"] * 8)
    for key in ("End", "Home", "ArrowDown", "End"):
        seat.press(key)
        box, nd = (seat.page.locator(one).bounding_box() for one in (".gb", ".tk[aria-selected=true]"))
        assert box is not None
        assert nd is not None
        assert box["x"] <= nd["x"] <= box["x"] + box["width"] - nd["width"]
        assert box["y"] <= nd["y"] <= box["y"] + box["height"] - nd["height"]


def test_zoom_has_named_buttons_and_shows_names_where_there_is_room(seat: Seat) -> None:
    opened(seat)
    assert seat.page.evaluate(
        "(box => box.scrollWidth <= box.clientWidth && box.scrollHeight <= box.clientHeight)"
        "(document.querySelector('.gb'))"
    ), "all of it is in sight at first"
    name = seat.page.locator(".tk bdi").first
    expect(name).to_be_hidden()
    for _ in range(6):
        seat.page.get_by_role("button", name="Zoom in").click()
    expect(name).to_be_visible()
    assert seat.text(".tk") == "22 charge"
    seat.page.get_by_role("button", name="Zoom out").click()
    seat.page.get_by_role("button", name="Fit all tasks in").click()
    expect(name).to_be_hidden()
    option = seat.page.get_by_role("option", name="Task 1002, charge, running")
    assert option.count() == 1


def test_the_button_and_escape_close_it_and_the_focus_goes_back(seat: Seat) -> None:
    opened(seat)
    expect(seat.page.locator(".tk:focus")).to_have_count(1)
    assert not seat.page.locator(".now").is_visible()
    seat.press("Escape")
    expect(seat.page.locator(".graph")).to_be_hidden()
    assert seat.page.locator(".now").is_visible()
    assert seat.focused() == "graph"
    seat.press("Enter")
    expect(seat.page.locator(".tk:focus")).to_have_count(1)
    seat.page.get_by_role("button", name="Close the drawing").click()
    expect(seat.page.locator(".graph")).to_be_hidden()
    assert seat.page.locator(".tk").count() == 0, "nothing of it stays on the page"


def test_a_step_draws_it_again_and_the_selection_follows_the_step(seat: Seat) -> None:
    opened(seat)
    seat.page.locator(f".tk[data-task='{FIRST + 7}']").click()
    shown(seat, FIRST + 7)
    fewer = graph_of([record(21, ended(0), None), record(22, ended(1), None)], {}, lambda one: one.kind)
    seat.page.evaluate("picture => { lab.kernels[0].graph = picture; }", fewer.to_json())
    seat.page.locator("[data-k=next]").click()
    expect(seat.page.locator(".tk")).to_have_count(2)
    expect(seat.page.locator(".head .pin")).to_be_empty()
    assert [message["do"] for message in seat.sent() if message["do"] == "graph"] == ["graph", "graph"]


def test_what_the_kernel_cannot_give_is_said(seat: Seat) -> None:
    begin(seat)
    seat.page.evaluate("lab.kernels[0].far = () => null")
    seat.page.get_by_role("button", name="Draw all 1,000 tasks").click()
    seat.page.locator(f".tk[data-task='{FIRST + 9}']").click()
    expect(seat.page.locator(".side.task")).to_contain_text(f"there is no task {FIRST + 9} at this position")
    assert seat.page.locator(".tt button[tabindex='0']").count() == 1, "the list stays within reach"
    seat.press("Escape", "Escape")
    expect(seat.page.locator(".task .blk h3").first).to_contain_text("Task 21")


def test_few_tasks_have_no_button(seat: Seat) -> None:
    begin(seat, tasks=60)
    assert seat.page.get_by_role("button", name="Draw all").count() == 0
    seat.page.evaluate("lab.closers[0]()")
    begin(seat, tasks=61)
    assert seat.page.get_by_role("button", name="Draw all 61 tasks").count() == 1


def test_hostile_names_are_inert_and_visible(seat: Seat) -> None:
    opened(seat, thousand(HOSTILE), change="scenes.forEach((s, n) => { scenes[n] = lab.poison(s); })")
    seat.page.locator(f".tk[data-task='{FIRST + 3}']").click()
    shown(seat, FIRST + 3)
    found = seat.page.evaluate("lab.inspect(0)")
    assert found == {"elements": 0, "handlers": 0, "acting": 0, "loose": [], "shown": True}
    assert "<script>alert(1)</script>" in (seat.page.locator(".tk bdi").first.text_content() or "")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (900, False), (560, True)])
def test_the_picture_breaks_no_accessibility_rule(seats: Seats, shots: Path, width: int, dark: bool) -> None:
    seat = seats(width=width, still=True)
    seat.page.evaluate("dark => { document.body.dataset.jpThemeLight = String(!dark); }", dark)
    opened(seat, thousand(size=80))
    seat.page.locator(f".tk[data-task='{FIRST + 3}']").click()
    shown(seat, FIRST + 3)
    theme = "dark" if dark else "light"
    for zoom, keys in (("fit", ()), ("near", ("+",) * 5)):
        seat.press(*keys)
        found = Axe().run(seat.page, context=".pi-lab", options={"resultTypes": ["violations"]})
        wrong = [
            (rule["id"], rule["impact"], [node["html"][:160] for node in rule["nodes"][:3]])
            for rule in found.response["violations"]
        ]
        assert wrong == [], (zoom, width, dark)
        seat.page.locator(".pi-lab").screenshot(path=shots / f"graph-{width}-{theme}-{zoom}.png")
    assert seat.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
