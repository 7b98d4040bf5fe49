/* The Lab view: one step of a recovery, why it was taken, and every fact that it rests on.
 *
 * Owns what is seen and what is pressed. Never decides what a step does: it asks the kernel, and shows the scene that
 * comes back. Every text of a scene is foreign: it becomes a text node inside <bdi>, with each character that acts or
 * hides made visible, and is never parsed. Nothing is loaded, no id is global, and `destroy` leaves nothing behind.
 *
 * Messages to the kernel carry a number `id`, and one answer repeats it:
 *   {do: next | back | finish | hello}, {do: goto, position}, {do: choose, option}, {do: run, points, kind}
 *   {do: entries, conversation, start, count}            answered by {entries: {conversation, start, total, rows}}
 * Others are answered by {ok}, behind the new value of `scene`, or by {error}; {busy} tells that work began or ended.
 */

const GONE_MS = 3000; // unanswered for so long, the kernel is another one
const SLOW_MS = 300;
const FRAME_MS = 40;
const PLAY_MS = 2200;
const LOOK_MS = 10000; // between two looks at whether the kernel is still there
const WINDOW = 60; // entries asked for at a time
const NODES = 190; // in the transcript, whatever its length
const FOLD_OVER = 40; // commits
const TASKS_OVER = 60;
const DRAWN_FORKS = 12;
const SLOTS = 9; // steps that the timeline has room for before any is known

// --- Text ------------------------------------------------------------------------------------------------------------

const ACTING = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

const SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"};

/** A character as an escape: fonts often lack the pictures that Unicode has for controls. */
const sign = char => SHORT[char] ?? `\\u{${char.codePointAt(0).toString(16).toUpperCase()}}`;

/** Foreign text that acts on nothing; with `lines`, its own lines and tabs stay. */
export function visible(text, lines = false) {
  return String(text ?? "").replace(ACTING, char => (lines && (char === "\n" || char === "\t") ? char : sign(char)));
}

/** The same cut to `limit`, and how long it was where something is missing. */
export function cut(text, limit = 80, lines = false) {
  const given = String(text ?? "");
  if (given.length <= limit) return [visible(given, lines), ""];
  const end = /[\uD800-\uDBFF]/.test(given[limit - 1]) ? limit - 1 : limit;
  return [`${visible(given.slice(0, end), lines)}…`, ` (${given.length.toLocaleString("en")} characters)`];
}

const count = (n, one, many = `${one}s`) => `${Number(n).toLocaleString("en")} ${n === 1 ? one : many}`;

// --- Elements --------------------------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

function filled(el, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [what, how] of Object.entries(value)) el.style.setProperty(what, how);
    else el.setAttribute(name, value === true ? "" : String(value));
  }
  el.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false && child !== ""));
  return el;
}

/** An element: `h("span.q3", {title}, "text", other)`. Text becomes text nodes, whatever it says. */
function h(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const el = document.createElement(tag);
  if (classes.length) el.className = classes.join(" ");
  return filled(el, props, children);
}

function s(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const el = document.createElementNS(SVG, tag);
  if (classes.length) el.setAttribute("class", classes.join(" "));
  return filled(el, props, children);
}

/** Foreign text, isolated; what is too long is cut and says its size. */
function foreign(text, {limit = 80, lines = false, as = "bdi"} = {}) {
  const [shown, size] = cut(text, limit, lines);
  return size ? [h(as, null, shown), h("span.q3", null, size)] : h(as, null, shown);
}

const mono = (text, options) => foreign(text, {as: "bdi.mono", ...options});
const hidden = (...text) => h("span.vh", null, ...text);
const classes = (...names) => names.filter(Boolean).join(" ");

const C = "currentColor";
const ICONS = {
  sq: [["rect", {x: 1.5, y: 1.5, width: 9, height: 9, rx: 1, fill: C}]],
  dot: [["circle", {cx: 6, cy: 6, r: 4, fill: C}]],
  lost: [["rect", {x: 1.5, y: 1.5, width: 9, height: 9, rx: 1, fill: "none", stroke: C, "stroke-width": 1.5, "stroke-dasharray": "2.4 1.6"}]],
  again: [["path", {d: "M10 6a4 4 0 1 1-1.3-2.9", fill: "none", stroke: C, "stroke-width": 1.75}], ["path", {d: "M10.9 .8v3.7H7.2z", fill: C}]],
  unknown: [["path", {d: "M6 .4L11.6 6 6 11.6.4 6z", fill: "none", stroke: C, "stroke-width": 1.2}], ["path", {d: "M4.6 4.9a1.4 1.4 0 1 1 1.9 1.3c-.4.2-.5.4-.5.8", fill: "none", stroke: C, "stroke-width": 1.1}], ["circle", {cx: 6, cy: 8.4, r: .75, fill: C}]],
  int: [["path", {d: "M6 .6L11.4 6 6 11.4.6 6z", fill: C}]],
  x: [["path", {d: "M2 2l8 8M10 2l-8 8", stroke: C, "stroke-width": 2}]],
  none: [["circle", {cx: 6, cy: 6, r: 4.5, fill: "none", stroke: C, "stroke-width": 1.5}]],
  ok: [["path", {d: "M1.5 6.5l3 3 6-7", fill: "none", stroke: C, "stroke-width": 1.75}]],
  cross: [["path", {d: "M2.5 2.5l7 7M9.5 2.5l-7 7", stroke: C, "stroke-width": 1.6}]],
  fork: [["path", {d: "M3 11V1M3 6c0 0 6 0 6-4", fill: "none", stroke: C, "stroke-width": 1.5}]],
  pending: [["circle", {cx: 6, cy: 6, r: 4, fill: "none", stroke: C, "stroke-width": 1.5}]],
  running: [["path", {d: "M3 1.5l7 4.5-7 4.5z", fill: C}]],
  waiting: [["path", {d: "M3.5 2v8M8.5 2v8", stroke: C, "stroke-width": 2}]],
  sleeping: [["path", {d: "M8.5 1.5a5 5 0 1 0 2 6.5 4 4 0 0 1-2-6.5z", fill: C}]],
};

const icon = (name, tone = "") =>
  s("svg", {class: classes("i", tone), viewBox: "0 0 12 12", "aria-hidden": "true"}, (ICONS[name] ?? ICONS.none).map(([tag, props]) => s(tag, props)));

// --- Words -----------------------------------------------------------------------------------------------------------

const OUTSIDE = {
  none: ["none", "q2", "nothing", "outside: nothing happens"],
  again: ["again", "again", "again", "outside: can happen again"],
  unknown: ["unknown", "unk", "unknown", "outside: unknown"],
};
const MARKS = {
  crash: ["x", "int"], commit: ["sq", "com"], interrupted: ["int", "int"], again: ["again", "again"],
  none: ["none", "q2"], future: ["none", "q2"],
};
const AGREEMENTS = {
  agrees: ["ok", "", "agrees"], milder: ["ok", "", "agrees, and milder"],
  differs: ["cross", "int", "differs: an error of this package"], choice: ["fork", "", "your choice"],
};
const KINDS = {freeze: "in this kernel", kill: "SIGKILL of a child", power: "a power cut’s image", fault: "EIO, ENOSPC, busy"};
const NTH = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"];
const nth = n => NTH[n - 1] ?? `${n}th`;
const OUTCOMES = ["completed", "failed", "aborted", "orphaned", "faulted"];
const LAYERS = [["checkpoint", "checkpoint"], ["memo", "memo"], ["replay", "replay policy"], ["request", "request id"], ["key", "outside key"]];
const STORE_SAYS = {committed: ["sq", "com"], lost: ["lost", "q2"], unknown: ["unknown", "unk"], none: ["none", "q2"]};

const outside = name => OUTSIDE[name] ?? OUTSIDE.none;

/** The mark of a step; only the effect itself is amber, its reservation is a commit. */
function markOf(step) {
  return MARKS[step.mark === "again" && step.outside !== "again" ? "none" : step.mark] ?? MARKS.none;
}

// --- The timeline's places -------------------------------------------------------------------------------------------

/** Runs of commits as blocks, unless unfolded; what is near a crash never folds. `[first, last]`, both included. */
function folded(columns, end, unfolded) {
  const commits = columns.slice(0, end).filter(col => col.kind === "commit").length;
  const items = [], add = (from, to) => items.push([from, to]);
  const block = (from, to) => {
    const size = to - from + 1;
    if (size < 3 || (unfolded.has(from) && size <= 20)) for (let i = from; i <= to; i++) add(i, i);
    else if (!unfolded.has(from)) add(from, to);
    else for (let i = from, part = Math.ceil(size / 10); i <= to; i += part) i === from ? parts(i, Math.min(to, i + part - 1)) : block(i, Math.min(to, i + part - 1));
  };
  const parts = (from, to) => { for (let i = from; i <= to; i++) add(i, i); };
  for (let i = 0; i < end;) {
    let to = i;
    while (to < end && columns[to].kind === "commit") to++;
    const last = columns.slice(to, end).every(col => col.kind !== "commit");
    const keep = last ? 6 : 2;
    if (commits > FOLD_OVER && to - i > keep + 2) {
      block(i, to - keep - 1);
      parts(to - keep, to - 1);
    } else parts(i, to - 1);
    if (to < end) add(to, to);
    i = to + 1;
  }
  return items;
}

/** Where everything on the timeline stands, in percent of its width. */
export function places(scene, unfolded = new Set(), slots = SLOTS) {
  const columns = scene.timeline;
  let end = columns.findIndex(col => col.position !== null && col.position !== undefined && col.position > 0);
  if (end < 0) end = columns.length;
  let crash = end - 1;
  while (crash >= 0 && columns[crash].kind !== "kill") crash--;
  const known = Math.max(scene.position, scene.last ?? 0, ...columns.slice(end).map(col => col.position ?? 0));
  const past = folded(columns, crash < 0 ? end : crash, unfolded);
  const cells = Math.max(slots, known) + 1;
  const share = past.length ? Math.min(.6, Math.max(.42, past.length / (past.length + cells))) : .42;
  const wide = past.length ? share / past.length : share, narrow = (1 - share) / cells;
  const spans = past.map(([from, to], n) => ({from, to, left: n * wide * 100, width: wide * 100}));
  const at = position => (share + narrow * (position + .5)) * 100;
  const x = place => { // a place among the columns, where the first one is from 0 to 1
    const column = Math.floor(place);
    if (column >= (crash < 0 ? end : crash)) return (share + narrow * (place - (crash < 0 ? end - 1 : crash))) * 100;
    const span = spans.find(({to}) => column <= to);
    return span ? span.left + span.width * Math.max(0, place - span.from) / (span.to - span.from + 1) : 0;
  };
  return {columns, end, crash, known, spans, share: share * 100, narrow: narrow * 100, wide: wide * 100, at, x, dense: narrow < .022 || past.length > 26};
}

// --- The wire --------------------------------------------------------------------------------------------------------

/** Messages to the kernel and their answers; knows when it is slow and when it is gone. */
class Wire {
  constructor(model, changed) {
    this.model = model;
    this.changed = changed;
    this.pending = new Map();
    this.next = Math.floor(Math.random() * 1e6) * 1e6; // two views of one widget hear each other's answers
    this.timers = new Set();
    this.slow = this.gone = this.busy = false;
    this.error = "";
    this.heard = this.looked = 0;
    this.listen = message => this.hear(message ?? {});
    model.on("msg:custom", this.listen);
  }

  later(ms, what) {
    const timer = setTimeout(() => { this.timers.delete(timer); what(); }, ms);
    this.timers.add(timer);
    return timer;
  }

  /** Ask for something; what comes back is its answer, or null where there will be none. */
  ask(message, {press = false} = {}) {
    if (this.gone && message.do !== "hello") return Promise.resolve(null);
    const id = this.next++;
    const answer = new Promise(resolve => this.pending.set(id, {resolve, press}));
    try {
      this.model.send({...message, id});
    } catch {
      this.lose();
      return answer;
    }
    if (press) {
      this.later(SLOW_MS, () => this.weigh());
      this.look();
    }
    return answer;
  }

  /** See whether the kernel is still the one that made this view. */
  look() {
    if (Date.now() - this.looked < LOOK_MS && !this.gone) return;
    this.looked = Date.now();
    const before = this.heard;
    this.ask({do: "hello"});
    const judge = () => {
      if (this.heard !== before || this.closed) return;
      if (this.model.widget_manager?.kernel?.status === "busy") this.later(GONE_MS, judge); // it runs another cell
      else this.lose();
    };
    this.later(GONE_MS, judge);
  }

  hear(message) {
    this.heard++;
    const was = this.gone;
    this.gone = false;
    const waiting = this.pending.get(message.id);
    if (typeof message.busy === "boolean") this.busy = message.busy;
    if (waiting || message.id === undefined) {
      if (typeof message.error === "string") this.error = message.error;
      else if (waiting?.press) this.error = "";
    }
    if (waiting) {
      this.pending.delete(message.id);
      waiting.resolve(message);
    }
    if (!this.weigh() && (was || waiting?.press || message.error !== undefined)) this.changed();
  }

  presses() {
    return [...this.pending.values()].filter(({press}) => press).length;
  }

  /** Whether somebody waits. True where that is news. */
  weigh() {
    const slow = this.presses() > 0;
    if (slow === this.slow) return false;
    this.slow = slow;
    this.changed();
    return true;
  }

  lose() {
    this.gone = true;
    this.slow = this.busy = false;
    for (const {resolve} of this.pending.values()) resolve(null);
    this.pending.clear();
    this.changed();
  }

  close() {
    this.closed = true;
    this.timers.forEach(clearTimeout);
    this.model.off("msg:custom", this.listen);
    this.pending.clear();
  }
}

// --- The transcript --------------------------------------------------------------------------------------------------

const ROLES = {user: "user", assistant: "assistant", system: "system"};

/** A list of any length in a box of one height: only what is near the view is in the page, and asked for. */
class Transcript {
  constructor(lab) {
    this.lab = lab;
    this.list = h("ol");
    this.box = h("div.tr", {"data-rove": "transcript", "data-k": "transcript", tabindex: 0, role: "group", "aria-label": "Transcript, up and down move in it"}, this.list);
    this.conversation = null;
    this.forget();
    this.box.addEventListener("scroll", () => this.scrolled());
    this.box.addEventListener("toggle", event => this.toggled(event.target), true);
    this.scroll = this.view = 0; // kept, because asking for them costs a layout
    this.watch = new ResizeObserver(() => {
      const view = this.box.clientHeight;
      if (view === this.view) return;
      this.view = view;
      this.paint();
    });
    this.watch.observe(this.box);
  }

  forget() {
    this.total = 0;
    this.rows = new Map(); // index -> {entry, fresh}
    this.heights = new Map();
    this.shown = new Map(); // index -> {el, stamp}
    this.opened = new Map(); // key of a call -> whether somebody opened or closed it
    this.asking = false;
    this.bottom = true;
    this.list.replaceChildren();
  }

  /** Show a conversation of a scene. What is known of it stays until its new state has come. */
  show(conversation, total, part, bottom) {
    if (conversation !== this.conversation) {
      this.forget();
      this.conversation = conversation;
    }
    this.total = total;
    for (const row of this.rows.values()) row.fresh = false;
    for (const index of [...this.rows.keys()]) if (index >= total) this.rows.delete(index);
    if (part && part.conversation === conversation) this.take(part);
    this.box.classList.toggle("few", total <= 8);
    this.bottom ||= bottom;
    this.paint();
  }

  take(part) {
    this.total = part.total;
    part.rows.forEach((entry, n) => this.rows.set(part.start + n, {entry, fresh: true}));
  }

  height(index) {
    return this.heights.get(index) ?? 46;
  }

  top(index) {
    let sum = 0;
    for (let i = 0; i < index; i++) sum += this.height(i);
    return sum;
  }

  scrolled() {
    const {box} = this;
    this.scroll = box.scrollTop;
    this.bottom = this.scroll + box.clientHeight >= box.scrollHeight - 4;
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.paint(); });
  }

  /** The rows to have: those in view and a little around them, as many as the page can bear. */
  range() {
    const {total, scroll} = this, view = this.view || 500;
    let first = 0, offset = 0;
    if (this.bottom) {
      first = total;
      for (let sum = 0; first > 0 && sum < view; sum += this.height(first)) first--;
    } else {
      while (first < total - 1 && offset + this.height(first) <= scroll) offset += this.height(first++);
    }
    const anchor = {index: first, into: scroll - offset};
    let last = first, room = NODES, filled = -Math.max(0, anchor.into);
    while (last < total && (filled < view || this.bottom) && room > 0) {
      filled += this.height(last);
      room -= this.weight(last++);
    }
    while (last < total && last < first + 30 && room > 24 && filled < view + 100) {
      filled += this.height(last);
      room -= this.weight(last++);
    }
    let start = first;
    for (let above = 0; start > 0 && room > 24 && above < 100; above += this.height(start)) room -= this.weight(--start);
    return {start, last, anchor};
  }

  weight(index) {
    const entry = this.rows.get(index)?.entry;
    return entry ? 9 + entry.calls.slice(0, 6).length * 6 : 4;
  }

  paint() {
    if (this.closed) return;
    const {box, list, lab} = this;
    for (let pass = 0; pass < 3; pass++) {
      const {start, last, anchor} = this.range();
      this.place(start, last);
      let moved = false;
      for (let i = start; i < last; i++) {
        const tall = this.shown.get(i).el.getBoundingClientRect().height;
        if (tall && Math.abs(tall - this.height(i)) > .5) {
          this.heights.set(i, tall);
          moved = true;
        }
      }
      list.style.paddingTop = `${this.top(start)}px`;
      list.style.paddingBottom = `${this.top(this.total) - this.top(last)}px`;
      if (!moved) break;
      if (!this.bottom) this.scroll = this.top(anchor.index) + Math.max(0, anchor.into);
    }
    if (this.bottom) this.scroll = Math.max(0, this.top(this.total) - this.view);
    const wanted = this.bottom ? 1e9 : this.scroll;
    if (this.put !== this.scroll || this.bottom) box.scrollTop = wanted;
    this.put = this.scroll;
    if (lab.wire) this.ask();
  }

  /** Have exactly these rows in the page; a row that did not change keeps its element, and with it the focus. */
  place(start, last) {
    const {list, shown, box} = this;
    const held = list.contains(document.activeElement);
    for (const [index, {el}] of shown) {
      if (index >= start && index < last) continue;
      if (held && el.contains(document.activeElement)) box.focus({preventScroll: true});
      el.remove();
      shown.delete(index);
    }
    let before = list.firstChild;
    for (let index = start; index < last; index++) {
      const row = this.rows.get(index), old = shown.get(index), stamp = row ? this.stamp(row.entry, index) : "";
      if (old && old.entry === row?.entry && old.stamp === stamp && old.total === this.total) {
        before = old.el.nextSibling;
        continue;
      }
      const el = row ? this.row(row.entry, index) : h("li.ph", {"aria-setsize": this.total, "aria-posinset": index + 1}, "…");
      const key = old && held && old.el.contains(document.activeElement) ? document.activeElement.dataset.k : null;
      if (old) old.el.replaceWith(el);
      else list.insertBefore(el, before);
      shown.set(index, {el, entry: row?.entry, stamp, total: this.total});
      if (key) (el.querySelector(`[data-k="${CSS.escape(key)}"]`) ?? box).focus({preventScroll: true});
      before = el.nextSibling;
    }
  }

  /** What else than itself a row shows; it is drawn again when that changes. */
  stamp(entry, index) {
    const {lab} = this;
    return [this.crash(entry, index), lab.onEntry(entry), lab.crashCommit, entry.calls.length ? lab.subjectTask() : ""].join("/");
  }

  /** Whether the line where it died stands before an entry, behind it, or elsewhere. */
  crash(entry, index) {
    const {lab} = this, at = lab.crashCommit, stored = one => at !== null && (one.commit === null || one.commit <= at);
    if (lab.places.crash < 0) return "";
    const before = this.rows.get(index - 1)?.entry;
    if (!stored(entry) && (index === 0 || (before && stored(before)))) return "before";
    return index === this.total - 1 && stored(entry) ? "after" : "";
  }

  /** Ask for what is in view and not known, or known from before the last step; one question at a time. */
  async ask() {
    if (this.asking) return;
    const wanted = [...this.shown.keys()].filter(index => !this.rows.get(index)?.fresh).sort((a, b) => a - b);
    if (!wanted.length) return;
    const middle = Math.floor((wanted[0] + wanted[wanted.length - 1]) / 2);
    const start = Math.max(0, Math.min(middle - WINDOW / 2, this.total - WINDOW)), conversation = this.conversation;
    this.asking = true;
    const answer = await this.lab.wire.ask({do: "entries", conversation, start, count: WINDOW});
    this.asking = false;
    if (this.closed || !answer?.entries) return;
    const part = answer.entries;
    if (part.conversation === this.conversation) {
      this.take(part);
      const {start: from} = part;
      for (let i = from; i < from + WINDOW; i++) if (this.rows.has(i)) this.rows.get(i).fresh = true;
      if (!part.rows.length) return; // there is nothing where something was expected: ask no more
    }
    this.paint();
  }

  row(entry, index) {
    const {lab} = this, at = {"aria-setsize": this.total, "aria-posinset": index + 1};
    const where = this.crash(entry, index), kill = where === "before" ? killed(lab) : null, after = where === "after" ? killed(lab) : null;
    if (entry.role === "head") return h("li.hd", at, kill, mono(`head ${entry.id}`), " ", foreign(entry.text, {limit: 200}), after);
    const tool = entry.role === "tool", name = tool ? lab.tasks.get(entry.task)?.name : null;
    const role = entry.state === "aborted" ? "aborted partial, not sent to the model"
      : tool ? [entry.state === "interrupted" ? [icon("int"), " "] : null, name ? ["result of ", foreign(name, {limit: 40})] : "tool result", entry.state === "whole" ? null : `: ${entry.state}`]
      : [ROLES[entry.role] ?? foreign(entry.kind, {limit: 40}), entry.state === "whole" ? null : `, ${entry.state}`];
    const forks = entry.forks.length ? [" · ", icon("fork"), ` forked to ${entry.forks.slice(0, 5).join(", ")}`] : null;
    const edit = /edit/.test(entry.kind) && !/edit/.test(ROLES[entry.role] ?? entry.kind) ? " · edit" : null;
    const old = entry.old && entry.state !== "aborted";
    const el = h("li", {...at, class: classes(old && "old", entry.state === "aborted" && "ab", entry.state === "interrupted" && "in", lab.onEntry(entry) && "sel-l", entry.new && "new")},
      kill,
      h("button.e", {
        "data-k": `e${entry.id}`, "data-entry": entry.id, "data-task": entry.task, "data-sub": entry.submission, tabindex: -1,
        title: entry.commit === null || entry.commit === undefined ? null : `commit ${entry.commit}`,
      },
        h("span.r", null, role, edit, forks, old ? hidden(", behind the head, not sent to the model") : null),
        h("span.id", null, entry.id < 0 ? "live" : String(entry.id)),
        foreign(entry.text, {limit: 600, lines: true, as: "bdi.t"})),
      entry.calls.slice(0, 6).map((call, n) => this.call(call, `d${entry.id}/${n}`)),
      entry.calls.length > 6 ? h("p.pol", null, `and ${count(entry.calls.length - 6, "more call")}`) : null,
      after);
    return el;
  }

  /** A tool call, folded; what it says is put in when it is opened. */
  call(call, key) {
    const held = this.opened.get(key);
    const open = held ?? (call.task !== null && this.lab.subjectTask() === call.task && Boolean(call.output || call.lost));
    const el = h("details", {open},
      h("summary", {"data-k": key, tabindex: -1}, foreign(call.name, {limit: 40}), h("span.p", null, " ", foreign([call.status, call.policy].filter(Boolean).join(" · "), {limit: 40}))));
    el.call = call;
    el.key = key;
    if (open) el.append(said(call));
    return el;
  }

  toggled(el) {
    if (!el.call) return;
    if (el.open !== (el.children.length > 1)) this.opened.set(el.key, el.open); // not one that was made open
    if (el.open && el.children.length === 1) el.append(said(el.call));
    else if (!el.open) while (el.children.length > 1) el.lastChild.remove();
    this.paint();
  }

  /** Move the focus among what is in the page; at an edge the next row comes into it first. */
  rove(from, step) {
    const stops = [...this.list.querySelectorAll("button,summary")];
    const at = stops.indexOf(from);
    const next = at < 0 ? stops.find(el => el.getBoundingClientRect().top >= this.box.getBoundingClientRect().top) ?? stops[0] : stops[at + step];
    if (!next) return;
    next.focus({preventScroll: true});
    const box = this.box.getBoundingClientRect(), el = next.getBoundingClientRect();
    if (el.top < box.top + 4) this.box.scrollTop -= box.top + 4 - el.top + 24;
    else if (el.bottom > box.bottom - 4) this.box.scrollTop += Math.min(el.bottom - box.bottom + 28, el.top - box.top);
    this.scrolled();
  }

  close() {
    this.closed = true;
    this.watch.disconnect();
    cancelAnimationFrame(this.frame);
  }
}

const killed = lab => h("p.kill", null, icon("x"), lab.crashCommit === null ? " killed here" : ` killed here, after commit ${lab.crashCommit}`);

const said = call => h("pre", null, "(", foreign(call.arguments, {limit: 400, lines: true}), ")",
  call.output ? ["\n", foreign(call.output, {limit: 1200, lines: true})] : null,
  call.lost ? ["\n", h("span.l", null, foreign(call.lost, {limit: 400, lines: true})), h("span.w", null, "  not committed")] : null);

// --- Parts -----------------------------------------------------------------------------------------------------------

function timeline(lab) {
  const {scene} = lab, p = lab.places, {columns, end, crash} = p, parts = [];
  const box = (left, width) => ({left: `${left}%`, width: `${width}%`});
  let life = 1, from = 0;
  const label = (text, left, right) => parts.push(h("span.life", {style: box(left, Math.max(0, right - left - .4))}, text));
  for (const span of p.spans) {
    const col = columns[span.from], middle = span.left + span.width / 2;
    if (col.kind === "kill") {
      label(`${nth(life++)} life`, from, middle - 3);
      parts.push(h("span.x.old", {style: {left: `${middle}%`}, title: visible(col.detail)}, h("span", null, "✕ kill")));
      from = middle + 3;
    } else parts.push(span.to > span.from ? block(lab, span) : pastMark(lab, col, span));
  }
  if (p.spans.length) label(`${nth(life)} life`, from, p.at(0) - 3);
  parts.push(h("span.x", {style: {left: `${p.at(0)}%`}, title: crash >= 0 ? visible(columns[crash].detail) : null}, h("span", null, crash >= 0 ? "✕ kill" : "now")));
  if (!scene.watched) label("recovery, on a copy", p.at(0) + 3, 100);
  const lanes = Math.min(8, Math.max(3, ...scene.bars.map(bar => bar.lane)));
  scene.bars.forEach((bar, n) => parts.push(effectBar(lab, bar, n, lanes)));
  for (const col of columns.slice(end)) parts.push(stepMark(lab, col));
  lab.at.timeline.style.setProperty("--lanes", lanes);
  lab.at.timeline.classList.toggle("dense", p.dense);
  lab.at.marks.replaceChildren(...parts);
  lab.at.playhead.style.left = `${p.at(scene.position)}%`;
}

const short = col => h("bdi", null, cut(col.label, 12)[0]);

function block(lab, {from, to, left, width}) {
  const [first, last] = [lab.scene.timeline[from], lab.scene.timeline[to]];
  return h("button.m.fold", {style: {left: `${left}%`, width: `${width}%`}, "data-k": `f${from}`, "data-unfold": from, title: `${count(to - from + 1, "commit")}, folded`},
    h("i"), h("span", null, hidden("Commits "), short(first), "–", short(last)), hidden(", folded: show them"));
}

function pastMark(lab, col, {from, left, width}) {
  const live = col.task !== null || col.submission !== null;
  const kind = {commit: "c", fold: "fold", lost: "lost"}[col.kind] ?? "e";
  return h("button", {
    class: classes("m", kind, col.barrier && "bar", lab.same(col) && "sel"), style: {left: `${left}%`, width: `${width}%`},
    "data-k": `c${from}`, "data-task": col.task, "data-sub": col.submission, disabled: !live, title: visible(col.detail),
  },
    h("i"), h("span", null, col.kind === "commit" ? [hidden("Commit "), short(col)] : col.kind === "fold" ? short(col) : h("span", {"aria-hidden": "true"}, "–")),
    hidden(": ", visible(col.detail)));
}

function stepMark(lab, col) {
  const p = lab.places, here = col.position === lab.scene.position, future = col.mark === "future" || col.position > lab.scene.position;
  const again = col.mark === "again" && col.n === null && !future;
  const what = visible(cut(col.detail, 120)[0]);
  return h("button", {
    class: classes("m", col.n === null ? "e" : "c", col.mark === "interrupted" && !future && "int", future && "fut", here && "sel"),
    style: {left: `${p.at(col.position) - p.narrow / 2}%`, width: `${p.narrow}%`}, "data-k": `s${col.position}`, "data-go": col.position,
    "aria-current": here ? "step" : null, title: what,
  },
    again ? icon("again", "again") : h("i"), hidden(what, future ? ", not run yet" : ""),
    h("span", null, col.n === null ? h("span", {"aria-hidden": "true"}, "·") : [hidden(", commit "), short(col)]));
}

function effectBar(lab, bar, n, lanes) {
  const p = lab.places, left = p.x(bar.from - 1), right = Math.min(100, p.x(bar.to - 1)), width = Math.max(.4, right - left);
  const short = width < 6.5;
  return h("button", {
    class: classes("ef", bar.cut ? "cut" : "done", short && "short", short && right > 90 && "left", lab.same({task: bar.task}) && "sel"),
    style: {left: `${left}%`, width: `${width}%`, top: `${44 + (Math.min(bar.lane, lanes) - 1) * 14}px`},
    "data-k": `b${n}`, "data-task": bar.task, disabled: bar.task === null, title: visible(bar.detail),
  },
    h("b"), bar.applied === null ? null : h("span.ap", {style: {left: `${(p.x(bar.applied - 1) - left) / width * 100}%`}}),
    h("span.l", null, foreign(bar.label, {limit: 40})), hidden(", effect: ", visible(bar.detail)));
}

function conversation(lab) {
  const {scene, at} = lab, chosen = lab.conversation(), known = scene.conversations, own = lab.chosen();
  at.convHead.replaceChildren(`Conversation ${own}`, h("span.n", null, chosen?.parent ? `fork of ${chosen.parent.conversation} at entry ${chosen.parent.at}` : "root"));
  at.forks.replaceChildren(...(known.length > 1 && known.length <= DRAWN_FORKS ? [forkGraph(lab)] : []));
  at.forks.hidden = known.length < 2 || known.length > DRAWN_FORKS;
  at.fk.replaceChildren(...(known.length < 2 ? [] : known.slice(0, 500).map(({id, parent}) =>
    h("button", {"data-k": `v${id}`, "data-conv": id, "aria-pressed": String(id === own)}, parent ? `${id} of ${parent.conversation} at ${parent.at}` : `${id} root`))));
  at.fk.hidden = known.length < 2;
  const policies = chosen?.policies ?? [];
  at.policies.replaceChildren(...(chosen?.parent ? ["At the fork: ", policies.slice(0, 20).map((one, n) => [n ? " · " : "", foreign(one.kind, {limit: 40}), one.fork === null ? "" : [" ", one.fork === "as_of" ? `as of ${chosen.parent.at}` : foreign(one.fork, {limit: 40})]]),
    policies.length > 20 ? ` and ${policies.length - 20} more` : "", policies.length ? ". " : "", "No task is copied."].flat(Infinity) : []));
  const subs = scene.submissions.filter(sub => sub.conversation === own), queued = subs.filter(sub => sub.status === "queued").length;
  at.inboxHead.replaceChildren("Inbox and submissions", h("span.n", null, `${queued} queued`));
  const earlier = Math.max(0, scene.totals.submissions - scene.submissions.length);
  const rows = subs.length > 60 ? subs.filter((sub, n) => n >= subs.length - 60 || sub.status === "queued" || sub.new).slice(-60) : subs;
  at.inbox.replaceChildren(...(rows.length < subs.length || earlier ? [h("li.q3", null, `${count(subs.length - rows.length + earlier, "earlier one")}, folded`)] : []),
    ...(rows.length ? rows.map(sub => inboxRow(lab, sub)) : [h("li.q3", null, chosen?.parent ? "Empty: an inbox is not copied by a fork." : "Empty.")]));
}

function inboxRow(lab, sub) {
  const status = sub.status === "done" ? [icon("ok"), " done", sub.answer === null ? "" : `, ${sub.answer}`] : foreign(sub.status, {limit: 24});
  return h("li", {class: classes(lab.same({submission: sub.id}) && "sel-l", sub.new && "new")},
    h("button", {"data-k": `u${sub.id}`, "data-sub": sub.id, title: [sub.type, sub.mode, sub.reason].filter(Boolean).map(word => visible(cut(word, 80)[0])).join(", ")},
      mono(sub.request_id ?? sub.id, {limit: 24}), h("span.tx", null, foreign(sub.text)), h("span.s", null, status)));
}

/** One line a conversation, in the order of their forks; a fork leaves its parent where it was made. */
function forkGraph(lab) {
  const {conversations} = lab.scene, ids = new Set(conversations.map(({id}) => id)), own = lab.chosen();
  const below = parent => conversations.filter(one => (ids.has(one.parent?.conversation) ? one.parent.conversation : null) === parent).sort((a, b) => (a.parent?.at ?? 0) - (b.parent?.at ?? 0) || a.id - b.id);
  const where = new Map(), rows = [], seen = new Set();
  const walk = (parent, left) => below(parent).forEach((one, n) => {
    if (seen.has(one.id)) return;
    seen.add(one.id);
    const leaves = parent === null ? 6 : left + 30 + n * 22;
    where.set(one.id, {y: 12 + rows.length * 19, x: parent === null ? 6 : leaves + 34, leaves});
    rows.push(one);
    walk(one.id, where.get(one.id).x);
  });
  walk(null, 6);
  const wide = Math.max(236, ...[...where.values()].map(({x}) => x + 24));
  const line = one => {
    const {x, y, leaves} = where.get(one.id), above = ids.has(one.parent?.conversation) ? where.get(one.parent.conversation).y : null;
    const end = above === null ? wide : x + 16;
    return s("g", {class: one.id === own ? "on" : "", "data-conv": one.id},
      s("rect", {x: x - 8, y: y - 9, width: end - x + 44, height: 18, fill: "transparent"}),
      above === null ? null : s("path.ln", {d: `M${leaves} ${above}C${leaves + 16} ${above} ${leaves + 16} ${y} ${x} ${y}`}),
      s("path.ln", {d: `M${x} ${y}H${end}`}), above === null ? null : s("circle", {cx: leaves, cy: above, r: 3.5}),
      s("circle", {cx: x, cy: y, r: 3.5}), s("text", {x: end + 6, y: y + 3.5}, String(one.id)));
  };
  const first = rows[0] && where.get(rows[0].id);
  return s("svg", {viewBox: `0 0 ${wide + 44} ${rows.length * 19 + 6}`, "aria-hidden": "true"}, rows.map(line),
    first && lab.places.crash >= 0 ? s("path.crash-at", {d: `M${wide - 30} ${first.y - 9}v18`}) : null);
}

function taskTree(lab) {
  const {scene, tasks} = lab, own = lab.subjectTask(), {totals} = scene;
  lab.at.tasksHead.replaceChildren("Tasks", h("span.n", null, `${totals.live.toLocaleString("en")} live`));
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
  lab.at.tree.replaceChildren(...rows,
    ...(left > 0 ? [h("li.q3", null, `and ${left.toLocaleString("en")} more`)] : []),
    ...(ended ? [h("li", null, h("button.link", {"data-k": "whole", "data-act": "whole"}, `${count(ended, "ended task")}, folded`))] : []),
    ...(scene.tasks.length ? [] : [h("li.q3", null, "None.")]));
}

function taskRow(lab, task, depth, own) {
  const ended = task.state === "terminal", sign = ended ? (task.outcome === "completed" ? "ok" : "cross") : task.state === "completing" ? "running" : task.state;
  const on = task.on.length > 4 ? `${task.on.slice(0, 4).join(", ")} and ${task.on.length - 4} more` : task.on.join(", ");
  const state = ended ? task.outcome ?? "terminal" : task.state === "waiting" ? `waiting on ${on}` : task.aborting ? `${task.state}, to be aborted` : task.state;
  return h("li", {class: classes(task.id === own && "sel-l", task.new && "new"), style: {"padding-left": `${10 + depth * 16}px`}},
    h("button", {"data-k": `t${task.id}`, "data-task": task.id, "aria-pressed": String(task.id === own), tabindex: task.id === own ? 0 : -1},
      icon(sign), mono(task.id), h("span.nm", null, foreign(task.name || task.kind, {limit: 40}), task.background ? h("span.q3", null, " background") : null), h("span.st", null, foreign(state))));
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

function taskView(lab) {
  const task = lab.tasks.get(lab.subjectTask());
  if (!task) return lab.at.task.replaceChildren();
  const dead = lab.scene.position === 0 && task.state === "running" && lab.places.crash >= 0, ended = task.state === "terminal";
  const facts = [["checkpoint", task.checkpoint === null ? h("span.q3", null, ended ? "gone with the outcome" : "none") : foreign(task.checkpoint, {limit: 160})]];
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
  return h("div.blk", null, h("h3", null, `Memos of task ${task.id}`),
    shown.length ? h("table.tbl", {style: {"margin-top": "6px"}}, h("thead", null, h("tr", null, ["name", "value", "writer"].map(word => h("th", {scope: "col"}, word)))),
      h("tbody", null, shown.map(memo => h("tr", {class: memo.new ? "new" : ""}, h("th", {scope: "row"}, mono(memo.name, {limit: 60})),
        h("td", null, mono(memo.value), memo.lost.slice(0, 6).map(lost => [h("br"), h("span.q3", null, h("s", null, mono(lost.value)), lost.by === null ? null : [", ", foreign(lost.by)], ", lost")])), h("td", null, memo.by === null ? null : foreign(memo.by)))))) : h("p.pol", null, "None."),
    task.memos.length > shown.length ? h("p.pol", null, `and ${count(task.memos.length - shown.length, "more memo")}`) : null,
    ended ? h("p.pol", null, "Ended with its task; shown from the record.") : null);
}

// --- What happens now ------------------------------------------------------------------------------------------------

function now(lab) {
  const {scene, wire} = lab, {step} = scene, head = [];
  const words = wire?.gone ? ["The kernel was restarted. Run ", h("code", null, "%pi lab ", scene.watched ? null : foreign(scene.scenario ?? scene.store)), " again."] : scene.words ? foreign(scene.words, {limit: 300}) : null;
  const [sign, tone] = markOf(step), [outIcon, outTone, , outWords] = outside(step.outside);
  head.push(h("p.eyebrow", null, h("span", null, scene.watched ? "Live" : scene.position ? `Step ${scene.position}${scene.last === null ? "" : ` of ${scene.last}`}` : "Before any step"), h("span.q3", null, foreign(step.group))));
  if (!words || wire?.gone) head.push(h("div.verd", null, h("span.v", null, icon(sign, tone), foreign(step.verb)), h("span", null, foreign(step.title)), h("span.o", {class: `o ${outTone}`}, icon(outIcon), step.verb === "effect" && step.outside === "again" ? "outside: happens again" : outWords)));
  head.push(h("p.say", {id: `${lab.uid}-say`}, words ?? foreign(step.say, {limit: 300})));
  if (wire?.gone) head.push(h("p.note", null, "What it said last: ", foreign(scene.words ?? step.say, {limit: 300})));
  else if (step.note && !words) head.push(h("p.note", null, foreign(step.note, {limit: 600})));
  if (wire?.error) head.push(h("p.failed", null, foreign(wire.error, {limit: 600})));
  const body = scene.words && !wire?.gone ? [] : [outcome(step), choice(lab, step), forecast(scene), why(lab, step, sign, tone), rows(scene.position, step)];
  lab.at.now.replaceChildren(h("div.mv", null, head), h("div.mv", null, body));
}

function outcome(step) {
  if (step.predicted === null && step.happened === null) return null;
  const [sign, tone, word] = AGREEMENTS[step.agreement] ?? [];
  return h("div.pvr", null, h("dl.pv", null, h("dt", null, "predicted"), h("dd", null, step.predicted === null ? "–" : foreign(step.predicted, {limit: 160})), h("dt", null, "happened"), h("dd", null, step.happened === null ? "–" : foreign(step.happened, {limit: 160}))),
    word ? h("span", {class: classes("ok", tone)}, icon(sign), word) : null);
}

function choice(lab, step) {
  if (!step.choice) return null;
  const {question, options} = step.choice, chosen = options.find(one => one.chosen);
  return h("fieldset.choice", null, h("legend", null, foreign(question, {limit: 120})),
    h("div.os", null, options.slice(0, 8).map((one, n) => h("label", {class: classes(one.chosen && "on", one.disabled !== null && "off")},
      h("input", {type: "radio", name: `${lab.uid}-choice`, value: n, "data-k": `o${n}`, checked: one.chosen, disabled: one.disabled !== null || lab.wire?.gone}),
      foreign(one.label), h("small", null, foreign(one.disabled ?? one.detail, {limit: 90}))))),
    chosen?.then ? h("p.then", null, foreign(chosen.then, {limit: 200})) : null);
}

function table(name, head, body) {
  return h(`table.${name}`, null, h("thead", null, h("tr", null, head.map(word => h("th", {scope: "col"}, word)))), h("tbody", null, body));
}

function forecast({step, watched}) {
  if (!step.table) return null;
  const shown = step.table.slice(0, 60);
  const row = one => {
    const [sign, tone, word] = outside(one.outside), name = one.task === null ? `sub ${one.submission}` : String(one.task);
    return h("tr", null, h("th", {scope: "row"}, h("button.nw.mono", {"data-task": one.task, "data-sub": one.submission, "data-k": `w${name}`}, name)), h("td", null, h("b.mono", null, foreign(one.verdict))),
      h("td.q2", null, foreign(one.because, {limit: 200})), h("td.nw", null, h("span", {class: `leg ${tone}`}, icon(sign), word)));
  };
  return h("div.sec", null, h("h3", null, watched ? "What is live, and what is next" : "What recovery will do, read without opening"),
    shown.length ? table("tbl", ["task", "verdict", "because", "outside"], shown.map(row)) : h("p.q2", null, "Nothing."),
    step.table.length > shown.length ? h("p.pol", null, `and ${(step.table.length - shown.length).toLocaleString("en")} more`) : null);
}

function why(lab, step, sign, tone) {
  const laws = step.laws.length ? h("dl.laws", null, step.laws.map(law => [h("dt", null, foreign(law.id, {limit: 12})), h("dd", null, foreign(law.text, {limit: 300}))])) : null;
  if (!step.ladder) return laws ? h("div.sec", null, h("h3", null, "Laws"), laws) : null;
  const {skipped, rungs, end} = step.ladder;
  return h("div.sec", null, h("h3", null, "Why"), h("ol.lad", {"aria-label": "Decision, first row that fits"},
    skipped.length ? h("li.skip", null, h("span", null, h("button.link", {"data-act": "skip", "data-k": "skip", "aria-expanded": String(lab.skipOpen)}, `${count(skipped.length, "earlier row")}: no`), lab.skipOpen ? [" · ", foreign(skipped.join(", "), {limit: 600})] : null)) : null,
    rungs.map(rung => h("li", null, h("span.ln", null, h("span.q", null, foreign(rung.question, {limit: 160}), " ", h("b", null, foreign(rung.answer))), rung.exit ? [h("i"), h("span.ex", null, foreign(rung.exit))] : null), h("span.rd", null, foreign(rung.read, {limit: 200})))),
    h("li.end", null, icon(sign, tone), h("span.w", null, foreign(end, {limit: 120})), laws)));
}

function rows(position, step) {
  if (!position) return null;
  const shown = step.diff.slice(0, 60);
  const row = one => h("tr", null, h("td.s", null, one.sign === "-" ? "−" : foreign(one.sign, {limit: 4})), h("td", null, foreign(one.row)),
    h("td", null, one.before ? h(one.sign === "=" ? "span" : "span.old", null, foreign(one.before)) : null, one.before && one.after ? " → " : null, one.after ? foreign(one.after) : null));
  return h("div.sec", null, h("h3", null, "Rows changed", step.commit === null ? null : h("span.n", null, `commit ${step.commit}`)),
    shown.length ? h("table.tbl.diff", null, h("thead.vh", null, h("tr", null, ["sign", "row", "before and after"].map(word => h("th", {scope: "col"}, word)))), h("tbody", null, shown.map(row)))
      : h("p.q2", null, `None. ${step.choice?.kind === "effect" ? "An effect writes nothing; the next commit does." : "The store already knew."}`),
    step.diff.length > shown.length ? h("p.pol", null, `and ${count(step.diff.length - shown.length, "more row")}`) : null);
}

/** What the outside counted, as far as somebody counted. */
function counted(effect) {
  const asked = effect.asked === null ? null : `asked ${effect.asked}`;
  if (effect.applied === null) return asked ?? h("span.q3", null, "not counted");
  return [asked === null ? "" : `${asked}, `, foreign(effect.word || "applied", {limit: 24}), ` ${effect.applied}`];
}

function layers(lab) {
  const {effects} = lab.scene, shown = effects.slice(0, 100);
  const cell = layer => {
    if (!layer) return h("td", null, hidden("not in play"), h("span", {"aria-hidden": "true"}, "–"));
    const said = {acted: " (acted)", missing: " (missing)"}[layer.mark];
    return h("td", {class: layer.mark === "acted" ? "acted" : ""}, layer.mark === "acted" ? icon("dot") : layer.mark === "missing" ? icon("lost") : null, foreign(layer.text), said ? hidden(said) : null);
  };
  const row = one => {
    const [sign, tone] = STORE_SAYS[one.store.mark] ?? STORE_SAYS.none, twice = one.again && one.asked > 1;
    return h("tr", {class: classes(lab.same(one) && "on", one.new && "new")},
      h("th", {scope: "row"}, h("button", {"data-k": `f${visible(one.id)}`, "data-task": one.task, "data-sub": one.submission, disabled: one.task === null && one.submission === null}, foreign(one.label, {limit: 40}))),
      LAYERS.map(([name]) => cell(one.layers[name])),
      h("td", {class: classes("num hd2", twice ? "again off" : one.store.mark === "unknown" && "off")}, twice ? icon("again") : null, counted(one), one.supposed ? h("span.q3", null, " supposed") : null),
      h("td", {class: `st ${tone}`}, icon(sign), foreign(one.store.text)));
  };
  lab.at.layers.replaceChildren(
    h("h3", {id: `${lab.uid}-once`}, "Did it happen once?", h("span.n", null, "per effect: the layer that acted, the world’s count, and the store’s word")),
    shown.length ? h("table.tbl.lt", null, h("colgroup", null, [11, 13.5, 10, 15, 11, 12, 13.5, 14].map(w => h("col", {style: {width: `${w}%`}}))),
      h("thead", null, h("tr", null, h("th", {scope: "col"}, "effect"), LAYERS.map(([, word]) => h("th", {scope: "col"}, word)), h("th.hd2", {scope: "col"}, "really"), h("th", {scope: "col"}, "the store says"))),
      h("tbody", null, shown.map(row))) : h("p.pol", null, "No effect was asked for."),
    effects.length > shown.length ? h("p.pol", null, `and ${count(effects.length - shown.length, "more effect")}`) : "");
}

// --- The crash picker ------------------------------------------------------------------------------------------------

const MOST_POINTS = 500;

/** Points that differ only in their occurrence are one row: `[{name, life, last, text, kinds}]`. */
export function pointRows(points) {
  const rows = new Map();
  for (const {point, text, kinds, occurrence, armed} of points) {
    const name = point.replace(/@\d+$/, ""), life = Number(/^(\d+)!/.exec(point)?.[1] ?? 1);
    const row = rows.get(name) ?? rows.set(name, {name, life, text, kinds: new Set(), last: 1, armed: 0}).get(name);
    row.last = Math.max(row.last, occurrence);
    for (const kind of kinds) row.kinds.add(kind);
    if (armed) row.armed = occurrence;
  }
  return [...rows.values()];
}

/** Where the next run is to die. It belongs to the next run, so it is the only part that is folded. */
class Picker {
  constructor(lab) {
    this.lab = lab;
    this.armed = new Map(); // life -> {name, n}: a life dies once
    this.kind = "";
    this.rows = [];
    this.section = h("section.crash", {"aria-label": "Crash picker", hidden: true});
    this.button = h("button.link", {"data-act": "crash", "data-k": "crash", "aria-expanded": "false"});
    for (const kind of ["change", "input"]) this.section.addEventListener(kind, event => this.changed(event.target));
  }

  show(points) {
    this.button.hidden = !points.length;
    if (!points.length) this.section.hidden = true;
    if (!this.lab.unchanged("points", points)) this.build(pointRows(points));
    this.word();
  }

  build(rows) {
    this.rows = rows.slice(0, MOST_POINTS);
    this.armed = new Map(rows.filter(row => row.armed).map(({life, name, armed}) => [life, {name, n: armed}]));
    const kinds = this.kinds = [...new Set(rows.flatMap(row => [...row.kinds]))], {uid} = this.lab;
    if (!kinds.includes(this.kind)) this.kind = kinds.includes("kill") ? "kill" : kinds[0] ?? "";
    const item = (row, n) => h("li", {class: n && row.life !== this.rows[n - 1].life ? "life" : ""},
      h("label", null, h("input", {type: "checkbox", "data-k": `p${n}`, "data-point": n}), mono(row.name, {limit: 100}),
        h("span.q2", null, foreign(row.text))),
      h("label.occ", null, "occurrence ", h("input", {
        type: "number", min: 1, max: row.last, value: row.armed || 1, "data-k": `n${n}`, "data-nth": n,
        "aria-label": `Occurrence of ${visible(row.name)}, of ${row.last}`,
      }), ` of ${row.last}`));
    const radio = kind => h("label", null,
      h("input", {type: "radio", name: `${uid}-kind`, value: kinds.indexOf(kind), checked: kind === this.kind, "data-k": `k${visible(kind)}`}),
      h("span", null, foreign(kind, {limit: 12})), h("span.q2", null, KINDS[kind] ?? ""));
    this.said = h("span.q2");
    this.run = h("button.b.p", {"data-act": "run", "data-k": "run"}, "Run");
    this.section.replaceChildren(
      h("div", null, h("h3", null, "Kill the next run at", h("span.n", null, "one point in a life; points of a second life begin with 2!")),
        h("ul", null, this.rows.map(item)),
        rows.length > MOST_POINTS ? h("p.pol", null, `and ${rows.length - MOST_POINTS} more`) : ""),
      h("div.k", null, h("fieldset", null, h("legend", null, "How"), kinds.map(radio)), h("div.act", null, this.run, this.said)));
  }

  changed(el) {
    if (el.type === "radio") this.kind = this.kinds[el.value];
    const row = this.rows[el.dataset.point ?? el.dataset.nth];
    if (row) {
      const number = Number(this.section.querySelector(`[data-nth="${this.rows.indexOf(row)}"]`).value);
      const n = Math.min(row.last, Math.max(1, Math.floor(number) || 1)), mine = this.armed.get(row.life)?.name === row.name;
      if (el.type !== "checkbox" ? mine : el.checked) this.armed.set(row.life, {name: row.name, n});
      else if (mine && el.type === "checkbox") this.armed.delete(row.life);
    }
    this.word();
  }

  word() {
    const {armed, rows, run, said} = this;
    this.button.textContent = `Crash points, ${armed.size} armed`;
    if (!run) return;
    said.textContent = armed.has(1) || !armed.size ? `${armed.size} armed` : "arm one in the first life too";
    run.disabled = !armed.has(1) || Boolean(this.lab.wire?.gone);
    rows.forEach((row, n) => {
      const on = armed.get(row.life)?.name === row.name, box = this.section.querySelector(`[data-point="${n}"]`);
      box.checked = on;
      this.section.querySelector(`[data-nth="${n}"]`).parentElement.hidden = !on;
    });
  }

  /** What is to be run: a point for each life, the first one first. */
  message() {
    const points = [...this.armed].sort(([a], [b]) => a - b).map(([, {name, n}]) => (n === 1 ? name : `${name}@${n}`));
    return {do: "run", points, kind: this.kind};
  }

  toggle() {
    this.section.hidden = !this.section.hidden;
    this.button.setAttribute("aria-expanded", String(!this.section.hidden));
  }
}

// --- The lab ---------------------------------------------------------------------------------------------------------

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
      section("conv.side", "conv", at.convHead, at.forks, at.fk, at.policies, this.transcript.box, h("div.blk", null, at.inboxHead, at.inbox)),
      at.now, section("task.side", "tasks", at.tasksHead, at.tree, at.task));
    this.root = h("div.pi-lab", {role: "region", "data-lm-suppress-shortcuts": "true"},
      h("div.head", null, at.store, at.how, at.where, h("span.sp"), at.pin, this.picker.button),
      this.picker.section, h("section.time", {"aria-label": "Timeline of commits and effects"}, at.timeline, at.run), at.grid, at.layers,
      h("div.foot", null, KEYS.map(([keys, word]) => h("span", null, keys.map((key, n) => [n ? (word === "choose" ? "–" : " ") : "", h("kbd", null, key)]), word ? ` ${word}` : "")), h("span.sp"),
        LEGEND.map(([tone, sign, word]) => h("span", {class: `leg ${tone}`}, icon(sign), word))),
      at.live);
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
    if (!same("tree", scene.tasks, scene.totals, task, this.wholeTree)) taskTree(this);
    if (!same("task", this.tasks.get(task), scene.position)) taskView(this);
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
    if (this.tasks.has(own.task)) return own.task;
    const {tasks} = this.scene;
    return (tasks.find(task => task.state !== "terminal") ?? tasks[tasks.length - 1])?.id ?? null;
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
    const {act, go, conv, unfold, task, sub, entry} = el.dataset;
    const acts = {
      next: () => this.next(), back: () => this.back(), play: () => this.play(), crash: () => this.picker.toggle(), unpin: () => this.select(null),
      skip: () => { this.skipOpen = !this.skipOpen; this.render({still: true}); }, whole: () => { this.wholeTree = true; this.render({still: true}); },
      run: () => { this.stop(); this.press(this.picker.message()); },
    };
    if (act) acts[act]?.();
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
    if (key === "Escape") return done(() => this.select(null));
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
    this.root.remove();
  }
}

export default {
  render({model, el}) {
    const lab = new Lab(model, el);
    return () => lab.destroy();
  },
};
