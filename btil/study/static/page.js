// The participant's page: shows what the server says, and asks it for what the participant does.
// It never guesses a step: what is shown is on the server's disk.

import { describe, drawBoard } from "./board.js";

const KEYS = { ArrowUp: 0, ArrowDown: 1, ArrowLeft: 2, ArrowRight: 3, " ": 4, Enter: 5 };
const [REPLACED, NOT_A_PARTICIPANT] = [4001, 4401];
const [FIRST_WAIT, LONGEST_WAIT] = [250, 4000]; // milliseconds until the next try to connect

const main = document.getElementById("main");
const spoken = document.getElementById("spoken");
const connectionLine = document.getElementById("connection");

let socket = null;
let seen = null; // what the server said last
let shown = ""; // which page is built
let asked = false; // a message is on its way
let wait = FIRST_WAIT;

// ------------------------------------------------------------------ talking to the server

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}/live`);
  let number = 0;
  socket.onmessage = (event) => {
    connectionLine.textContent = "";
    wait = FIRST_WAIT;
    asked = false;
    show(JSON.parse(event.data));
    // Which message is shown, for tests.
    number += 1;
    main.dataset.shown = number;
  };
  socket.onclose = (event) => {
    socket = null;
    asked = false;
    if (event.code === REPLACED) {
      showElsewhere();
    } else if (event.code === NOT_A_PARTICIPANT) {
      showConsent();
    } else {
      connectionLine.textContent = "The connection is lost; trying again …";
      setTimeout(connect, wait);
      wait = Math.min(2 * wait, LONGEST_WAIT);
    }
  };
}

function send(message) {
  if (asked || socket === null || socket.readyState !== WebSocket.OPEN) return;
  asked = true;
  socket.send(JSON.stringify({ turn: seen.turn, ...message }));
}

async function post(path) {
  try {
    return await fetch(path, { method: "POST" });
  } catch {
    return null;
  }
}

// ------------------------------------------------------------------ pages

function build(name, key) {
  shown = key;
  main.replaceChildren(document.getElementById(name).content.cloneNode(true));
  window.scrollTo(0, 0);
}

function focusHeading() {
  const heading = main.querySelector("h1");
  if (heading === null) return;
  heading.tabIndex = -1;
  heading.focus();
}

async function showConsent() {
  let answer;
  try {
    answer = await (await fetch("/welcome")).json();
  } catch {
    connectionLine.textContent = "The connection is lost; trying again …";
    setTimeout(showConsent, LONGEST_WAIT);
    return;
  }
  connectionLine.textContent = "";
  document.getElementById("progress").hidden = true;
  nameStudy(answer.study, "");
  build("consent-page", "consent");
  // The researcher's own text, made into HTML by the server.
  main.querySelector(".text").innerHTML = answer.consent;
  main.querySelector("button").onclick = async () => {
    const entered = await post("/enter");
    if (entered !== null && entered.ok) {
      connect();
    } else if (entered === null || entered.headers.get("content-type") !== "application/json") {
      connectionLine.textContent = "This did not work; please try again.";
    } else {
      connectionLine.textContent = (await entered.json()).notice;
    }
  };
  focusHeading();
}

function showElsewhere() {
  build("elsewhere-page", "elsewhere");
  main.querySelector("button").onclick = connect;
  focusHeading();
}

function nameStudy(study, label) {
  document.getElementById("study").textContent = study;
  document.title = label === "" ? study : `${label} – ${study}`;
}

function show(now) {
  const before = seen;
  seen = now;
  nameStudy(now.study, now.progress.label);
  document.getElementById("progress").hidden = false;
  document.getElementById("progress-label").textContent =
    `${now.progress.label} · part ${now.progress.at} of ${now.progress.of}`;
  const bar = document.getElementById("progress-bar");
  bar.max = now.progress.of;
  bar.value = now.progress.at;
  const key = `${now.kind} ${now.progress.at}`;
  const fresh = key !== shown;
  if (now.kind === "survey") showSurvey(now, fresh, key);
  else if (now.kind === "pairing") showPairing(now, fresh, key);
  else if (now.kind === "thanks") showThanks(now, fresh, key);
  else showPlay(now, fresh, key, fresh ? null : before);
  if (fresh) focusHeading();
  const notice = main.querySelector(".notice");
  if (notice !== null) notice.textContent = now.notice;
}

function showThanks(now, fresh, key) {
  if (!fresh) return;
  build("thanks-page", key);
  main.querySelector(".text").innerHTML = now.html;
  main.querySelector(".leave").onclick = () => post("/leave");
}

// ------------------------------------------------------------------ surveys

function made(name, className = "", text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

function asks(question, label) {
  label.textContent = question.text;
  if (!question.required) label.append(made("span", "optional", " (if you like)"));
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

function showSurvey(now, fresh, key) {
  if (!fresh) return;
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

function showPairing(now, fresh, key) {
  if (fresh) {
    build("pairing-page", key);
    main.querySelector(".host").onclick = () => send({ do: "host" });
    main.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      send({ do: "join", code: event.target.elements.code.value.trim() });
    };
  }
  main.querySelector(".code-line").hidden = now.code === "";
  main.querySelector(".host").hidden = now.code !== "";
  main.querySelector(".code").textContent = now.code;
}

// ------------------------------------------------------------------ play

function showPlay(now, fresh, key, before) {
  if (fresh) {
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
  const [one] = [(selector) => main.querySelector(selector)];
  one("h1").textContent = now.kind === "tutorial"
    ? `Tutorial: ${now.lesson.at} of ${now.lesson.of}` : now.progress.label;
  setText(one(".lesson"), now.kind === "tutorial" && now.phase !== "over" ? now.text : "");
  showPanel(now, before);
  showRules(now);
  one(".drawing").replaceChildren(drawBoard(now.board, {
    thing: now.thing,
    names: now.names,
    you: now.you,
    destination: now.destination === null || now.phase === "selecting" ? null : now.destination.at,
    robIsPerson: now.partner_here !== undefined,
  }));
  showSelector(now, before);
  for (const button of main.querySelectorAll(".keys button")) {
    const action = button.dataset.action;
    button.disabled = action === undefined
      ? !(now.can_ask && now.phase === "acting") : !now.legal[Number(action)];
  }
  one(".ask").hidden = !(now.can_ask || now.kind === "tutorial");
  one(".ask-hint").hidden = one(".ask").hidden;
  setText(one(".state"), stateText(now));
  one(".time").hidden = now.kind === "tutorial";
  if (now.kind === "session") {
    const best = now.best === null ? "–" : now.best;
    setText(one(".time"), `Time taken: ${now.steps} (your best: ${best})`);
  }
  if (before !== null && now.turn !== before.turn) speak(now, before);
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function stateText(now) {
  if (now.partner_here === false && now.phase !== "over") {
    return `${partner(now)} is not connected at the moment. Please wait.`;
  }
  if (now.phase === "waiting") return `Waiting for ${partner(now)} to start.`;
  if (now.phase === "acted") return `Waiting for ${partner(now)} to choose.`;
  if (now.phase === "acting" && now.destination !== null) {
    return `You are ${now.names[now.you]}. Your destination: ${now.destination.label}, circled in red.`;
  }
  if (now.phase === "intro") return "";
  return `You are ${now.names[now.you]}.`;
}

function partner(now) {
  return now.names[1 - now.you];
}

function showPanel(now, before) {
  const panel = main.querySelector(".panel");
  const text = main.querySelector(".panel-text");
  panel.hidden = now.phase !== "intro" && now.phase !== "over";
  if (panel.hidden || (before !== null && before.phase === now.phase)) return;
  main.querySelector(".proceed").textContent = now.phase === "intro" ? "Start" : "Continue";
  if (now.kind === "tutorial") {
    text.replaceChildren(made("p", "", now.text));
  } else if (now.phase === "intro") {
    const list = made("ul");
    list.append(...now.instructions.map((line) => made("li", "", line)));
    text.replaceChildren(made("p", "", `You are ${now.names[now.you]}. In this task,`), list);
  } else {
    const words = now.finished
      ? `Done! It took the two of you ${now.steps} steps. Your best: ${now.best}.`
      : `The session ends here, after ${now.steps} steps.`;
    text.replaceChildren(made("p", "", words));
  }
  // Not to the button: a key that is still being pressed must not skip this.
  if (before !== null) panel.focus();
}

function showRules(now) {
  const rules = main.querySelector(".rules");
  rules.hidden = now.kind === "tutorial" || now.phase === "intro";
  const list = rules.querySelector("ul");
  if (now.kind === "session" && list.childElementCount === 0) {
    list.append(...now.instructions.map((line) => made("li", "", line)));
  }
}

function showSelector(now, before) {
  const overlay = main.querySelector(".overlay");
  const open = now.phase === "selecting";
  const wasOpen = !overlay.hidden;
  overlay.hidden = !open;
  main.querySelector(".question").hidden = !open;
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
    const number = made("span", "key", option.key);
    number.ariaHidden = "true";
    button.append(number, made("span", "unseen", `${option.label} (key ${option.key})`));
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
  } else if (seen.phase === "acting" && action === 5) {
    main.querySelector(".notice").textContent = seen.kind === "tutorial" ? "Not yet."
      : seen.practice ? `There is no ${seen.thing} to pick up or put down here.`
      : "Picking up and putting down work only at the place circled in red.";
  }
}

function askToSelect() {
  if (seen.can_ask && seen.phase === "acting") send({ do: "ask" });
}

function speak(now, before) {
  if (now.phase === "selecting") {
    const options = now.options.map((option) => `${option.key}: ${option.label}`).join(", ");
    spoken.textContent = `Select your destination. ${options}.`;
  } else if (now.steps !== before.steps || now.kind === "tutorial") {
    spoken.textContent = describe(now.board, now.names, now.thing, now.you);
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
  if (!playing || event.ctrlKey || event.metaKey || event.altKey) return;
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

connect();
