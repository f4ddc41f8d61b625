// The dialog that edits a node: a text, or calls with one field for each argument.

import { byId, element } from "/static/shared/api.js";

const dialog = byId("editor");

/**
 * Show the dialog and return the values of its form; null if the annotator cancels.
 * `save` receives the values and may throw: the dialog stays open and shows the message.
 */
export function ask(title, fields, read, save) {
  byId("editor-title").textContent = title;
  byId("fields").replaceChildren(...fields);
  byId("editor-error").textContent = "";
  return new Promise((resolve) => {
    const form = dialog.querySelector("form");
    form.onsubmit = async (event) => {
      event.preventDefault();
      try {
        const values = read();
        await save(values);
        dialog.close();
        resolve(values);
      } catch (error) {
        byId("editor-error").textContent = error.message;
      }
    };
    byId("cancel").onclick = () => dialog.close();
    dialog.onclose = () => resolve(null);
    dialog.showModal();
  });
}

/** Return a labeled text area. */
export function textField(label, name, value = "", rows = 3) {
  const area = element("textarea", { name, rows: String(rows) });
  area.value = value;
  return element("label", {}, label, area);
}

/** Return a labeled check box. */
export function checkField(label, name, isOn) {
  return element("label", { class: "row" }, element("input", { type: "checkbox", name, checked: isOn }), ` ${label}`);
}

/** Return a labeled choice. */
export function choiceField(label, name, choices) {
  const options = choices.map((each) => element("option", { value: each }, each.replaceAll("_", " ")));
  return element("label", {}, label, element("select", { name }, ...options));
}

/** Return fields for calls, and a function that reads them. */
export function callFields(calls, tools) {
  const list = element("div", {});
  const add = (call) => list.append(callField(call, tools, (field) => field.remove()));
  calls.forEach(add);
  const more = element("button", { type: "button", onclick: () => add({ name: tools[0].name, arguments: {} }) }, "Add a parallel call");
  return { fields: [list, more], read: () => [...list.children].map((field) => field.read()) };
}

function callField(call, tools, remove) {
  const inputs = element("div", {});
  const names = tools.map((tool) => element("option", { value: tool.name, selected: tool.name === call.name }, tool.name));
  const select = element("select", { "aria-label": "Tool", onchange: () => fill({}) }, ...names);
  let readers = [];
  const fill = (values) => {
    const { properties = {}, required = [] } = tools.find((tool) => tool.name === select.value)?.parameters ?? {};
    const made = Object.entries(properties).map(([name, schema]) => argumentField(name, schema, values[name], required.includes(name)));
    inputs.replaceChildren(...made.map((each) => each.label));
    readers = made;
  };
  fill(call.arguments);
  const field = element("fieldset", {}, element("legend", {}, "Call"), select, inputs);
  field.append(element("button", { type: "button", onclick: () => remove(field) }, "Remove this call"));
  field.read = () => ({
    name: select.value,
    arguments: Object.fromEntries(readers.map((each) => [each.name, each.read()]).filter(([, value]) => value !== undefined)),
  });
  return field;
}

function argumentField(name, schema, value, isRequired) {
  const isText = schema.type === "string";
  const input = element(schema.type === "object" || schema.type === "array" ? "textarea" : "input", { name });
  input.value = value === undefined ? "" : isText ? value : JSON.stringify(value);
  const hint = schema.description ? ` · ${schema.description}` : "";
  const kind = isText ? "text" : (schema.type ?? "JSON");
  const label = element("label", {}, `${name} (${kind}${isRequired ? "" : ", optional"})`, element("span", { class: "quiet" }, hint), input);
  const read = () => {
    if (input.value === "" && !(isText && (isRequired || value === ""))) return undefined;
    if (isText) return input.value;
    try {
      return JSON.parse(input.value);
    } catch {
      throw new Error(`${name} is a ${kind}; ${input.value} is not JSON`);
    }
  };
  return { name, label, read };
}
