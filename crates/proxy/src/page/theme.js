// Light or dark: the system's setting, unless the switch was used; that is kept.
//
// Not a module: it runs before the first paint, so that the page does not flash in the wrong colours.
"use strict";

(() => {
  const STORED = "maitre.theme";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");

  // Storage may be forbidden; then the switch lasts until the page is closed.
  const recall = () => { try { return localStorage.getItem(STORED); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem(STORED, theme); } catch { /* as above */ } };

  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const show = () => {
    document.getElementById("theme")?.setAttribute("aria-pressed", String(isDark()));
    // Charts are painted on a canvas and must be redrawn.
    dispatchEvent(new Event("maitre:theme"));
  };

  const stored = recall();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  system.addEventListener("change", show);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(root.dataset.theme);
      show();
    });
    show();
  });
})();
