// Side-by-side grading: shows a comparison, collects the verdict by mouse or keys, keeps a draft until it is stored.

import { RequestError, byId, call, connectTheme, element, openSession } from "../shared/api.js";
import { Stopwatch } from "./stopwatch.js";
import { opinionsElement, promptElements, guidelinesElements } from "./view.js";

const VERDICTS = [
  { verdict: "left", strength: 3, label: "Left much better" },
  { verdict: "left", strength: 2, label: "Left better" },
  { verdict: "left", strength: 1, label: "Left slightly" },
  { verdict: "tie", strength: 0, label: "Tie", key: "T" },
  { verdict: "both_bad", strength: 0, label: "Both bad", key: "B" },
  { verdict: "right", strength: 1, label: "Right slightly" },
  { verdict: "right", strength: 2, label: "Right better" },
  { verdict: "right", strength: 3, label: "Right much better" },
];
const SATISFACTION = ["very poor", "poor", "fair", "good", "very good"];
const SIDES = ["left", "right"];

const watch = new Stopwatch();
let task = null;
let entry = null; // what the person entered
let queue = "grade"; // or "adjudicate"
let isSending = false;

const newEntry = () => ({ verdict: null, strength: 0, satisfaction: { left: null, right: null }, flags: { left: [], right: [] }, comment: "" });
const draftKey = () => `draft ${queue} ${task.key}`;

/** Run an action; its error is shown. */
async function run(action) {
  try {
    byId("error").textContent = "";
    await action();
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    byId("error").textContent = error.message;
    if (error.status === 401) byId("error").append(" ", element("a", { href: "/people" }, "Sign in"));
    if (error.code === "conflict") await reload();
  }
}

// Tasks

/** Show what another window has stored. */
async function reload() {
  localStorage.removeItem(draftKey());
  if (queue === "grade") await show(await call("GET", `/tasks/${task.key}`));
  else await showNext();
}

async function showNext() {
  const found = await call("GET", queue === "grade" ? "/task" : "/adjudication");
  showFlags(found.flags);
  byId("progress").textContent = `${found.num_done} done, ${found.num_left} open`;
  byId("task").hidden = found.task === null;
  byId("message").hidden = found.task !== null;
  if (found.task === null) {
    task = null;
    byId("message").textContent = found.state === "screened_out"
      ? "Thank you. Several test items were judged differently than expected, so there are no further items for this account. An admin can help."
      : "All done: no comparison is waiting for you. Thank you!";
    return;
  }
  await show(found);
}

async function show(found) {
  task = found.task;
  const draft = JSON.parse(localStorage.getItem(draftKey()) ?? "null");
  entry = { ...newEntry(), ...(task.judgment ?? {}), ...(draft ?? {}) };
  byId("about").textContent = `${task.category} · ${task.locale}${task.judgment ? " · judged before: submitting changes it" : ""}`;
  byId("prompt").replaceChildren(...promptElements(task));
  byId("guidelines").hidden = task.guidelines === null;
  byId("guidelines-text").replaceChildren(...guidelinesElements(task.guidelines));
  byId("opinions").hidden = !found.opinions;
  byId("opinions").replaceChildren(opinionsElement(found.opinions ?? []));
  for (const side of SIDES) {
    byId(side).textContent = task[side];
    byId(side).lang = task.locale;
    byId(side).scrollTop = 0;
  }
  byId("prompt").lang = task.locale;
  byId("comment").value = entry.comment;
  byId("saved").textContent = draft ? "Your draft is restored." : "";
  render();
  watch.restart();
  document.activeElement?.blur();
  scrollTo(0, 0);
}

async function submit() {
  if (!entry?.verdict || isSending) return;
  isSending = true;
  try {
    const { verdict, strength, satisfaction, flags, comment } = entry;
    const body = { task: task.key, verdict, strength, satisfaction, flags, comment, seconds: watch.seconds(), revision: task.judgment?.revision ?? 0 };
    await call("POST", queue === "grade" ? "/judgments" : "/adjudications", body);
    localStorage.removeItem(draftKey());
    await showNext();
    byId("saved").textContent = "Stored.";
  } finally {
    isSending = false;
  }
}

async function skip() {
  if (queue !== "grade" || !task) return;
  await call("POST", "/skips", { task: task.key });
  localStorage.removeItem(draftKey());
  await showNext();
}

async function previous() {
  if (queue !== "grade") return;
  const done = await call("GET", "/history");
  const index = done.findIndex((each) => each.task === task?.key) + 1;
  if (index >= done.length) return;
  byId("task").hidden = false;
  byId("message").hidden = true;
  await show(await call("GET", `/tasks/${done[index].task}`));
}

// Entry

function choose(verdict, strength) {
  Object.assign(entry, { verdict, strength });
  changed();
}

/** An arrow key chooses a side, and makes the choice stronger if the side is chosen. */
function lean(side) {
  choose(side, entry.verdict === side ? Math.min(entry.strength + 1, 3) : 1);
}

function changed() {
  localStorage.setItem(draftKey(), JSON.stringify(entry));
  byId("saved").textContent = "Draft kept in this browser.";
  render();
}

function render() {
  for (const button of byId("verdicts").children) {
    const isChosen = button.dataset.verdict === entry.verdict && Number(button.dataset.strength) === entry.strength;
    button.setAttribute("aria-pressed", String(isChosen));
  }
  for (const side of SIDES) {
    byId(side).parentElement.dataset.chosen = String(entry.verdict === side);
    const details = byId(`${side}-details`);
    for (const input of details.querySelectorAll("input")) {
      input.checked = input.type === "radio" ? entry.satisfaction[side] === Number(input.value) : entry.flags[side].includes(input.value);
    }
  }
  byId("submit").disabled = entry.verdict === null;
}

function showVerdicts() {
  byId("verdicts").replaceChildren(...VERDICTS.map(({ verdict, strength, label, key }) =>
    element("button", { type: "button", "data-verdict": verdict, "data-strength": strength, "aria-pressed": "false",
      onclick: () => choose(verdict, strength) }, label, key ? element("kbd", {}, key) : null)));
}

function showFlags(flags) {
  for (const side of SIDES) {
    const details = byId(`${side}-details`);
    if (details.querySelector("input")) continue;
    const grades = SATISFACTION.map((label, index) => element("label", {},
      element("input", { type: "radio", name: `${side}-satisfaction`, value: index + 1,
        onchange: () => { entry.satisfaction[side] = index + 1; changed(); } }), label));
    const checks = Object.entries(flags).map(([flag, label]) => element("label", {},
      element("input", { type: "checkbox", value: flag, onchange: (event) => {
        entry.flags[side] = entry.flags[side].filter((each) => each !== flag).concat(event.target.checked ? [flag] : []);
        changed();
      } }), label));
    details.append(
      element("div", { class: "satisfaction", role: "radiogroup", "aria-label": `Satisfaction with the ${side} answer` }, ...grades),
      element("div", { class: "checks", role: "group", "aria-label": `Issues of the ${side} answer` }, ...checks),
    );
  }
}

function toggleKeys() {
  const isShown = byId("keys").toggleAttribute("hidden");
  byId("help").setAttribute("aria-expanded", String(!isShown));
}

// Keys

const KEYS = {
  ArrowLeft: () => lean("left"),
  ArrowRight: () => lean("right"),
  t: () => choose("tie", 0),
  b: () => choose("both_bad", 0),
  1: () => strengthen(1),
  2: () => strengthen(2),
  3: () => strengthen(3),
  Enter: () => run(submit),
  s: () => run(skip),
  c: () => byId("comment").focus(),
};

function strengthen(strength) {
  if (SIDES.includes(entry.verdict)) choose(entry.verdict, strength);
}

document.addEventListener("keydown", (event) => {
  const { target } = event;
  if (event.key === "Escape") target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("textarea, select, input:not([type=checkbox], [type=radio])")) return;
  if (target.type === "radio" && event.key.startsWith("Arrow")) return;
  if (event.key === "Enter" && target.closest("button, a, summary")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const action = key === "?" ? toggleKeys : key === "p" ? () => run(previous) : entry && task ? KEYS[key] : null;
  if (!action) return;
  event.preventDefault();
  action();
});

byId("task").addEventListener("submit", (event) => {
  event.preventDefault();
  run(submit);
});
byId("comment").addEventListener("input", () => {
  entry.comment = byId("comment").value;
  changed();
});
byId("skip").addEventListener("click", () => run(skip));
byId("previous").addEventListener("click", () => run(previous));
byId("help").addEventListener("click", toggleKeys);
byId("queue").addEventListener("click", () => run(async () => {
  queue = queue === "grade" ? "adjudicate" : "grade";
  byId("queue").textContent = queue === "grade" ? "Adjudicate" : "Grade";
  byId("skip").hidden = byId("previous").hidden = queue !== "grade";
  await showNext();
}));

connectTheme();
showVerdicts();
run(async () => {
  const session = await openSession();
  document.title = byId("title").textContent = session.title;
  byId("queue").hidden = session.person.role === "annotator";
  await showNext();
});
