/* All tasks as one picture: boxes that the kernel placed, lines to what each owns and waits for.
 *
 * Owns the picture, its zoom and the keys in it. The selection is the lab's one. Every text of a box is foreign; of
 * what comes from the kernel only numbers and paths become attributes. A box is four elements at most, all lines of a
 * kind are one path, so a thousand tasks stay light.
 */
import {count, cut} from "./text.js";
import {foreign, h, icon, s} from "./elements.js";
import {signOf, standing} from "./tasks.js";

const ZOOM_MOST = 2, ZOOM_LEAST = 0.05, ZOOM_STEP = 1.4;
const ZOOM_FAR = 0.75; // below this zoom a box shows its number only, larger
const ID_PX = 11;
const REDRAW_MS = 1000; // between two pictures of a store that lives

const GRAPH_KEYS = [["← ↑ ↓ →", "next task there"], ["+ −", "zoom"], ["0", "fit"], ["Esc", "close"]];

export class Graph {
  constructor(lab) {
    const {uid} = lab, button = (word, name, act) => h("button.b", {"data-k": `graph-${act}`, "aria-label": name, title: name}, word);
    this.lab = lab;
    this.open = this.asking = this.stale = false;
    this.graph = null;
    this.boxes = new Map(); // id -> {el, node}
    this.zoom = 1;
    this.title = h("h3", {id: `${uid}-graph`});
    this.counts = h("span.q2");
    this.said = h("span.q2", {"aria-live": "polite"});
    this.smaller = button("−", "Zoom out", "out");
    this.larger = button("+", "Zoom in", "in");
    this.fitted = button("Fit", "Fit all tasks in", "fit");
    this.shut = h("button.b", {"data-k": "graph-close"}, "Close");
    this.lines = s("svg", {"aria-hidden": "true"});
    this.sheet = h("div.sheet", {role: "listbox", "aria-label": "Tasks and their owners; arrows move and select"});
    this.whole = h("div.whole", null, this.lines, this.sheet);
    this.box = h("div.gb", null, this.whole);
    this.section = h("section.graph", {"aria-labelledby": `${uid}-graph`, hidden: true},
      h("div.rh", null, this.title, this.counts, this.said, h("span.sp"), this.smaller, this.larger, this.fitted, this.shut),
      this.box,
      h("div.gl", null,
        h("span.leg", null, s("svg.gk", {viewBox: "0 0 24 8", "aria-hidden": "true"}, s("path", {d: "M1 4h22"})), "owns"),
        h("span.leg", null, s("svg.gk.wait", {viewBox: "0 0 24 8", "aria-hidden": "true"}, s("path", {d: "M1 4h22"})), "waits for"),
        h("span.sp"), GRAPH_KEYS.map(([keys, word]) => h("span", null, h("kbd", null, keys), ` ${word}`))));
    this.smaller.addEventListener("click", () => this.scale(this.zoom / ZOOM_STEP));
    this.larger.addEventListener("click", () => this.scale(this.zoom * ZOOM_STEP));
    this.fitted.addEventListener("click", () => this.fit());
    this.shut.addEventListener("click", () => this.close());
    this.sheet.addEventListener("click", event => this.pick(event.target.closest("[role=option]")));
    this.section.addEventListener("keydown", event => this.key(event));
  }

  toggle() {
    if (this.open) this.close();
    else this.show();
  }

  async show() {
    this.open = true;
    this.section.hidden = false;
    this.lab.at.grid.classList.add("drawn");
    this.lab.render({still: true});
    this.shut.focus({preventScroll: true});
    await this.ask(true);
    if (this.open && this.boxes.size && document.activeElement === this.shut) this.at()?.el.focus({preventScroll: true});
  }

  close() {
    if (!this.open) return;
    const held = this.section.contains(document.activeElement);
    this.open = false;
    this.section.hidden = true;
    this.lab.at.grid.classList.remove("drawn");
    this.forget();
    this.lab.render({still: true});
    if (held) this.lab.root.querySelector("[data-k=graph]")?.focus({preventScroll: true});
  }

  forget() {
    this.graph = null;
    this.boxes.clear();
    this.sheet.replaceChildren();
    this.lines.replaceChildren();
  }

  /** Another scene came. */
  refresh() {
    if (!this.open) return;
    if (this.asking) this.stale = true;
    else this.ask(false);
  }

  /** Get the picture of this position. While one is awaited, later wishes are one. */
  async ask(first) {
    this.asking = true;
    this.stale = false;
    if (first) this.said.textContent = "drawing…";
    const began = performance.now(), {graph, error} = await this.lab.wire.ask({do: "graph"}, {quiet: true}) ?? {};
    if (this.lab.closed) return;
    if (this.open) {
      if (graph) this.put(graph, first);
      else this.said.replaceChildren(...[foreign(error ?? "The kernel was restarted.", {limit: 300})].flat());
    }
    const wait = this.lab.scene.watched ? Math.max(0, began + REDRAW_MS - performance.now()) : 0;
    clearTimeout(this.later);
    this.later = setTimeout(() => {
      this.asking = false;
      if (this.stale && this.open && !this.lab.closed) this.ask(false);
    }, wait);
  }

  put(graph, first) {
    const held = this.sheet.contains(document.activeElement);
    this.graph = graph;
    this.boxes = new Map(graph.nodes.map(node => [node.id, {node, el: boxOf(node)}]));
    if (first) this.fit(); // before there are boxes, so that they are laid out once
    this.sheet.replaceChildren(...[...this.boxes.values()].map(({el}) => el));
    const lines = kind => s(`path.${kind}`, {d: pathOfLines(graph, edge => edge.kind === kind)});
    this.own = {owns: s("path.owns.own"), waits: s("path.waits.own")};
    this.lines.replaceChildren(lines("owns"), lines("waits"), this.own.owns, this.own.waits);
    this.lines.setAttribute("viewBox", `0 0 ${Number(graph.width)} ${Number(graph.height)}`);
    this.title.textContent = graph.total > graph.nodes.length ? `${graph.nodes.length.toLocaleString("en")} of ${count(graph.total, "task")}` : count(graph.total, "task");
    this.counts.replaceChildren(...tallyOf(graph.nodes));
    this.said.textContent = graph.edges_left ? `${count(graph.edges_left, "more line")} not drawn` : "";
    if (!first) this.scale(this.zoom);
    this.mark(first);
    if (held) this.at()?.el.focus({preventScroll: true});
  }

  // -- zoom --

  fit() {
    const {clientWidth, clientHeight} = this.box;
    if (this.graph) this.scale(Math.min(1, clientWidth / this.graph.width, clientHeight / this.graph.height));
  }

  /** Zoom about the selected box where it is in sight, else about the middle. */
  scale(zoom) {
    if (!this.graph) return;
    const {box, graph} = this, before = this.zoom, z = Math.max(ZOOM_LEAST, Math.min(ZOOM_MOST, zoom)), own = this.boxes.get(this.lab.subjectTask())?.node;
    const half = [box.clientWidth / 2, box.clientHeight / 2];
    let [x, y] = [(box.scrollLeft + half[0]) / before, (box.scrollTop + half[1]) / before];
    if (own && Math.abs(own.x - x) * before < half[0] && Math.abs(own.y - y) * before < half[1]) [x, y] = [own.x + own.w / 2, own.y + own.h / 2];
    this.zoom = z;
    const size = {width: `${graph.width * z}px`, height: `${graph.height * z}px`};
    Object.assign(this.whole.style, size);
    Object.assign(this.lines.style, size);
    Object.assign(this.sheet.style, {width: `${graph.width}px`, height: `${graph.height}px`, transform: `scale(${z})`});
    this.sheet.classList.toggle("far", z < ZOOM_FAR);
    this.sheet.style.setProperty("--z", String(z));
    this.sheet.style.setProperty("--id", `${Math.min(30, ID_PX / z)}px`);
    box.scrollLeft = x * z - half[0];
    box.scrollTop = y * z - half[1];
    this.smaller.disabled = z <= ZOOM_LEAST;
    this.larger.disabled = z >= ZOOM_MOST;
  }

  // -- the one selection --

  at() {
    return this.boxes.get(this.lab.subjectTask()) ?? this.boxes.values().next().value;
  }

  /** Show which task is selected, and bring it into sight where that is asked for. */
  mark(see = false) {
    if (!this.graph) return;
    const id = this.lab.subjectTask(), stop = this.at();
    for (const el of this.sheet.querySelectorAll("[aria-selected=true], [tabindex='0']")) {
      el.setAttribute("aria-selected", "false");
      el.tabIndex = -1;
    }
    if (stop) stop.el.tabIndex = 0;
    this.boxes.get(id)?.el.setAttribute("aria-selected", "true");
    for (const [kind, path] of Object.entries(this.own)) path.setAttribute("d", pathOfLines(this.graph, edge => edge.kind === kind && (edge.from === id || edge.to === id)));
    if (see && stop) this.see(stop.node);
  }

  see({x, y, w, h: high}) {
    const {box, zoom: z} = this, edge = 24;
    const put = (start, size, length, scroll) => (start * z - edge < scroll ? start * z - edge : (start + length) * z + edge > scroll + size ? (start + length) * z + edge - size : scroll);
    box.scrollLeft = put(x, box.clientWidth, w, box.scrollLeft);
    box.scrollTop = put(y, box.clientHeight, high, box.scrollTop);
  }

  pick(el) {
    if (!el) return;
    this.lab.select({task: Number(el.dataset.task)});
    el.focus({preventScroll: true});
  }

  /** The nearest box in a direction: along it first, aside counts more. */
  toward([dx, dy]) {
    const from = this.boxes.get(Number(document.activeElement?.dataset.task))?.node ?? this.at()?.node;
    let best = null, least = Infinity;
    for (const {node} of this.boxes.values()) {
      const along = (node.x - from.x) * dx + (node.y - from.y) * dy, aside = Math.abs((node.x - from.x) * dy) + Math.abs((node.y - from.y) * dx);
      const far = along + 3 * aside;
      if (along > 0 && far < least) [best, least] = [node, far];
    }
    return best;
  }

  /** Keys stay here: neither the lab nor the notebook around it acts on them. */
  key(event) {
    event.stopPropagation();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const {key} = event, inside = this.sheet.contains(event.target), ids = [...this.boxes.keys()];
    const to = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[key];
    const acts = {Escape: () => this.close(), "+": () => this.scale(this.zoom * ZOOM_STEP), "=": () => this.scale(this.zoom * ZOOM_STEP), "-": () => this.scale(this.zoom / ZOOM_STEP), 0: () => this.fit()};
    const here = {Home: () => this.go(ids[0]), End: () => this.go(ids[ids.length - 1]), Enter: () => this.pick(event.target), " ": () => this.pick(event.target)};
    const act = acts[key] ?? (inside ? here[key] ?? (to ? () => this.go(this.toward(to)?.id) : null) : null);
    if (!act) return;
    event.preventDefault();
    act();
  }

  go(id) {
    const found = this.boxes.get(id);
    if (!found) return;
    this.pick(found.el);
    this.see(found.node);
  }

  destroy() {
    clearTimeout(this.later);
  }
}

const pathOfLines = (graph, which) => graph.edges.filter(which).map(({d}) => d).join("");

function boxOf(node) {
  const {id, name, kind, x, y, w, h: high} = node, state = standing(node), [shown] = cut(name || kind, 60);
  const el = h("div", {role: "option", "aria-selected": "false", class: `tk ${boxTone(node)}`, "data-task": Number(id), "data-k": `n${Number(id)}`, tabindex: -1,
    "aria-label": `Task ${Number(id)}, ${shown}, ${state}`, style: {left: `${Number(x)}px`, top: `${Number(y)}px`, width: `${Number(w)}px`, height: `${Number(high)}px`}},
    icon(signOf(node)), `${Number(id)} `, h("bdi", null, shown));
  el.dataset.state = state;
  return el;
}

/** What became of it: nothing yet, its end as it should be, or another. */
const boxTone = ({state, outcome}) => (state !== "terminal" ? "live" : outcome === "completed" ? "done" : outcome === "orphaned" ? "int orphan" : "int");

/** How many there are of each, with the sign that they have in the picture. */
function tallyOf(nodes) {
  const found = new Map();
  for (const node of nodes) {
    const word = standing({...node, aborting: false});
    const known = found.get(word) ?? {n: 0, node};
    known.n++;
    found.set(word, known);
  }
  return [...found].sort().map(([word, {n, node}]) => h("span", {class: `leg ${boxTone(node)}`}, icon(signOf(node)), `${n.toLocaleString("en")} ${word}`));
}
