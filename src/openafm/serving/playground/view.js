// Elements of the transcript.

import { PENDING, parsePartial } from "./partial_json.js";

/** Return a new element with properties and children. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Return the element of a JSON value, which may still grow. */
export function valueElement(value) {
  if (value === PENDING) return element("span", { className: "pending" }, "…");
  if (Array.isArray(value)) {
    return element("ol", { className: "items" }, ...value.map((item) => element("li", {}, valueElement(item))));
  }
  if (value !== null && typeof value === "object") {
    const fields = Object.entries(value).flatMap(([name, each]) => [
      element("dt", {}, name),
      element("dd", {}, valueElement(each)),
    ]);
    return element("dl", {}, ...fields);
  }
  return element("span", { className: "value" }, typeof value === "string" ? value : JSON.stringify(value));
}

function textElement(text, isTyped) {
  if (isTyped && text) {
    try {
      return valueElement(parsePartial(text));
    } catch {
      // not JSON: shown as text
    }
  }
  return element("div", { className: "text" }, text);
}

/** Return the element of a call. A call of a Python tool waits for its confirmation. */
function callElement(call, isWaiting, actions) {
  const output = element("textarea", {
    rows: 1,
    value: call.output,
    disabled: !isWaiting,
    "aria-label": `Output of ${call.name}`,
    oninput: (event) => (call.output = event.target.value),
  });
  const made = element("div", { className: "call" }, element("code", {}, `${call.name}(${call.arguments})`));
  if (call.isPython && isWaiting) {
    const run = { type: "button", onclick: () => actions.runTool(call), disabled: call.isRunning, "aria-label": `Run ${call.name} in Python` };
    made.append(element("button", run, call.isRunning ? "Running…" : "Run in Python"));
  }
  made.append(output);
  return made;
}

/** Return the time of an answer as a bar: for each step, the time to the first token and the generation. */
function laneElement(answer) {
  const steps = answer.steps.filter((step) => step.seconds > 0);
  const total = steps.reduce((sum, step) => sum + step.seconds, 0);
  const figures = steps.map((step) => {
    const rest = step.seconds - step.firstMs / 1000;
    const speed = step.tokens > 1 && rest > 0 ? `, ${((step.tokens - 1) / rest).toFixed(0)} tokens/s` : "";
    return `first token after ${step.firstMs.toFixed(0)} ms${speed}`;
  });
  const bars = steps.flatMap((step) => {
    const first = step.firstMs / 1000;
    return [["prefill", first], ["decode", step.seconds - first]].map(([kind, seconds]) => {
      const bar = element("span", { className: kind, title: `${kind} ${(1000 * seconds).toFixed(0)} ms` });
      bar.style.width = `${(100 * seconds) / total}%`;
      return bar;
    });
  });
  return element("div", { className: "lane", role: "img", "aria-label": `Profile: ${figures.join("; ")}` }, ...bars);
}

function usageText(answer) {
  const { usage, firstMs, seconds } = answer;
  if (!usage) return answer.isRunning ? "…" : "";
  const speed = seconds > 0 ? `${(usage.completion_tokens / seconds).toFixed(0)} tokens/s` : "";
  const cached = usage.prompt_tokens_details.cached_tokens;
  const prompt = `${usage.prompt_tokens} prompt${cached ? ` (${cached} cached)` : ""}`;
  return [prompt, `${usage.completion_tokens} generated`, `first ${firstMs.toFixed(0)} ms`, speed].filter(Boolean).join(" · ");
}

/** Return the element of an answer. */
export function answerElement(answer, index, turn, actions) {
  const isOne = turn.answers.length === 1;
  const steps = answer.steps.flatMap((step) => [
    ...(step.text ? [textElement(step.text, answer.isTyped)] : []),
    ...step.calls.map((call) => callElement(call, answer.waitsForOutputs && step === answer.steps.at(-1), actions)),
  ]);
  const footer = element("footer", {}, element("span", {}, usageText(answer)));
  if (!answer.isRunning && answer.steps.length > 0) {
    for (const [sentiment, text, label] of [["positive", "👍", "Good answer"], ["negative", "👎", "Bad answer"]]) {
      const rate = { type: "button", "aria-label": label, title: `${label}: save feedback as a file`, onclick: () => actions.rate(turn, index, sentiment) };
      rate["aria-pressed"] = String(answer.sentiment === sentiment);
      footer.append(element("button", rate, text));
    }
  }
  if (answer.waitsForOutputs) {
    footer.append(element("button", { type: "button", onclick: () => actions.returnOutputs(turn, index) }, "Return outputs"));
  }
  if (!isOne) {
    const label = turn.chosen === index ? "Continues here" : "Continue here";
    footer.append(element("button", { type: "button", onclick: () => actions.choose(turn, index) }, label));
  }
  const error = answer.error ? [element("p", { className: "error", role: "alert" }, answer.error)] : [];
  return element(
    "article",
    { className: "answer", "data-chosen": String(turn.chosen === index && !isOne), "aria-busy": String(answer.isRunning) },
    ...(isOne ? [] : [element("strong", {}, `${answer.name} · ${answer.model}`)]),
    ...steps,
    ...error,
    ...(answer.isRunning || !answer.usage ? [] : [laneElement(answer)]),
    footer,
  );
}

/** Return the element of a turn: its prompt, its forks and its answers. */
export function turnElement(turn, siblings, actions) {
  const place = siblings.indexOf(turn);
  const images = turn.images.map((url, number) => element("img", { src: url, alt: `Image ${number + 1} of the prompt` }));
  const prompt = element("div", { className: "prompt" }, ...images, element("p", {}, turn.prompt));
  if (siblings.length > 1) {
    const show = (other) => () => actions.show(siblings[other]);
    prompt.append(
      element("button", { type: "button", disabled: place === 0, onclick: show(place - 1), "aria-label": "Earlier fork" }, "‹"),
      element("span", { className: "pending" }, `${place + 1}/${siblings.length}`),
      element(
        "button",
        { type: "button", disabled: place === siblings.length - 1, onclick: show(place + 1), "aria-label": "Later fork" },
        "›",
      ),
    );
  }
  const fork = { type: "button", title: "Edit this prompt; the branch stays", onclick: () => actions.fork(turn) };
  prompt.append(element("button", fork, "Fork"));
  const answers = turn.answers.map((answer, index) => answerElement(answer, index, turn, actions));
  return element("div", { className: "turn", id: `turn-${turn.id}` }, prompt, element("div", { className: "answers" }, ...answers));
}

/** Return the tree of a conversation as nested lists of buttons. */
export function treeElement(conversation, actions, parent = null) {
  const shown = new Set(conversation.path().map((turn) => turn.id));
  const items = conversation.children(parent).map((turn) => {
    const current = shown.has(turn.id) ? { "aria-current": "true" } : {};
    const button = element("button", { type: "button", ...current, onclick: () => actions.show(turn) }, turn.prompt.slice(0, 60) || "(image)");
    return element("li", {}, button, ...(conversation.children(turn.id).length ? [treeElement(conversation, actions, turn.id)] : []));
  });
  return element("ul", {}, ...items);
}
