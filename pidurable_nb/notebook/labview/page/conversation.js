/* The conversations: which there are, which is a fork of which, what waits in the inbox. */
import {count, cut, visible} from "./text.js";
import {classes, foreign, h, icon, mono, s} from "./elements.js";

const DRAWN_FORKS = 12;

export function conversation(lab) {
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
