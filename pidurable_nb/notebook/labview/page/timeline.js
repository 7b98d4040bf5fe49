/* The timeline: lives, commits, effects, the line where it died, and the steps behind it. */
import {count, cut, visible} from "./text.js";
import {classes, foreign, h, hidden, icon} from "./elements.js";
import {nth} from "./words.js";

export function timeline(lab) {
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
