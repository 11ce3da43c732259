// The researcher's view of who is where.

const EVERY = 3000; // milliseconds

function cell(text, number = false) {
  const made = document.createElement("td");
  made.textContent = text;
  if (number) made.className = "number";
  return made;
}

function row(person) {
  const made = document.createElement("tr");
  const stage = person.stage === "session" ? `${person.task}, session ${person.session}` : person.stage;
  made.append(
    cell(String(person.number).padStart(6, "0")),
    cell(stage),
    cell(`${person.at} of ${person.of}`, true),
    cell(person.steps, true),
    cell(person.here ? "yes" : ""),
  );
  return made;
}

async function renew() {
  const count = document.getElementById("count");
  try {
    const { study, people } = await (await fetch("/researcher/data")).json();
    document.getElementById("study").textContent = study;
    const done = people.filter((person) => person.stage === "thanks").length;
    count.textContent = `${people.length} have begun, ${done} are done, ` +
      `${people.filter((person) => person.here).length} are here.`;
    document.getElementById("people").replaceChildren(...people.map(row));
  } catch {
    count.textContent = "The server does not answer.";
  }
  setTimeout(renew, EVERY);
}

renew();
