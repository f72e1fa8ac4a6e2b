"use strict";
// The page is whole without this: here tables learn to sort, and lines to hide and to stand out.
document.documentElement.classList.add("js");
const every = (selector, act, within) => (within || document).querySelectorAll(selector).forEach(act);

every("table", (table) => {
  const body = table.tBodies[0];
  const value = (row, place) => {
    const cell = row.cells[place];
    return cell.tagName === "TH" ? cell.textContent : parseFloat(cell.dataset.v);
  };
  const compare = (one, other) => {
    if (typeof one === "string") return one.localeCompare(other);
    if (isNaN(one) || isNaN(other)) return isNaN(one) - isNaN(other);
    return one - other;
  };
  every("thead th", (head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      every("thead th", (it) => it.removeAttribute("aria-sort"), table);
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((one, other) => compare(value(one, place), value(other, place)));
      body.append(...(down ? rows.reverse() : rows));
    });
  }, table);
});

const heat = (series) => {
  document.body.classList.toggle("hot", series !== undefined);
  every("figure [data-s]", (it) => it.classList.toggle("on", it.dataset.s === series));
};
every("[data-s]", (it) => {
  const hides = it.getAttribute("aria-pressed");
  // A small chart is for looking at, not for pointing with.
  if (it.tagName === "DIV") return;
  it.addEventListener("pointerenter", () => heat(it.dataset.s));
  it.addEventListener("pointerleave", () => heat());
  if (hides === null) return;
  it.addEventListener("focus", () => it.matches(":focus-visible") ? heat(it.dataset.s) : undefined);
  it.addEventListener("blur", () => heat());
  it.addEventListener("click", () => {
    const shown = it.getAttribute("aria-pressed") === "true";
    it.setAttribute("aria-pressed", String(!shown));
    every("figure [data-s='" + it.dataset.s + "']", (other) => other.classList.toggle("off", shown));
  });
});
