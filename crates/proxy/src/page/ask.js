// One dialog that asks for a confirmation or a value, and shows what went wrong.

import { byId, setText } from "./dom.js";

/**
 * Opens the dialog with `{title, text, yes, no, label, value}`; with a `label` it asks for a value. The dialog closes
 * when `act(value)` succeeds, and shows the message when it throws.
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
    // Enter must not confirm by accident.
    byId("ask-no").focus();
  } else {
    value.select();
  }
}
