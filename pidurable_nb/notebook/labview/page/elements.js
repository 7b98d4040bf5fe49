/* Elements, made without ever parsing: text becomes text nodes, whatever it says. Owns the signs too. */
import {count, cut} from "./text.js";

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
export function h(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const el = document.createElement(tag);
  if (classes.length) el.className = classes.join(" ");
  return filled(el, props, children);
}

export function s(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const el = document.createElementNS(SVG, tag);
  if (classes.length) el.setAttribute("class", classes.join(" "));
  return filled(el, props, children);
}

/** Foreign text, isolated; what is too long is cut and says its size, on a button where `of` tells how to read it. */
export function foreign(text, {limit = 80, lines = false, as = "bdi", size = 0, of = null} = {}) {
  const [shown, note, whole] = cut(text, limit, lines, size);
  if (!note) return h(as, null, shown);
  return of ? [h(as, null, shown), " ", reads(whole, of)] : [h(as, null, shown), h("span.q3", null, note)];
}

/** The button that opens a text: a note of its size. Names in what it asks for are foreign, so they stand escaped. */
export function reads(size, of, props = {}) {
  const asked = JSON.stringify(of).replace(/[^\x20-\x7e]/g, char => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return h("button.link.rd", {"data-read": asked, "data-k": `r${asked}`, ...props}, `${count(size, "character")}, read`);
}

export const mono = (text, options) => foreign(text, {as: "bdi.mono", ...options});
export const hidden = (...text) => h("span.vh", null, ...text);
export const classes = (...names) => names.filter(Boolean).join(" ");

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

export const icon = (name, tone = "") =>
  s("svg", {class: classes("i", tone), viewBox: "0 0 12 12", "aria-hidden": "true"}, (ICONS[name] ?? ICONS.none).map(([tag, props]) => s(tag, props)));

export function table(name, head, body) {
  return h(`table.${name}`, null, h("thead", null, h("tr", null, head.map(word => h("th", {scope: "col"}, word)))), h("tbody", null, body));
}
