// Requests to the server, the session, and elements.

export class RequestError extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

let csrf = "";

/** Send a request below /api and return its JSON. Throws a RequestError; its status is 0 if the server is not reached. */
export async function call(method, path, body) {
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": csrf };
  let reply;
  try {
    reply = await fetch(`/api${path}`, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new RequestError(0, "offline", "The server is not reached. Your entries stay on this page; retrying helps.");
  }
  const values = await reply.json().catch(() => null);
  if (reply.ok && values !== null) return values;
  const { code, message } = values?.error ?? { code: "reply", message: `The server's reply is not JSON (${reply.status}).` };
  throw new RequestError(reply.status, code, message);
}

/** Return the session; pages with `required` go to the sign-in page first. */
export async function openSession({ required = true } = {}) {
  const session = await call("GET", "/session");
  csrf = session.csrf ?? "";
  if (required && !session.person) {
    location.assign("/people");
    await new Promise(() => {}); // the browser is leaving
  }
  return session;
}

/** Return an element with attributes (`onclick` and other properties too) and children. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") made.toggleAttribute(name, value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Connect the button `#theme`, which switches between light and dark. */
export function connectTheme() {
  const root = document.documentElement;
  root.dataset.theme = localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
  });
}
