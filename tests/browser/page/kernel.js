/* A kernel for tests: what anywidget's model is for a page, played on prepared scenes. Owns no rule of the Lab view. */

/** A transcript of any length, made as it is asked for. */
export function longTranscript(total, conversation = 1) {
  const row = index => ({
    id: index + 1, conversation, role: index % 3 === 1 ? "assistant" : index % 3 === 2 ? "tool" : "user",
    kind: index % 3 === 1 ? "pi.assistant" : index % 3 === 2 ? "pi.tool-result" : "pi.user", state: "whole",
    text: `entry number ${index} ${"said at some length ".repeat(index % 5)}`, old: index < total / 2, new: false, task: null, submission: null,
    forks: [], commit: index + 1 > total - 2 ? 10000000 : 10,
    calls: index % 3 === 1 ? [{id: `c${index}`, name: "look", arguments: "(x: 1)", policy: "safe", task: null, status: "completed", output: "seen", lost: ""}] : [],
  });
  return {total, rows: (start, count) => Array.from({length: Math.max(0, Math.min(count, total - start))}, (_, n) => row(start + n))};
}

export class Kernel {
  constructor(scenes, {transcripts = {}, delay = 0} = {}) {
    this.scenes = scenes;
    this.transcripts = transcripts;
    this.delay = delay;
    this.position = 0;
    this.alive = true;
    this.sent = [];
    this.graph = null; // the picture of all tasks, as the kernel gives it
    this.far = () => null; // a task that no scene lists, by its id
    this.texts = {}; // what is asked for, as JSON -> the whole text
    this.heard = {"change:scene": new Set(), "msg:custom": new Set()};
    this.value = {scene: this.scene()};
  }

  scene() {
    const scene = structuredClone(this.scenes[this.position]), own = this.transcripts[scene.entries.conversation];
    for (const talk of scene.conversations) talk.total = this.transcripts[talk.id]?.total ?? talk.total;
    if (own) {
      const start = Math.max(0, own.total - 60);
      scene.entries = {conversation: scene.entries.conversation, start, total: own.total, rows: own.rows(start, 60)};
    }
    return scene;
  }

  get(name) { return this.value[name]; }
  on(name, what) { this.heard[name].add(what); }
  off(name, what) { this.heard[name].delete(what); }
  tell(message) { for (const what of [...this.heard["msg:custom"]]) what(message, []); }
  put(scene) {
    this.value.scene = scene;
    for (const what of [...this.heard["change:scene"]]) what();
  }

  send(message) {
    this.sent.push(structuredClone(message));
    if (!this.alive) return;
    if (this.delay) setTimeout(() => this.answer(message), this.delay);
    else queueMicrotask(() => this.answer(message));
  }

  read({of, start, count, what, from}) {
    const whole = this.texts[JSON.stringify(of)];
    if (whole === undefined) return {error: "there is no such text at this position"};
    const chars = whole instanceof Array ? whole : [...whole];
    if (what === undefined) return {text: {start: Math.min(start, chars.length), total: chars.length, text: chars.slice(start, start + count).join("")}};
    const at = chars.findIndex((_, n) => n >= from && chars.slice(n, n + [...what].length).join("") === what);
    return {found: at < 0 ? null : at};
  }

  answer({id, ...asked}) {
    const end = this.scenes.length - 1;
    const moves = {next: this.position + 1, back: this.position - 1, finish: end, goto: asked.position, choose: this.position, run: 0};
    if (asked.do === "hello") return this.tell({id, ok: true});
    if (asked.do === "entries") {
      const whole = this.transcripts[asked.conversation], {entries} = this.scenes[this.position];
      const rows = whole ? whole.rows(asked.start, asked.count) : entries.conversation === asked.conversation ? entries.rows.slice(asked.start, asked.start + asked.count) : [];
      return this.tell({id, entries: {conversation: asked.conversation, start: asked.start, total: whole?.total ?? entries.rows.length, rows}});
    }
    if (asked.do === "text" || asked.do === "find") return this.tell({id, ...this.read(asked)});
    if (asked.do === "graph") return this.tell({id, graph: this.graph});
    if (asked.do === "task") {
      const task = this.far(asked.task);
      return this.tell({id, ...(task ? {task} : {error: `there is no task ${asked.task} at this position`})});
    }
    if (this.refuse) return this.tell({id, error: this.refuse});
    this.position = Math.max(0, Math.min(end, moves[asked.do]));
    const scene = this.scene(), {choice} = scene.step;
    if (asked.do === "choose") for (const option of choice.options) option.chosen = option.id === asked.option;
    this.put(scene);
    this.tell({id, ok: true});
  }
}
