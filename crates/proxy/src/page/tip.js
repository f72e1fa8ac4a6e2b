// Tooltips on hover, focus and tap. `data-tip` has the sentence.

import { byId, setText } from "./dom.js";

const GAP = 6;

export function start() {
  const tip = byId("tip");
  let shownFor = null;

  const hide = () => {
    shownFor?.removeAttribute("aria-describedby");
    shownFor = null;
    tip.hidden = true;
    // A modal dialog covers everything but its own children.
    if (tip.parentElement !== document.body) document.body.append(tip);
  };
  const show = (target) => {
    if (shownFor === target) return;
    hide();
    shownFor = target;
    (target.closest("dialog") ?? document.body).append(tip);
    setText(tip, target.dataset.tip);
    tip.hidden = false;
    target.setAttribute("aria-describedby", "tip");
    const box = target.getBoundingClientRect();
    const left = Math.min(Math.max(box.left, GAP), innerWidth - tip.offsetWidth - GAP);
    const below = box.bottom + GAP;
    const fits = below + tip.offsetHeight <= innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${fits ? below : box.top - tip.offsetHeight - GAP}px`;
  };
  const over = (event) => {
    const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (target !== null) show(target);
    else hide();
  };

  for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, over);
  document.addEventListener("focusout", hide);
  addEventListener("scroll", hide, { capture: true, passive: true });
  // The key also closes an open sheet.
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}
