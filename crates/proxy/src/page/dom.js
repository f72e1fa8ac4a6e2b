// Changes to the document, in one place.
//
// Model names, tenants and addresses come from outside. They are set as text or as attributes; nothing here turns data
// into markup.

/** Where page.css turns rows into cards. */
export const PHONE = "(max-width: 720px)";

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

/** Null and false remove it. Written only if it changes: most numbers stay the same from second to second. */
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

/** Makes the children of `parent` exactly these, and moves only those that are not in place. */
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
 * A bar filled to a ratio, 0 to 1; a number beside it says the same to screen readers. The part of other routers is
 * lighter and begins where ours ends.
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

/** A worker's number and its address. */
export function plate(id, url) {
  return el("span.plate", {}, el("b", {}, id === null ? "?" : String(id)), el("span", {}, address(url)));
}

export const address = (url) => String(url ?? "").replace(/^https?:\/\//, "").replace(/\/$/, "");
