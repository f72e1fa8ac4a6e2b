// Light or dark: as the system says, unless the switch was used; that is remembered.
//
// Not a module: it runs before the first paint, so that nobody is dazzled by the wrong colours for a moment.
"use strict";

(() => {
  const STORED = "maitre.theme";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");

  // Storage may be forbidden; then the switch lasts as long as the page.
  const recall = () => { try { return localStorage.getItem(STORED); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem(STORED, theme); } catch { /* as above */ } };

  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const show = () => {
    document.getElementById("theme")?.setAttribute("aria-pressed", String(isDark()));
    // The charts are painted, not styled: they have to be told.
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
