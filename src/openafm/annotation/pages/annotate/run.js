// One run of the model: server-sent events of a POST request.

let controller = null;

/** Stop the running model after its present step. */
export const stopModel = () => controller?.abort();

/** Run the model on an item and call `onevent` for each event, one after the other. */
export async function runModel(view, page, csrf, onevent) {
  controller = new AbortController();
  const key = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const reply = await fetch(`/api/items/${view.id}/run`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf ?? "" },
    body: JSON.stringify({ key, sequence: view.sequence, page }),
    signal: controller.signal,
  });
  if (!reply.ok) {
    const body = await reply.json().catch(() => null);
    throw new Error(body?.error?.message ?? `the server answered with status ${reply.status}`);
  }
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (buffered + value).split("\n\n");
    buffered = lines.pop();
    for (const line of lines) await onevent(JSON.parse(line.slice(6)));
  }
}
