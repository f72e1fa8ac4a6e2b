// A line at the foot of the page after a command that can be taken back, for as long as somebody might notice a slip.

import { byId, setText } from "./dom.js";

// Chosen: long enough to read the line and reach for the button.
const SHOWN_MS = 15_000;

let timer;

/** `undo()` is called once at most, and resolves when it is done. */
export function offer(text, undo) {
  clearTimeout(timer);
  const [box, button] = [byId("undo"), byId("undo-do")];
  setText(byId("undo-text"), text);
  button.disabled = false;
  box.hidden = false;
  timer = setTimeout(close, SHOWN_MS);
  byId("undo-close").onclick = close;
  button.onclick = async () => {
    clearTimeout(timer);
    button.disabled = true;
    try {
      await undo();
      close();
    } catch (problem) {
      // The page asks for another key itself.
      if (problem.isKey) close();
      else setText(byId("undo-text"), problem.message);
      button.disabled = false;
    }
  };
}

export function close() {
  clearTimeout(timer);
  byId("undo").hidden = true;
}
