/* Puts labs on the page: `lab.start(name, options)` for a test, with what it needs to look inside. */
import view from "/lab.js";
import { inspect, poison } from "/page/hostile.js";
import { Kernel, longTranscript } from "/page/kernel.js";

const here = document.getElementById("here");

window.lab = {
  poison,
  kernels: [],
  inspect: n => inspect(document.querySelectorAll(".pi-lab")[n]),
  closers: [],
  async start({file = "/scenes/refund.json", entries = 0, fork = null, change = null, delay = 0, alive = true, parts = []} = {}) {
    const scenes = await (await fetch(file)).json();
    if (change) new Function("scenes", change)(scenes);
    const transcripts = {};
    if (entries) transcripts[1] = longTranscript(entries);
    if (fork) transcripts[14] = {total: fork.length, rows: (start, count) => fork.slice(start, start + count)};
    const kernel = new Kernel(scenes, {transcripts, delay});
    kernel.alive = alive;
    kernel.value.parts = parts;
    const el = document.createElement("div");
    here.append(el);
    const before = performance.now();
    const close = view.render({model: kernel, el});
    el.firstElementChild.getBoundingClientRect();
    this.kernels.push(kernel);
    this.closers.push(close);
    return performance.now() - before;
  },
};
document.body.dataset.ready = "true";
