/* One text, whole, a page at a time: what the rest of the page shows cut is read here.
 *
 * The kernel has the text; here is one page of it, so a text of any length is a handful of nodes. Places are counted as
 * the kernel counts, in characters (code points).
 */
import {visible} from "./text.js";
import {foreign, h} from "./elements.js";

const PAGE = 16000; // characters of a page
const LATE_MS = 300;

const number = n => n.toLocaleString("en");

export class Reader {
  constructor(lab) {
    const {uid} = lab, button = (word, act) => h("button.b", {"data-k": `read-${act}`}, word);
    this.lab = lab;
    this.of = null;
    this.turn = 0; // of the page that was asked for last
    this.title = h("h3", {id: `${uid}-reader`});
    this.where = h("span.q2", {"aria-live": "polite"});
    this.field = h("input", {type: "text", maxlength: 1000, autocomplete: "off", spellcheck: "false", "data-k": "read-field", id: `${uid}-sought`});
    this.said = h("span.q2", {"aria-live": "polite"});
    this.moves = {first: button("Start", "first"), earlier: button("Earlier", "earlier"), later: button("Later", "later"), last: button("End", "last")};
    this.seek = button("Find next", "find");
    this.shut = button("Close", "close");
    this.box = h("pre", {tabindex: 0, role: "group", "aria-label": "The text, arrows scroll", "data-k": "read-text"});
    this.section = h("section.reader", {"aria-labelledby": `${uid}-reader`, hidden: true},
      h("div.rh", null, this.title, this.where, h("span.sp"), this.shut),
      h("div.rh", null, Object.values(this.moves), h("span.sp"), h("label", {for: `${uid}-sought`}, "Find"), this.field, this.seek, this.said),
      this.box);
    this.shut.addEventListener("click", () => this.close());
    this.seek.addEventListener("click", () => this.find());
    this.moves.first.addEventListener("click", () => this.show(0));
    this.moves.earlier.addEventListener("click", () => this.show(Math.max(0, this.start - PAGE)));
    this.moves.later.addEventListener("click", () => this.show(this.start + PAGE));
    this.moves.last.addEventListener("click", () => this.show(Math.floor(Math.max(0, this.total - 1) / PAGE) * PAGE));
    this.section.addEventListener("keydown", event => this.key(event));
  }

  /** Open a text; `from` is the button that was pressed, and gets the focus back. */
  open(of, from) {
    this.of = of;
    this.from = from;
    this.store = this.lab.scene.store;
    this.start = this.total = 0;
    this.asking = this.stale = false;
    this.text = this.hit = null;
    this.sought = this.field.value = "";
    this.title.replaceChildren(...[named(of)].flat(Infinity));
    this.where.textContent = this.said.textContent = "";
    this.box.replaceChildren();
    this.section.hidden = false;
    this.section.scrollIntoView({block: "nearest"});
    this.box.focus({preventScroll: true});
    this.show(0);
  }

  close() {
    if (!this.of) return;
    const {from, lab} = this, held = this.section.contains(document.activeElement);
    this.of = null;
    this.turn++;
    this.section.hidden = true;
    this.box.replaceChildren();
    if (!held) return;
    const again = from.isConnected ? from : lab.root.querySelector(`[data-k="${CSS.escape(from.dataset.k)}"]`);
    (again ?? lab.transcript.box).focus();
  }

  /** Another scene came: the same page of the text as it is there. A store of another name has other texts. */
  refresh(scene) {
    if (!this.of) return;
    if (scene.store !== this.store) this.close();
    else if (this.asking) this.stale = true;
    else this.show(this.start, this.hit);
  }

  /** Show the page from `start`, and mark `hit`: a place with the length of what stands there. */
  async show(start, hit = null) {
    const mine = ++this.turn, moved = start !== this.start || Boolean(hit && hit !== this.hit);
    const late = setTimeout(() => { if (mine === this.turn) this.where.textContent = "waiting for the kernel"; }, LATE_MS);
    this.asking = true;
    const answer = await this.lab.wire.ask({do: "text", of: this.of, start, count: PAGE}, {quiet: true});
    clearTimeout(late);
    if (mine !== this.turn || this.lab.closed) return;
    this.asking = false;
    if (answer?.text) this.put(answer.text, hit, moved);
    else this.lost(answer?.error);
    if (this.stale) {
      this.stale = false;
      this.show(this.start, this.hit);
    }
  }

  put({start, total, text, escaped = false}, hit, moved) {
    if (this.total && total !== this.total) hit = null; // it is another text now
    const given = escaped ? JSON.parse(text) : text, chars = [...given], stamp = JSON.stringify([start, total, hit]);
    Object.assign(this, {start, total, hit});
    this.where.textContent = total ? `characters ${number(start + 1)} to ${number(start + chars.length)} of ${number(total)}` : "empty";
    if (this.text !== given || this.stamp !== stamp) {
      const from = hit ? hit.at - start : 0, to = from + (hit?.length ?? 0), part = (a, b) => visible(chars.slice(a, b).join(""), true);
      const mark = hit && from >= 0 && from < chars.length ? h("mark", null, part(from, to)) : null;
      this.box.replaceChildren(mark ? h("bdi", null, part(0, from), mark, part(to)) : h("bdi", null, visible(given, true)));
      if (moved || mark) this.box.scrollTop = mark ? mark.offsetTop - this.box.clientHeight / 3 : 0;
    }
    this.text = given;
    this.stamp = stamp;
    this.able(start > 0, start + chars.length < total);
  }

  lost(error) {
    this.text = null;
    this.where.replaceChildren(...wrong(error));
    this.box.replaceChildren();
    this.able(false, false);
  }

  able(before, behind) {
    const {first, earlier, later, last} = this.moves, held = document.activeElement;
    first.disabled = earlier.disabled = !before;
    later.disabled = last.disabled = !behind;
    if (held?.disabled && this.section.contains(held)) this.box.focus({preventScroll: true});
  }

  /** To the next place of what stands in the field: behind the one that is marked, else from this page on. */
  async find() {
    const what = this.field.value, length = [...what].length, of = this.of;
    if (!what) return;
    const from = this.sought !== what ? this.start : this.hit ? this.hit.at + 1 : 0;
    this.sought = what;
    this.said.textContent = "";
    const answer = await this.lab.wire.ask({do: "find", of, what, from}, {quiet: true});
    if (this.of !== of || this.lab.closed || this.sought !== what) return;
    if (!answer || answer.error) {
      this.said.replaceChildren(...wrong(answer?.error));
    } else if (typeof answer.found === "number") {
      const at = answer.found, page = Math.floor(at / PAGE) * PAGE;
      this.said.textContent = `at character ${number(at + 1)}`;
      this.show(at + length <= page + PAGE ? page : Math.max(0, at - PAGE / 2), {at, length});
    } else {
      this.said.textContent = from ? "no further one; again searches from the start" : "it is not there";
      this.hit = null;
    }
  }

  /** Keys stay here: neither the lab nor the notebook around it acts on them. */
  key(event) {
    event.stopPropagation();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      event.preventDefault();
      this.close();
    } else if (event.key === "Enter" && event.target === this.field) {
      event.preventDefault();
      this.find();
    }
  }
}

const wrong = error => [foreign(error ?? "The kernel was restarted.", {limit: 300})].flat();

/** What a text is called. */
function named({entry, part, call, task, row}) {
  if (call) return [`Entry ${call.entry}, call `, foreign(call.id, {limit: 40}), ": ", {arguments: "arguments", output: "output", lost: "output, not committed"}[call.part]];
  if (row) return `Step ${row.position}, row ${row.row + 1}: ${row.side}`;
  if (task !== undefined) return part.memo === undefined ? `Task ${task}: checkpoint` : [`Task ${task}: memo `, foreign(part.memo, {limit: 60})];
  return entry < 0 ? "The answer that arrives" : `Entry ${entry}${part === "stored" ? ", as it is stored" : ""}`;
}
