"""What a person sees and presses in the Lab view: a real chromium, and a kernel played on prepared scenes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # ships no annotations
from playwright.sync_api import expect

from tests.browser.seat import Seat, Seats

FORK = [
    {
        "id": 7, "conversation": 1, "role": "user", "kind": "pi.user", "state": "whole", "text": "Where is it?",
        "old": True, "new": False, "task": None, "submission": None, "forks": [], "commit": 3, "calls": [],
    },
    {
        "id": 15, "conversation": 14, "role": "user", "kind": "pi.user", "state": "whole", "text": "A voucher instead?",
        "old": False, "new": False, "task": None, "submission": None, "forks": [], "commit": 9, "calls": [],
    },
]  # fmt: skip


def at(seat: Seat, position: int, kernel: int = 0) -> None:
    """Wait until a position is on the page."""
    words = f"Step {position} of 9" if position else "Before any step"
    expect(seat.page.locator(".pi-lab").nth(kernel).locator(".eyebrow span").first).to_have_text(words)


def begin(seat: Seat, **options: object) -> None:
    """A lab with the focus on Next."""
    seat.start(**options)
    seat.page.locator("[data-k=next]").first.focus()


# --- Keys -----------------------------------------------------------------------------------------------------------


def test_arrows_step_and_home_and_end_jump(seat: Seat) -> None:
    begin(seat)
    seat.press("ArrowRight")
    at(seat, 1)
    seat.press("ArrowRight")
    at(seat, 2)
    assert seat.text(".say") == "The refund is not run again. It is unsafe, so the model is told it was cut off."
    seat.press("ArrowLeft")
    at(seat, 1)
    seat.press("End")
    at(seat, 9)
    assert seat.focused() == "back", "Next is dead at the end, so the focus goes to what is alive"
    seat.press("Home")
    at(seat, 0)
    assert seat.focused() == "next"
    assert seat.presses() == ["next", "next", "back", "goto", "goto"]


def test_presses_queue_behind_a_slow_kernel(seat: Seat) -> None:
    begin(seat, delay=700)
    seat.press("ArrowRight", "ArrowRight", "ArrowRight")
    expect(seat.page.locator("[data-k=next]")).to_have_text("waiting for the kernel")
    at(seat, 3)
    expect(seat.page.locator("[data-k=next]")).to_have_text("Next")
    assert seat.presses() == ["next"] * 3


def test_keys_of_the_lab_reach_nobody_else(seat: Seat) -> None:
    seat.page.evaluate("document.addEventListener('keydown', event => { (window.leaked ??= []).push(event.key); })")
    begin(seat)
    seat.press("ArrowRight", "ArrowLeft", "Home", "End", "p", "p", "Escape", "x", "ArrowDown", "Control+a", "Tab")
    assert seat.page.evaluate("window.leaked") is None, "a notebook takes the focus at any key that reaches it"
    assert seat.page.locator(".pi-lab").get_attribute("data-lm-suppress-shortcuts") == "true"


def test_numbers_choose_and_what_is_impossible_stays_unchosen(seat: Seat) -> None:
    begin(seat)
    seat.press("End", "ArrowLeft")
    at(seat, 8)
    seat.press("2")
    seat.press("4")
    expect(seat.page.locator(".choice label.on")).to_contain_text("Assume it did not")
    chosen = [message["option"] for message in seat.sent() if message["do"] == "choose"]
    assert chosen == ["not"], "the second option has a reason why it is impossible"
    assert seat.page.locator(".choice input").nth(1).is_disabled()


def test_play_goes_on_by_itself_and_any_move_stops_it(seat: Seat) -> None:
    begin(seat)
    seat.press("p")
    expect(seat.page.locator("[data-k=play]")).to_have_text("Pause")
    at(seat, 1)
    at(seat, 2)
    seat.press("ArrowLeft")
    expect(seat.page.locator("[data-k=play]")).to_have_text("Play")
    at(seat, 1)


def test_the_scrubber_is_a_named_slider_that_says_its_step(seat: Seat) -> None:
    begin(seat)
    slider = seat.page.get_by_role("slider", name="Step of the recovery")
    slider.focus()
    seat.press("ArrowRight", "ArrowRight")
    at(seat, 2)
    assert slider.get_attribute("aria-valuetext") == "Step 2 of 9: interrupt, task 21, refund"
    seat.press("End")
    at(seat, 9)
    assert seat.focused() == "range"
    assert {message["do"] for message in seat.sent() if message["do"] != "entries"} == {"goto"}


def test_up_and_down_move_in_the_task_tree_without_a_step(seat: Seat) -> None:
    begin(seat)
    seat.page.locator("[data-k=t21]").focus()
    seat.press("ArrowDown")
    assert seat.focused() == "t22"
    seat.press("Enter")
    expect(seat.page.locator(".head .pin")).to_contain_text("showing task 22")
    assert seat.focused() == "t22"
    assert seat.presses() == []


# --- One selection --------------------------------------------------------------------------------------------------


def test_one_selection_shows_everywhere_until_the_next_step_or_escape(seat: Seat) -> None:
    begin(seat)
    seat.page.locator("[data-k=t23]").click()
    expect(seat.page.locator(".task .blk h3").first).to_contain_text("Task 23")
    assert seat.page.locator(".tt li.sel-l").count() == 1
    assert seat.page.locator(".lt tr.on th").inner_text() == "mail receipt"
    assert seat.page.locator(".tl .m.sel bdi").first.inner_text() == "17"
    seat.press("Escape")
    expect(seat.page.locator(".head .pin")).to_be_empty()
    expect(seat.page.locator(".task .blk h3").first).to_contain_text("Task 21")
    seat.page.locator("[data-k=u24]").click()
    expect(seat.page.locator(".head .pin")).to_contain_text("showing submission 24")
    seat.press("ArrowRight")
    at(seat, 1)
    expect(seat.page.locator(".head .pin")).to_be_empty()


def test_choosing_a_conversation_changes_only_the_left_column(seat: Seat) -> None:
    begin(seat, fork=FORK)
    before = seat.text(".now")
    seat.page.locator("[data-k=v14]").click()
    expect(seat.page.locator(".tr")).to_contain_text("A voucher instead?")
    assert "pi.agent as of 11" in seat.text(".conv .pol")
    assert "No task is copied" in seat.text(".conv .pol")
    assert seat.text(".ib") == "Empty: an inbox is not copied by a fork."
    assert seat.text(".now") == before
    seat.page.locator(".forks g[data-conv='1'] text").click()
    expect(seat.page.locator(".tr")).to_contain_text("Where is my order A-17?")


def test_focus_stays_where_it_was_when_a_scene_comes(seat: Seat) -> None:
    begin(seat)
    for key in ("e20", "t22", "u17", "c5", "frefund", "next"):
        seat.page.locator(f"[data-k={key}]").focus()
        seat.page.evaluate("lab.kernels[0].answer({do: 'next', id: 1})")
        seat.page.evaluate("new Promise(done => setTimeout(done, 80))")
        assert seat.focused() == key


# --- The transcript -------------------------------------------------------------------------------------------------


def test_ten_thousand_entries_are_at_most_two_hundred_nodes(seat: Seat, measured: Callable[[str], None]) -> None:
    first = seat.start(entries=10_000)
    assert seat.nodes() <= 200
    assert "entry number 9999" in seat.text(".tr")
    assert seat.page.locator(".tr li").last.get_attribute("aria-posinset") == "10000"
    assert seat.page.locator(".tr li").last.get_attribute("aria-setsize") == "10000"
    for place in (0, 0.5, 0.123, 1):
        seat.page.evaluate(
            "place => { const box = document.querySelector('.tr'); box.scrollTop = place * box.scrollHeight; }", place
        )
        expect(seat.page.locator(".tr li.ph")).to_have_count(0)
        seat.page.wait_for_function("document.querySelectorAll('.tr li').length > 5")
        assert seat.nodes() <= 200
        shown = seat.page.locator(".tr .id").all_inner_texts()
        assert [int(id) for id in shown] == list(range(int(shown[0]), int(shown[0]) + len(shown))), "no gap, in order"
        box = seat.page.locator(".tr").bounding_box()
        last = seat.page.locator(".tr li").last.bounding_box()
        assert box is not None
        assert last is not None
        assert last["y"] + last["height"] >= box["y"] + box["height"] - 20, "rows reach to the lower edge"
    jump = seat.page.evaluate(
        """async () => {
            const box = document.querySelector(".tr"), before = performance.now();
            box.scrollTop = 0.7 * box.scrollHeight;
            const there = () => document.querySelector(".tr .id") && !document.querySelector(".tr li.ph")
                && Number(document.querySelector(".tr .id").textContent) < 9000;
            while (!there()) await new Promise(requestAnimationFrame);
            return performance.now() - before;
        }"""
    )
    measured(f"10,000 entries: first paint {first:.0f} ms, jump {jump:.0f} ms")


def test_the_transcript_asks_for_windows_and_keeps_the_crash_in_view(seat: Seat) -> None:
    begin(seat, entries=10_000)
    expect(seat.page.locator(".tr .kill")).to_be_in_viewport()
    seat.page.evaluate("document.querySelector('.tr').scrollTop = 0")
    expect(seat.page.locator(".tr")).to_contain_text("entry number 0 ")
    asked = [message for message in seat.sent() if message["do"] == "entries"]
    assert asked[-1]["conversation"] == 1
    assert asked[-1]["start"] == 0
    assert len(asked) <= 3


def test_up_and_down_walk_the_transcript_beyond_its_edge(seat: Seat) -> None:
    begin(seat, entries=1000)
    seat.page.locator("[data-k=e1000]").focus()
    for _ in range(40):
        seat.press("ArrowUp")
        seat.page.evaluate("new Promise(requestAnimationFrame)")
    key = seat.focused()
    assert key.startswith(("e97", "d97")), key
    assert seat.nodes() <= 200
    assert seat.page.locator(f"[data-k='{key}']").is_visible()


def test_a_call_opens_on_its_own_subject_and_by_hand(seat: Seat) -> None:
    begin(seat)
    assert seat.page.locator(".tr details[open]").count() == 1, "the call that the step is about"
    assert "not committed" in seat.text(".tr details[open]")
    seat.page.locator(".tr summary").nth(1).click()
    expect(seat.page.locator(".tr details[open]")).to_have_count(2)
    expect(seat.page.locator(".tr details").nth(1)).to_contain_text('order: "A-17"')


# --- Foreign text ---------------------------------------------------------------------------------------------------


def test_hostile_text_is_inert_and_visible_at_every_step(seat: Seat) -> None:
    begin(seat, change="scenes.forEach((scene, n) => { scenes[n] = lab.poison(scene); })")
    for position in range(10):
        at(seat, position)
        found = seat.page.evaluate("lab.inspect(0)")
        assert found == {"elements": 0, "handlers": 0, "acting": 0, "loose": [], "shown": True}, position
        if position < 9:
            seat.press("ArrowRight")


def test_long_text_is_cut_and_says_its_size(seat: Seat) -> None:
    begin(
        seat,
        change="""for (const scene of scenes) {
            scene.entries.rows.at(-1).text = 'x'.repeat(100000);
            scene.store = 'y'.repeat(500);
        }""",
    )
    assert "100,000 characters, read" in seat.text(".tr")
    assert "(500 characters)" in seat.text(".head")
    assert seat.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing widens the page"


# --- Kernels --------------------------------------------------------------------------------------------------------


def test_a_kernel_that_answers_nothing_is_said_to_be_gone(seat: Seat) -> None:
    seat.page.clock.install()
    begin(seat, alive=False)
    seat.page.clock.fast_forward(3500)
    expect(seat.page.locator(".say")).to_have_text("The kernel was restarted. Run %pi lab refund again.")
    assert seat.page.locator("[data-k=next]").is_disabled()
    assert seat.page.locator("[data-k=range]").is_disabled()
    assert "order_policy" in seat.text(".tt"), "the facts stay"
    seat.page.locator("[data-k=t22]").click()
    expect(seat.page.locator(".head .pin")).to_contain_text("showing task 22")
    assert seat.text("[role=status]") == "The kernel was restarted."


def test_a_restart_is_noticed_at_the_next_press(seat: Seat) -> None:
    seat.page.clock.install()
    begin(seat)
    seat.press("ArrowRight")
    seat.page.clock.fast_forward(20000)
    at(seat, 1)
    seat.page.evaluate("lab.kernels[0].alive = false")
    seat.press("ArrowRight")
    seat.page.clock.fast_forward(3500)
    expect(seat.page.locator(".say")).to_contain_text("The kernel was restarted.")


def test_a_busy_kernel_is_waited_for_and_not_called_restarted(seat: Seat) -> None:
    seat.page.clock.install()
    begin(seat, alive=False)
    seat.page.evaluate("lab.kernels[0].widget_manager = {kernel: {status: 'busy'}}")
    seat.page.clock.fast_forward(3500)
    seat.page.clock.fast_forward(3500)
    expect(seat.page.locator(".say")).to_contain_text("The process died after the bank")
    assert not seat.page.locator("[data-k=next]").is_disabled()


def test_an_error_of_a_step_is_said_and_the_scene_stays(seat: Seat) -> None:
    begin(seat)
    seat.page.evaluate("lab.kernels[0].refuse = 'the storage failed: <b>disk full</b>'")
    seat.press("ArrowRight")
    expect(seat.page.locator(".failed")).to_have_text("the storage failed: <b>disk full</b>")
    at(seat, 0)
    assert "disk full" in seat.text("[role=status]")
    seat.page.evaluate("lab.kernels[0].refuse = ''")
    seat.press("ArrowRight")
    at(seat, 1)
    expect(seat.page.locator(".failed")).to_have_count(0)


def test_words_replace_the_sentence_and_leave_the_facts(seat: Seat) -> None:
    begin(
        seat,
        change="""scenes.splice(1);
            Object.assign(scenes[0], {words: 'Nothing to recover: every task had ended.', next: null, last: 0});""",
    )
    assert seat.text(".say") == "Nothing to recover: every task had ended."
    assert seat.page.locator(".tl .m").count() > 10
    assert seat.page.locator("[data-k=next]").is_disabled()


def test_a_flood_of_scenes_is_drawn_at_most_thirty_times_a_second(seat: Seat) -> None:
    begin(seat)
    drawn = seat.page.evaluate(
        """async () => {
            let drawn = 0;
            const watch = new MutationObserver(() => drawn++);
            watch.observe(document.querySelector(".pi-lab .now"), {childList: true});
            const kernel = lab.kernels[0], until = performance.now() + 500;
            while (performance.now() < until) {
                kernel.position = (kernel.position + 1) % 10;
                kernel.put(kernel.scene());
                await new Promise(done => setTimeout(done, 1));
            }
            return drawn;
        }"""
    )
    assert 1 <= drawn <= 15


def test_two_labs_on_a_page_do_not_mix_and_leave_nothing_behind(seat: Seat) -> None:
    seat.start()
    seat.start()
    ids = seat.page.evaluate("[...document.querySelectorAll('[id]')].map(el => el.id)")
    assert len(ids) == len(set(ids))
    second = seat.page.locator(".pi-lab").nth(1)
    second.locator("[data-k=next]").click()
    at(seat, 1, kernel=1)
    at(seat, 0, kernel=0)
    assert seat.presses(0) == []
    second.locator("[data-k=t22]").click()
    expect(seat.page.locator(".pi-lab").first.locator(".pin")).to_be_empty()
    seat.page.evaluate("lab.closers.forEach(close => close())")
    assert seat.page.locator(".pi-lab").count() == 0
    left = seat.page.evaluate("lab.kernels.map(kernel => [...Object.values(kernel.heard)].map(one => one.size))")
    assert left == [[0, 0], [0, 0]]


# --- Long things ----------------------------------------------------------------------------------------------------


def test_more_than_forty_commits_fold_and_unfold_by_a_press(seat: Seat) -> None:
    many = "Array.from({length: 300}, (_, n) => ({...s.timeline[1], n: n + 100, label: String(n + 100)}))"
    begin(seat, change=f"for (const s of scenes) s.timeline.splice(4, 0, ...{many})")
    assert seat.page.locator(".tl .m").count() < 40
    fold = seat.page.locator("[data-unfold]").first
    before = seat.page.locator(".tl .m").count()
    fold.click()
    expect(seat.page.locator(".tl .m")).not_to_have_count(before)
    assert seat.page.locator(".tl .x").last.is_visible()
    assert seat.page.locator("[aria-current=step], .tl .x").count() >= 1


def test_a_tree_over_sixty_tasks_folds_what_has_ended(seat: Seat) -> None:
    ended = "{...s.tasks[0], id: 1000 + n, owner: null, state: 'terminal', outcome: 'completed', new: false}"
    many = f"Array.from({{length: 150}}, (_, n) => ({ended}))"
    begin(seat, change=f"for (const s of scenes) {{ s.tasks.push(...{many}); s.totals.tasks = s.tasks.length; }}")
    assert seat.page.locator(".tt li").count() == 5
    seat.page.get_by_role("button", name="150 ended tasks, folded").click()
    assert seat.page.locator(".tt li").count() == 154


def test_forks_are_drawn_up_to_twelve_and_listed_beyond(seat: Seat) -> None:
    one = "{id: 100 + n, parent: {conversation: n % 2 ? 14 : 1, at: 11}, total: 3, policies: []}"
    more = f"for (const s of scenes) s.conversations.push(...Array.from({{length: LENGTH}}, (_, n) => ({one})))"
    begin(seat, change=more.replace("LENGTH", "10"))
    assert seat.page.locator(".forks g").count() == 12
    seat.page.evaluate("lab.closers[0]()")
    begin(seat, change=more.replace("LENGTH", "200"))
    assert seat.page.locator(".forks g").count() == 0
    assert seat.page.locator(".fk button").count() == 202


def test_a_lens_and_a_mismatch_are_said_in_words(seat: Seat) -> None:
    begin(seat, change="scenes[1].step.agreement = 'differs'")
    seat.press("ArrowRight")
    expect(seat.page.locator(".pvr")).to_contain_text("differs: an error of this package")
    seat.press("ArrowRight")
    expect(seat.page.locator(".choice legend")).to_have_text("Suppose that, outside, the refund…")


# --- The crash picker -----------------------------------------------------------------------------------------------


def test_a_run_names_one_point_for_each_life(seat: Seat) -> None:
    second = """for (const s of scenes) {
        const both = ["freeze", "kill"];
        const point = (point, occurrence) => ({point, text: point, kinds: both, occurrence, armed: false});
        s.points.push(point("pi.tool#1/execute:effect.after@2", 2), point("2!pi.tool#1/execute:commit.before", 1));
    }"""
    begin(seat, change=second)
    picker = seat.page.locator(".crash")
    expect(picker).to_be_hidden()
    seat.page.get_by_role("button", name="Crash points, 1 armed").click()
    expect(picker).to_be_visible()
    armed = picker.get_by_role("checkbox", name="pi.tool#1/execute:effect.after bank done")
    expect(armed).to_be_checked()
    picker.get_by_role("spinbutton").locator("visible=true").fill("2")
    picker.get_by_role("checkbox", name="2!pi.tool#1/execute:commit.before").check()
    picker.get_by_role("radio", name="freeze").check()
    expect(picker).to_contain_text("2 armed")
    picker.get_by_role("button", name="Run").click()
    at(seat, 0)
    sent = [message for message in seat.sent() if message["do"] == "run"]
    assert [(message["points"], message["kind"]) for message in sent] == [
        (["pi.tool#1/execute:effect.after@2", "2!pi.tool#1/execute:commit.before"], "freeze")
    ]
    picker.get_by_role("checkbox", name="pi.tool#1/execute:commit intent").check()
    expect(armed).not_to_be_checked()


# --- How it looks ---------------------------------------------------------------------------------------------------

SHAPES = [(1280, False, (0, 2, 8)), (1280, True, (0, 2, 8)), (900, False, (4,)), (560, True, (4,))]


@pytest.mark.parametrize(("width", "dark", "positions"), SHAPES)
def test_no_position_breaks_an_accessibility_rule(
    seats: Seats, shots: Path, width: int, dark: bool, positions: tuple[int, ...]
) -> None:
    seat = seats(width=width, still=True)
    seat.page.evaluate("dark => { document.body.dataset.jpThemeLight = String(!dark); }", dark)
    begin(seat)
    seat.page.get_by_role("button", name="Crash points").click()
    for position in positions:
        seat.page.evaluate("position => lab.kernels[0].answer({do: 'goto', position, id: 1})", position)
        at(seat, position)
        found = Axe().run(seat.page, context=".pi-lab", options={"resultTypes": ["violations"]})
        wrong = [
            (rule["id"], rule["impact"], [node["html"][:160] for node in rule["nodes"][:3]])
            for rule in found.response["violations"]
        ]
        assert wrong == [], (position, width, dark)
        name = f"{width}-{'dark' if dark else 'light'}-{position}.png"
        seat.page.locator(".pi-lab").screenshot(path=shots / name)
        assert seat.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_without_jupyter_the_colours_follow_the_system(seats: Seats) -> None:
    grounds = []
    for dark in (False, True):
        seat = seats(dark=dark)
        seat.page.evaluate("delete document.body.dataset.jpThemeLight")
        begin(seat)
        grounds.append(seat.page.evaluate("getComputedStyle(document.querySelector('.pi-lab')).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 23, 27)"]


def test_nothing_moves_by_itself_with_reduced_motion(seats: Seats) -> None:
    seat = seats(still=True)
    begin(seat)
    seat.press("ArrowRight")
    at(seat, 1)
    assert seat.page.evaluate("document.getAnimations().length") == 0


def test_controls_stay_put_while_the_text_changes(seat: Seat) -> None:
    begin(seat)
    boxes = set()
    for position in itertools.count():
        at(seat, position)
        box = seat.page.locator("[data-k=next]").bounding_box()
        assert box is not None
        boxes.add((box["x"], box["y"]))
        if position == 9:
            break
        seat.press("ArrowRight")
    assert len(boxes) == 1, boxes


def test_with_forced_colours_everything_is_drawn_in_those_of_the_system(seats: Seats, shots: Path) -> None:
    seat = seats(forced=True, dark=True)
    seat.start()
    seat.page.locator("[data-k='next']").focus()
    seat.press("ArrowRight", "ArrowRight")
    expect(seat.page.locator(".eyebrow")).to_contain_text("Step 2")
    colours = seat.page.evaluate(
        """() => {
            const probe = document.body.appendChild(document.createElement("i"));
            const system = name => { probe.style.color = name; return getComputedStyle(probe).color; };
            const drawn = [...document.querySelectorAll(".pi-lab svg :is(path, circle, rect, text)")].flatMap(el => {
                const {fill, stroke} = getComputedStyle(el);
                return [fill, stroke].filter(one => one.startsWith("rgb("));
            });
            const next = getComputedStyle(document.querySelector(".pi-lab [data-k='next']"));
            return {
                strange: drawn.filter(one => ![system("Canvas"), system("CanvasText"), "rgb(0, 0, 0)"].includes(one)),
                next: [next.color, next.backgroundColor], wanted: [system("CanvasText"), system("Canvas")],
            };
        }"""
    )
    assert colours["strange"] == []
    assert colours["next"] == colours["wanted"]
    seat.page.screenshot(path=shots / "forced-colours.png")
