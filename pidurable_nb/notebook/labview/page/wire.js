/* Messages to the kernel and their answers. */

const GONE_MS = 3000; // unanswered for so long, the kernel is another one
const SLOW_MS = 300;
const LOOK_MS = 10000; // between two looks at whether the kernel is still there

/** Messages to the kernel and their answers; knows when it is slow and when it is gone. */
export class Wire {
  constructor(model, changed) {
    this.model = model;
    this.changed = changed;
    this.pending = new Map();
    this.next = Math.floor(Math.random() * 1e6) * 1e6; // two views of one widget hear each other's answers
    this.timers = new Set();
    this.slow = this.gone = this.busy = false;
    this.error = "";
    this.heard = this.looked = 0;
    this.listen = message => this.hear(message ?? {});
    model.on("msg:custom", this.listen);
  }

  later(ms, what) {
    const timer = setTimeout(() => { this.timers.delete(timer); what(); }, ms);
    this.timers.add(timer);
    return timer;
  }

  /** Ask for something; what comes back is its answer, or null where there will be none. An error of a `quiet` one is
   *  only its own. */
  ask(message, {press = false, quiet = false} = {}) {
    if (this.gone && message.do !== "hello") return Promise.resolve(null);
    const id = this.next++;
    const answer = new Promise(resolve => this.pending.set(id, {resolve, press, quiet}));
    try {
      this.model.send({...message, id});
    } catch {
      this.lose();
      return answer;
    }
    if (press) {
      this.later(SLOW_MS, () => this.weigh());
      this.look();
    }
    return answer;
  }

  /** See whether the kernel is still the one that made this view. */
  look() {
    if (Date.now() - this.looked < LOOK_MS && !this.gone) return;
    this.looked = Date.now();
    const before = this.heard;
    this.ask({do: "hello"});
    const judge = () => {
      if (this.heard !== before || this.closed) return;
      if (this.model.widget_manager?.kernel?.status === "busy") this.later(GONE_MS, judge); // it runs another cell
      else this.lose();
    };
    this.later(GONE_MS, judge);
  }

  hear(message) {
    this.heard++;
    const was = this.gone;
    this.gone = false;
    const waiting = this.pending.get(message.id);
    if (typeof message.busy === "boolean") this.busy = message.busy;
    if ((waiting || message.id === undefined) && !waiting?.quiet) {
      if (typeof message.error === "string") this.error = message.error;
      else if (waiting?.press) this.error = "";
    }
    if (waiting) {
      this.pending.delete(message.id);
      waiting.resolve(message);
    }
    if (!this.weigh() && (was || waiting?.press || (message.error !== undefined && !waiting?.quiet))) this.changed();
  }

  presses() {
    return [...this.pending.values()].filter(({press}) => press).length;
  }

  /** Whether somebody waits. True where that is news. */
  weigh() {
    const slow = this.presses() > 0;
    if (slow === this.slow) return false;
    this.slow = slow;
    this.changed();
    return true;
  }

  lose() {
    this.gone = true;
    this.slow = this.busy = false;
    for (const {resolve} of this.pending.values()) resolve(null);
    this.pending.clear();
    this.changed();
  }

  close() {
    this.closed = true;
    this.timers.forEach(clearTimeout);
    this.model.off("msg:custom", this.listen);
    this.pending.clear();
  }
}
