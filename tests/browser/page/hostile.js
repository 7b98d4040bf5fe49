/* Scenes whose every text is an attack, and a look at what became of them on the page. */

export const HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">\u202e\u2066\u001b[31mred\u001b[0m\u0000\u200b&amp;"\'\ud800';
const WORDS = new Set(["role", "state", "kind", "mark", "outside", "agreement", "sign", "fork"]); // a closed set, not text
const ACTS = /[\u202A-\u202E\u2066-\u2069\u0000-\u0008\u001b\u200b]/;

export function poison(value, name = "") {
  if (typeof value === "string") return WORDS.has(name) ? value : HOSTILE;
  if (Array.isArray(value)) return value.map(one => poison(one, name));
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, poison(one, key)]));
  return value;
}

/** What the page made of it: all of this is to be empty, but `shown`. */
export function inspect(root) {
  const all = [...root.querySelectorAll("*")], attributes = all.flatMap(el => [...el.attributes]), loose = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const {data, parentElement} = walker.currentNode;
    if (data.includes("<script>") && !parentElement.closest("bdi,.vh,[role=status]")) loose.push(parentElement.outerHTML.slice(0, 200));
  }
  return {
    elements: all.filter(el => el.matches("script,img,iframe,object,embed,link,style,a,form")).length,
    handlers: attributes.filter(({name}) => name.startsWith("on")).length,
    acting: [...root.textContent].filter(char => ACTS.test(char)).length + attributes.filter(({name, value}) => name !== "value" && ACTS.test(value)).length,
    loose,
    shown: root.textContent.includes("<script>alert(1)</script>") && root.textContent.includes("\\u{1B}[31mred") && root.textContent.includes("\\u{202E}"),
  };
}
