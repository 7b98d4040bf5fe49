/* The tasks: who owns whom, where one stands, the way it took, what it remembers. */
import {count, visible} from "./text.js";
import {classes, foreign, h, hidden, icon, mono, s} from "./elements.js";
import {OUTCOMES} from "./words.js";

const TASKS_OVER = 60;

/** The sign of how a task stands. */
export const signOf = ({state, outcome}) => (state === "terminal" ? (outcome === "completed" ? "ok" : "cross") : state === "completing" ? "running" : state);

/** And the word for it. */
export const standing = ({state, outcome, aborting}) => visible(state === "terminal" ? outcome ?? "terminal" : aborting ? `${state}, to be aborted` : state);

/** A task that the scene does not list, which the kernel is asked for. */
export class FarTask {
  constructor(lab) {
    this.lab = lab;
    this.task = this.asked = this.scene = null;
    this.error = "";
  }

  find(id) {
    return this.task?.id === id ? this.task : null;
  }

  /** See that this task is known as it is in this scene; what was known of it before stays until then. */
  async want(id) {
    const {lab} = this, {scene} = lab;
    if (id === null || lab.tasks.has(id) || (this.asked === id && this.scene === scene) || this.asking) return;
    Object.assign(this, {asked: id, scene, error: "", asking: true});
    const answer = await lab.wire.ask({do: "task", task: id}, {quiet: true});
    this.asking = false;
    if (lab.closed) return;
    this.task = answer?.task ?? null;
    this.error = this.task ? "" : answer?.error ?? "The kernel was restarted.";
    lab.render({still: true});
  }
}

export function taskTree(lab) {
  const {scene, tasks} = lab, own = lab.subjectTask(), {totals} = scene;
  lab.at.tasksHead.replaceChildren("Tasks", h("span.n", null, `${totals.live.toLocaleString("en")} live`), graphButton(lab) ?? "");
  const fold = scene.tasks.length > TASKS_OVER && !lab.wholeTree, keep = new Set();
  if (fold) for (const task of scene.tasks) if (task.state !== "terminal" || task.id === own || task.new) for (let one = task; one && !keep.has(one.id); one = tasks.get(one.owner)) keep.add(one.id);
  const there = fold ? scene.tasks.filter(task => keep.has(task.id)) : scene.tasks, below = new Map();
  for (const task of there) {
    const owner = tasks.has(task.owner) ? task.owner : null;
    below.set(owner, [...(below.get(owner) ?? []), task]);
  }
  const rows = [], walk = (owner, depth) => { for (const task of below.get(owner) ?? []) if (rows.length < 300) { rows.push(taskRow(lab, task, Math.min(depth, 8), own)); walk(task.id, depth + 1); } };
  walk(null, 0);
  const left = there.length - rows.length + totals.tasks - scene.tasks.length, ended = scene.tasks.length - there.length;
  const stops = rows.map(row => row.firstElementChild);
  if (stops.length && !stops.some(stop => stop.tabIndex === 0)) stops[0].tabIndex = 0; // what is selected is not in the list
  lab.at.tree.replaceChildren(...rows,
    ...(left > 0 ? [h("li.q3", null, `and ${left.toLocaleString("en")} more`)] : []),
    ...(ended ? [h("li", null, h("button.link", {"data-k": "whole", "data-act": "whole"}, `${count(ended, "ended task")}, folded`))] : []),
    ...(scene.tasks.length ? [] : [h("li.q3", null, "None.")]));
}

/** Opens the picture of all tasks, where a list does not show how they hang together. */
function graphButton(lab) {
  const {tasks} = lab.scene.totals, {open} = lab.graph;
  if (tasks <= TASKS_OVER && !open) return null;
  return h("button.link.draw", {"data-act": "graph", "data-k": "graph", "aria-expanded": String(open)}, open ? "Close the drawing" : `Draw all ${tasks.toLocaleString("en")} tasks`);
}

function taskRow(lab, task, depth, own) {
  const on = task.on.length > 4 ? `${task.on.slice(0, 4).join(", ")} and ${task.on.length - 4} more` : task.on.join(", ");
  const state = task.state === "waiting" ? `waiting on ${on}` : standing(task);
  return h("li", {class: classes(task.id === own && "sel-l", task.new && "new"), style: {"padding-left": `${10 + depth * 16}px`}},
    h("button", {"data-k": `t${task.id}`, "data-task": task.id, "aria-pressed": String(task.id === own), tabindex: task.id === own ? 0 : -1},
      icon(signOf(task)), mono(task.id), h("span.nm", null, foreign(task.name || task.kind, {limit: 40}), task.background ? h("span.q3", null, " background") : null), h("span.st", null, foreign(state))));
}

const STATES = {pending: [38, 76], running: [142, 76], waiting: [98, 18], sleeping: [188, 18], completing: [142, 134], terminal: [246, 76]};
const MOVES = {
  "pending>running": "M70 72H108", "running>pending": "M108 82H72", "running>running": "M152 64C152 44 132 44 132 62",
  "running>waiting": "M124 64C112 52 104 44 102 32", "waiting>running": "M110 30C114 42 122 52 132 63",
  "running>sleeping": "M158 64C170 54 178 44 182 32", "sleeping>running": "M174 30C168 40 160 50 150 62",
  "running>terminal": "M174 76H212", "running>completing": "M142 88V120", "completing>terminal": "M176 132C214 126 238 110 244 90",
};

function stateMachine(lab, task, dead) {
  const taken = new Set(task.path.map(step => `${step.from}>${step.to}`)), seen = new Set(task.path.flatMap(step => [step.from, step.to]));
  const crashes = new Set(task.path.filter(step => step.crash).map(step => `${step.from}>${step.to}`));
  const head = `${lab.uid}-arrow`;
  return s("svg.sm", {viewBox: "0 0 284 148", role: "img", "aria-label": `State machine of task ${task.id}: now ${visible(task.state)}${task.outcome ? `, ${visible(task.outcome)}` : ""}; its path stands below`},
    s("defs", null, s("marker", {id: head, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 5.5, markerHeight: 5.5, orient: "auto-start-reverse", markerUnits: "userSpaceOnUse"}, s("path", {d: "M0 0L8 4L0 8z", fill: "context-stroke"}))),
    Object.entries(MOVES).map(([move, d]) => s("path", {class: classes("ed", taken.has(move) && "v", crashes.has(move) && "x"), d, "marker-end": `url(#${head})`})),
    Object.entries(STATES).map(([name, [x, y]]) => s("g", {class: task.state === name ? "cur" : seen.has(name) ? "v" : ""},
      s("rect.nd", {x: x - 32, y: y - 11, width: 64, height: 22, rx: name === "terminal" ? 3 : 11}), s("text", {x, y: y + 4}, name))),
    dead ? [s("path.killed-at", {d: "M184 60v32"}), s("text.killed", {x: 184, y: 106}, "killed")] : null);
}

function pathOf(task, dead) {
  const shown = task.path.length > 24 ? task.path.slice(-24) : task.path;
  return h("p.path", null, shown.length < task.path.length ? `${task.path.length - shown.length} earlier moves, … ` : "",
    shown.map((step, n) => [n ? "" : foreign(step.from, {limit: 24}), step.crash ? [" ", h("span.int", null, "✕"), hidden(" killed, then"), " "] : " → ", foreign(step.to, {limit: 24})]),
    dead ? [" ", h("span.int", null, "✕")] : null, task.outcome ? [": ", foreign(task.outcome, {limit: 24})] : null);
}

export function taskView(lab) {
  const id = lab.subjectTask(), task = lab.taskOf(id);
  if (!task) {
    const said = id === null ? [] : [h("h3", null, `Task ${id}`), h("p.pol", null, lab.far.error ? foreign(lab.far.error, {limit: 300}) : "waiting for the kernel")];
    return lab.at.task.replaceChildren(...(said.length ? [h("div.blk", null, said)] : []));
  }
  const dead = lab.scene.position === 0 && task.state === "running" && lab.places.crash >= 0, ended = task.state === "terminal";
  const facts = [["checkpoint", task.checkpoint === null ? h("span.q3", null, ended ? "gone with the outcome" : "none") : foreign(task.checkpoint, {limit: 160, size: task.checkpoint_size, of: {task: task.id, part: "checkpoint"}})]];
  facts.push(["restarts", `${task.restarts}${task.limit === null ? "" : ` of ${task.limit}`}`]);
  if (task.until_ms !== null && task.until_ms !== undefined) facts.push(["sleeps until", new Date(task.until_ms).toISOString().replace("T", " ").slice(0, 19)]);
  if (task.reason) facts.push(["reason", foreign(task.reason, {limit: 160})]);
  if (task.verdict) facts.push(["verdict", foreign(task.verdict)]);
  else if (task.done) facts.push(["verdict", [foreign(task.done), ", done"]]);
  lab.at.task.replaceChildren(
    h("div.blk", null, h("h3", null, `Task ${task.id}`, h("span.n", null, foreign(task.kind, {limit: 60}), task.phase ? [", phase ", foreign(task.phase, {limit: 40})] : null)),
      stateMachine(lab, task, dead),
      h("ul.oc", {"aria-label": "Outcome"}, OUTCOMES.map(word => h(task.outcome === word ? "li.on" : "li", {"aria-current": task.outcome === word ? "true" : null}, `${task.outcome === word ? "●" : "○"} ${word}`))),
      pathOf(task, dead),
      h("dl.kv", null, facts.map(([word, fact]) => [h("dt", null, word), h("dd", null, fact)]))),
    phases(task) ?? "", memos(task));
}

/** The phases that its code has, read from the return annotations. */
function phases(task) {
  if (!task.edges.length) return null;
  const targets = new Map();
  for (const {from, to} of task.edges) targets.set(from, [...(targets.get(from) ?? []), to]);
  const name = phase => (phase === task.phase ? h("b", null, foreign(phase, {limit: 40})) : foreign(phase, {limit: 40}));
  const rows = [...targets].slice(0, 40);
  return h("div.blk", null, h("h3", null, "Phases", h("span.n", null, "read from its code")),
    h("ul.ph-list", null, rows.map(([from, to]) => h("li", {"aria-current": from === task.phase ? "step" : null}, name(from), " → ", [...new Set(to)].map((phase, n) => [n ? ", " : "", name(phase)]))),
      targets.size > rows.length ? h("li", null, `and ${targets.size - rows.length} more`) : null));
}

function memos(task) {
  const shown = task.memos.slice(0, 60), ended = shown.some(memo => memo.gone);
  return h("div.blk.memos", null, h("h3", null, `Memos of task ${task.id}`),
    shown.length ? h("table.tbl", {style: {"margin-top": "6px"}}, h("thead", null, h("tr", null, ["name", "value", "writer"].map(word => h("th", {scope: "col"}, word)))),
      h("tbody", null, shown.map(memo => h("tr", {class: memo.new ? "new" : ""}, h("th", {scope: "row"}, mono(memo.name, {limit: 60})),
        h("td", null, mono(memo.value, {size: memo.size, of: {task: task.id, part: {memo: memo.name}}}), memo.lost.slice(0, 6).map(lost => [h("br"), h("span.q3", null, h("s", null, mono(lost.value)), lost.by === null ? null : [", ", foreign(lost.by)], ", lost")])), h("td", null, memo.by === null ? null : foreign(memo.by)))))) : h("p.pol", null, "None."),
    task.memos.length > shown.length ? h("p.pol", null, `and ${count(task.memos.length - shown.length, "more memo")}`) : null,
    ended ? h("p.pol", null, "Ended with its task; shown from the record.") : null);
}
