/* The Lab view: one step of a recovery, why it was taken, and every fact that it rests on.
 *
 * Owns what is seen and what is pressed. Never decides what a step does: it asks the kernel, and shows the scene that
 * comes back. Every text of a scene is foreign: it becomes a text node inside <bdi>, with each character that acts or
 * hides made visible, and is never parsed. Nothing is loaded, no id is global, and `destroy` leaves nothing behind.
 *
 * Messages to the kernel carry a number `id`, and one answer repeats it:
 *   {do: next | back | finish | hello}, {do: goto, position}, {do: choose, option}, {do: run, points, kind}
 *   {do: entries, conversation, start, count}            answered by {entries: {conversation, start, total, rows}}
 *   {do: text, of, start, count}, {do: find, of, what, from}    by {text: {start, total, text}}, {found: place | null}
 *   {do: graph}, {do: task, task}       by {graph: {width, height, nodes, edges, total, edges_left}}, {task: as in a scene}
 * Others are answered by {ok}, behind the new value of `scene`, or by {error}; {busy} tells that work began or ended.
 */
import {cut, visible} from "./text.js";
import {foreign, h, icon} from "./elements.js";
import {outside} from "./words.js";
import {SLOTS, places} from "./places.js";
import {Wire} from "./wire.js";
import {Transcript} from "./transcript.js";
import {timeline} from "./timeline.js";
import {conversation} from "./conversation.js";
import {FarTask, taskTree, taskView} from "./tasks.js";
import {Graph} from "./graph.js";
import {now} from "./now.js";
import {layers} from "./layers.js";
import {Picker} from "./picker.js";
import {Reader} from "./reader.js";

const FRAME_MS = 40;
const PLAY_MS = 2200;

const PARTS = ["timeline", "step", "transcript", "forks", "inbox", "tasks", "memos", "effects", "points"];
const KEYS = [[["←", "→"], "step"], [["Home", "End"], ""], [["P"], "play"], [["1", "4"], "choose"], [["Esc"], "follow the step"]];
const LEGEND = [["com", "sq", "committed"], ["", "lost", "not committed"], ["again", "again", "happens again"], ["unk", "unknown", "unknown"], ["int", "int", "interrupted"]];

class Lab {
  constructor(model, el) {
    this.model = model;
    this.uid = `pi-lab-${Math.random().toString(36).slice(2, 10)}`;
    this.scene = null;
    this.pin = null; // what a person picked instead of the subject of the step
    this.picked = null; // and the conversation
    this.skipOpen = this.wholeTree = false;
    this.unfolded = new Set();
    this.slots = SLOTS;
    this.playing = null;
    this.wanted = null; // where the scrubber is to go, while one answer is awaited
    this.drawn = 0;
    this.stamps = {"wire": JSON.stringify([false, ""])};
    this.transcript = new Transcript(this);
    this.picker = new Picker(this);
    this.reader = new Reader(this);
    this.graph = new Graph(this);
    this.far = new FarTask(this);
    this.build();
    this.wire = new Wire(model, () => this.answered());
    this.listen = () => this.schedule();
    model.on("change:scene", this.listen);
    el.append(this.root);
    this.receive();
    this.wire.look();
  }

  build() {
    const {uid} = this, at = this.at = {};
    const section = (name, label, ...children) => h(`section.${name}`, {"aria-labelledby": `${uid}-${label}`}, ...children);
    at.back = h("button.b", {"data-act": "back", "data-k": "back"}, "Back");
    at.next = h("button.b.p", {"data-act": "next", "data-k": "next"}, "Next");
    at.play = h("button.b", {"data-act": "play", "data-k": "play", "aria-pressed": "false"}, "Play");
    at.said = h("span.nx");
    at.stepper = h("div.stepper", {role: "group", "aria-label": "Stepper"}, at.back, at.next, at.play, at.said);
    at.range = h("input", {type: "range", min: 0, step: 1, "data-k": "range", "aria-label": "Step of the recovery"});
    at.marks = h("div.marks");
    at.playhead = h("div.now-at");
    at.timeline = h("div.tl", null, at.marks, at.playhead);
    at.run = h("div.run", null, at.stepper, at.range);
    at.store = h("h2");
    at.how = h("span");
    at.where = h("span.q3");
    at.pin = h("span.pin");
    at.convHead = h("h3", {id: `${uid}-conv`});
    at.forks = h("figure.forks");
    at.fk = h("div.fk", {role: "group", "aria-label": "Show conversation"});
    at.policies = h("p.pol");
    at.inboxHead = h("h3");
    at.inbox = h("ul.ib", {"data-rove": true});
    at.tasksHead = h("h3", {id: `${uid}-tasks`});
    at.tree = h("ul.tt", {"data-rove": true, "aria-label": "Task tree"});
    at.task = h("div");
    at.now = section("now", "say");
    at.layers = section("layers", "once");
    at.live = h("div.vh", {role: "status", "aria-live": "polite"});
    at.grid = h("div.grid", null,
      section("conv.side", "conv", at.convHead, at.forks, at.fk, at.policies, this.transcript.box, h("div.blk.inbox", null, at.inboxHead, at.inbox)),
      this.graph.section, at.now, section("task.side", "tasks", at.tasksHead, at.tree, at.task));
    this.root = h("div.pi-lab", {role: "region", "data-lm-suppress-shortcuts": "true"},
      h("div.head", null, at.store, at.how, at.where, h("span.sp"), at.pin, this.picker.button),
      this.picker.section, h("section.time", {"aria-label": "Timeline of commits and effects"}, at.timeline, at.run), this.reader.section, at.grid, at.layers,
      h("div.foot", null, KEYS.map(([keys, word]) => h("span", null, keys.map((key, n) => [n ? (word === "choose" ? "–" : " ") : "", h("kbd", null, key)]), word ? ` ${word}` : "")), h("span.sp"),
        LEGEND.map(([tone, sign, word]) => h("span", {class: `leg ${tone}`}, icon(sign), word))),
      at.live);
    const parts = this.model.get("parts") ?? [];
    if (parts.length) this.root.classList.add("some", ...PARTS.filter(part => !parts.includes(part)).map(part => `no-${part}`));
    if (parts.includes("points")) this.picker.toggle();
    this.root.addEventListener("click", event => this.clicked(event));
    this.root.addEventListener("input", event => { if (event.target === at.range) this.go(Number(event.target.value)); });
    this.root.addEventListener("change", event => { if (event.target.name === `${uid}-choice`) this.choose(this.scene.step.choice.options[event.target.value].id); });
    this.root.addEventListener("keydown", event => this.key(event));
    this.root.addEventListener("focusin", event => {
      event.target.dataset.lmSuppressShortcuts = "true"; // the shortcuts of Notebook 7 ask the focused element before its parents
      this.wire?.look();
    });
  }

  // -- what is shown --

  /** At most 25 pictures a second, however fast scenes come. */
  schedule() {
    if (this.coming) return;
    const wait = Math.max(0, this.drawn + FRAME_MS - performance.now());
    this.coming = setTimeout(() => { this.coming = null; this.receive(); }, wait);
  }

  receive() {
    const scene = this.model.get("scene");
    if (!scene || scene.position === undefined || this.closed) return;
    const before = this.scene;
    this.scene = scene;
    const moved = !before || before.position !== scene.position || before.store !== scene.store;
    if (moved) {
      this.pin = null;
      this.skipOpen = false;
    }
    if (before && before.store !== scene.store) {
      this.picked = null;
      this.unfolded.clear();
      this.slots = SLOTS;
    }
    this.tasks = new Map(scene.tasks.map(task => [task.id, task]));
    if (this.picked !== null && !scene.conversations.some(({id}) => id === this.picked)) this.picked = null;
    this.reader.refresh(scene);
    this.graph.refresh();
    this.render({moved, first: !before, still: !before || Math.abs(before.position - scene.position) !== 1});
    if (this.playing && (scene.next === null || scene.words)) this.stop();
  }

  render({moved = false, first = false, still = false} = {}) {
    const {scene, at, root} = this;
    if (!scene || this.closed) return;
    const focus = root.contains(document.activeElement) ? document.activeElement : null, key = focus?.dataset.k;
    const steps = Math.max(scene.position, scene.last ?? 0, ...scene.timeline.map(col => col.position ?? 0));
    const open = steps + (scene.last === null ? 1 : 0);
    while (this.slots < open) this.slots *= 2;
    this.places = places(scene, this.unfolded, scene.last === null ? this.slots : Math.max(SLOTS, scene.last));
    const past = this.places.columns.slice(0, Math.max(0, this.places.crash)).filter(col => typeof col.n === "number");
    this.crashCommit = past.length ? past[past.length - 1].n : null;
    root.setAttribute("aria-label", `Lab: ${visible(cut(scene.store)[0])}, ${scene.watched ? "live" : scene.how ? "recovery after a kill" : "recovery"}`);
    at.where.textContent = scene.watched ? "watched; nothing here acts on it" : "on a copy; the real world is not touched";
    at.store.replaceChildren(...[foreign(scene.store)].flat());
    at.how.replaceChildren(...(scene.how ? [foreign(scene.how, {limit: 120})].flat() : []));
    root.classList.toggle("anim", !still);
    const own = this.subject(), task = this.subjectTask(), same = (part, ...facts) => this.unchanged(part, facts);
    if (!same("timeline", this.places, scene.bars, scene.position, own)) timeline(this);
    this.controls();
    now(this);
    if (!same("conversation", scene.conversations, scene.submissions, scene.totals, this.chosen(), own)) conversation(this);
    if (!same("tree", scene.tasks, scene.totals, task, this.wholeTree, this.graph.open)) taskTree(this);
    this.far.want(task);
    if (!same("task", task, this.taskOf(task), this.far.error, scene.position)) taskView(this);
    this.graph.mark();
    if (!same("layers", scene.effects, own)) layers(this);
    this.picker.show(scene.points);
    at.pin.replaceChildren(...this.pinned());
    this.tell(moved && !first);
    const newest = first || moved && (scene.position === 0 || scene.entries.rows.some(entry => entry.new));
    this.transcript.show(this.chosen(), this.conversation()?.total ?? scene.entries.total, scene.entries, newest);
    if (key && !focus.isConnected || focus?.disabled) {
      const again = key ? root.querySelector(`[data-k="${CSS.escape(key)}"]:not([disabled])`) : null;
      (again ?? (at.next.disabled ? at.back.disabled ? this.transcript.box : at.back : at.next)).focus({preventScroll: true});
    }
    this.drawn = performance.now();
  }

  /** Whether a part would show what it shows. */
  unchanged(part, facts) {
    const now = JSON.stringify(facts), same = this.stamps[part] === now;
    this.stamps[part] = now;
    return same;
  }

  /** What the wire says changed: an answer came, is late, or will not come. */
  answered() {
    const {wire, at, root} = this, held = root.contains(document.activeElement) ? document.activeElement : null;
    if (!this.scene || this.closed) return;
    this.controls();
    this.picker.word();
    if (!this.unchanged("wire", [wire.gone, wire.error])) now(this);
    this.tell(false);
    if (held && (held.disabled || !held.isConnected)) (at.next.disabled ? this.transcript.box : at.next).focus({preventScroll: true});
  }

  controls() {
    const {scene, at, wire, places: p} = this, gone = Boolean(wire?.gone), waits = Boolean(wire?.slow);
    const over = scene.next === null || Boolean(scene.words);
    const label = waits ? "waiting for the kernel" : "Next";
    if (at.next.textContent !== label) at.next.textContent = label;
    at.next.disabled = gone || over;
    at.back.disabled = gone || scene.position === 0;
    at.play.disabled = gone || (over && !this.playing);
    at.play.textContent = this.playing ? "Pause" : "Play";
    at.play.setAttribute("aria-pressed", String(Boolean(this.playing)));
    for (const button of [at.back, at.next, at.play]) button.title = scene.watched ? visible(cut(scene.watched, 300)[0]) : "";
    at.said.replaceChildren(...(scene.next === null ? [h("span.q3", null, scene.watched ? foreign(scene.watched, {limit: 160}) : "nothing is left to recover")] : [h("span.q3", null, "predicted:"), " ", foreign(scene.next, {limit: 120})].flat()));
    at.run.hidden = Boolean(scene.words) && scene.position === 0 && !p.known;
    at.stepper.style.width = `calc(${p.share}% - 4px)`;
    Object.assign(at.range.style, {left: `calc(${p.at(0)}% - 7px)`, width: `calc(${p.at(p.known) - p.at(0)}% + 14px)`});
    at.range.max = p.known;
    // Where it is now, which may not be drawn yet: a key pressed meanwhile counts from there.
    if (this.wanted === null) at.range.value = this.model.get("scene").position;
    at.range.disabled = gone || p.known === 0;
    at.range.hidden = Boolean(scene.watched);
    at.range.setAttribute("aria-valuetext", scene.position === 0 ? "Before any step" : `Step ${scene.position}${scene.last === null ? "" : ` of ${scene.last}`}: ${visible(cut(scene.step.verb)[0])}, ${visible(cut(scene.step.title)[0])}`);
  }

  /** One polite sentence a step, and what went wrong. */
  tell(moved) {
    const {scene, wire, at} = this, {step} = scene;
    const said = wire?.gone ? "The kernel was restarted." : wire?.error ? visible(cut(wire.error, 200)[0])
      : scene.words ? visible(cut(scene.words, 300)[0])
      : `${scene.position ? `Step ${scene.position}${scene.last === null ? "" : ` of ${scene.last}`}. ` : scene.watched ? "Live. " : "Before any step. "}${visible(cut(step.verb)[0])}. ${visible(cut(step.say, 300)[0])} ${outside(step.outside)[3]}.`;
    if (said !== this.toldLast && (moved || wire?.gone || wire?.error || scene.words || this.toldLast)) at.live.textContent = said;
    this.toldLast = said;
  }

  pinned() {
    if (!this.pin) return [];
    const [what, id] = Object.entries(this.pin)[0];
    return [`showing ${what} ${id} · `, h("button.link", {"data-act": "unpin", "data-k": "unpin"}, "follow the step"), " ", h("kbd", null, "Esc")];
  }

  // -- the one selection --

  /** What a person picked, else what the step is about, else what recovery will do first. */
  subject() {
    if (this.pin) return this.pin;
    const {task, submission, table} = this.scene.step;
    return task === null && submission === null ? table?.[0] ?? {task: null, submission: null} : {task, submission};
  }

  subjectTask() {
    const own = this.subject();
    if (this.tasks.has(own.task) || (this.pin && own.task !== undefined)) return own.task;
    const {tasks} = this.scene;
    return (tasks.find(task => task.state !== "terminal") ?? tasks[tasks.length - 1])?.id ?? null;
  }

  taskOf(id) {
    return this.tasks.get(id) ?? this.far.find(id);
  }

  same({task = null, submission = null}) {
    const own = this.subject();
    return (task !== null && own.task === task) || (submission !== null && own.submission === submission);
  }

  onEntry(entry) {
    return this.pin?.entry !== undefined ? this.pin.entry === entry.id : this.same(entry) || entry.calls.some(call => this.same(call));
  }

  chosen() {
    return this.picked ?? this.scene.entries.conversation;
  }

  conversation() {
    return this.scene.conversations.find(({id}) => id === this.chosen());
  }

  // -- what is pressed --

  press(message) {
    return this.wire.ask(message, {press: true});
  }

  next() {
    this.stop();
    if (this.may("next")) this.press({do: "next"});
  }

  back() {
    this.stop();
    if (this.may("back")) this.press({do: "back"});
  }

  /** Whether a move is possible: what is on its way, or came and is not drawn yet, may make it so. */
  may(what) {
    const {position, next, words} = this.model.get("scene");
    return !this.wire.gone && (this.wire.presses() > 0 || (what === "back" ? position > 0 : next !== null && !words));
  }

  finish() {
    this.stop();
    if (this.scene.last !== null) this.go(this.scene.last);
    else if (this.may("next")) this.press({do: "finish"});
  }

  /** To a step that is known. While one answer is awaited, only the last wish is kept. */
  async go(position) {
    this.stop();
    const latest = this.model.get("scene"), wish = Math.max(0, Math.min(Math.max(this.places.known, latest.position), position));
    if (this.wanted !== null) {
      this.wanted = wish;
      return;
    }
    if ((wish === latest.position && !this.wire.presses()) || this.wire.gone) return;
    this.wanted = wish;
    for (let asked = null; this.wanted !== asked;) {
      asked = this.wanted;
      if (!(await this.press({do: "goto", position: asked}))) break;
    }
    this.wanted = null;
    if (!this.closed && this.scene) this.controls();
  }

  choose(option) {
    this.stop();
    if (!this.wire.gone) this.press({do: "choose", option});
  }

  play() {
    if (this.playing) {
      this.stop();
      return;
    }
    if (this.at.play.disabled) return;
    this.playing = setTimeout(() => this.beat(), PLAY_MS);
    this.controls();
  }

  async beat() {
    const mine = this.playing;
    await this.press({do: "next"});
    if (this.playing !== mine || this.closed) return;
    this.playing = setTimeout(() => this.beat(), PLAY_MS);
  }

  stop() {
    if (!this.playing) return;
    clearTimeout(this.playing);
    this.playing = null;
    this.controls();
  }

  select(pin) {
    this.pin = pin;
    this.render({still: true});
  }

  clicked(event) {
    const el = event.target.closest("button,[data-conv]");
    if (!el || el.disabled) return;
    const {act, go, conv, unfold, task, sub, entry, read} = el.dataset;
    const acts = {
      next: () => this.next(), back: () => this.back(), play: () => this.play(), crash: () => this.picker.toggle(), graph: () => this.graph.toggle(), unpin: () => this.select(null),
      skip: () => { this.skipOpen = !this.skipOpen; this.render({still: true}); }, whole: () => { this.wholeTree = true; this.render({still: true}); },
      run: () => { this.stop(); this.press(this.picker.message()); },
    };
    if (act) acts[act]?.();
    else if (read !== undefined) this.reader.open(JSON.parse(read), el);
    else if (go !== undefined) this.go(Number(go));
    else if (unfold !== undefined) { this.unfolded.add(Number(unfold)); this.render({still: true}); }
    else if (conv !== undefined) { this.picked = Number(conv); this.render({still: true}); }
    else if (task !== undefined) this.select({task: Number(task)});
    else if (sub !== undefined) this.select({submission: Number(sub)});
    else if (entry !== undefined) this.select({entry: Number(entry)});
  }

  /** Keys. None goes on to the page: a notebook takes the focus to itself at any key that reaches it. */
  key(event) {
    const {target, key} = event;
    event.stopPropagation();
    if (event.ctrlKey || event.metaKey || event.altKey || !this.scene) return;
    const done = act => { event.preventDefault(); act(); };
    if (key === "Escape") return done(() => (this.graph.open ? this.graph.close() : this.select(null)));
    const rove = target.closest("[data-rove]");
    if (rove && (key === "ArrowDown" || key === "ArrowUp")) return done(() => this.rove(rove, target, key === "ArrowDown" ? 1 : -1));
    if (target.matches("input:not([type=range]):not([type=radio])")) return undefined;
    if (target.matches("input[type=radio]") && key.startsWith("Arrow")) return undefined;
    if (target === this.at.range && !/^[pP1-4]$/.test(key)) return undefined;
    const option = /^[1-4]$/.test(key) ? this.scene.step.choice?.options[Number(key) - 1] : null;
    if (option) return done(() => { if (option.disabled === null && !option.chosen) this.choose(option.id); });
    const moves = {
      ArrowRight: () => this.next(), ArrowLeft: () => this.back(), Home: () => this.go(0), End: () => this.finish(),
      p: () => this.play(), P: () => this.play(),
    };
    return moves[key] ? done(moves[key]) : undefined;
  }

  rove(list, from, step) {
    if (list === this.transcript.box) { this.transcript.rove(from, step); return; }
    const stops = [...list.querySelectorAll("button")];
    stops[stops.indexOf(from) + step]?.focus();
  }

  destroy() {
    this.closed = true;
    clearTimeout(this.coming);
    clearTimeout(this.playing);
    this.model.off("change:scene", this.listen);
    this.wire.close();
    this.transcript.close();
    this.graph.destroy();
    this.root.remove();
  }
}

export default {
  render({model, el}) {
    const lab = new Lab(model, el);
    return () => lab.destroy();
  },
};
