/* The page of a prediction. Owns what a person does before the lock: choosing, saying how sure, locking.
 *
 * Foreign text is set as text, never as markup, and stands in a <bdi>. What happened is not here before the kernel says
 * so. The page stores nothing: it shows the trait `state`, and sends {do: "hello"} and {do: "lock"} with a number `id`
 * that the answer repeats. An answer that does not come within some seconds means that the kernel is busy or gone.
 */
const SILENT_MS = 3000;
const BUSY_MS = 300;
const LOOK_AGAIN_MS = 5000;
const GONE = "The kernel does not answer. It is busy, or it was restarted: then run %load_ext pidurable_nb and this cell again.";
const HANDLED = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown", "Enter", " "];
let views = 0;

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return node;
}

const foreign = (text) => make("bdi", {}, text);
const mark = (tone, sign, word) =>
  make("b", { class: `mark ${tone}` }, make("span", { "aria-hidden": "true" }, `${sign} `), word);

function words(percent) {
  if (percent >= 100) return "certain";
  if (percent >= 85) return "sure";
  if (percent >= 70) return "rather sure";
  return percent > 50 ? "not sure" : "a guess";
}

/* One display of the widget. `chosen` and `percent` are what a person set; everything else is the kernel's. */
class Page {
  constructor(model, el) {
    this.model = model;
    this.name = `pi-predict-${++views}`;
    this.chosen = 0;
    this.percent = 70;
    this.waiting = new Map();
    this.asked = 0;
    this.next = Math.floor(Math.random() * 2 ** 40); // other displays hear the same answers
    this.note = "";
    this.gone = false;
    this.root = make("section", { class: "pi-predict", "data-lm-suppress-shortcuts": "true" });
    this.live = make("p", { class: "said", role: "status", tabindex: "-1" });
    this.body = make("div", {});
    this.root.append(this.body, this.live);
    el.append(this.root);
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("focusin", (event) => {
      event.target.dataset.lmSuppressShortcuts = "true"; // Notebook 7 asks the focused element before its parents
      this.look();
    });
    this.changed = () => this.draw();
    this.heard = (message) => this.answer(message);
    model.on("change:state", this.changed);
    model.on("msg:custom", this.heard);
    this.draw();
    this.look();
  }

  close() {
    this.model.off("change:state", this.changed);
    this.model.off("msg:custom", this.heard);
    for (const timers of this.waiting.values()) timers.forEach(clearTimeout);
    this.waiting.clear();
    this.root.remove();
  }

  get state() {
    return this.model.get("state");
  }

  /* --- talking to the kernel ------------------------------------------------------------------------------------- */

  send(message) {
    const id = this.next++;
    const timers = [setTimeout(() => this.silent(id), SILENT_MS)];
    if (message.do === "lock") timers.push(setTimeout(() => this.say("Waiting for the kernel."), BUSY_MS));
    this.waiting.set(id, timers);
    try {
      this.model.send({ ...message, id });
    } catch {
      this.silent(id);
    }
  }

  answer(message) {
    const timers = message && this.waiting.get(message.id);
    if (!timers) return;
    timers.forEach(clearTimeout);
    this.waiting.delete(message.id);
    const refused = typeof message.error === "string";
    if (!this.gone && !refused && message.id !== this.locking) return; // drawing anew would take a slider from a hand
    this.gone = false;
    this.note = refused ? message.error : "";
    this.draw();
  }

  silent(id) {
    if (!this.waiting.has(id)) return;
    this.gone = true;
    this.note = GONE;
    this.draw();
  }

  look() {
    const now = Date.now();
    if (now - this.asked < LOOK_AGAIN_MS) return;
    this.asked = now;
    this.send({ do: "hello" });
  }

  lock() {
    if (!this.open || !this.chosen || this.busy) return;
    this.note = "";
    this.send({ do: "lock", choice: this.chosen, confidence: this.percent });
    this.locking = this.next - 1;
    this.draw();
  }

  get busy() {
    return this.locking !== undefined && this.waiting.has(this.locking);
  }

  get open() {
    return !this.state.locked && !this.gone;
  }

  /* --- keys ------------------------------------------------------------------------------------------------------ */

  key(event) {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    const number = /^[1-9]$/.test(event.key) ? Number(event.key) : 0;
    if (number && this.open && number <= this.state.choices.length) {
      this.choose(number);
      this.body.querySelector(`input[value="${number}"]`)?.focus();
      event.preventDefault();
      event.stopPropagation();
    } else if (HANDLED.includes(event.key)) {
      event.stopPropagation(); // or Jupyter moves to another cell
    }
  }

  choose(number) {
    this.chosen = number;
    for (const input of this.body.querySelectorAll("input[type=radio]")) input.checked = Number(input.value) === number;
    this.button();
  }

  /* --- drawing --------------------------------------------------------------------------------------------------- */

  say(sentence) {
    this.note = sentence;
    if (this.live.textContent !== sentence) this.live.textContent = sentence;
  }

  button() {
    const button = this.body.querySelector("button");
    if (!button) return;
    button.disabled = !this.open || !this.chosen || this.busy;
    button.textContent = this.chosen ? `Lock answer ${this.chosen} at ${this.percent} %` : "Lock: choose first";
  }

  draw() {
    const state = this.state;
    const inside = this.root.contains(document.activeElement);
    const held = inside ? document.activeElement.dataset.k : undefined;
    this.root.setAttribute("aria-label", `Prediction ${state.name}`);
    this.root.classList.toggle("locked", Boolean(state.locked));
    const question = make("p", { class: "question", id: `${this.name}-q` }, foreign(state.question));
    this.body.replaceChildren(question, this.choices(state));
    if (!state.locked) this.body.append(this.sure());
    if (state.revealed) this.body.append(this.outcome(state));
    this.live.textContent = this.note || state.said;
    this.live.classList.toggle("int", this.gone);
    this.button();
    if (!inside || held === undefined) return;
    const again = this.body.querySelector(`[data-k="${held}"]:not(:disabled)`);
    (again ?? this.live).focus({ preventScroll: true });
  }

  choices(state) {
    const dead = !this.open;
    const group = make("div", { class: "choices", role: "radiogroup", "aria-labelledby": `${this.name}-q` });
    state.choices.forEach((text, index) => {
      const number = index + 1;
      const input = make("input", { type: "radio", name: this.name, value: number, disabled: dead, "data-k": `c${number}` });
      input.checked = number === (state.locked ? state.locked.choice : this.chosen);
      input.addEventListener("change", () => this.choose(number));
      const row = make("label", {}, input, make("kbd", { "aria-hidden": "true" }, number), foreign(text));
      if (state.locked && state.locked.choice === number) {
        row.append(mark("com", "■", `predicted, at ${state.locked.percent} %`));
      }
      if (state.revealed && state.revealed.choice === number) row.append(mark("com", "■", "happened"));
      group.append(row);
    });
    return group;
  }

  sure() {
    const id = `${this.name}-s`;
    const told = () => `${this.percent} %, ${words(this.percent)}`;
    const slider = make("input", {
      type: "range", id, min: 50, max: 100, step: 5, value: this.percent, disabled: !this.open,
      "aria-valuetext": told(), "data-k": "sure",
    });
    const output = make("span", { class: "told", "aria-hidden": "true" }, told()); // the slider says it by itself
    slider.addEventListener("input", () => {
      this.percent = Number(slider.value);
      slider.setAttribute("aria-valuetext", told());
      output.textContent = told();
      this.button();
    });
    const button = make("button", { type: "button", "data-k": "lock" });
    button.addEventListener("click", () => this.lock());
    return make("div", { class: "sure" }, make("label", { for: id }, "How sure?"), slider, output, button);
  }

  outcome(state) {
    const { locked, revealed } = state;
    const word = revealed.right ? mark("com", "■", revealed.verdict) : mark("int", "◆", revealed.verdict);
    const list = make(
      "dl",
      {},
      make("dt", {}, "predicted"),
      make("dd", {}, foreign(locked.text), `, at ${locked.percent} %`),
      make("dt", {}, "happened"),
      make("dd", {}, foreign(revealed.text), " ", word),
    );
    const found = make("div", { class: "outcome" }, list);
    if (revealed.because) found.append(make("p", {}, foreign(revealed.because)));
    if (revealed.reconcile) found.append(make("p", { class: "aside" }, revealed.reconcile));
    return found;
  }
}

export default {
  render({ model, el }) {
    const page = new Page(model, el);
    return () => page.close();
  },
};
