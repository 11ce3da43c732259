// The researcher's view of who is where.

const EVERY = 1000; // milliseconds

const byId = (name) => document.getElementById(name);
const dialog = byId("dialog");
let last = "";

function cell(content, number = false, head = false) {
  const made = document.createElement(head ? "th" : "td");
  made.append(content);
  if (head) made.scope = "row";
  if (number) made.className = "number";
  return made;
}

function button(words, label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = words;
  made.ariaLabel = label;
  made.onclick = act;
  return made;
}

function sixDigits(number) {
  return String(number).padStart(6, "0");
}

function clock(seconds) {
  if (!seconds) return "";
  const time = new Date(1000 * seconds);
  const today = time.toDateString() === new Date().toDateString();
  return today ? time.toLocaleTimeString() : time.toLocaleString();
}

function ago(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

function state(person) {
  if (person.outcome !== "") return person.outcome === "partner" ? "partner left" : person.outcome;
  if (person.stage === "thanks") return "done";
  if (person.paused) return "break";
  return person.here ? "here" : "away";
}

function row(person, now) {
  const made = document.createElement("tr");
  const part = person.stage === "session" ? `${person.task}, session ${person.session}` : person.stage;
  const who = sixDigits(person.number);
  const link = document.createElement("a");
  link.href = `replay?participant=${who}`;
  link.textContent = "replay";
  link.ariaLabel = `replay of ${who}`;
  made.append(
    cell(who, false, true),
    cell(part),
    cell(`${person.at} of ${person.of}`, true),
    cell(person.steps, true),
    cell(person.arm),
    cell(person.partner.map(sixDigits).join(", ")),
    cell(clock(person.begun)),
    cell(person.active ? ago(now - person.active) : ""),
    cell(state(person) + (person.wrong ? `, checks wrong: ${person.wrong}` : "")),
    cell(person.answers ? button(person.answers, `answers of ${who}`, () => showAnswers(who)) : "", true),
    cell(person.played ? link : ""),
    cell(button("erase", `erase ${who}`, () => askToErase(who))),
  );
  return made;
}

function openDialog(title, text, confirms) {
  byId("dialog-title").textContent = title;
  byId("dialog-text").textContent = text;
  byId("dialog-table").replaceChildren();
  byId("confirm").hidden = !confirms;
  dialog.showModal();
}

async function showAnswers(who) {
  const { answers } = await (await fetch(`researcher/answers/${Number(who)}`)).json();
  openDialog(`Answers of ${who}`, "", false);
  byId("dialog-table").append(...answers.map(([survey, question, answer]) => {
    const made = document.createElement("tr");
    made.append(cell(survey), cell(question), cell(answer));
    return made;
  }));
}

function askToErase(who) {
  openDialog(`Erase ${who}?`, "Everything of this participant goes, for good, and with it the " +
    "sessions that were played with another one. Backups are not touched.", true);
  byId("confirm").onclick = async () => {
    const body = JSON.stringify({ number: Number(who) });
    const answer = await fetch("researcher/erase", { method: "POST", body });
    if (answer.ok) dialog.close();
    else byId("dialog-text").textContent = "This did not work.";
  };
}

byId("close").onclick = () => dialog.close();

async function renew() {
  const count = byId("count");
  try {
    const answer = await fetch("researcher/data");
    // The key is another one by now.
    if (answer.status === 403) location.reload();
    const { study, people, now } = await answer.json();
    byId("study").textContent = study;
    const done = people.filter((person) => person.stage === "thanks" && person.outcome === "").length;
    const ended = people.filter((person) => person.outcome !== "").length;
    const words = `${people.length} have begun, ${done} are done, ${ended} ended otherwise, ` +
      `${people.filter((person) => person.here).length} are here.`;
    if (count.textContent !== words) count.textContent = words;
    const told = JSON.stringify([people, Math.round(now / 5)]);
    // What somebody is about to press stays where it is while nothing changes.
    if (told !== last && !dialog.open) {
      last = told;
      const focused = document.activeElement?.ariaLabel;
      byId("people").replaceChildren(...people.map((person) => row(person, now)));
      if (focused) document.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
    }
  } catch {
    count.textContent = "The server does not answer.";
  }
  setTimeout(renew, EVERY);
}

renew();
