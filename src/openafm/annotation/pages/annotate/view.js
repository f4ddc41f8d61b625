// Elements of an item.

import { element } from "/static/shared/api.js";

const NAMES = { query: "User", step: "Tool calls", answer: "Answer" };

/** Return a call as text. */
export const callText = (call) => `${call.name}(${JSON.stringify(call.arguments)})`;

/** Return the list of changed rows of a result; null without any. */
export function changesElement(changes) {
  if (!changes.length) return null;
  return element("ul", { class: "changes", "aria-label": "Changed rows" }, ...changes.map(changeElement));
}

function changeElement({ table, before, after }) {
  const id = (after ?? before).id ?? "";
  if (!before) return element("li", {}, `${table}: `, element("ins", {}, `+ ${JSON.stringify(after)}`));
  if (!after) return element("li", {}, `${table}: `, element("del", {}, `− ${JSON.stringify(before)}`));
  const parts = Object.keys(after).filter((key) => JSON.stringify(before[key]) !== JSON.stringify(after[key]));
  const values = parts.flatMap((key) => [
    ` ${key} `,
    element("del", {}, JSON.stringify(before[key])),
    " → ",
    element("ins", {}, JSON.stringify(after[key])),
  ]);
  return element("li", {}, `${table} ${id}:`, ...values);
}

function resultElement(result) {
  const name = result.problem ? result.problem.replaceAll("_", " ") : "Output";
  return element(
    "div",
    {},
    result.problem ? element("span", { class: "mark" }, name) : null,
    element("pre", { class: "output", tabindex: "0", role: "region", "aria-label": name }, result.text),
    result.detail && !result.text.includes(result.detail) ? element("p", { class: "quiet" }, result.detail) : null,
    changesElement(result.changes),
  );
}

/** Return the calls of a step with their results. */
export function callsElement(calls, results) {
  const parts = calls.map((call, index) =>
    element(
      "div",
      { class: "call" },
      element("code", {}, callText(call)),
      results[index] ? resultElement(results[index]) : element("p", { class: "quiet" }, "running …"),
    ),
  );
  return element("div", {}, ...parts);
}

function notes(node) {
  return [
    ...node.flags.map((flag) => element("span", { class: "mark" }, flag.replaceAll("_", " "))),
    ...node.comments.map((each) => element("p", { class: "quiet" }, `${each.person || "?"}: ${each.text}`)),
  ];
}

/** Return a step of the main stem. `actions` are pairs of a name and a label. */
export function nodeElement(node, actions, onaction) {
  const author = node.model ? `model ${node.model}` : node.person;
  const isProblem = node.results.some((result) => result.problem);
  const label = `${NAMES[node.kind]} ${node.id}`;
  const buttons = actions.map(([name, text, key]) =>
    element("button", { type: "button", onclick: () => onaction(name, node) }, text, " ", element("kbd", {}, key)),
  );
  return element(
    "li",
    { class: `node ${node.kind}${isProblem ? " problem" : ""}`, tabindex: "0", "data-id": String(node.id), "aria-label": label },
    element("header", {}, element("strong", {}, NAMES[node.kind]), element("span", { class: "quiet" }, author)),
    node.text ? element("p", { class: "text" }, node.text) : null,
    node.calls.length ? callsElement(node.calls, node.results) : null,
    ...notes(node),
    element("div", { class: "buttons", role: "group", "aria-label": `Actions of ${label}` }, ...buttons),
  );
}

/** Return an abandoned branch: its nodes in one line each, its reason, and a button that resumes it. */
export function branchElement(nodes, onresume) {
  const first = nodes[0];
  const reason = first.reason ? `${first.reason.kind}${first.reason.text ? `: ${first.reason.text}` : ""}` : "undone";
  const lines = nodes.map((node) => element("li", {}, node.calls.map(callText).join(", ") || `${NAMES[node.kind]}: ${node.text}`));
  return element(
    "li",
    { class: "panel" },
    element("p", { class: "quiet" }, `after step ${first.parent || "0"} · ${reason}`),
    element("ul", {}, ...lines),
    ...nodes.flatMap(notes),
    element("button", { type: "button", onclick: () => onresume(nodes.at(-1)) }, "Resume this branch"),
  );
}

/** Return the tables of a database. */
export function tablesElement(tables) {
  return Object.entries(tables).map(([name, rows]) => {
    const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    const cell = (value) => element("td", {}, value === null ? "" : String(value));
    return element(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table ${name}` },
      element(
        "table",
        {},
        element("caption", {}, `${name} (${rows.length})`),
        element("thead", {}, element("tr", {}, ...columns.map((column) => element("th", { scope: "col" }, column)))),
        element("tbody", {}, ...rows.map((row) => element("tr", {}, ...columns.map((column) => cell(row[column]))))),
      ),
    );
  });
}
