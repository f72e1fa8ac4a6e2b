// One small dialog that asks before something is done, or for a value, and says what went wrong with it.

import { byId, setText } from "./dom.js";

/**
 * Opens the dialog with `{title, text, yes, no, label, value}`; `label` makes it ask for a value. `act(value)` does
 * it: the dialog closes when that succeeds, and stays with the message when it throws.
 */
export function ask(question, act) {
  const dialog = byId("ask");
  const [error, field, value, yes] = ["ask-error", "ask-field", "ask-value", "ask-yes"].map(byId);
  setText(byId("ask-title"), question.title);
  setText(byId("ask-text"), question.text);
  setText(byId("ask-no"), question.no);
  setText(yes, question.yes);
  setText(error, "");
  field.hidden = question.label === undefined;
  if (!field.hidden) {
    setText(byId("ask-label"), question.label);
    value.value = question.value;
  }
  byId("ask-no").onclick = () => dialog.close();
  byId("ask-form").onsubmit = async (event) => {
    event.preventDefault();
    yes.disabled = true;
    setText(error, "");
    try {
      await act(value.value.trim());
      dialog.close();
    } catch (problem) {
      setText(error, problem.message);
    } finally {
      yes.disabled = false;
    }
  };
  dialog.showModal();
  if (field.hidden) {
    // Enter must not do what was asked about by accident.
    byId("ask-no").focus();
  } else {
    value.select();
  }
}
