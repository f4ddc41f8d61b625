// The conversation as a Python program.

const quoted = (text) => JSON.stringify(text);

function pythonValue(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${quoted(name)}: ${pythonValue(each)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

const pythonTypes = { string: "str", integer: "int", number: "float", boolean: "bool", array: "list", object: "dict" };

function toolSource(tool) {
  const properties = Object.entries(tool.parameters?.properties ?? {});
  const parameters = properties.map(([name, schema]) => `${name}: ${pythonTypes[schema.type] ?? "str"}`).join(", ");
  const description = quoted(tool.description || tool.name);
  return `@fm.tool\ndef ${tool.name}(${parameters}) -> str:\n    ${description}\n    return ${quoted(tool.output)}\n`;
}

/** Return a program that repeats prompts with openafm. `settings` are those of the first variant. */
export function pythonSource(prompts, settings, schema, tools) {
  const lines = ["import openafm as fm", ""];
  if (tools.length > 0) lines.push(...tools.map((tool) => `\n${toolSource(tool)}`), "");
  const [bundle, adapter] = settings.model.split(":");
  const model = `fm.SystemLanguageModel(bundle=${quoted(bundle)}${adapter ? `, adapter=${quoted(adapter)}` : ""})`;
  const list = tools.length > 0 ? `, tools=[${tools.map((tool) => tool.name).join(", ")}]` : "";
  lines.push(`session = fm.LanguageModelSession(${quoted(settings.instructions)}, ${model}${list})`);
  const options = [`maximum_response_tokens=${settings.max_tokens}`];
  if (settings.temperature > 0) {
    const share = settings.top_p < 1 ? `probability_threshold=${settings.top_p}, ` : "";
    options.unshift(`sampling=fm.SamplingMode.random(${share}seed=${settings.seed})`, `temperature=${settings.temperature}`);
  }
  lines.push(`options = fm.GenerationOptions(${options.join(", ")})`);
  if (schema !== null) lines.push(`schema = ${pythonValue(schema)}`);
  const typed = schema === null ? "" : ", json_schema=schema";
  for (const prompt of prompts) lines.push(`print(session.respond_blocking(${quoted(prompt)}${typed}, options=options))`);
  return `${lines.join("\n")}\n`;
}
