/* What happens now: the sentence, the bet, the choice, why, and the rows that changed. */
import {count} from "./text.js";
import {classes, foreign, h, icon, table} from "./elements.js";
import {AGREEMENTS, markOf, outside} from "./words.js";

export function now(lab) {
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
  const side = (one, n, name) => foreign(one[name], {size: one[`${name}_size`], of: {row: {position, row: n, side: name}}});
  const row = (one, n) => h("tr", null, h("td.s", null, one.sign === "-" ? "−" : foreign(one.sign, {limit: 4})), h("td", null, foreign(one.row)),
    h("td", null, one.before ? h(one.sign === "=" ? "span" : "span.old", null, side(one, n, "before")) : null, one.before && one.after ? " → " : null, one.after ? side(one, n, "after") : null));
  return h("div.sec", null, h("h3", null, "Rows changed", step.commit === null ? null : h("span.n", null, `commit ${step.commit}`)),
    shown.length ? h("table.tbl.diff", null, h("thead.vh", null, h("tr", null, ["sign", "row", "before and after"].map(word => h("th", {scope: "col"}, word)))), h("tbody", null, shown.map(row)))
      : h("p.q2", null, `None. ${step.choice?.kind === "effect" ? "An effect writes nothing; the next commit does." : "The store already knew."}`),
    step.diff.length > shown.length ? h("p.pol", null, `and ${count(step.diff.length - shown.length, "more row")}`) : null);
}
