"""Runs of agents travel: what one side was killed in the middle of, the other finishes as the first would have.

Every world is begun by a process that holds many stores and is killed by SIGKILL when each stands at its point; then
both sides finish a copy of it. The one table of expectations holds for all four pairs of who began and who finished.
Where the peer deviates from the format or from the laws, a comment says so.
"""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

pytest.importorskip("pi_durable", reason="the peer is optional: make test PEERS=1")

HERE: Final = Path(__file__).parent
SCRIPTS: Final = {"ours": HERE / "agent_our_side.py", "theirs": HERE / "agent_their_side.py"}
SIDES: Final = ("ours", "theirs")
Step: TypeAlias = "tuple[object, ...]"
Told: TypeAlias = "dict[str, object]"
Script: TypeAlias = "Mapping[str, Mapping[str, object]]"


# -- the points --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where a life ends, and what the next one makes of it.

    The first life takes the `steps`, the model answers by the `script`, and code stands still at what is `held`; with
    `halt` after its n-th commit, or the first one that writes such a task. `live` are the tasks that are not terminal
    there, `shows` is a text that `pi.live` holds by then, `queued` how many submissions wait.

    The second life goes on by `script` and `then`, and takes the steps of `more`. `kinds` is the root transcript
    behind it, `ended` the outcomes of all tasks but generations, `effects` what that life did outside.
    """

    name: str
    steps: tuple[Step, ...] = (("submit", "question", "r1"),)
    script: Script = field(default_factory=dict)
    held: tuple[str, ...] = ()
    halt: int | str | None = None
    hooked: bool = False
    live: tuple[str, ...] = ()
    shows: str | None = None
    queued: int = 0
    then: Script = field(default_factory=dict)
    more: tuple[Step, ...] = ()
    kinds: str = ""
    ended: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()

    def first(self) -> Told:
        return {
            "name": self.name, "steps": self.steps, "script": self.script, "held": self.held, "halt": self.halt,
            "hooked": self.hooked, "closes": not self.live,
        }  # fmt: skip

    def second(self, store: Path) -> Told:
        forks = [id for id, talk in records(store, "conversations").items() if "parent" in talk]
        more = [[forks[0] if given == "fork" else given for given in step] for step in self.more]
        return {
            "name": self.name, "steps": [("idle",), *more, ("idle",)], "script": {**self.script, **self.then},
            "held": (), "hooked": self.hooked, "closes": True,
        }  # fmt: skip


ASKED: Final = ("submit", "question", "r1")
WAITS, RUNS, ASKS = "pi.generation/tools/waiting", "pi.tool/execute/running", "pi.generation/request/running"
TALK: Final = tuple(
    ("ask", f"{n}: " + "a long question about many things, which is worth a summary; " * 3) for n in range(4)
)
TURN, SUMMARY = "user assistant:stop", "It was about many things."
BEGUN: Final = f"user system assistant:stop {TURN} {TURN} {TURN}"
CALLED: Final = "user system assistant:toolUse"


def calls(*asked: tuple[str, str, object]) -> Script:
    return {"question": {"calls": asked}}


LOOKUP: Final = calls(("k1", "lookup", {"what": "here"}))
STEPS: Final = calls(*((f"k{n}", "step", {"n": n}) for n in (1, 2, 3)))

POINTS: Final = (
    Point(
        name="partial", held=("said question",), script={"question": {"say": ["before the kill, ", "behind it"]}},
        live=(ASKS,), shows="before the kill",
        kinds="user system assistant:aborted assistant:stop", effects=("ask question",),
    ),
    Point(
        name="unsafe", held=("transfer 5",), script=calls(("k1", "transfer", {"amount": 5})), live=(WAITS, RUNS),
        shows="debited", kinds=f"{CALLED} result:k1:error assistant:stop", ended=("pi.tool/failed",),
        effects=("ask after transfer",),
    ),
    Point(
        name="safe", held=("lookup here",), script=LOOKUP, live=(WAITS, RUNS),
        kinds=f"{CALLED} result:k1 assistant:stop", ended=("pi.tool/completed",),
        effects=("lookup here", "ask after lookup"),
    ),
    Point(
        name="sequential", held=("step 2",), script=STEPS, live=(WAITS, RUNS),
        kinds=f"{CALLED} result:k1 result:k2:error result:k3 assistant:stop",
        ended=("pi.tool/completed", "pi.tool/failed", "pi.tool/completed"), effects=("step 3", "ask after step"),
    ),
    # Ours may be a commit further than the peer: the result and the generation that it frees are one group.
    Point(
        name="between", halt="pi.tool/terminal", script=STEPS, live=(WAITS,),
        kinds=f"{CALLED} result:k1 result:k2 result:k3 assistant:stop", ended=("pi.tool/completed",) * 3,
        effects=("step 2", "step 3", "ask after step"),
    ),
    Point(
        name="hooked", hooked=True, held=("before k2",), script=STEPS, live=(WAITS, "pi.tool/call/running"),
        kinds=f"{CALLED} result:k1 result:k2 result:k3 assistant:stop", ended=("pi.tool/completed",) * 3,
        effects=("before k2", "step 2", "before k3", "step 3", "ask after step"),
    ),
    Point(
        name="parallel", held=("transfer 3", "lookup b"), live=(WAITS, RUNS, RUNS), shows="debited 3",
        script=calls(
            ("k1", "transfer", {"amount": 1}), ("k2", "lookup", {"what": "b"}), ("k3", "transfer", {"amount": 3})
        ),
        kinds=f"{CALLED} result:k1 result:k3:error result:k2 assistant:stop",
        ended=("pi.tool/completed", "pi.tool/completed", "pi.tool/failed"), effects=("lookup b", "ask after transfer"),
    ),
    Point(
        name="retry", script={"question": {"say": ["partly"], "break": "503 overloaded"}},
        live=("pi.generation/retry/sleeping",), then={"question": {"say": ["now"]}},
        kinds="user system assistant:error assistant:stop", effects=("ask question",),
    ),
    Point(
        name="inbox", held=("lookup here",), script=LOOKUP, live=(WAITS, RUNS), queued=3,
        steps=(ASKED, ("reach", "lookup here"), ("submit", "steered", "r2", "steer"), ("submit", "later", "r3"),
               ("write", "app.note", "noted", "w1")),
        kinds=f"{CALLED} result:k1 app.note user assistant:stop {TURN}", ended=("pi.tool/completed",),
        effects=("lookup here", "ask steered", "ask later"),
    ),
    Point(
        name="summarize", steps=(*TALK, ("compact",)), held=("ask summary",), live=("pi.compaction/summarize/running",),
        then={"summary": {"say": [SUMMARY]}}, more=(("ask", "and now"),),
        kinds=f"{BEGUN} compaction user system assistant:stop", ended=("pi.compaction/completed",),
        effects=("ask summary", "ask and now"),
    ),
    Point(
        name="summary-queued", held=("lookup here",), script={**LOOKUP, "summary": {"say": [SUMMARY]}},
        steps=(*TALK, ASKED, ("reach", "lookup here"), ("compact",)), live=(WAITS, RUNS), queued=1,
        more=(("ask", "and now"),),
        kinds=f"{BEGUN} user assistant:toolUse result:k1 compaction system assistant:stop {TURN}",
        ended=("pi.tool/completed", "pi.compaction/completed"),
        effects=("lookup here", "ask after lookup", "ask and now"),
    ),
    Point(
        name="overflow", steps=(*TALK, ASKED), held=("ask summary",),
        script={"question": {"break": "prompt is too long: 300000 tokens > 200000 maximum"}},
        live=("pi.generation/prepare/waiting", "pi.compaction/summarize/running"),
        then={"question": {"say": ["now"]}, "summary": {"say": [SUMMARY]}},
        kinds=f"{BEGUN} user assistant:error compaction system assistant:stop", ended=("pi.compaction/completed",),
        effects=("ask summary", "ask question"),
    ),
    Point(
        name="subagent", held=("ask child job",), script=calls(("k1", "delegate", {})), live=(WAITS, RUNS, ASKS),
        kinds=f"{CALLED} result:k1 assistant:stop", ended=("pi.tool/completed",),
        effects=("delegate", "ask child job", "ask after delegate"),
    ),
    # Ours came here by the commit that holds the result and the next request: its generation was never at `prepare`.
    Point(
        name="requested", held=("ask after lookup",), script=LOOKUP, live=(ASKS,),
        kinds=f"{CALLED} result:k1 assistant:stop", ended=("pi.tool/completed",), effects=("ask after lookup",),
    ),
    Point(
        name="nested-safe", held=("lookup inner",), script=calls(("k1", "outer", {"inner": "lookup"})),
        live=(WAITS, RUNS, RUNS), kinds=f"{CALLED} result:k1 assistant:stop", ended=("pi.tool/completed",) * 2,
        effects=("lookup inner", "outer", "ask after outer"),
    ),
    Point(
        name="nested-unsafe", held=("transfer 7",), script=calls(("k1", "outer", {"inner": "transfer"})),
        live=(WAITS, RUNS, RUNS), shows="debited 7", kinds=f"{CALLED} result:k1 assistant:stop",
        ended=("pi.tool/completed", "pi.tool/failed"), effects=("outer", "ask after outer"),
    ),
    Point(
        name="nested-given-up", held=("lookup inner",), script=calls(("k1", "spend", {"inner": "lookup"})),
        live=(WAITS, RUNS, RUNS), kinds=f"{CALLED} result:k1:error assistant:stop",
        ended=("pi.tool/failed", "pi.tool/aborted"), effects=("ask after spend",),
    ),
    Point(
        name="deferred", script={"question": {"defer": "job-1"}}, live=("pi.generation/poll/sleeping",),
        kinds="user system assistant:stop", effects=("fetch job-1",),
    ),
    Point(
        name="idle", script=LOOKUP,
        steps=(("ask", "first"), ("ask", "question"), ("reset", "begin anew"), ("ask", "second"), ("fork",),
               ("ask_in", 0, "aside"), ("ask", "third")),
        more=(("ask", "next"), ("ask_in", "fork", "next aside")),
        kinds=f"user system assistant:stop user assistant:toolUse result:k1 assistant:stop reset user system "
              f"assistant:stop {TURN} {TURN}",
        ended=("pi.tool/completed",), effects=("ask next", "ask next aside"),
    ),
)  # fmt: skip


# A turn with a tool and one that waits behind it, cut after each of its commits. The second life asks for both again.
LATER: Final = ("submit", "later", "r2")
SWEPT: Final = tuple(
    Point(
        name=f"commit-{n}", steps=(ASKED, LATER, ("idle",)), script=LOOKUP, halt=n, more=(ASKED, LATER),
        kinds=f"{CALLED} result:k1 assistant:stop {TURN}", ended=("pi.tool/completed",),
    )
    for n in range(1, 21)
)  # fmt: skip


# -- reading a store by nobody's code ----------------------------------------------------------------------------------


def copied(store: Path, into: Path) -> None:
    """The store and what travels with it: opening the original to look would fold its log."""
    into.mkdir(parents=True, exist_ok=True)
    for file in (store, store.with_name(store.name + "-wal"), store.with_suffix(".ledger")):
        if file.exists():
            shutil.copyfile(file, into / file.name)


def read(db: sqlite3.Connection, table: str) -> dict[int, Any]:
    return {id: json.loads(text) for id, text in db.execute(f"SELECT id, record FROM {table} ORDER BY id")}


def records(store: Path, table: str) -> dict[int, Any]:
    with closing(sqlite3.connect(store)) as db:
        return read(db, table)


def ledger(store: Path) -> list[str]:
    file = store.with_suffix(".ledger")
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def live_tasks(tasks: dict[int, Any]) -> Counter[str]:
    return Counter(
        f"{task['kind']}/{task['state'].get('checkpoint', {}).get('phase')}/{task['state']['status']}"
        for task in tasks.values()
        if task["state"]["status"] != "terminal"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """All records of a store."""

    conversations: dict[int, Any]
    entries: dict[int, Any]
    tasks: dict[int, Any]
    submissions: dict[int, Any]
    ids: dict[int, str]
    integrity: str
    ledger: list[str]

    @classmethod
    def of(cls, store: Path) -> Store:
        with closing(sqlite3.connect(store)) as db:
            tables = {name: read(db, name) for name in ("conversations", "entries", "tasks", "submissions")}
            ids = dict(db.execute("SELECT id, record_type FROM record_ids").fetchall())
            (integrity,) = db.execute("PRAGMA integrity_check").fetchone()
        return cls(**tables, ids=ids, integrity=integrity, ledger=ledger(store))

    def transcript(self, conversation: int = 1) -> list[Any]:
        return [entry for entry in self.entries.values() if entry["conversationId"] == conversation]

    @property
    def kinds(self) -> str:
        """The root transcript, in short: answers with how they stopped, results with their call."""
        return " ".join(map(_short, self.transcript()))

    def rows(self) -> Counter[str]:
        """Every record without what no two lives share: numbers, and the sentences of either harness."""
        tables = (self.conversations, self.entries, self.tasks, self.submissions)
        return Counter(json.dumps(_bare(record), sort_keys=True) for table in tables for record in table.values())


def _short(entry: dict[str, Any]) -> str:
    kind, message = entry["kind"].removeprefix("pi."), (entry.get("model") or [{}])[0]
    if kind == "assistant":
        return f"assistant:{message['stopReason']}"
    if kind == "tool-result":
        return f"result:{message['toolCallId']}" + (":error" if message["isError"] else "")
    return str(kind)


def _bare(value: object) -> object:
    match value:
        case {"severity": severity, "code": code}:
            return [severity, code]
        case {"message": str(), **rest}:
            return ["error", _bare(rest)]
        case {"kind": "pi.user", "byTaskId": int(), **rest}:  # by the host, or by the run that it was queued behind
            return _bare({"kind": "pi.user", **rest})
        case dict():
            # The peer writes `details: null`, which the original leaves out; ours remembers the child it made.
            kept = {key: each for key, each in value.items() if each is not None and key != "pi.tool.conversation"}
            return {key: _bare(each) for key, each in kept.items()}
        case list():
            return [_bare(each) for each in value]
        case str():
            return value.split("<harness>")[0]
        case bool():
            return value
        case _:
            return 0


# -- two lives ---------------------------------------------------------------------------------------------------------


def stands(point: Point, store: Path) -> bool:
    """Whether the store has come to its point, and every effect that holds it there has happened."""
    done = set(ledger(store))
    if point.halt is not None or not point.live:
        return not done.isdisjoint({"halted", "ended"})
    if not {held for held in point.held if not held.startswith("said")} <= done:
        return False
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            if live_tasks(read(db, "tasks")) != Counter(point.live):
                return False
            if sum(s["status"] == "queued" for s in read(db, "submissions").values()) != point.queued:
                return False
            sql = "SELECT count(*) FROM document_revisions WHERE instr(content, ?)"
            return point.shows is None or db.execute(sql, (point.shows,)).fetchone() != (0,)
    except sqlite3.OperationalError:  # it is being made
        return False


def start(side: str, life: int, folder: Path, worlds: list[Told]) -> subprocess.Popen[str]:
    with (folder / "errors").open("w", encoding="utf-8") as errors:
        child = subprocess.Popen(
            [sys.executable, "-X", "utf8", str(SCRIPTS[side]), str(life), str(folder), str(folder / "report")],
            stdin=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    assert child.stdin is not None
    with child.stdin as given:
        given.write(json.dumps(worlds))
    return child


def begin(side: str, folder: Path, points: Sequence[Point]) -> int:
    """One process begins all worlds, and is killed when each stands at its point. Gives how it ended."""
    folder.mkdir(parents=True, exist_ok=True)
    child = start(side, 1, folder, [point.first() for point in points])
    left, until = list(points), time.monotonic() + 60
    try:
        while left and time.monotonic() < until and child.poll() is None:
            left = [point for point in left if not stands(point, folder / f"{point.name}.sqlite")]
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    errors = (folder / "errors").read_text(encoding="utf-8")
    assert not left, f"{side} never came to {[point.name for point in left]}\n{errors}"
    return child.returncode


def finish(side: str, folder: Path, points: Sequence[Point]) -> dict[str, Any]:
    child = start(side, 2, folder, [point.second(folder / f"{point.name}.sqlite") for point in points])
    code = child.wait(timeout=90)
    assert code == 0, f"{side}: {(folder / 'errors').read_text(encoding='utf-8')}"
    told: dict[str, Any] = json.loads((folder / "report").read_text(encoding="utf-8"))
    return told


Way: TypeAlias = "tuple[Point, str, str]"
WAYS: Final[tuple[Way, ...]] = (
    *((point, one, two) for point in POINTS for one in SIDES for two in SIDES),
    *((point, one, two) for point in SWEPT for one, two in (SIDES, SIDES[::-1])),
)
"""What is begun and finished, and by whom: the points also by one side alone, to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """One world that `one` was killed over and `two` finished, with what the model of the second life was asked."""

    point: Point
    died: Store
    ended: Store
    requests: list[Any]
    reports: list[str]

    @property
    def effects(self) -> Counter[str]:
        """What the second life did outside."""
        return Counter(self.ended.ledger[len(self.died.ledger) : -1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Travelled:
    """All worlds, and how the processes ended that began them."""

    codes: tuple[int, ...]
    journeys: Mapping[tuple[str, str, str], Journey]

    def of(self, point: Point) -> dict[tuple[str, str], Journey]:
        return {(one, two): found for (name, one, two), found in self.journeys.items() if name == point.name}


@pytest.fixture(scope="module")
def travelled(tmp_path_factory: pytest.TempPathFactory) -> Travelled:
    folder = tmp_path_factory.mktemp("travelled")
    pairs = [(one, two) for one in SIDES for two in SIDES]
    taken = {(one, two): [point for point, *way in WAYS if way == [one, two]] for one, two in pairs}
    with ThreadPoolExecutor(2) as pool:
        codes = tuple(pool.map(lambda side: begin(side, folder / side, (*POINTS, *SWEPT)), SIDES))
        for (one, two), points in taken.items():
            for point in points:
                copied(folder / one / f"{point.name}.sqlite", folder / one / two)
        told = dict(zip(pairs, pool.map(lambda p: finish(p[1], folder / p[0] / p[1], taken[p]), pairs), strict=True))
    died = {(p.name, side): Store.of(folder / side / f"{p.name}.sqlite") for p in (*POINTS, *SWEPT) for side in SIDES}
    journeys = {
        (point.name, one, two): Journey(
            point=point, died=died[point.name, one],
            ended=Store.of(folder / one / two / f"{point.name}.sqlite"), **told[one, two][point.name],
        )
        for point, one, two in WAYS
    }  # fmt: skip
    return Travelled(codes=codes, journeys=journeys)


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0].name}-{way[1]}-then-{way[2]}")
def journey(request: pytest.FixtureRequest, travelled: Travelled) -> Journey:
    point, one, two = request.param
    return travelled.journeys[point.name, one, two]


# -- what holds --------------------------------------------------------------------------------------------------------


def test_t7_every_process_was_killed_at_its_points(travelled: Travelled) -> None:
    assert travelled.codes == (-signal.SIGKILL, -signal.SIGKILL)
    for pair in (("ours", "theirs"), ("theirs", "ours")):
        swept = [travelled.of(point)[pair].died for point in SWEPT]
        assert (len(swept[0].tasks), swept[-1].kinds) == (0, SWEPT[-1].kinds)
        assert sum("halted" in store.ledger for store in swept) > 8


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_where_a_life_was_cut_both_sides_have_written_the_same_records(point: Point, travelled: Travelled) -> None:
    found = travelled.of(point)
    ours, theirs = found["ours", "theirs"].died, found["theirs", "ours"].died
    if point.name == "between":
        assert Counter(t["kind"] for t in ours.tasks.values()) == Counter(t["kind"] for t in theirs.tasks.values())
        assert ours.kinds == theirs.kinds
        return
    assert live_tasks(ours.tasks) == live_tasks(theirs.tasks) == Counter(point.live)
    assert ours.rows() == theirs.rows()


def test_v1_the_transcript_is_that_of_a_run_whoever_began_and_finished_it(journey: Journey) -> None:
    assert journey.ended.kinds == journey.point.kinds
    assert journey.reports == []


def test_t6_tasks_and_submissions_end_the_same_on_every_way(journey: Journey) -> None:
    outcomes = [(task["kind"], task["state"].get("outcome", {}).get("status")) for task in journey.ended.tasks.values()]
    assert {status for kind, status in outcomes if kind == "pi.generation"} == {"completed"}
    assert [f"{kind}/{status}" for kind, status in outcomes if kind != "pi.generation"] == list(journey.point.ended)
    assert {submission["status"] for submission in journey.ended.submissions.values()} == {"done"}


def test_e6_the_second_life_does_outside_what_its_verdicts_allow(journey: Journey) -> None:
    if journey.point not in SWEPT:
        assert journey.effects == Counter(journey.point.effects)
        return
    both = Counter(effect for effect in journey.ended.ledger if effect not in {"halted", "ended"})
    assert both.keys() == {"ask question", "lookup here", "ask after lookup", "ask later"}
    assert both.total() <= 5  # at most what was going on at the kill has happened twice


def test_s1_no_input_is_lost_and_none_is_answered_twice(journey: Journey) -> None:
    store = journey.ended
    inputs = [submission for submission in store.submissions.values() if submission["type"] == "input"]
    placed = [submission["entry"] for submission in inputs]
    assert sorted(placed) == [id for id, entry in store.entries.items() if entry["kind"] == "pi.user"]
    for submission in inputs:
        answer = store.entries[submission["answer"]]
        assert (answer["kind"], answer["model"][0]["stopReason"]) == ("pi.assistant", "stop")
        assert answer["conversationId"] == submission["conversationId"]
        assert submission["entry"] < submission["answer"]
    requests = [(s["conversationId"], s["requestId"]) for s in store.submissions.values() if "requestId" in s]
    assert len(requests) == len(set(requests))


def test_v2_every_call_has_one_result_and_every_request_has_it_directly_behind(journey: Journey) -> None:
    stored = [entry["model"][0] for entry in journey.ended.entries.values() if entry.get("model")]
    asked = [b["id"] for m in stored if m["role"] == "assistant" for b in m["content"] if b["type"] == "toolCall"]
    assert Counter(asked) == Counter(m["toolCallId"] for m in stored if m["role"] == "toolResult")
    for _, messages in journey.requests:
        awaited: list[str] = []
        for role, *said in messages:
            if role == "toolResult":
                assert awaited.pop(0) == said[-2]
                continue
            assert awaited == []
            awaited = [block[0] for block in said if isinstance(block, list)] if role == "assistant" else []
        assert awaited == []


def test_c6_ids_go_on_none_comes_twice_and_the_file_is_whole(journey: Journey) -> None:
    was, now = journey.died.ids, journey.ended.ids
    assert journey.ended.integrity == "ok"
    assert now.items() >= was.items()
    assert all(id > max(was, default=0) for id in now.keys() - was.keys())


@pytest.mark.parametrize("point", [*POINTS, *SWEPT], ids=lambda point: point.name)
def test_t6_both_sides_make_the_same_records_of_what_either_began(point: Point, travelled: Travelled) -> None:
    first, *others = (found.ended.rows() for found in travelled.of(point).values())
    assert others == [first] * len(others)
    assert others


def _prompt_first(messages: list[Any]) -> list[Any]:
    """The peer lets the prompt that is written behind a compaction lead the request, as its documentation of 1.4 says;
    to us it stands where it was written, and moves only before messages of the user. Nothing else differs.
    """
    prompts = [index for index, (role, *_) in enumerate(messages) if role == "system"]
    return [messages[prompts[0]], *messages[: prompts[0]], *messages[prompts[0] + 1 :]] if prompts else messages


@pytest.mark.parametrize("one", SIDES)
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_v2_both_sides_ask_the_model_the_same(point: Point, one: str, travelled: Travelled) -> None:
    ours, theirs = (
        [(asked, _prompt_first(messages)) for asked, messages in travelled.of(point)[one, two].requests]
        for two in SIDES
    )
    assert ours == theirs


# -- many lives --------------------------------------------------------------------------------------------------------


def test_s1_a_turn_that_dies_on_both_sides_in_turn_is_answered_once(tmp_path: Path) -> None:
    relays = tuple(
        Point(name=f"relay-{n}", steps=(ASKED, LATER, ("idle",)), script=LOOKUP, halt=n) for n in range(4, 8)
    )
    left, done = list(relays), {point.name: Counter[str]() for point in relays}
    for side in SIDES * 6:
        assert begin(side, tmp_path, left) == -signal.SIGKILL
        for point in tuple(left):
            marks = ledger(tmp_path / f"{point.name}.sqlite")
            done[point.name].update(marks)
            (tmp_path / f"{point.name}.ledger").unlink()
            if "ended" in marks:
                left.remove(point)
        if not left:
            break
    assert left == []
    for point in relays:
        store, effects = Store.of(tmp_path / f"{point.name}.sqlite"), done[point.name]
        assert [part for part in store.kinds.split() if part != "assistant:aborted"] == SWEPT[0].kinds.split()
        assert [submission["status"] for submission in store.submissions.values()] == ["done", "done"]
        deaths = effects.pop("halted", 0)
        assert deaths > 1
        assert effects.pop("ended") == 1
        assert effects.total() <= 4 + deaths
