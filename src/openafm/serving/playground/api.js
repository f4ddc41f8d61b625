// Calls of the server. All of them go to the page's own origin.

const TOKEN_HEADER = "x-playground-token";
const token = readToken(); // calls of Python tools need it

/** Return the token in the fragment of the page's address, and keep it for reloads of this tab only. */
function readToken() {
  if (location.hash.startsWith("#token=")) {
    sessionStorage.setItem("token", location.hash.slice("#token=".length));
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem("token") ?? "";
}

const post = (path, body, signal, headers = {}) =>
  fetch(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers }, signal });

async function failure(reply) {
  const body = await reply.json().catch(() => null);
  return new Error(body?.error?.message ?? `the server answered with status ${reply.status}`);
}

/** Return the models of the server. */
export async function models() {
  const reply = await fetch("v1/models");
  if (!reply.ok) throw await failure(reply);
  return (await reply.json()).data;
}

/** Return the number of tokens of a request's prompt, and the size of the context window. */
export async function countTokens(body, signal) {
  const { model, messages, tools, response_format } = body;
  const reply = await post("tokenize", { model, messages, tools, response_format }, signal);
  if (!reply.ok) throw await failure(reply);
  const { count, max_model_len } = await reply.json();
  return { count, limit: max_model_len };
}

/** Return the user's Python tools and the schemas of Python types of this server. */
export async function userCode() {
  const [tools, schemas] = await Promise.all(["playground/tools", "playground/schemas"].map((path) => fetch(path)));
  if (!tools.ok) throw await failure(tools);
  if (!schemas.ok) throw await failure(schemas);
  return { tools: await tools.json(), schemas: await schemas.json() };
}

/** Run a Python tool and return its output. */
export async function callTool(name, text) {
  const reply = await post("playground/tools/call", { name, arguments: JSON.parse(text) }, undefined, { [TOKEN_HEADER]: token });
  if (!reply.ok) throw await failure(reply);
  return (await reply.json()).output;
}

/** Return the bytes of a feedback file. */
export async function feedbackFile(body) {
  const reply = await post("playground/feedback", body);
  if (!reply.ok) throw await failure(reply);
  return reply.arrayBuffer();
}

/** Yield the chunks of a streamed chat completion. */
export async function* streamChat(body, signal) {
  const reply = await post("v1/chat/completions", { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  if (!reply.ok) throw await failure(reply);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (buffered + value).split("\n\n");
    buffered = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
      if (data === undefined || data === "[DONE]") continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}
