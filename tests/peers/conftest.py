"""What the travelling tests share: the peer's half of the world, and a runner for both halves.

The peer's half is text, written out and run by itself: nothing of the peer ever runs beside ours. It is written
from the peer's documentation and `help()`, never from its source. `our_side.py` is the other half; read that one first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

OUR_SIDE: Final = Path(__file__).parent / "our_side.py"
Told: TypeAlias = dict[str, Any]
"""What a script wrote down as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process that had the store: how it ended, what it told, and what it did outside, in order."""

    code: int
    told: Told
    effects: tuple[str, ...]


class Halves:
    """Runs one life of the world, by `ours` or by `theirs`."""

    def __init__(self, folder: Path) -> None:
        self._scripts = {"ours": OUR_SIDE, "theirs": folder / "their_side.py"}
        self._scripts["theirs"].write_text(THEIR_SIDE, encoding="utf-8")

    def run(self, side: str, command: str, store: Path, was: object = None) -> Life:
        """A new process: `command` on `store`, told `was`. Raises AssertionError when it ended by an error."""
        ledger, report = store.with_suffix(".ledger"), store.with_suffix(".report")
        for left in (ledger, report):
            left.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-X", "utf8", str(self._scripts[side]), command, str(store), str(ledger), str(report)],
            env={**os.environ, "WAS": was if isinstance(was, str) else json.dumps(was)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert report.exists(), f"{side} {command}: {done.returncode}\n{done.stderr}"
        told = json.loads(report.read_text(encoding="utf-8"))
        assert not told.get("reports"), told["reports"]
        effects = tuple(ledger.read_text(encoding="utf-8").splitlines()) if ledger.exists() else ()
        return Life(code=done.returncode, told=told, effects=effects)


@pytest.fixture(scope="session")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Halves:
    return Halves(tmp_path_factory.mktemp("halves"))


THEIR_SIDE: Final = r'''
import asyncio, json, os, signal, sys, time
from pathlib import Path

from pi_durable import (
    Harness, create_registry, define_doc, define_doc_family, define_extension, define_task
)
from pi_durable.context import BACKGROUND_CONTEXT as CTX
from pi_durable.storage.sqlite.posix import open_posix_sqlite_storage

sys.tracebacklimit = 0
COMMAND = sys.argv[1]
STORE, LEDGER, REPORT = map(Path, sys.argv[2:5])
WAS = os.environ.get("WAS", "null")
HELD, arrived, reports = set(), set(), []
SEEDED_MS, AN_HOUR_MS, YEAR_2100_MS = 1_900_000_000_000, 3_600_000, 4_102_444_800_000

async def outside(name, ctx):
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(name + "\n")
    arrived.add(name)
    if name in HELD:
        await ctx.abort_signal.wait()
        ctx.abort_signal.raise_if_aborted()

def running(phase, **fields):
    return {"status": "running", "checkpoint": {"phase": phase, **fields}}

def done(result):
    return {"status": "terminal", "outcome": {"status": "completed", "result": result}}

def of(task):
    return task["input"], task["state"]["checkpoint"]

def becomes(state):
    return lambda tx, task: state

def aborts(reason=None, effect=None):
    async def abort(task, rt, ctx):
        if effect is not None and task["state"]["checkpoint"]["phase"] == "capture":
            await outside(effect.format(task["input"]["n"]), ctx)
        outcome = {"status": "aborted", "reason": reason} if reason else {"status": "aborted"}
        await rt.commit(becomes({"status": "terminal", "outcome": outcome}), ctx)
    return abort

def doc(kind, initial, define=define_doc, **policy):
    return define({"kind": kind, "version": 1, "initial": lambda *_: json.loads(initial), **policy,
                   "checkpoint_when": lambda value, ops, info: info["deltasSinceBase"] > 40
                   if isinstance(info, dict) else False})

Progress = doc("app.progress", '{"ticks": []}', scope="task")
Todo = doc("app.todo", '{"title": "", "items": []}', scope="conversation", history="rewindable", fork="asOf")
Mode = doc("app.mode", '{"mode": ""}', scope="conversation", history="latest", fork="current")
Page = doc("app.page", '{"text": ""}', define_doc_family, scope="conversation", history="latest", fork="initial")
Totals = doc("app.totals", '{"commits": 0}', scope="session")

async def tick(task, rt, ctx):
    given, at = of(task)
    name = f"printed-\u00e9-{at['n']}"
    if await rt.memo(name, ctx) is None:
        await rt.memo(name, True, ctx)
        await outside(f"print {given['label']} {at['n']}", ctx)
    async def change(tx, task):
        progress = await tx.doc(Progress, task["id"])
        progress.ticks.append(at["n"])
        if at["n"] == given["to"]:
            return done(f"counted to {given['to']}")
        return running("tick", n=at["n"] + 1)
    await rt.commit(change, ctx)

async def authorize(task, rt, ctx):
    n = task["input"]["n"]
    await outside(f"authorize {n}", ctx)
    await rt.commit(becomes(running("capture", auth=f"auth-{n}")), ctx)

async def capture(task, rt, ctx):
    n, at = task["input"]["n"], task["state"]["checkpoint"]
    if n == 13:
        error = {"message": "declined", "detail": {"auth": at["auth"]}}
        await rt.commit(becomes({"status": "terminal", "outcome": {"status": "failed", "error": error}}), ctx)
        return
    await outside(f"capture {n}", ctx)
    await rt.commit(becomes(done(f"r-{n}")), ctx)

async def start(task, rt, ctx):
    async def change(tx, task):
        own = {"ownership": {"kind": "task", "taskId": task["id"]}}
        first = task["input"]["first"]
        ids = [await tx.create_task(PAYMENT, {"n": n}, own) for n in range(first, first + 3)]
        return {"status": "waiting", "checkpoint": {"phase": "collect", "payments": ids}, "on": ids,
                "policy": "failFast"}
    await rt.commit(change, ctx)

async def collect(task, rt, ctx):
    found = await rt.outcomes(task["state"]["checkpoint"]["payments"], ctx)
    words = {"completed": "Done", "aborted": "Aborted", "failed": "Failed"}
    await rt.commit(becomes(done([[words[o["status"]], o.get("result")] for o in found])), ctx)

async def nap(task, rt, ctx):
    await rt.sleep_until(task["input"]["untilMs"], {"phase": "wake"}, ctx)

async def wake(task, rt, ctx):
    await rt.commit(becomes(done("awake")), ctx)

async def shaky(task, rt, ctx):
    await outside("shake", ctx)
    await rt.commit(becomes(running("steady")), ctx)

async def steady(task, rt, ctx):
    await outside("steady", ctx)
    await rt.commit(becomes(done("stood")), ctx)

def task(name, first, abort=aborts(), **phases):
    return define_task(name=name, version=1, phases=phases, abort=abort,
                       initial=lambda given: {"phase": first, "n": 1} if first == "tick" else {"phase": first})

TICKER = task("ticker", "tick", tick=tick)
PAYMENT = task("caf\u00e9.paiement", "authorize", aborts("sibling declined", "refund {}"),
               authorize=authorize, capture=capture)
CHECKOUT = task("caf\u00e9.checkout", "start", start=start, collect=collect)
NAP = task("nap", "nap", nap=nap, wake=wake)
SHAKY = task("shaky", "shaky", shaky=shaky, steady=steady)

class World:
    def __init__(self, storage, harness, root, report):
        self.storage, self.harness, self.root, self.report = storage, harness, root, report

    async def start(self, task, given):
        async def change(tx):
            return await tx.create_task(task, given, {"ownership": {"kind": "conversation"}})
        return await self.root.commit(change, CTX)

    async def there(self, *ids, status):
        for id in ids:
            while (await self.harness.get_task(id, CTX))["state"]["status"] != status:
                await asyncio.sleep(0.01)

    async def die(self, *held):
        while not arrived.issuperset(held):
            await asyncio.sleep(0.01)
        REPORT.write_text(json.dumps(self.report))
        os.kill(os.getpid(), signal.SIGKILL)

    async def write(self, id):
        entry = {"kind": "app.asked", "data": id}
        asked = await self.root.submit({"type": "write", "entry": entry, "requestId": id}, CTX)
        settled = await asked.wait(CTX)
        return settled

NOTE = "smile \U0001f600 and f\u00eate"
LONE = {"lone": "\ud800", "reversed": "\udc00\ud83d", "whole": "\U0001f600",
        "\u043a\u043b\u044e\u0447": ["\u00e9", None]}
ASKED = ("req-1", "pri\u00e8re-\U0001f388")

async def seed(w):
    async def first(tx):
        (await tx.doc(Todo, 1)).title = "un \U0001f389"
        said = {"role": "user", "content": NOTE, "timestamp": SEEDED_MS}
        return (await tx.append_entry(1, {"kind": "app.note.\u00e9", "model": [said], "data": LONE}))["id"]
    async def second(tx):
        todo = await tx.doc(Todo, 1)
        todo["title"], todo["items"] = "deux \U0001f389\U0001f389", ["a", "\udfff"]
        (await tx.doc(Mode, 1)).mode = "\u03b1"
        (await tx.doc(Page, 1, "p1", None)).text = "page \u00e9"
        (await tx.doc(Totals)).commits = 2
    entry = await w.root.commit(first, CTX)
    await w.root.commit(second, CTX)
    fork = (await w.root.fork(entry, {"ownership": {"kind": "ownerless"}}, CTX)).id
    async def third(tx):
        (await tx.doc(Mode, 1)).mode = "\u03b2"
        (await tx.doc(Todo, 1))["items"].append("c \U0001f600")
        (await tx.doc(Page, 1, "p1", None)).text = "page \u00e9, plus"
        await tx.append_entry(fork, {"kind": "app.branch", "data": {"n": 1}})
    await w.harness.commit(third, CTX)
    writes = {id: (await w.write(id))["id"] for id in ASKED}
    tasks = {
        "ticker": await w.start(TICKER, {"to": 3, "label": "seed"}),
        "good": await w.start(CHECKOUT, {"first": 1}), "bad": await w.start(CHECKOUT, {"first": 11}),
        "nap": await w.start(NAP, {"untilMs": SEEDED_MS + 60_000}),
        "long": await w.start(NAP, {"untilMs": YEAR_2100_MS}),
    }
    w.report |= {"fork": fork, "entry": entry, "writes": writes, "tasks": tasks}
    await w.there(tasks["nap"], tasks["long"], status="sleeping")
    await w.there(tasks["good"], tasks["bad"], status="waiting")
    for name in ("good", "bad"):
        await w.there((await w.harness.get_task(tasks[name], CTX))["state"]["on"][0], status="terminal")
    await w.die("print seed 2", "capture 2", "authorize 3", "capture 12", "authorize 13")

async def finish(w):
    h, was = w.harness, json.loads(WAS)
    fork = was["fork"]
    w.report["writes"] = {id: (await w.write(id))["id"] for id in ASKED[:1]}
    w.report["docs"] = {
        "todo": await h.snapshot(Todo, 1, CTX), "todo-then": await h.snapshot_as_of(Todo, 1, was["entry"], CTX),
        "todo-fork": await h.snapshot(Todo, fork, CTX), "mode": await h.snapshot(Mode, 1, CTX),
        "mode-fork": await h.snapshot(Mode, fork, CTX), "page": await h.snapshot(Page, 1, "p1", CTX),
        "page-fork": await h.snapshot(Page, fork, "p1", CTX) or {"text": ""}, "totals": await h.snapshot(Totals, CTX),
    }
    for name, id in (("root", 1), ("fork", fork)):
        talk = await h.conversation(id, CTX)
        page = await talk.entries({"conversationId": id, "order": "ascending"}, 100, None, CTX)
        w.report[name] = [
            [e["id"], e["kind"], e["model"][0]["content"] if e.get("model") else None,
             e["data"] if isinstance(e.get("data"), dict) else None]
            for e in page["items"]
        ]
    for name in ("ticker", "good", "bad", "nap"):
        await h.wait_for_task(was["tasks"][name], CTX)
    w.report["long"] = (await h.get_task(was["tasks"]["long"], CTX))["state"]["status"]
    async def change(tx):
        (await tx.doc(Todo, 1))["items"].append("finished")
    await w.root.commit(change, CTX)

async def more(w):
    await w.harness.wait_for_idle(CTX)
    async def change(tx):
        (await tx.doc(Totals)).commits += 1
        (await tx.doc(Todo, 1))["items"].append(WAS)
        said = {"role": "user", "content": WAS, "timestamp": SEEDED_MS}
        return (await tx.append_entry(1, {"kind": "app.visit", "model": [said]}))["id"]
    entry = await w.root.commit(change, CTX)
    fork = (await w.root.fork(entry, {"ownership": {"kind": "ownerless"}}, CTX)).id
    ticker = await w.start(TICKER, {"to": 2, "label": WAS})
    w.report |= {"totals": (await w.harness.snapshot(Totals, CTX))["commits"], "fork": fork, "ticker": ticker}
    await w.die(f"print {WAS} 1")

async def steady_then_die(w):
    await w.die("steady")

async def run_steady(w):
    await w.harness.wait_for_task(json.loads(WAS)["shaky"], CTX)

async def again(w):
    settled = await w.write(ASKED[1])
    pages = [await w.harness.snapshot(Page, 1, key, CTX) for key in ("window", "\u043a\u043b\u044e\u0447")]
    w.report |= {"write": settled["id"], "pages": pages}

async def window(w):
    stays, smile = "abc " * 60, "\U0001f600"
    for text in (f"{smile}{smile}{smile} {stays}", f"{smile} {stays}, qrst", f" {stays}, qrst \U0001f389"):
        async def change(tx):
            (await tx.doc(Page, 1, "window", None)).text = text
            (await tx.doc(Page, 1, "\u043a\u043b\u044e\u0447", None)).text = text
        await w.root.commit(change, CTX)
    await w.write(ASKED[1])

async def nothing(w):
    pass

async def everything(storage):
    """All that the peer itself finds in the store, through its storage."""
    async def scan(method, query):
        items, cursor = [], None
        while True:
            page = await method(query, 7, cursor, CTX)
            items += page["items"]
            cursor = page.get("next")
            if cursor is None:
                return items
    talks = await scan(storage.scan_conversations, {})
    tasks = await scan(storage.scan_tasks, {})
    scopes = [{"kind": "session"}, *({"kind": "conversation", "conversationId": t["id"]} for t in talks),
              *({"kind": "task", "taskId": t["id"]} for t in tasks)]
    documents = []
    for scope in scopes:
        for record in await scan(storage.scan_documents, {"scope": scope, "at": "current"}):
            kept = await storage.document(record["id"], "current", CTX)
            documents.append({**record, "version": kept["version"], "value": kept["value"]})
    transcripts = {
        t["id"]: await scan(storage.scan_entries, {"conversationId": t["id"], "order": "ascending"}) for t in talks
    }
    return {"conversations": talks, "tasks": tasks, "documents": documents, "transcripts": transcripts,
            "submissions": await scan(storage.scan_submissions, {})}

HOLDS = {
    "seed": {"print seed 2", "capture 2", "authorize 3", "capture 12", "authorize 13"},
    "finish": {"capture 12"}, "more": {f"print {WAS} 1"}, "steady_then_die": {"steady"},
}

async def main():
    HELD.update(HOLDS.get(COMMAND, ()))
    shift = (SEEDED_MS if COMMAND == "seed" else SEEDED_MS + AN_HOUR_MS) - time.time_ns() // 1_000_000
    storage = await open_posix_sqlite_storage(str(STORE), {})
    registry = create_registry()
    registry.install(define_extension(name="world", tasks=[TICKER, PAYMENT, CHECKOUT, NAP, SHAKY]))
    options = {"models": {}, "registry": registry, "now": lambda: time.time_ns() // 1_000_000 + shift,
               "on_report": lambda error, info: reports.append(f"{info}: {error!r}")}
    harness = await Harness.open(storage, options, CTX)
    inspection = await harness.inspect(CTX)
    root = await harness.root(CTX)
    world = World(storage, harness, root, {"live": sorted(t["record"]["id"] for t in inspection["tasks"]),
                                           "inspection": inspection})
    if COMMAND != "nothing":
        harness.resume()
    await globals()[COMMAND](world)
    world.report |= {"everything": await everything(storage), "left": await harness.inspect(CTX), "reports": reports}
    await harness.close(CTX)
    REPORT.write_text(json.dumps(world.report))

asyncio.run(main())
'''
