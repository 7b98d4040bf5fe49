/* Foreign text made harmless: what acts or hides is shown, what is long is cut. Owns no element. */

const ACTING = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

const PAIRS = /[\uD800-\uDBFF][\uDC00-\uDFFF]/g; // one character each

const SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"};

/** A character as an escape: fonts often lack the pictures that Unicode has for controls. */
const sign = char => SHORT[char] ?? `\\u{${char.codePointAt(0).toString(16).toUpperCase()}}`;

/** Foreign text that acts on nothing; with `lines`, its own lines and tabs stay. */
export function visible(text, lines = false) {
  return String(text ?? "").replace(ACTING, char => (lines && (char === "\n" || char === "\t") ? char : sign(char)));
}

/** The same cut to `limit`, with how long it was where something is missing: as a note, and as a number of characters.
 *  `size` says that it was cut before, and how long it was then. */
export function cut(text, limit = 80, lines = false, size = 0) {
  const given = String(text ?? "");
  if (given.length <= limit && !size) return [visible(given, lines), "", 0];
  const whole = size || given.length - (given.match(PAIRS)?.length ?? 0), note = ` (${whole.toLocaleString("en")} characters)`;
  if (given.length <= limit) return [visible(given, lines), note, whole];
  const end = /[\uD800-\uDBFF]/.test(given[limit - 1]) ? limit - 1 : limit;
  return [`${visible(given.slice(0, end), lines)}…`, note, whole];
}

export const count = (n, one, many = `${one}s`) => `${Number(n).toLocaleString("en")} ${n === 1 ? one : many}`;
