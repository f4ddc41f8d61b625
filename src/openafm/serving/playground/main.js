// The playground: settings of variants, the conversation, and its requests.

import { callTool, countTokens, models, streamChat, userCode } from "./api.js";
import { Conversation, answerMessages, messagesOf, promptMessage } from "./conversation.js";
import { giveFeedback } from "./feedback.js";
import * as history from "./history.js";
import { PendingImages, acceptImages } from "./images.js";
import { pythonSource } from "./python.js";
import { element, treeElement, turnElement } from "./view.js";

const MAX_VARIANTS = 4;
const MAX_ROUNDS = 5; // of tool calls in one answer
const NUMBERS = ["temperature", "top_p", "seed", "max_tokens"];
const FIELDS = ["model", "instructions", ...NUMBERS];
const EXAMPLE_SCHEMA = {
  type: "object",
  properties: {
    title: { type: "string", maxLength: 40 },
    date: { type: "string", maxLength: 20 },
    time: { type: "string", pattern: "^(?:[01][0-9]|2[0-3]):[0-5][0-9]$" },
    location: { type: "string", maxLength: 40 },
  },
  required: ["title", "date", "time", "location"],
};
const EXAMPLE_TOOLS = [
  {
    name: "weather",
    description: "The weather of a city today",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    output: "sunny, 21 degrees",
  },
];

const byId = (id) => document.getElementById(id);
const settings = byId("settings");
const prompt = byId("prompt");
let conversation = new Conversation();
let variants = [];
let edited = 0; // index of the variant in the form
let running = null; // AbortController of the answers
let pythonTools = []; // of `openafm play --tools`
const pending = new PendingImages(byId("images"), () => updateTokens());

// Settings

function readForm() {
  const values = Object.fromEntries(FIELDS.map((name) => [name, settings.elements[name].value]));
  for (const name of NUMBERS) values[name] = Number(values[name]);
  return values;
}

function editVariant(index) {
  edited = index;
  for (const name of FIELDS) settings.elements[name].value = variants[index][name];
  renderVariants();
}

function renderVariants() {
  const tabs = variants.map((_, index) =>
    element(
      "button",
      { type: "button", role: "tab", "aria-selected": String(index === edited), onclick: () => editVariant(index) },
      nameOf(index),
    ),
  );
  const add = () => {
    variants.push({ ...variants[edited] });
    editVariant(variants.length - 1);
  };
  const remove = () => {
    variants.splice(edited, 1);
    editVariant(Math.max(edited - 1, 0));
  };
  const more = element("button", { type: "button", onclick: add, disabled: variants.length >= MAX_VARIANTS, "aria-label": "Add a variant" }, "+");
  const less = element("button", { type: "button", onclick: remove, disabled: variants.length === 1, "aria-label": "Remove this variant" }, "−");
  byId("variants").replaceChildren(...tabs, more, less);
}

const nameOf = (index) => "ABCD"[index];

function parsed(name) {
  const text = settings.elements[name].value.trim();
  try {
    return text ? JSON.parse(text) : null;
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
}

/** Return the schema and the tools of the form; shows an error beside the form and throws if one is not JSON. */
function readStructure() {
  try {
    const tools = parsed("tools") ?? [];
    if (!Array.isArray(tools)) throw new Error("tools: use a JSON list");
    byId("settings-error").textContent = "";
    const canned = tools.map((tool) => ({ output: "", ...tool })).filter((tool) => !pythonTools.some((other) => other.name === tool.name));
    return { schema: parsed("schema"), tools: [...pythonTools, ...canned] };
  } catch (error) {
    byId("settings-error").textContent = error.message;
    throw error;
  }
}

function requestBody(variant, messages, { schema, tools }) {
  const opening = variant.instructions ? [{ role: "system", content: variant.instructions }] : [];
  const body = { model: variant.model, messages: [...opening, ...messages], max_tokens: variant.max_tokens };
  body.temperature = variant.temperature;
  if (variant.temperature > 0) Object.assign(body, { seed: variant.seed, top_p: variant.top_p });
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  if (tools.length > 0) {
    body.tools = tools.map(({ output, isPython, ...definition }) => ({ type: "function", function: definition }));
  }
  return body;
}

// Answers

function newAnswer(variant, index, structure) {
  return { name: nameOf(index), model: variant.model, variant: { ...variant }, structure, steps: [], usage: null,
    error: "", isRunning: true, isTyped: structure.schema !== null, waitsForOutputs: false, firstMs: 0, seconds: 0 };
}

async function send(event) {
  event?.preventDefault();
  const text = prompt.value.trim();
  if ((!text && pending.images.length === 0) || running) return;
  variants[edited] = readForm();
  const structure = readStructure();
  byId("prompt-error").textContent = "";
  const answers = variants.map((variant, index) => newAnswer(variant, index, structure));
  const turn = conversation.add(text, pending.take(), answers);
  prompt.value = "";
  render();
  await generate(turn, answers);
}

async function generate(turn, answers) {
  running = new AbortController();
  updateButtons();
  await Promise.all(answers.map((answer) => answerTurn(turn, answer, running.signal)));
  running = null;
  updateButtons();
  byId("notice").textContent = "The answer is complete.";
  saveConversation();
  updateTokens();
}

async function answerTurn(turn, answer, signal) {
  answer.isRunning = true;
  const before = messagesOf(conversation.path(turn.parent));
  try {
    for (let round = 0; round < MAX_ROUNDS; round += 1) {
      const messages = [...before, promptMessage(turn.prompt, turn.images), ...answerMessages(answer)];
      const calls = await streamStep(turn, answer, requestBody(answer.variant, messages, answer.structure), signal);
      const asks = !settings.elements.answers_calls.checked || calls.some((call) => call.isPython);
      answer.waitsForOutputs = calls.length > 0 && asks;
      if (calls.length === 0 || answer.waitsForOutputs) break;
    }
  } catch (error) {
    answer.error = error.name === "AbortError" ? "stopped" : error.message;
  }
  answer.isRunning = false;
  renderTurn(turn);
}

/** Stream one answer of the model into a new step, and return its calls. */
async function streamStep(turn, answer, body, signal) {
  const step = { text: "", calls: [], firstMs: 0, seconds: 0, tokens: 0 };
  answer.steps.push(step);
  const started = performance.now();
  let first = null;
  for await (const chunk of streamChat(body, signal)) {
    const delta = chunk.choices[0]?.delta ?? {};
    if (delta.content || delta.tool_calls) first ??= performance.now();
    step.text += delta.content ?? "";
    for (const call of delta.tool_calls ?? []) {
      const tool = answer.structure.tools.find((each) => each.name === call.function.name);
      const { name, arguments: given } = call.function;
      step.calls.push({ id: call.id, name, arguments: given, output: tool?.output ?? "", isPython: tool?.isPython ?? false, isRunning: false });
    }
    if (chunk.usage) {
      answer.usage = chunk.usage;
      step.tokens = chunk.usage.completion_tokens;
    }
    renderSoon(turn);
  }
  answer.firstMs = step.firstMs = (first ?? performance.now()) - started;
  answer.seconds = step.seconds = (performance.now() - started) / 1000;
  return step.calls;
}

// Views

const actions = {
  fork(turn) {
    conversation.forkAt(turn);
    prompt.value = turn.prompt;
    render();
    prompt.focus();
  },
  show(turn) {
    conversation.show(turn);
    render();
  },
  choose(turn, index) {
    turn.chosen = index;
    render();
  },
  /** Run a Python tool, which the user has confirmed, and show its output for the model to read. */
  async runTool(call) {
    call.isRunning = true;
    render();
    try {
      call.output = await callTool(call.name, call.arguments);
    } catch (error) {
      call.output = `error: ${error.message}`;
    }
    call.isRunning = false;
    render();
  },
  async rate(turn, index, sentiment) {
    const answer = turn.answers[index];
    const messages = [...messagesOf(conversation.path(turn.parent)), promptMessage(turn.prompt, turn.images), ...answerMessages(answer)];
    try {
      if (!(await giveFeedback(sentiment, requestBody(answer.variant, messages, answer.structure)))) return;
      answer.sentiment = sentiment;
      byId("notice").textContent = "The feedback is saved as a file.";
      saveConversation();
      renderTurn(turn);
    } catch (error) {
      byId("prompt-error").textContent = error.message;
    }
  },
  returnOutputs(turn, index) {
    turn.answers[index].waitsForOutputs = false;
    if (!running) generate(turn, [turn.answers[index]]);
  },
};

function render() {
  const turns = conversation.path();
  byId("conversation").replaceChildren(...turns.map((turn) => turnElement(turn, conversation.siblings(turn), actions)));
  byId("conversation").scrollTop = byId("conversation").scrollHeight;
  renderPast();
  updateTokens();
}

function saveConversation() {
  if (conversation.turns.length === 0) return;
  const { id, turns, last } = conversation;
  history.save({ id, title: turns[0].prompt.slice(0, 80) || "(image)", time: Date.now(), turns, last, settings: readForm() });
  renderPast();
}

/** Show the tree of this conversation and the list of past ones. */
function renderPast() {
  const panel = byId("past");
  if (panel.hidden) return;
  const tree = conversation.turns.length > 0 ? [element("h2", {}, "This conversation"), treeElement(conversation, actions)] : [];
  const items = history.saved().map((each) => {
    const current = each.id === conversation.id ? { "aria-current": "true" } : {};
    const open = element("button", { type: "button", ...current, title: new Date(each.time).toLocaleString(), onclick: () => openPast(each) }, each.title);
    const label = `Delete ${each.title}`;
    return element("li", { className: "row" }, open, element("button", { type: "button", "aria-label": label, onclick: () => deletePast(each) }, "×"));
  });
  const all = { type: "button", disabled: items.length === 0, onclick: deleteAll };
  panel.replaceChildren(...tree, element("h2", {}, "Past conversations"), element("ul", {}, ...items), element("button", all, "Delete all"));
}

function openPast(saved) {
  running?.abort();
  conversation = Conversation.restored(saved);
  variants = [{ ...readForm(), ...saved.settings }];
  editVariant(0);
  render();
}

function deletePast(saved) {
  history.remove(saved.id);
  renderPast();
}

function deleteAll() {
  if (!confirm("Delete all past conversations of this browser?")) return;
  history.removeAll();
  renderPast();
}

function togglePast() {
  byId("past").hidden = !byId("past").hidden;
  byId("history").setAttribute("aria-expanded", String(!byId("past").hidden));
  renderPast();
}

function renderTurn(turn) {
  const shown = byId(`turn-${turn.id}`);
  if (!shown) return;
  const list = byId("conversation");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
  shown.replaceWith(turnElement(turn, conversation.siblings(turn), actions));
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

const waiting = new Set();
function renderSoon(turn) {
  if (waiting.has(turn)) return;
  waiting.add(turn);
  requestAnimationFrame(() => {
    waiting.delete(turn);
    renderTurn(turn);
  });
}

function updateButtons() {
  byId("send").disabled = running !== null;
  byId("stop").disabled = running === null;
}

let counting = null;
function updateTokens() {
  counting?.abort();
  const own = (counting = new AbortController());
  setTimeout(async () => {
    if (own.signal.aborted || variants.length === 0) return;
    const next = prompt.value ? [{ role: "user", content: prompt.value }] : [];
    const before = conversation.path().map((turn) => ({ ...turn, images: [] })); // counted by the answer
    const messages = [...messagesOf(before), ...next];
    if (messages.length === 0) messages.push({ role: "user", content: "" });
    try {
      const { count, limit } = await countTokens(requestBody(readForm(), messages, readStructure()), own.signal);
      byId("context").value = count / limit;
      byId("tokens").textContent = `${count} / ${limit} tokens`;
    } catch (error) {
      if (error.name !== "AbortError") byId("tokens").textContent = "";
    }
  }, 150);
}

async function copyAsPython() {
  variants[edited] = readForm();
  const { schema, tools } = readStructure();
  const prompts = conversation.path().map((turn) => turn.prompt);
  const source = pythonSource(prompts.length > 0 ? prompts : [prompt.value], variants[0], schema, tools);
  await navigator.clipboard.writeText(source);
  byId("notice").textContent = "The program is in the clipboard.";
  byId("copy").textContent = "Copied";
  setTimeout(() => (byId("copy").textContent = "Copy as Python"), 1500);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  localStorage.setItem("theme", theme);
}

function startNew() {
  running?.abort();
  conversation = new Conversation();
  render();
  prompt.focus();
}

const toggleTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
const shortcuts = { h: togglePast, n: startNew, p: copyAsPython, d: toggleTheme };

function insertExample(name, example) {
  settings.elements[name].value = JSON.stringify(example, null, 2);
  updateTokens();
}

/** Read the user's Python tools and types. */
async function loadUserCode() {
  const { tools, schemas } = await userCode();
  pythonTools = tools.map((tool) => ({ ...tool, output: "", isPython: true }));
  const names = Object.keys(schemas);
  byId("types").hidden = names.length === 0;
  const select = settings.elements.type;
  select.replaceChildren(...["", ...names].map((name) => element("option", { value: name }, name || "choose a type")));
  select.addEventListener("change", () => select.value && insertExample("schema", schemas[select.value]));
}

async function start() {
  setTheme(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  byId("composer").addEventListener("submit", send);
  byId("stop").addEventListener("click", () => running?.abort());
  byId("new").addEventListener("click", startNew);
  byId("copy").addEventListener("click", copyAsPython);
  byId("theme").addEventListener("click", toggleTheme);
  byId("history").addEventListener("click", togglePast);
  acceptImages(pending, byId("composer"), (message) => (byId("prompt-error").textContent = message));
  byId("example-schema").addEventListener("click", () => insertExample("schema", EXAMPLE_SCHEMA));
  byId("example-tools").addEventListener("click", () => insertExample("tools", EXAMPLE_TOOLS));
  settings.addEventListener("submit", (event) => event.preventDefault());
  settings.addEventListener("input", () => {
    variants[edited] = readForm();
    updateTokens();
  });
  prompt.addEventListener("input", updateTokens);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(event);
    else if (event.key === "Escape") running?.abort();
    else if (event.altKey && shortcuts[event.key]) {
      event.preventDefault();
      shortcuts[event.key]();
    }
  });
  try {
    const [served] = await Promise.all([models(), loadUserCode()]);
    settings.elements.model.replaceChildren(...served.map((model) => element("option", { value: model.id }, model.id)));
  } catch (error) {
    byId("prompt-error").textContent = error.message;
  }
  variants = [readForm()];
  renderVariants();
  render();
}

start();
