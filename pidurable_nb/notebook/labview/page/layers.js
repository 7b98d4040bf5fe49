/* Did it happen once? For each effect, which layer acted, and what was really counted. */
import {count, visible} from "./text.js";
import {classes, foreign, h, hidden, icon} from "./elements.js";
import {LAYERS, STORE_SAYS} from "./words.js";

/** What the outside counted, as far as somebody counted. */
function counted(effect) {
  const asked = effect.asked === null ? null : `asked ${effect.asked}`;
  if (effect.applied === null) return asked ?? h("span.q3", null, "not counted");
  return [asked === null ? "" : `${asked}, `, foreign(effect.word || "applied", {limit: 24}), ` ${effect.applied}`];
}

export function layers(lab) {
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
