/* Where everything on the timeline stands. Pure: draws nothing. */

const FOLD_OVER = 40; // commits
export const SLOTS = 9; // steps that the timeline has room for before any is known

/** Runs of commits as blocks, unless unfolded; what is near a crash never folds. `[first, last]`, both included. */
function folded(columns, end, unfolded) {
  const commits = columns.slice(0, end).filter(col => col.kind === "commit").length;
  const items = [], add = (from, to) => items.push([from, to]);
  const block = (from, to) => {
    const size = to - from + 1;
    if (size < 3 || (unfolded.has(from) && size <= 20)) for (let i = from; i <= to; i++) add(i, i);
    else if (!unfolded.has(from)) add(from, to);
    else for (let i = from, part = Math.ceil(size / 10); i <= to; i += part) i === from ? parts(i, Math.min(to, i + part - 1)) : block(i, Math.min(to, i + part - 1));
  };
  const parts = (from, to) => { for (let i = from; i <= to; i++) add(i, i); };
  for (let i = 0; i < end;) {
    let to = i;
    while (to < end && columns[to].kind === "commit") to++;
    const last = columns.slice(to, end).every(col => col.kind !== "commit");
    const keep = last ? 6 : 2;
    if (commits > FOLD_OVER && to - i > keep + 2) {
      block(i, to - keep - 1);
      parts(to - keep, to - 1);
    } else parts(i, to - 1);
    if (to < end) add(to, to);
    i = to + 1;
  }
  return items;
}

/** Where everything on the timeline stands, in percent of its width. */
export function places(scene, unfolded = new Set(), slots = SLOTS) {
  const columns = scene.timeline;
  let end = columns.findIndex(col => col.position !== null && col.position !== undefined && col.position > 0);
  if (end < 0) end = columns.length;
  let crash = end - 1;
  while (crash >= 0 && columns[crash].kind !== "kill") crash--;
  const known = Math.max(scene.position, scene.last ?? 0, ...columns.slice(end).map(col => col.position ?? 0));
  const past = folded(columns, crash < 0 ? end : crash, unfolded);
  const cells = Math.max(slots, known) + 1;
  const share = past.length ? Math.min(.6, Math.max(.42, past.length / (past.length + cells))) : .42;
  const wide = past.length ? share / past.length : share, narrow = (1 - share) / cells;
  const spans = past.map(([from, to], n) => ({from, to, left: n * wide * 100, width: wide * 100}));
  const at = position => (share + narrow * (position + .5)) * 100;
  const x = place => { // a place among the columns, where the first one is from 0 to 1
    const column = Math.floor(place);
    if (column >= (crash < 0 ? end : crash)) return (share + narrow * (place - (crash < 0 ? end - 1 : crash))) * 100;
    const span = spans.find(({to}) => column <= to);
    return span ? span.left + span.width * Math.max(0, place - span.from) / (span.to - span.from + 1) : 0;
  };
  return {columns, end, crash, known, spans, share: share * 100, narrow: narrow * 100, wide: wide * 100, at, x, dense: narrow < .022 || past.length > 26};
}
