// The few things done to the document, in one place.
//
// Model names, tenants and addresses come from outside. Everything is set as text or as an attribute made here;
// there is no way in this file, or past it, to turn data into markup.

export const byId = (id) => document.getElementById(id);

/** An element: `el("td.n", {title: "…"}, child, "text")`. Children that are null are left out. */
export function el(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  if (classes.length > 0) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) setAttribute(made, key, value);
  made.append(...children.filter((it) => it !== null && it !== undefined));
  return made;
}

/** Null and false take it away. Written only if it changes: most of a second's numbers are those of the last. */
export function setAttribute(element, key, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(key)) element.removeAttribute(key);
    return;
  }
  const text = value === true ? "" : String(value);
  if (element.getAttribute(key) !== text) element.setAttribute(key, text);
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

/** Makes the children of `parent` exactly these, and touches only those that are not in place. */
export function setChildren(parent, wanted) {
  let at = parent.firstChild;
  for (const child of wanted) {
    if (child === at) at = at.nextSibling;
    else parent.insertBefore(child, at);
  }
  while (at !== null) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/**
 * A bar with room for a part, 0 to 1, and a number beside it that says the same to those who do not see it. What is
 * not ours of the whole, if any of it is not, is drawn behind, as a lighter part that begins where ours ends.
 */
export function bar(kind = "") {
  const [fill, others] = [el("i"), el("i.others")];
  const element = el(kind === "" ? "span.bar" : `span.bar.${kind}`, { "aria-hidden": "true" }, fill, others);
  const widen = (drawn, width) => { if (drawn.style.width !== width) drawn.style.width = width; };
  return {
    element,
    set(part, theirs = 0) {
      const share = part === null || !Number.isFinite(part) ? 0 : Math.min(Math.max(part, 0), 1);
      const more = Number.isFinite(theirs) ? Math.min(Math.max(theirs, 0), 1 - share) : 0;
      widen(fill, `${(share * 100).toFixed(1)}%`);
      widen(others, `${(more * 100).toFixed(1)}%`);
      element.classList.toggle("unknown", part === null);
      element.classList.toggle("high", share + more >= 0.9);
    },
  };
}

/** The number of a worker, as on a table, and its address. */
export function plate(id, url) {
  return el("span.plate", {}, el("b", {}, id === null ? "?" : String(id)), el("span", {}, address(url)));
}

export const address = (url) => String(url ?? "").replace(/^https?:\/\//, "").replace(/\/$/, "");
