"""The peer's half of the travelling agents: text, as in `conftest.py`, and run by itself: nothing of the peer ever runs
beside ours. Written from the peer's documentation and `help()`, never from its source. `agent_our_side.py` is the other
half; read that one first.
"""

from typing import Final

TEXT: Final = r'''
import asyncio, json, sys, time
from pathlib import Path

from pi_durable import Harness, Model, ToolTask, create_registry, define_extension, define_tool, hook
from pi_durable.context import BACKGROUND_CONTEXT as CTX
from pi_durable.providers.base import ProviderModels
from pi_durable.providers.stream import ProviderStream
from pi_durable.providers.usage import zero_usage
from pi_durable.storage.sqlite.posix import open_posix_sqlite_storage

LIFE, FOLDER, REPORT = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
SEEDED_MS, AN_HOUR_MS = 1_900_000_000_000, 3_600_000
MODEL = {"provider": "scripted", "modelId": "script-1"}

class Outside:
    def __init__(self, name, held):
        self.name, self.held, self.arrived, self.requests = name, set(held), set(), []

    async def touch(self, effect):
        with (FOLDER / f"{self.name}.ledger").open("a", encoding="utf-8") as ledger:
            ledger.write(effect + "\n")
        self.arrived.add(effect)
        await self.hold(effect)

    async def hold(self, place):
        if place in self.held:
            await asyncio.Event().wait()

def halting(storage, outside, halt):
    """The storage, whose owner hears of no commit behind the n-th; it is on disk all the same."""
    if halt is None:
        return storage
    commit, left = storage.commit, [halt if isinstance(halt, int) else 1]
    async def halted(writes, *rest):
        given = list(writes)
        seq = await commit(given, *rest)
        tasks = [write for write in given if "task" in str(write.get("type", write.get("kind")))]
        if isinstance(halt, int):
            left[0] -= 1
        elif any(halt == f"{t['kind']}/{t['state']['status']}" for t in map(record_of, tasks) if t):
            left[0] = 0
        if left[0] <= 0:
            outside.held.add("halted")
            await outside.touch("halted")
        return seq
    storage.commit = halted
    return storage

def record_of(write):
    return next((v for v in write.values() if isinstance(v, dict) and "state" in v), None)

# -- the model

def text_of(message):
    content = message["content"]
    return content if isinstance(content, str) else "".join(b.get("text", "") for b in content)

def shown(message):
    content, said = message["content"], [message["role"]]
    for block in content if not isinstance(content, str) else ():
        if block["type"] == "toolCall":
            said.append([block["id"], block["name"], block["arguments"]])
        else:
            said.append(str(block.get("text")).split("<harness>")[0])
    if isinstance(content, str) and content:
        said.append(content)
    if message["role"] == "system":
        said += [message.get("sections", {}), message.get("toolsAdded", [])]
    if message["role"] == "toolResult":
        said += [message["toolCallId"], message["isError"]]
    return said

def asked_for(messages):
    if any("<conversation>" in text_of(message) for message in messages if message["role"] == "user"):
        return "summary"
    last = [message for message in messages if message["role"] != "system"][-1]
    return f"after {last['toolName']}" if last["role"] == "toolResult" else text_of(last)

def empty(**fields):
    return {"role": "assistant", "content": [], "api": "scripted", "provider": "scripted", "model": "script-1",
            "usage": zero_usage(), "stopReason": "stop", "timestamp": SEEDED_MS, **fields}

class Telling(ProviderStream):
    def __init__(self, outside, script, messages):
        self.outside, self.script, self.messages = outside, script, messages
        super().__init__(empty(stopReason="pending"), signal=None)

    async def _produce(self):
        asked, content = asked_for(self.messages), self.output["content"]
        if asked != "summary":
            self.outside.requests.append([asked, [shown(message) for message in self.messages]])
        await self.outside.touch(f"ask {asked}")
        step = self.script.get(asked, {"say": [f"answer to: {asked}"]})
        for text in step.get("say", ()):
            if not content:
                content.append({"type": "text", "text": ""})
            content[0]["text"] += text
            self.emit("text_delta", content_index=0, delta=text)
            await self.outside.hold(f"said {asked}")
        self.output["stopReason"] = "stop"
        for id, name, arguments in step.get("calls", ()):
            content.append({"type": "toolCall", "id": id, "name": name, "arguments": arguments})
            self.output["stopReason"] = "toolUse"
        if "break" in step:
            raise RuntimeError(step["break"])
        if "defer" in step:
            handle = {"id": step["defer"], "asked": asked, "pollAfterMs": 60_000}
            self.output.update(stopReason="deferred", deferred=handle)

class Teller(ProviderModels):
    api = "scripted"

    def __init__(self, outside, script):
        super().__init__([Model(provider="scripted", model_id="script-1", context_window=200_000, max_tokens=8_000)])
        self.outside, self.script = outside, script

    def stream_simple(self, model, context, options=None):
        return Telling(self.outside, self.script, context["messages"])

    stream = stream_simple

    async def fetch_deferred(self, model, handle, options=None):
        await self.outside.touch(f"fetch {handle['id']}")
        return empty(content=[{"type": "text", "text": f"fetched {handle['id']}"}])

    async def cancel_deferred(self, model, handle, options=None):
        await self.outside.touch(f"cancel {handle['id']}")

# -- tools

def said(text):
    return {"output": [{"type": "text", "text": text}]}

def tools_of(outside):
    async def transfer(args, api, ctx):
        api.output(f"debited {args['amount']:g}\n")
        await api.details({"step": 2}, ctx)
        await outside.touch(f"transfer {args['amount']:g}")
        api.output("credited\n")
        return {}

    async def lookup(args, api, ctx):
        await outside.touch(f"lookup {args['what']}")
        return said(f"{args['what']} is up")

    async def step(args, api, ctx):
        await outside.touch(f"step {args['n']:g}")
        return said(f"took step {args['n']:g}")

    async def delegate(args, api, ctx):
        await outside.touch("delegate")
        child = await api.memo("child", ctx)
        if child is None:
            async def change(tx):
                made = await tx.create_conversation({"ownership": {"kind": "task", "taskId": api.task_id}})
                return made["id"]
            child = await api.commit(change, ctx)
            await api.memo("child", child, ctx)
        talk = await api.conversation(child, ctx)
        asked = await talk.submit(
            {"type": "input", "content": "child job", "requestId": f"delegate:{api.task_id}"}, ctx)
        settled = await asked.wait(ctx)
        return said("child done" if settled["status"] == "done" else "child failed")

    def nested(name):
        async def execute(args, api, ctx):
            await outside.touch(name)
            given = {"what": "inner"} if args["inner"] == "lookup" else {"amount": 7}
            got = await api.execute_tool(args["inner"], given, ctx, {"key": "inner"})
            return said(f"{args['inner']} " + ("failed" if got["isError"] else f"said {got['structuredOutput']}"))
        return execute

    number = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
    text = {"type": "object", "properties": {"inner": {"type": "string"}}, "required": ["inner"]}
    amount = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
    what = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
    made = [
        ("transfer", "Move money", amount, transfer, "unsafe", None),
        ("lookup", "Look something up", what, lookup, "safe", None),
        ("step", "Take a step", number, step, "unsafe", "sequential"),
        ("delegate", "Run a helper", {"type": "object"}, delegate, "safe", None),
        ("outer", "Call another tool", text, nested("outer"), "safe", None),
        ("spend", "Call another tool, once", text, nested("spend"), "unsafe", None),
    ]
    return [define_tool(name=name, description=about, parameters=schema, execute=run, replay=replay,
                        execution_mode=mode) for name, about, schema, run, replay, mode in made]

def hooks_of(outside, world):
    async def before_tool(call, *rest):
        await outside.touch(f"before {call['id']}")
    return [hook(ToolTask, {"beforeTool": before_tool})] if world.get("hooked") else []

# -- a store's life

class Living:
    def __init__(self, outside, harness, root):
        self.outside, self.harness, self.root, self.forks = outside, harness, root, []

    async def ask(self, text, talk=None):
        asked = await (talk or self.root).submit({"type": "input", "content": text}, CTX)
        await asked.wait(CTX)

    async def submit(self, text, id, when=None):
        draft = {"type": "input", "content": text, "requestId": id}
        await self.root.submit({**draft, "whenBusy": when} if when else draft, CTX)

    async def write(self, kind, text, id):
        said = {"role": "user", "content": text, "timestamp": SEEDED_MS}
        await self.root.submit({"type": "write", "entry": {"kind": kind, "model": [said]}, "requestId": id}, CTX)

    async def reach(self, effect):
        while effect not in self.outside.arrived:
            await asyncio.sleep(0.01)

    async def compact(self):
        await self.root.compact(None, CTX)

    async def reset(self, handoff):
        await self.root.reset(handoff, CTX)

    async def fork(self):
        page = await self.root.entries({"conversationId": 1, "order": "descending"}, 1, None, CTX)
        self.forks.append(await self.root.fork(page["items"][0]["id"], {"ownership": {"kind": "ownerless"}}, CTX))

    async def ask_in(self, id, text):
        await self.ask(text, self.forks[0] if id == 0 else await self.harness.conversation(id, CTX))

    async def idle(self):
        await self.harness.wait_for_idle(CTX)

async def live(world, report):
    outside, reports = Outside(world["name"], world["held"]), []
    shift = SEEDED_MS + (LIFE - 1) * AN_HOUR_MS - time.time_ns() // 1_000_000
    storage = await open_posix_sqlite_storage(str(FOLDER / f"{world['name']}.sqlite"), {})
    registry = create_registry()
    registry.install(define_extension(name="world", tools=tools_of(outside), hooks=hooks_of(outside, world)))
    options = {"models": Teller(outside, world["script"]), "registry": registry,
               "settings": {"compaction": {"keep_recent_tokens": 80, "reserve_tokens": 1000},
                            "retry": {"base_delay_ms": 60_000}},
               "now": lambda: time.time_ns() // 1_000_000 + shift,
               "on_report": lambda error, info: reports.append(f"{info}: {error!r}")}
    harness = await Harness.open(halting(storage, outside, world.get("halt")), options, CTX)
    living = Living(outside, harness, await harness.root(CTX, {"agent": {"model": MODEL}}))
    harness.resume()
    for step, *given in world["steps"]:
        await asyncio.wait_for(getattr(living, step)(*given), None if LIFE == 1 else 60)
    if not world["closes"]:
        await asyncio.Event().wait()
    await harness.close(CTX)
    report[world["name"]] = {"requests": outside.requests, "reports": reports}
    with (FOLDER / f"{world['name']}.ledger").open("a", encoding="utf-8") as ledger:
        ledger.write("ended\n")

async def main():
    report = {}
    failed = await asyncio.gather(*(live(world, report) for world in json.load(sys.stdin)), return_exceptions=True)
    for error in failed:
        if error is not None:
            raise error
    REPORT.write_text(json.dumps(report))

asyncio.run(main())
'''

if __name__ == "__main__":
    exec(TEXT)
