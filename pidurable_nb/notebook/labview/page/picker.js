/* The crash picker: where the next run is to die. */
import {visible} from "./text.js";
import {foreign, h, mono} from "./elements.js";
import {KINDS} from "./words.js";

const MOST_POINTS = 500;

/** Points that differ only in their occurrence are one row: `[{name, life, last, text, kinds}]`. */
function pointRows(points) {
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
export class Picker {
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
