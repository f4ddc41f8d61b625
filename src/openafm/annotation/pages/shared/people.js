// Accounts: sign in, join by an invite link, own data, and the admin's list of people.

import { byId, call, connectTheme, element, openSession } from "./api.js";

const invite = location.pathname === "/join" ? location.hash.slice(1) : "";
let session = null;

/** Run an action of the page; its error is shown. */
async function run(action) {
  byId("error").textContent = "";
  try {
    await action();
  } catch (error) {
    byId("error").textContent = error.message;
  }
}

async function show() {
  session = await openSession({ required: false });
  const { person } = session;
  byId("sign-in").hidden = person !== null;
  byId("own").hidden = person === null;
  byId("admin").hidden = person?.role !== "admin";
  if (invite && !person) {
    byId("sign-in-title").textContent = "Join: choose a name and a password";
    byId("sign-in").elements.password.autocomplete = "new-password";
  }
  if (!person) return;
  byId("who").textContent = session.needs_accounts
    ? `${person.name}, ${person.role}`
    : "You are the local admin. Accounts exist on servers that other machines can reach.";
  byId("sign-out").hidden = byId("delete").hidden = !session.needs_accounts;
  if (person.role === "admin") await showPeople();
}

async function showPeople() {
  const people = await call("GET", "/people");
  byId("people").replaceChildren(...people.map(personRow));
}

function personRow(person) {
  const change = (values) => run(async () => {
    await call("PUT", `/people/${person.id}`, { role: person.role, projects: person.projects, ...values });
    await showPeople();
  });
  const role = element("select", { "aria-label": `Role of ${person.name}`, onchange: () => change({ role: role.value }) },
    ...["annotator", "reviewer", "admin"].map((name) => element("option", { selected: name === person.role }, name)));
  const access = element("input", { type: "checkbox", "aria-label": `${person.name} may open this project`,
    checked: person.role === "admin" || person.projects.includes(session.project), disabled: person.role === "admin",
    onchange: () => change({ projects: person.projects.filter((id) => id !== session.project).concat(access.checked ? [session.project] : []) }) });
  const remove = element("button", { type: "button", "aria-label": `Delete ${person.name}`, onclick: () => run(() => deletePerson(person)) }, "Delete");
  return element("tr", {}, element("td", {}, person.name), element("td", {}, role), element("td", {}, access), element("td", {}, remove));
}

async function deletePerson(person) {
  if (!confirm(`Delete the account of ${person.name} and all of its work? This cannot be undone.`)) return;
  await call("DELETE", `/people/${person.id}`);
  byId("notice").textContent = `${person.name} is deleted.`;
  await show();
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const { name, password } = Object.fromEntries(new FormData(event.target));
  run(async () => {
    await (invite ? call("POST", "/join", { invite, name, password }) : call("POST", "/sign-in", { name, password }));
    location.assign("/");
  });
});
byId("export").addEventListener("click", () => run(async () => {
  const data = await call("GET", `/people/${session.person.id}/export`);
  const url = URL.createObjectURL(new Blob([JSON.stringify(data, null, 2)], { type: "application/json" }));
  element("a", { href: url, download: "my-data.json" }).click();
  URL.revokeObjectURL(url);
}));
byId("delete").addEventListener("click", () => run(() => deletePerson(session.person)));
byId("sign-out").addEventListener("click", () => run(async () => {
  await call("POST", "/sign-out", {});
  await show();
}));
byId("invite").addEventListener("submit", (event) => {
  event.preventDefault();
  run(async () => {
    const { path } = await call("POST", "/invites", { role: event.target.elements.role.value });
    byId("link-label").hidden = false;
    byId("link").value = location.origin + path;
    byId("link").select();
  });
});

connectTheme();
run(show);
