// Feedback on an answer: a dialog, and a file in the format of LanguageModelSession.log_feedback.

import { feedbackFile } from "./api.js";

const byId = (id) => document.getElementById(id);

/** Ask for a comment; resolve to the dialog's values, or to null if it is closed. */
function asked(sentiment) {
  const dialog = byId("feedback");
  const form = dialog.querySelector("form");
  form.reset();
  dialog.dataset.sentiment = sentiment;
  byId("feedback-title").textContent = sentiment === "positive" ? "What is good about this answer?" : "What is wrong with this answer?";
  form.elements.category.disabled = sentiment === "positive";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => resolve(dialog.returnValue === "save" ? Object.fromEntries(new FormData(form)) : null),
      { once: true },
    );
  });
}

/** Ask for a comment and download the feedback. `body` is the request that the answer belongs to, with the answer. */
export async function giveFeedback(sentiment, body) {
  const values = await asked(sentiment);
  if (values === null) return false;
  const issues = values.category ? [{ category: values.category, explanation: values.comment || null }] : [];
  const { model, messages, tools, response_format } = body;
  const data = await feedbackFile({
    model, messages, tools: tools ?? [], json_schema: response_format?.json_schema.schema ?? null, sentiment, issues,
    comment: values.comment || null, desired_output: values.desired || null,
  });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data], { type: "application/json" }));
  link.download = `feedback-${new Date().toISOString().replace(/[:.]/g, "-")}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
  return true;
}
