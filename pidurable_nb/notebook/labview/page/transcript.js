/* The transcript of a conversation, of any length. */
import {count, cut} from "./text.js";
import {classes, foreign, h, hidden, icon, mono, reads} from "./elements.js";

const WINDOW = 60; // entries asked for at a time
const TEXT = 600; // characters of an entry
const NODES = 190; // in the transcript, whatever its length

const ROLES = {user: "user", assistant: "assistant", system: "system"};

/** A list of any length in a box of one height: only what is near the view is in the page, and asked for. */
export class Transcript {
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
    return entry ? 9 + entry.calls.slice(0, 6).length * 6 + (entry.size || entry.text.length > TEXT ? 3 : 0) + (this.lab.pin !== null && this.lab.onEntry(entry) ? 4 : 0) : 4;
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
      if (row && old?.entry && old.entry !== row.entry && JSON.stringify(old.entry) === JSON.stringify(row.entry)) row.entry = old.entry; // it came again
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
    return [this.crash(entry, index), lab.onEntry(entry), lab.pin !== null, lab.crashCommit, entry.calls.length ? lab.subjectTask() : ""].join("/");
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
    const old = entry.old && entry.state !== "aborted", [text, long, size] = cut(entry.text, TEXT, true, entry.size);
    const picked = lab.pin !== null && lab.onEntry(entry) && entry.id > 0;
    const el = h("li", {...at, class: classes(old && "old", entry.state === "aborted" && "ab", entry.state === "interrupted" && "in", lab.onEntry(entry) && "sel-l", entry.new && "new")},
      kill,
      h("button.e", {
        "data-k": `e${entry.id}`, "data-entry": entry.id, "data-task": entry.task, "data-sub": entry.submission, tabindex: -1,
        title: entry.commit === null || entry.commit === undefined ? null : `commit ${entry.commit}`,
      },
        h("span.r", null, role, edit, forks, old ? hidden(", behind the head, not sent to the model") : null),
        h("span.id", null, entry.id < 0 ? "live" : String(entry.id)),
        h("bdi.t", null, text)),
      long || picked ? h("p.pol", null, long ? reads(size, {entry: entry.id}, {tabindex: -1}) : null, long && picked ? " · " : null, picked ? stored(entry.id) : null) : null,
      entry.calls.slice(0, 6).map((call, n) => this.call(call, `d${entry.id}/${n}`, entry.id)),
      entry.calls.length > 6 ? h("p.pol", null, `and ${count(entry.calls.length - 6, "more call")}`) : null,
      after);
    return el;
  }

  /** A tool call, folded; what it says is put in when it is opened. */
  call(call, key, entry) {
    const held = this.opened.get(key);
    const open = held ?? (call.task !== null && this.lab.subjectTask() === call.task && Boolean(call.output || call.lost));
    const el = h("details", {open},
      h("summary", {"data-k": key, tabindex: -1}, foreign(call.name, {limit: 40}), h("span.p", null, " ", foreign([call.status, call.policy].filter(Boolean).join(" · "), {limit: 40}))));
    el.call = call;
    el.key = key;
    el.entry = entry;
    if (open) el.append(said(call, entry));
    return el;
  }

  toggled(el) {
    if (!el.call) return;
    if (el.open !== (el.children.length > 1)) this.opened.set(el.key, el.open); // not one that was made open
    if (el.open && el.children.length === 1) el.append(said(el.call, el.entry));
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

/** An entry as it is stored, for whoever picked it. */
const stored = id => h("button.link.rd", {"data-read": JSON.stringify({entry: id, part: "stored"}), "data-k": `s${id}`, tabindex: -1}, "read as it is stored");

const said = (call, entry) => {
  const of = part => ({call: {entry, id: call.id, part}}), {arguments: given, output, lost} = call.sizes ?? {};
  return h("pre", null, "(", foreign(call.arguments, {limit: 400, lines: true, size: given, of: of("arguments")}), ")",
    call.output ? ["\n", foreign(call.output, {limit: 1200, lines: true, size: output, of: of("output")})] : null,
    call.lost ? ["\n", h("span.l", null, foreign(call.lost, {limit: 400, lines: true, size: lost, of: of("lost")})), h("span.w", null, "  not committed")] : null);
};
