// The annotation page: one item at a time, saved on the server after every change.

import { byId, call, connectTheme, element, openSession, RequestError } from "/static/shared/api.js";
import { ask, callFields, checkField, choiceField, textField } from "/static/annotate/editor.js";
import { branchElement, callsElement, nodeElement, tablesElement } from "/static/annotate/view.js";
import { runModel, stopModel } from "/static/annotate/run.js";

const POLL_MS = 4000;
const page = randomHex(8);
let project, items, view, csrf;
let chosen = 0; // id of the step that had the focus last

const ACTIONS = [
  ["edit", "Edit", "e"],
  ["insert", "Insert after", "i"],
  ["delete", "Delete", "d"],
  ["revert", "Revert to here", "r"],
  ["comment", "Comment", "c"],
  ["flag", "Flag", "f"],
];
const KEYS = [
  ["j, k", "next, previous step"],
  ...ACTIONS.map(([, label, key]) => [key, `${label}, for the selected step`]),
  ["n", "write a query"],
  ["x", "run the model"],
  ["Esc", "stop the model"],
  ["s", "write a step"],
  ["a", "write the answer"],
  ["u, U", "undo, redo"],
  ["m", "mark done or open"],
  ["?", "show the keys"],
];

function randomHex(bytes) {
  return [...crypto.getRandomValues(new Uint8Array(bytes))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const nodeOf = (id) => view.nodes.find((node) => node.id === id);
const selected = () => nodeOf(view.stem.includes(chosen) ? chosen : view.head);
const focusChosen = () => document.querySelector(`.node[data-id="${selected()?.id}"]`)?.focus();
const showError = (error) => (byId("error").textContent = error ? error.message : "");

/** Send a change. A repeated request with the same key is made once, so a lost reply is retried. */
async function change(action, values = {}) {
  const body = { key: randomHex(12), sequence: view.sequence, page, action, ...values };
  for (let attempt = 0; ; attempt++) {
    try {
      view = await call("POST", `/items/${view.id}/changes`, body);
      break;
    } catch (error) {
      if (error instanceof RequestError && error.status === 0 && attempt < 5) {
        await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** attempt));
        continue;
      }
      if (error.code === "conflict") await load(view.id);
      throw error;
    }
  }
  showError(null);
  draw();
}

/** Make a change and show its error on the page. */
async function tryChange(action, values) {
  try {
    await change(action, values);
    return true;
  } catch (error) {
    showError(error);
    return false;
  }
}

async function load(id) {
  chosen = 0;
  view = await call("GET", `/items/${id}?page=${page}`);
  location.hash = id;
  byId("start").hidden = true;
  byId("item").hidden = false;
  draw();
  const draft = localStorage.getItem(`draft-${id}`);
  const isNew = !view.nodes.length && view.scenario.id !== "free";
  byId("composer").query.value = draft ?? (isNew ? view.scenario.query : "");
}

function draw() {
  const focused = document.activeElement?.closest?.(".node")?.dataset.id;
  const stem = view.stem.map(nodeOf);
  const { id, language, start, goal } = view.scenario;
  const from = start ? ` · starts from ${typeof start === "string" ? start : "rows of its own"}` : "";
  byId("goal").textContent = `${id} · ${language}${from} · ${goal || "Free conversation."}`;
  byId("others").textContent = view.others.length ? `Also open: ${view.others.join(", ")}. Changes of others appear here.` : "";
  byId("warning").textContent = view.warning;
  byId("stem").replaceChildren(...stem.map((node) => nodeElement(node, ACTIONS, act)));
  const notes = view.comments.map((each) => `${each.person || "?"}: ${each.text}`);
  byId("item-notes").textContent = [...view.flags, ...notes].join(" · ");
  const branches = view.nodes.filter((node) => !view.stem.includes(node.id) && (!node.parent || view.stem.includes(node.parent)));
  byId("num-branches").textContent = `(${branches.length})`;
  byId("branch-list").replaceChildren(...branches.map((node) => branchElement(descendants(node), (last) => resume(last))));
  const button = (action) => document.querySelector(`[data-action="${action}"]`);
  button("undo").disabled = !view.can_undo;
  button("redo").disabled = !view.can_redo;
  button("done").firstChild.textContent = view.is_done ? "Mark open " : "Mark done ";
  byId("query-label").firstChild.textContent = stem.length ? "Follow-up of the user " : "Query of the user ";
  if (focused) document.querySelector(`.node[data-id="${focused}"]`)?.focus();
  if (byId("state").open) showTables();
}

/** Return a node and the newest line of nodes below it. */
function descendants(node) {
  const line = [node];
  for (;;) {
    const below = view.nodes.filter((each) => each.parent === line.at(-1).id);
    if (!below.length) return line;
    line.push(below.at(-1));
  }
}

const resume = (node) => tryChange("revert", { node: node.id, text: "resumed" });

async function showTables() {
  const id = selected()?.id ?? 0;
  const tables = await call("GET", `/items/${view.id}/tables/${id}`);
  byId("tables").replaceChildren(element("p", { class: "quiet" }, `after step ${id}`), ...tablesElement(tables));
}

function contentFields(kind, node) {
  if (kind !== "step") {
    const field = textField(kind === "query" ? "Query" : "Answer", "text", node?.text ?? "", 5);
    return { fields: [field], read: () => ({ kind, text: byId("fields").querySelector("[name=text]").value, calls: [] }) };
  }
  const calls = callFields(node?.calls ?? [{ name: project.tools[0].name, arguments: {} }], project.tools);
  return { fields: calls.fields, read: () => ({ kind, text: node?.text ?? "", calls: calls.read() }) };
}

const valueOf = (name) => byId("fields").querySelector(`[name=${name}]:not(fieldset *)`)?.value ?? "";
const isChecked = (name) => byId("fields").querySelector(`[name=${name}]`).checked;

/** Edit, insert or delete: ask for the content, the reason and what happens to the later steps. */
async function askChange(action, title, node, kind) {
  const content = action === "delete" ? null : contentFields(kind, action === "edit" ? node : null);
  const isLast = node.id === view.head;
  const fields = [
    ...(content?.fields ?? []),
    textField("Reason", "reason", "", 1),
    checkField("Keep the later steps; their calls run again", "keeps", !isLast && action !== "edit"),
  ];
  const read = () => ({
    node: node.id,
    ...(content ? { content: content.read() } : {}),
    text: valueOf("reason"),
    keeps_rest: isChecked("keeps"),
  });
  await ask(title, fields, read, (values) => change(action, values));
}

/** Ask for what an action needs, make the change, and give the focus back to the steps. */
async function act(name, node) {
  showError(null);
  await askFor(name, node);
  focusChosen();
}

function askFor(name, node) {
  if (name === "edit") return askChange("edit", `Edit step ${node.id}`, node, node.kind);
  if (name === "insert") return askChange("insert", `Insert a step after ${node.id}`, node, "step");
  if (name === "delete") return askChange("delete", `Delete step ${node.id}`, node, node.kind);
  if (name === "revert") {
    const field = textField("Why is what follows abandoned?", "reason", "", 2);
    return ask(`Revert to step ${node.id}`, [field], () => ({ node: node.id, text: valueOf("reason") }), (v) => change("revert", v));
  }
  if (name === "comment") {
    const field = textField("Comment", "comment", "", 3);
    return ask("Comment", [field], () => ({ node: node.id, text: valueOf("comment") }), (v) => change("comment", v));
  }
  const fields = [choiceField("What is wrong?", "flag", project.errors)];
  const read = () => ({ node: node.id, error: valueOf("flag"), is_on: !node.flags.includes(valueOf("flag")) });
  return ask("Set or remove a flag", fields, read, (values) => change("flag", values));
}

async function write(kind) {
  const content = contentFields(kind);
  const title = kind === "step" ? "Write a step" : "Write the answer";
  await ask(title, content.fields, content.read, (value) => change("append", { content: value }));
}

async function run() {
  const live = byId("live");
  const stop = document.querySelector("[data-action=stop]");
  showError(null);
  stop.disabled = false;
  live.hidden = false;
  let calls = [];
  let results = [];
  try {
    await runModel(view, page, csrf, async (event) => {
      if (event.type === "text") live.textContent += event.text;
      if (event.type === "calls") [calls, results] = [event.calls, []];
      if (event.type === "result") results[event.index] = event;
      if (event.type === "calls" || event.type === "result") live.replaceChildren(callsElement(calls, results));
      if (event.type === "node") {
        live.textContent = "";
        if (event.view.id === view.id) view = event.view; // the annotator may show another item meanwhile
        draw();
      }
      if (event.type === "stopped" && event.reason === "error") showError(event);
      if (event.type === "stopped" && event.reason === "max_steps") showError({ message: "The model made the most steps allowed; run it again to continue." });
    });
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
  }
  live.hidden = true;
  live.textContent = "";
  stop.disabled = true;
  view = await call("GET", `/items/${view.id}?page=${page}`);
  draw();
}

async function send(event) {
  event.preventDefault();
  const text = byId("composer").query.value.trim();
  if (!text) return showError({ message: "Write a query first." });
  if (await tryChange("append", { content: { kind: "query", text, calls: [] } })) {
    byId("composer").query.value = "";
    localStorage.removeItem(`draft-${view.id}`);
    await run();
  }
  return undefined;
}

const COMMANDS = {
  undo: () => tryChange("undo"),
  redo: () => tryChange("redo"),
  done: async () => {
    if (!(await tryChange("done", { is_on: !view.is_done }))) return;
    for (const item of items) if (item.id === view.id) item.is_done = view.is_done;
    drawItems();
  },
  "comment-item": () => act("comment", { id: 0, flags: [] }),
  restart: () => act("revert", { id: 0 }),
  run,
  stop: stopModel,
  "add-step": () => write("step"),
  "add-answer": () => write("answer"),
};

function move(steps) {
  const nodes = [...document.querySelectorAll(".node")];
  const at = nodes.indexOf(document.activeElement?.closest?.(".node"));
  nodes[Math.min(Math.max(at + steps, 0), nodes.length - 1)]?.focus();
}

function onKey(event) {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) return stopModel();
  const isTyping = event.target.closest("input, textarea, select, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return undefined;
  if (event.key === "?") return byId("keys").showModal();
  if (!view) return undefined;
  const keys = { j: () => move(1), k: () => move(-1), u: COMMANDS.undo, U: COMMANDS.redo, m: COMMANDS.done };
  Object.assign(keys, { x: COMMANDS.run, s: COMMANDS["add-step"], a: COMMANDS["add-answer"], n: () => byId("composer").query.focus() });
  const node = selected();
  for (const [name, , key] of ACTIONS) keys[key] = () => node && act(name, node);
  if (!keys[event.key]) return undefined;
  event.preventDefault();
  return keys[event.key]();
}

async function refreshItems() {
  items = await call("GET", "/items");
  drawItems();
}

function drawItems() {
  const entries = items.map((item) => {
    const text = `${item.is_done ? "✓ " : ""}${item.title} (${item.language})`;
    return element("li", {}, element("button", { type: "button", onclick: () => load(item.id).catch(showError) }, text));
  });
  byId("items").replaceChildren(...entries);
}

async function poll() {
  if (view && !document.hidden) {
    try {
      const found = await call("GET", `/items/${view.id}/version?page=${page}`);
      view.others = found.others;
      if (found.sequence !== view.sequence && byId("live").hidden) view = await call("GET", `/items/${view.id}?page=${page}`);
      if (byId("live").hidden && !document.querySelector("dialog[open]")) draw();
    } catch (error) {
      showError(error);
    }
  }
  setTimeout(poll, POLL_MS);
}

async function start() {
  connectTheme();
  csrf = (await openSession()).csrf;
  project = await call("GET", "/project");
  await refreshItems();
  document.title = project.title;
  byId("title").textContent = project.title;
  byId("model").textContent = `model: ${project.model}`;
  byId("policy").textContent = project.policy;
  byId("tools").replaceChildren(...project.tools.map((tool) => element("li", {}, element("code", {}, tool.name), ` ${tool.description}`)));
  const options = project.scenarios.map((each) => element("option", { value: each.id }, `${each.language} · ${each.id}`));
  byId("new-item").scenario.replaceChildren(...options, element("option", { value: "free" }, "free conversation"));
  byId("key-list").replaceChildren(...KEYS.flatMap(([key, text]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, text)]));
  byId("new-item").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const { id } = await call("POST", "/items", { scenario: event.target.scenario.value, item: randomHex(6) });
      await refreshItems();
      await load(id);
      byId("composer").query.focus();
    } catch (error) {
      showError(error);
    }
  });
  byId("composer").addEventListener("submit", send);
  byId("composer").query.addEventListener("input", (event) => localStorage.setItem(`draft-${view.id}`, event.target.value));
  byId("composer").query.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("composer").requestSubmit();
  });
  for (const button of document.querySelectorAll("[data-action]")) button.addEventListener("click", () => COMMANDS[button.dataset.action]());
  byId("help").addEventListener("click", () => byId("keys").showModal());
  byId("state").addEventListener("toggle", () => byId("state").open && showTables());
  document.addEventListener("keydown", onKey);
  document.addEventListener("focusin", () => {
    const node = document.activeElement.closest(".node");
    if (!node || chosen === Number(node.dataset.id)) return;
    chosen = Number(node.dataset.id);
    if (byId("state").open) showTables();
  });
  if (location.hash) await load(location.hash.slice(1)).catch(showError);
  poll();
}

start().catch(showError);
