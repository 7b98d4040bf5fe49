/* The closed set of words and marks that a view uses, in one place. */

const OUTSIDE = {
  none: ["none", "q2", "nothing", "outside: nothing happens"],
  again: ["again", "again", "again", "outside: can happen again"],
  unknown: ["unknown", "unk", "unknown", "outside: unknown"],
};
const MARKS = {
  crash: ["x", "int"], commit: ["sq", "com"], interrupted: ["int", "int"], again: ["again", "again"],
  none: ["none", "q2"], future: ["none", "q2"],
};
export const AGREEMENTS = {
  agrees: ["ok", "", "agrees"], milder: ["ok", "", "agrees, and milder"],
  differs: ["cross", "int", "differs: an error of this package"], choice: ["fork", "", "your choice"],
};
export const KINDS = {freeze: "in this kernel", kill: "SIGKILL of a child", power: "a power cut’s image", fault: "EIO, ENOSPC, busy"};
const NTH = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"];
export const nth = n => NTH[n - 1] ?? `${n}th`;
export const OUTCOMES = ["completed", "failed", "aborted", "orphaned", "faulted"];
export const LAYERS = [["checkpoint", "checkpoint"], ["memo", "memo"], ["replay", "replay policy"], ["request", "request id"], ["key", "outside key"]];
export const STORE_SAYS = {committed: ["sq", "com"], lost: ["lost", "q2"], unknown: ["unknown", "unk"], none: ["none", "q2"]};

export const outside = name => OUTSIDE[name] ?? OUTSIDE.none;

/** The mark of a step; only the effect itself is amber, its reservation is a commit. */
export function markOf(step) {
  return MARKS[step.mark === "again" && step.outside !== "again" ? "none" : step.mark] ?? MARKS.none;
}
