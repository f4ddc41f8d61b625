// Elements of a comparison. All texts are set as text, never as HTML.

import { element } from "../shared/api.js";

const VERDICTS = { left: "left", right: "right", tie: "tie", both_bad: "both bad" };

/** Return the turns and images of a prompt. */
export function promptElements(task) {
  const turns = task.prompt.map(({ role, text }) =>
    element("p", { class: "turn" }, task.prompt.length > 1 ? element("span", { class: "role" }, role) : null, text));
  const images = [...Array(task.num_images).keys()].map((index) =>
    element("img", { src: `/api/images/${task.key}/${index}`, alt: `Image ${index + 1} of the prompt` }));
  return [...turns, ...images];
}

/** Return what graders of a locale check. */
export function guidelinesElements(guidelines) {
  if (!guidelines) return [];
  const terms = (guidelines.terms ?? []).map((term) =>
    element("li", {}, element("del", {}, term.instead_of), " → ", element("ins", {}, term.use)));
  const checks = guidelines.checks.map((check) => element("li", {}, check));
  return [element("p", {}, guidelines.name ?? ""), element("ul", {}, ...checks, ...terms)];
}

/** Return the verdicts of the graders of a comparison that is adjudicated. */
export function opinionsElement(opinions) {
  const flags = ({ flags }) => ["left", "right"].filter((side) => flags[side].length).map((side) => `${side}: ${flags[side].join(", ")}`);
  const lines = opinions.map((each) => element("li", {},
    [`${VERDICTS[each.verdict]}${each.strength ? ` (${each.strength})` : ""}`, ...flags(each), each.comment].filter(Boolean).join(" · ")));
  return element("ul", {}, ...lines);
}
