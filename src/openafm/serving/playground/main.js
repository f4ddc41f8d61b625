// The playground: settings of variants, the conversation, and its requests.

import { countTokens, models, streamChat } from "./api.js";
import { Conversation, answerMessages, messagesOf } from "./conversation.js";
import { pythonSource } from "./python.js";
import { element, turnElement } from "./view.js";

const MAX_VARIANTS = 4;
const MAX_ROUNDS = 5; // of tool calls in one answer
const NUMBERS = ["temperature", "top_p", "seed", "max_tokens"];
const FIELDS = ["model", "instructions", ...NUMBERS];
const EXAMPLE_SCHEMA = {
  type: "object",
  properties: {
    title: { type: "string", maxLength: 40 },
    date: { type: "string", maxLength: 20 },
    time: { type: "string", maxLength: 10 },
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

/** Return the schema and the tools of the form; shows an error and throws if one is not JSON. */
function readStructure() {
  try {
    const tools = parsed("tools") ?? [];
    if (!Array.isArray(tools)) throw new Error("tools: use a JSON list");
    byId("settings-error").textContent = "";
    return { schema: parsed("schema"), tools: tools.map((tool) => ({ output: "", ...tool })) };
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
    body.tools = tools.map(({ output, ...definition }) => ({ type: "function", function: definition }));
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
  if (!text || running) return;
  variants[edited] = readForm();
  const structure = readStructure();
  const answers = variants.map((variant, index) => newAnswer(variant, index, structure));
  const turn = conversation.add(text, answers);
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
  updateTokens();
}

async function answerTurn(turn, answer, signal) {
  answer.isRunning = true;
  const before = messagesOf(conversation.path(turn.parent));
  try {
    for (let round = 0; round < MAX_ROUNDS; round += 1) {
      const messages = [...before, { role: "user", content: turn.prompt }, ...answerMessages(answer)];
      const calls = await streamStep(turn, answer, requestBody(answer.variant, messages, answer.structure), signal);
      answer.waitsForOutputs = calls.length > 0 && !settings.elements.answers_calls.checked;
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
  const step = { text: "", calls: [] };
  answer.steps.push(step);
  const started = performance.now();
  let first = null;
  for await (const chunk of streamChat(body, signal)) {
    const delta = chunk.choices[0]?.delta ?? {};
    if (delta.content || delta.tool_calls) first ??= performance.now();
    step.text += delta.content ?? "";
    for (const call of delta.tool_calls ?? []) {
      const tool = answer.structure.tools.find((each) => each.name === call.function.name);
      step.calls.push({ id: call.id, name: call.function.name, arguments: call.function.arguments, output: tool?.output ?? "" });
    }
    if (chunk.usage) answer.usage = chunk.usage;
    renderSoon(turn);
  }
  answer.firstMs = (first ?? performance.now()) - started;
  answer.seconds = (performance.now() - started) / 1000;
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
  returnOutputs(turn, index) {
    turn.answers[index].waitsForOutputs = false;
    if (!running) generate(turn, [turn.answers[index]]);
  },
};

function render() {
  const turns = conversation.path();
  byId("conversation").replaceChildren(...turns.map((turn) => turnElement(turn, conversation.siblings(turn), actions)));
  byId("conversation").scrollTop = byId("conversation").scrollHeight;
  updateTokens();
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
    const messages = [...messagesOf(conversation.path()), ...next];
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
const shortcuts = { n: startNew, p: copyAsPython, d: toggleTheme };

function insertExample(name, example) {
  settings.elements[name].value = JSON.stringify(example, null, 2);
  updateTokens();
}

async function start() {
  setTheme(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  byId("composer").addEventListener("submit", send);
  byId("stop").addEventListener("click", () => running?.abort());
  byId("new").addEventListener("click", startNew);
  byId("copy").addEventListener("click", copyAsPython);
  byId("theme").addEventListener("click", toggleTheme);
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
    const served = await models();
    settings.elements.model.replaceChildren(...served.map((model) => element("option", { value: model.id }, model.id)));
  } catch (error) {
    byId("settings-error").textContent = error.message;
  }
  variants = [readForm()];
  renderVariants();
  render();
}

start();
