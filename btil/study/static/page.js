// The participant's page: shows what the server says, and asks it for what the participant does.
// It never guesses a step: what is shown is on the server's disk.

import { describe, drawBoard } from "./board.js";
import { fillIn, isSpoken, say, speak } from "./texts.js";

const KEYS = { ArrowUp: 0, ArrowDown: 1, ArrowLeft: 2, ArrowRight: 3, " ": 4, Enter: 5 };
const [REPLACED, NOT_A_PARTICIPANT, ERASED] = [4001, 4401, 4410];
const BEAT = "beat";
// Milliseconds.
const [FIRST_WAIT, LONGEST_WAIT] = [250, 4000]; // until the next try to connect
const [BEAT_EVERY, LOOK_EVERY] = [1000, 250];
const SILENCE = 2500; // after which the page says so
const GIVE_UP = 8000; // after which a silent connection is made anew
const TOO_FAST_FOR = 1500; // how long it is told that a press came too fast
const NEXT_AFTER = 60; // seconds, until a shared computer is ready for the next one

const main = document.getElementById("main");
const spoken = document.getElementById("spoken");
const connectionLine = document.getElementById("connection");
const dialog = document.getElementById("dialog");
const options = document.getElementById("options");

let socket = null;
let seen = null; // what the server said last
let seenAt = 0; // when
let shown = ""; // which page is built
let asked = null; // the message that is on its way
let wait = FIRST_WAIT;
let heard = 0; // when there was the last sign of the server
let silent = false;
let looked = 0; // when it was last looked whether it is silent
let tooFast = -Infinity; // when a press came too fast
let fresh = true; // nothing was shown since the page was loaded
let attempts = 0; // to connect
let nextAt = 0; // when the page is made ready for the next one

const pageName = randomName();

function randomName() {
  // Not randomUUID: that is there over HTTPS alone.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// ------------------------------------------------------------------ talking to the server

function connect() {
  const address = new URL("live", location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  // Which of this page's attempts is the last one, should they arrive in another order.
  attempts += 1;
  address.search = new URLSearchParams({ page: pageName, attempt: attempts }).toString();
  address.hash = "";
  const mine = socket = new WebSocket(address);
  let number = 0;
  let order = Promise.resolve();
  heard = performance.now();
  mine.onmessage = (event) => {
    if (mine !== socket) return;
    hear();
    if (event.data === BEAT) return;
    number += 1;
    const [which, now] = [number, JSON.parse(event.data)];
    // One after the other, also where the texts of a language have to be fetched first.
    order = order.then(() => take(now, which)).catch(() => mine.close());
  };
  mine.onclose = (event) => {
    if (mine !== socket) return;
    socket = null;
    if (event.code === REPLACED) {
      asked = null;
      showElsewhere();
    } else if (event.code === NOT_A_PARTICIPANT) {
      asked = null;
      showConsent();
    } else if (event.code === ERASED) {
      asked = null;
      showErased();
    } else {
      lose(say("lost"));
      setTimeout(connect, wait);
      wait = Math.min(2 * wait, LONGEST_WAIT);
    }
  };
}

async function take(now, number) {
  if (!isSpoken(now.language)) await speak(now.language);
  wait = FIRST_WAIT;
  const lost = number === 1 && asked !== null && asked.turn === now.turn;
  if (lost) now.notice = say("not_arrived");
  asked = null;
  if (fresh && now.shared && now.kind !== "thanks" && !now.paused) {
    seen = now;
    showReturned();
  } else {
    show(now);
  }
  fresh = false;
  // Which message is shown, for tests.
  main.dataset.shown = number;
}

function hear() {
  heard = performance.now();
  if (silent) {
    silent = false;
    document.body.classList.remove("silent");
  }
  connectionLine.textContent = "";
}

// Keys are not taken while nothing is heard.
function lose(words) {
  silent = true;
  document.body.classList.add("silent");
  connectionLine.textContent = words;
}

function look() {
  const now = performance.now();
  // The page itself was asleep: that says nothing of the connection.
  if (now - looked > SILENCE) heard = Math.max(heard, now - BEAT_EVERY);
  looked = now;
  if (socket !== null && now - heard > GIVE_UP) {
    const old = socket;
    socket = null;
    old.close();
    connect();
  } else if (socket !== null && now - heard > SILENCE && !silent) {
    lose(say("silent"));
  }
  showClocks();
}

function beat() {
  if (socket !== null && socket.readyState === WebSocket.OPEN) socket.send(BEAT);
}

function send(message) {
  if (socket === null || socket.readyState !== WebSocket.OPEN || silent) return;
  if (asked !== null) {
    if (message.do === "press") {
      tooFast = performance.now();
      showNotice(say("too_fast"));
    }
    return;
  }
  asked = { turn: seen.turn, ...message };
  socket.send(JSON.stringify(asked));
}

async function post(path, body = {}) {
  try {
    return await fetch(path, { method: "POST", body: JSON.stringify(body) });
  } catch {
    return null;
  }
}

// ------------------------------------------------------------------ pages

function build(name, key) {
  shown = key;
  const made = document.getElementById(name).content.cloneNode(true);
  fillIn(made);
  main.replaceChildren(made);
  main.className = name;
  window.scrollTo(0, 0);
}

function focusHeading() {
  const heading = main.querySelector("h1");
  if (heading === null) return;
  heading.tabIndex = -1;
  heading.focus();
}

function showNotice(words) {
  const notice = main.querySelector(".notice");
  if (notice !== null) setText(notice, words);
}

async function showConsent(language = new URLSearchParams(location.search).get("language") ?? "") {
  let answer;
  try {
    answer = await (await fetch(`welcome?language=${encodeURIComponent(language)}`)).json();
    if (!isSpoken(answer.language)) await speak(answer.language);
  } catch {
    connectionLine.textContent = say("lost");
    setTimeout(() => showConsent(language), LONGEST_WAIT);
    return;
  }
  connectionLine.textContent = "";
  document.getElementById("progress").hidden = true;
  options.hidden = true;
  nameStudy(answer.study, "");
  build("consent-page", "consent");
  // The researcher's own text, made into HTML by the server.
  showHtml(answer.consent);
  showLanguages(answer);
  const asking = new URLSearchParams(location.search);
  const ids = Object.fromEntries(answer.ids.map((name) => [name, asking.get(name) ?? ""]));
  const entry = randomName();
  const agree = main.querySelector(".agree");
  agree.onclick = async () => {
    agree.disabled = true;
    const entered = await post("enter", { entry, ids, language: answer.language });
    agree.disabled = false;
    if (entered !== null && entered.ok) {
      // Who somebody is elsewhere does not stay in the address bar and the history.
      history.replaceState(null, "", location.pathname);
      fresh = false;
      connect();
    } else if (entered === null || entered.headers.get("content-type") !== "application/json") {
      showNotice(say("failed"));
    } else {
      showNotice((await entered.json()).notice);
    }
  };
  focusHeading();
}

function showHtml(html) {
  const text = main.querySelector(".text");
  text.innerHTML = html;
  // A table that is wider than the screen can be moved by the keyboard, too.
  for (const table of text.querySelectorAll("table")) {
    const frame = made("div", "wide");
    frame.tabIndex = 0;
    table.replaceWith(frame);
    frame.append(table);
  }
}

function showLanguages(answer) {
  const choice = main.querySelector(".languages select");
  main.querySelector(".languages").hidden = answer.languages.length < 2;
  choice.append(...answer.languages.map(({ code, name }) => {
    const option = made("option", "", name);
    option.value = code;
    option.lang = code;
    option.selected = code === answer.language;
    return option;
  }));
  choice.onchange = () => showConsent(choice.value);
}

function showElsewhere() {
  options.hidden = true;
  dialog.close();
  build("elsewhere-page", "elsewhere");
  main.querySelector("button").onclick = connect;
  focusHeading();
}

function showErased() {
  options.hidden = true;
  dialog.close();
  document.getElementById("progress").hidden = true;
  build("erased-page", "erased");
  focusHeading();
}

function showReturned() {
  nameStudy(seen.study, "");
  build("returned-page", "returned");
  main.querySelector(".mine").onclick = () => show(seen);
  main.querySelector(".new").onclick = () => post("leave");
  focusHeading();
}

function nameStudy(study, label) {
  document.getElementById("study").textContent = study;
  document.title = label === "" ? study : `${label} – ${study}`;
}

function show(now) {
  const before = seen;
  seen = now;
  seenAt = performance.now();
  nameStudy(now.study, now.progress.label);
  document.getElementById("progress").hidden = false;
  setText(document.getElementById("progress-what"), `${now.progress.label} · `);
  setText(document.getElementById("progress-label"), say("part", now.progress));
  const bar = document.getElementById("progress-bar");
  bar.max = now.progress.of;
  bar.value = now.progress.at;
  setText(options, say("options"));
  options.hidden = now.kind === "thanks" || now.paused;
  if (options.hidden && dialog.open) dialog.close();
  const key = now.paused ? "paused" : `${now.kind} ${now.progress.at}`;
  const first = key !== shown;
  if (now.paused) showPaused(now, first, key);
  else if (now.kind === "survey") showSurvey(now, first, key);
  else if (now.kind === "pairing") showPairing(now, first, key);
  else if (now.kind === "thanks") showThanks(now, first, key);
  else showPlay(now, first, key, first ? null : before);
  if (first) focusHeading();
  const recently = performance.now() - tooFast < TOO_FAST_FOR;
  showNotice(now.notice || (first && now.skipped) || (recently ? say("too_fast") : ""));
  showClocks();
}

function showPaused(now, first, key) {
  if (!first) return;
  build("paused-page", key);
  main.querySelector(".limit").textContent = now.break_minutes > 0
    ? say("paused_limit", { minutes: now.break_minutes }) : "";
  main.querySelector(".resume").onclick = () => send({ do: "resume" });
}

function showThanks(now, first, key) {
  if (!first) return;
  build("thanks-page", key);
  const heading = main.querySelector(".outcome-title");
  const outcome = main.querySelector(".outcome");
  if (now.outcome !== "") {
    outcome.hidden = false;
    outcome.textContent = now.outcome;
  }
  showHtml(now.html);
  if (main.querySelector(".text h1") === null) {
    heading.hidden = false;
    heading.textContent = say("ended_title");
  } else {
    heading.remove();
  }
  main.querySelector(".completion").hidden = now.code === "";
  main.querySelector(".code").textContent = now.code;
  main.querySelector(".go-back").hidden = now.code_link === "";
  if (now.code_link !== "") main.querySelector(".go-back a").href = now.code_link;
  main.querySelector(".leave").onclick = () => post("leave");
  nextAt = now.shared ? performance.now() + 1000 * NEXT_AFTER : 0;
}

// What changes by the second.
function showClocks() {
  if (seen === null) return;
  const passed = (performance.now() - seenAt) / 1000;
  const clock = main.querySelector(".clock");
  if (clock !== null) {
    clock.hidden = seen.time_left === null || seen.time_left === undefined;
    if (!clock.hidden) {
      const left = Math.max(0, Math.ceil(seen.time_left - passed));
      const time = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
      setText(clock, say("time_left", { time }));
    }
  }
  if (seen.kind === "pairing" && !seen.paused) {
    const waited = Math.round(seen.waited + passed);
    const since = main.querySelector(".since");
    if (since !== null) setText(since, say("waiting_since", { seconds: waited }));
    const alone = main.querySelector(".alone");
    if (alone !== null) alone.hidden = waited < seen.patience + 1;
  }
  const soon = main.querySelector(".soon");
  if (soon !== null && nextAt > 0) {
    const left = Math.ceil((nextAt - performance.now()) / 1000);
    soon.hidden = false;
    setText(soon, say("next_soon", { seconds: Math.max(left, 0) }));
    if (left <= 0) {
      nextAt = 0;
      post("leave");
    }
  }
}

// ------------------------------------------------------------------ a break, or the end

function openDialog(name) {
  const made = document.getElementById(name).content.cloneNode(true);
  fillIn(made);
  dialog.replaceChildren(made);
  for (const button of dialog.querySelectorAll(".close")) button.onclick = () => dialog.close();
  if (!dialog.open) dialog.showModal();
}

function doAndClose(message) {
  send(message);
  dialog.close();
}

options.onclick = () => {
  openDialog("options-dialog");
  dialog.querySelector(".pause").onclick = () => doAndClose({ do: "pause" });
  dialog.querySelector(".stop").onclick = () => {
    openDialog("withdraw-dialog");
    dialog.querySelector(".pair").hidden = !seen.paired;
    dialog.querySelector(".keep").onclick = () => doAndClose({ do: "withdraw" });
    dialog.querySelector(".erase").onclick = () => doAndClose({ do: "erase" });
  };
};

// ------------------------------------------------------------------ surveys

function made(name, className = "", text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

function asks(question, label) {
  label.textContent = question.text;
  if (!question.required) label.append(made("span", "optional", say("if_you_like")));
  return label;
}

function choiceQuestion(question) {
  const field = made("fieldset");
  field.append(asks(question, made("legend")));
  const options = made("div", `options ${question.kind}`);
  for (const option of question.options) {
    const input = made("input");
    Object.assign(input, {
      type: "radio", name: question.name, value: option, required: question.required,
    });
    const label = made("label");
    label.append(input, made("span", "", option));
    options.append(label);
  }
  field.append(options);
  return field;
}

function textQuestion(question, index) {
  const line = made("div", "question-line");
  const label = asks(question, made("label"));
  const long = question.kind === "text" && question.longest > 100;
  const input = made(long ? "textarea" : "input");
  Object.assign(input, { name: question.name, id: `question-${index}`, required: question.required });
  label.htmlFor = input.id;
  if (question.kind === "number") {
    input.type = "number";
    input.step = "any";
    if (question.minimum !== null) input.min = question.minimum;
    if (question.maximum !== null) input.max = question.maximum;
  } else {
    input.maxLength = question.longest;
  }
  line.append(label, input);
  return line;
}

function showSurvey(now, first, key) {
  if (!first) return;
  build("survey-page", key);
  main.querySelector("h1").textContent = now.title;
  const questions = main.querySelector(".questions");
  now.questions.forEach((question, index) => {
    questions.append(question.options.length > 0 ? choiceQuestion(question) : textQuestion(question, index));
  });
  main.querySelector("form").onsubmit = (event) => {
    event.preventDefault();
    send({ do: "answer", answers: Object.fromEntries(new FormData(event.target)) });
  };
}

// ------------------------------------------------------------------ two people

function showPairing(now, first, key) {
  const byCode = now.pairing === "code";
  if (first) {
    build(byCode ? "pairing-page" : "waiting-page", key);
    main.querySelector(".alone").onclick = () => send({ do: "alone" });
  }
  if (!byCode) return;
  if (first) {
    main.querySelector(".host").onclick = () => send({ do: "host" });
    main.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      send({ do: "join", code: event.target.elements.code.value.trim() });
    };
  }
  const line = main.querySelector(".code-line");
  line.hidden = now.code === "";
  main.querySelector(".host").hidden = now.code !== "";
  const [head, tail] = say("pairing_code", { code: "\n" }).split("\n");
  line.replaceChildren(head, made("strong", "code", now.code), tail);
}

// ------------------------------------------------------------------ play

function showPlay(now, first, key, before) {
  if (first) {
    build("play-page", key);
    for (const button of main.querySelectorAll(".keys button")) {
      button.onclick = (event) => {
        // A click of the mouse gives the keys back to the map.
        if (event.detail > 0) focusMap();
        if (button.dataset.action === undefined) askToSelect();
        else press(Number(button.dataset.action));
      };
    }
    main.querySelector(".proceed").onclick = proceed;
  }
  const one = (selector) => main.querySelector(selector);
  const learning = now.kind === "tutorial";
  main.classList.toggle("learning", learning);
  setText(one("h1"), learning ? say("tutorial_at", now.lesson) : now.progress.label);
  setText(one(".lesson"), learning && now.phase !== "over" ? now.text : "");
  showPanel(now, before);
  showRules(now);
  one(".board").style.setProperty("--ratio", now.board.width / now.board.height);
  one(".drawing").replaceChildren(drawBoard(now.board, {
    thing: now.thing,
    world: now.world,
    names: now.names,
    you: now.you,
    destination: now.destination === null ? null : now.destination.at,
    robots: now.robots,
  }));
  showSelector(now, before);
  for (const button of main.querySelectorAll(".keys button")) {
    const action = button.dataset.action;
    button.disabled = action === undefined
      ? !(now.can_ask && now.phase === "acting") : !now.legal[Number(action)];
  }
  one(".play").classList.toggle("idle", now.phase === "intro" || now.phase === "over");
  one(".ask").hidden = !(now.can_ask || learning);
  one(".ask-hint").hidden = one(".ask").hidden;
  setText(one(".state"), now.phase === "selecting" ? "" : stateText(now));
  setText(one(".why"), now.notice === "" && now.phase !== "over" ? now.why : "");
  one(".time").hidden = learning;
  if (!learning) {
    const best = now.best === null ? say("steps_none") : now.best;
    setText(one(".time"), say("time_taken", { steps: now.steps, best }));
  }
  if (before !== null && now.turn !== before.turn) speakOf(now, before);
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function stateText(now) {
  const names = { partner: now.names[1 - now.you], you: now.names[now.you] };
  if (now.partner_here === false && now.phase !== "over") return say("away", names);
  if (now.partner_rests === true && now.phase !== "over") return say("resting", names);
  if (now.phase === "waiting") return say("wait_start", names);
  if (now.phase === "acted") return say("wait_choose", names);
  if (now.phase === "acting" && now.destination !== null) {
    return say("you_are_heading", { ...names, destination: now.destination.label });
  }
  return now.phase === "intro" ? "" : say("you_are", names);
}

function listOf(lines) {
  const list = made("ul");
  list.append(...lines.map((line) => made("li", "", line)));
  return list;
}

function showPanel(now, before) {
  const panel = main.querySelector(".panel");
  const text = main.querySelector(".panel-text");
  panel.hidden = now.phase !== "intro" && now.phase !== "over";
  const same = before !== null && before.phase === now.phase;
  if (panel.hidden || (same && String(before.instructions) === String(now.instructions))) return;
  setText(main.querySelector(".proceed"), say(now.phase === "intro" ? "start" : "continue"));
  if (now.kind === "tutorial") {
    text.replaceChildren(made("p", "", now.text));
  } else if (now.phase === "intro") {
    const head = say("in_this_task", { you: now.names[now.you] });
    text.replaceChildren(made("p", "", head), listOf(now.instructions));
  } else {
    const words = say(now.finished ? "done_in" : "over_after", { steps: now.steps, best: now.best });
    text.replaceChildren(made("p", "", words));
  }
  // Not to the button: a key that is still being pressed must not skip this.
  if (before !== null) panel.focus();
}

function showRules(now) {
  const rules = main.querySelector(".rules");
  rules.hidden = now.kind === "tutorial" || now.phase === "intro";
  if (now.kind !== "session" || rules.dataset.told === String(now.instructions)) return;
  rules.dataset.told = String(now.instructions);
  rules.querySelector("ul").replaceWith(listOf(now.instructions));
}

function showSelector(now, before) {
  const overlay = main.querySelector(".overlay");
  const open = now.phase === "selecting";
  const wasOpen = !overlay.hidden;
  overlay.hidden = !open;
  main.querySelector(".question").hidden = !open;
  main.querySelector(".board").classList.toggle("asking", open);
  if (!open) {
    overlay.replaceChildren();
    if (wasOpen || (before !== null && before.phase === "intro")) focusMap();
    return;
  }
  if (wasOpen && before !== null && before.turn === now.turn) return;
  const taken = new Map();
  overlay.replaceChildren(...now.options.map((option) => {
    const button = made("button");
    const [x, y] = option.at;
    const others = taken.get(String(option.at)) ?? 0;
    taken.set(String(option.at), others + 1);
    button.type = "button";
    button.dataset.latent = option.latent;
    button.style.left = `${(100 * (x + 0.5 + 0.35 * others)) / now.board.width}%`;
    button.style.top = `${(100 * (y + 0.5 + 0.35 * others)) / now.board.height}%`;
    button.style.width = `${94 / now.board.width}%`;
    button.style.height = `${94 / now.board.height}%`;
    const isNow = now.destination !== null && now.destination.latent === option.latent;
    button.classList.toggle("now", isNow);
    const label = isNow ? say("chosen_now", { label: option.label }) : option.label;
    const number = made("span", "key", option.key);
    number.ariaHidden = "true";
    button.append(number, made("span", "unseen", say("key_of", { label, key: option.key })));
    button.onclick = () => send({ do: "choose", value: option.latent });
    return button;
  }));
  // Not to a button: a key that is still being pressed must not choose.
  overlay.focus({ preventScroll: true });
}

function focusMap() {
  main.querySelector(".board").focus({ preventScroll: true });
}

function proceed() {
  send({ do: seen.phase === "intro" ? "start" : "next" });
}

function press(action) {
  if (seen.phase === "acting" && seen.legal[action]) {
    send({ do: "press", value: action });
  } else if (seen.phase === "acting" && (action === 5 || seen.kind === "tutorial")) {
    showNotice(say(seen.kind === "tutorial" ? "not_yet"
      : seen.practice ? "nothing_here" : "only_circled"));
  }
}

function askToSelect() {
  if (seen.can_ask && seen.phase === "acting") send({ do: "ask" });
}

function speakOf(now, before) {
  if (now.phase === "selecting") {
    const all = now.options.map((option) => `${option.key}: ${option.label}`).join(", ");
    spoken.textContent = say("select", { options: all });
  } else if (now.steps !== before.steps || now.kind === "tutorial") {
    spoken.textContent = describe(now.board, now);
  }
}

function moveAmongOptions(forward) {
  const buttons = [...main.querySelectorAll(".overlay button")];
  const at = buttons.indexOf(document.activeElement);
  const next = at < 0 ? (forward ? 0 : buttons.length - 1)
    : (at + (forward ? 1 : buttons.length - 1)) % buttons.length;
  buttons[next].focus();
}

document.addEventListener("keydown", (event) => {
  const playing = main.querySelector(".board") !== null && seen !== null;
  if (!playing || dialog.open || event.ctrlKey || event.metaKey || event.altKey) return;
  const { key } = event;
  const activates = key === "Enter" || key === " ";
  if (activates && event.target.closest("button, summary, a, input") !== null) return;
  if (seen.phase === "selecting") {
    const option = seen.options.find((one) => one.key === key);
    if (option !== undefined && !event.repeat) send({ do: "choose", value: option.latent });
    else if (key.startsWith("Arrow")) moveAmongOptions(key === "ArrowRight" || key === "ArrowDown");
    else if (!activates) return;
    event.preventDefault();
    return;
  }
  if (seen.phase === "intro" || seen.phase === "over") return;
  const selects = key === "d" || key === "D";
  if (!(key in KEYS) && !selects) return;
  event.preventDefault();
  // One press is one step: a key that is held down does not run on.
  if (event.repeat) return;
  if (selects) askToSelect();
  else press(KEYS[key]);
});

looked = performance.now();
setInterval(beat, BEAT_EVERY);
setInterval(look, LOOK_EVERY);
connect();
