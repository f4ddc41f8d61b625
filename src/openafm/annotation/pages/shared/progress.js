// Progress of the project by person, for admins.

import { byId, call, connectTheme, element, openSession } from "./api.js";

const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);
const time = (seconds) => (seconds === null ? "–" : seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);
const kinds = (errors) => Object.entries(errors).map(([name, count]) => `${name.replaceAll("_", " ")} ${count}`).join(", ") || "–";

function personRow(person) {
  const cells = [person.done, person.open, person.flagged, time(person.seconds), kinds(person.errors), percent(person.agreement),
    percent(person.agreement_early), percent(person.agreement_late), person.notes.join(", ") || "–"];
  return element("tr", {}, element("th", { scope: "row" }, person.name), ...cells.map((text) => element("td", {}, String(text))));
}

async function show() {
  await openSession();
  const found = await call("GET", "/progress");
  byId("title").textContent = found.title;
  byId("bar").value = found.total ? found.done / found.total : 0;
  byId("counts").textContent = `${found.done} of ${found.total} ${found.unit} done, ${found.open} open, ${found.flagged} flagged`;
  byId("about").textContent = `Time of each: ${time(found.seconds)}. Agreement of people: ${percent(found.agreement)}. Errors: ${kinds(found.errors)}.`;
  byId("people").replaceChildren(...found.people.map(personRow));
  byId("nobody").hidden = found.people.length > 0;
  byId("all").hidden = byId("by-person").hidden = false;
}

connectTheme();
show().catch((error) => {
  byId("error").textContent = error.message;
});
