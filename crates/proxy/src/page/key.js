// The admin key: read from the address once, kept in this tab, asked for when it is missing or refused.
//
// It is removed from the address bar at once, so that a copied link to a decision does not contain it.

import { byId, setText } from "./dom.js";

const STORED = "maitre.key";

let key = null;

/** The part of the address after `#`, as pairs: `#key=…&decision=17`. */
export const fragment = () => new URLSearchParams(location.hash.slice(1));

export function current() {
  return key;
}

/** Looks in the address and then in the tab; returns whether there is one. */
export function find() {
  const pairs = fragment();
  const given = pairs.get("key");
  if (given !== null) {
    pairs.delete("key");
    const rest = pairs.toString();
    history.replaceState(null, "", location.pathname + location.search + (rest === "" ? "" : `#${rest}`));
    keep(given);
  } else {
    try { key = sessionStorage.getItem(STORED); } catch { key = null; }
  }
  return key !== null && key !== "";
}

function keep(given) {
  key = given;
  try { sessionStorage.setItem(STORED, given); } catch { /* It is kept until the page is closed. */ }
}

/** Shows the field for the key and resolves when one was entered. */
export function ask(why) {
  const [gate, panel, form, field] = ["gate", "panel", "key-form", "key"].map(byId);
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  setText(byId("key-why"), why);
  gate.hidden = false;
  panel.hidden = true;
  field.value = "";
  field.focus();
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      keep(field.value.trim());
      field.value = "";
      gate.hidden = true;
      panel.hidden = false;
      resolve();
    };
  });
}
