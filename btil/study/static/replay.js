// Plays a session back, step by step, beside labels, beliefs and misaligned stretches.

import { drawBoard, element } from "./board.js";

const [LEFT, ROW, WIDTH, GAP] = [190, 17, 900, 26]; // of the lanes, in units of the drawing
const PACE = 500; // milliseconds per step
const byId = (name) => document.getElementById(name);

let session = null;
let at = 0;
let timer = null;
let opened = 0; // how many sessions were asked for

function text(x, y, words, options = {}) {
  return element("text", { x, y, "font-size": 12.5, fill: "#1d2733", "dominant-baseline": "central", ...options }, words);
}

function rectangle(x, y, width, height, options) {
  return element("rect", { x, y, width, height, ...options });
}

// White to dark blue.
function shade(probability) {
  const mix = (from, to) => Math.round(from + (to - from) * probability);
  return `rgb(${mix(255, 0)} ${mix(255, 72)} ${mix(255, 130)})`;
}

function strip(group, y, label, values, step, fill) {
  group.append(text(0, y + ROW / 2, label));
  values.forEach((value, t) => {
    if (value) group.append(rectangle(LEFT + t * step, y + 2, step, ROW - 4, { fill }));
  });
  group.append(rectangle(LEFT, y + 2, values.length * step, ROW - 4, { fill: "none", stroke: "#8a94a0" }));
}

function drawLanes() {
  const { steps, latents, names, belief } = session;
  const step = WIDTH / Math.max(steps.length, 1);
  const laneHeight = latents.length * ROW + GAP + 14;
  const strips = session.model_apart === null ? 1 : 2;
  const height = names.length * laneHeight + strips * ROW + 34;
  const svg = element("svg", {
    viewBox: `0 0 ${LEFT + WIDTH + 10} ${height}`,
    role: "img",
    "aria-label": `Labels${belief === null ? "" : " and beliefs"} of both over ${steps.length} steps`,
  });
  names.forEach((name, agent) => {
    const top = agent * laneHeight;
    svg.append(text(0, top + 10, name, { "font-weight": 700 }));
    latents.forEach((latent, row) => {
      const y = top + 20 + row * ROW;
      svg.append(text(12, y + ROW / 2, latent));
      steps.forEach((now, t) => {
        const x = LEFT + t * step;
        if (belief !== null) {
          svg.append(rectangle(x, y, step + 0.3, ROW - 1, { fill: shade(belief[agent][t][row]) }));
        }
        if (now.labels[agent] === row) {
          svg.append(rectangle(x, y + ROW / 2 - 2.5, step + 0.3, 4, { fill: "#d55e00" }));
        }
      });
      svg.append(rectangle(LEFT, y, WIDTH, ROW - 1, { fill: "none", stroke: "#c3ccd6" }));
    });
    const below = top + 20 + latents.length * ROW + 5;
    steps.forEach((now, t) => {
      if (now.answered[agent]) {
        svg.append(element("path", {
          d: `M${LEFT + (t + 0.5) * step} ${below - 3}l4 8h-8Z`, fill: "#1d2733",
        }));
      }
    });
  });
  const foot = names.length * laneHeight;
  strip(svg, foot, "misaligned (labels)", session.apart, step, "#d55e00");
  if (session.model_apart !== null) {
    strip(svg, foot + ROW, "misaligned (model)", session.model_apart, step, "#004882");
  }
  const axis = foot + strips * ROW + 12;
  const every = Math.max(1, Math.ceil(steps.length / 12 / 5) * 5);
  for (let t = 0; t < steps.length; t += every) {
    svg.append(text(LEFT + (t + 0.5) * step, axis, String(t), { "text-anchor": "middle" }));
  }
  svg.append(text(0, axis, "step"));
  svg.append(element("path", { id: "cursor", stroke: "#c40000", "stroke-width": 2, d: "" }));
  svg.dataset.step = step;
  svg.dataset.height = axis - 8;
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * (LEFT + WIDTH + 10);
    if (x >= LEFT) go(Math.floor((x - LEFT) / step));
  });
  byId("lanes").replaceChildren(svg);
}

function row(kind, ...cells) {
  const made = document.createElement("tr");
  made.append(...cells.map((words, k) => {
    const cell = document.createElement(kind === "th" || k === 0 ? "th" : "td");
    if (cell.tagName === "TH") cell.scope = kind === "th" ? "col" : "row";
    cell.textContent = words;
    return cell;
  }));
  return made;
}

function show() {
  const { steps, boards, names, latents, actions, belief } = session;
  const ended = at >= steps.length;
  const now = ended ? null : steps[at];
  byId("drawing").replaceChildren(drawBoard(boards[at], {
    thing: session.thing, world: session.domain, names, robots: session.robots,
  }));
  byId("at").value = at;
  byId("where").textContent = ended
    ? `After step ${steps.length - 1}: ${session.over ? "the end" : "not played further"}.`
    : `Step ${at} of ${steps.length - 1}, ${now.seconds.toFixed(1)} s after the one before.` +
      (session.apart[at] ? " Their minds are misaligned." : "");
  const rows = [row("th", "now", ...names)];
  if (!ended) {
    rows.push(row("td", "does", ...now.actions.map((action) => actions[action])));
    rows.push(row("td", "label", ...now.labels.map((one) => (one < 0 ? "not asked" : latents[one]))));
    if (belief !== null) {
      rows.push(row("td", "model", ...belief.map((lane) => {
        const most = lane[at].indexOf(Math.max(...lane[at]));
        return `${latents[most]} (${Math.round(100 * lane[at][most])}%)`;
      })));
    }
  }
  byId("minds").replaceChildren(...rows);
  const svg = byId("lanes").firstElementChild;
  const x = LEFT + (Math.min(at, steps.length - 1) + 0.5) * Number(svg.dataset.step);
  svg.querySelector("#cursor").setAttribute("d", `M${x} 0V${svg.dataset.height}`);
}

function go(to) {
  if (session === null) return;
  at = Math.max(0, Math.min(to, session.steps.length));
  show();
}

function stop() {
  clearInterval(timer);
  timer = null;
  byId("play").textContent = "Play";
}

function play() {
  if (timer !== null) {
    stop();
    return;
  }
  if (session === null) return;
  if (at >= session.steps.length) at = 0;
  byId("play").textContent = "Stop";
  timer = setInterval(() => {
    go(at + 1);
    if (at >= session.steps.length) stop();
  }, PACE);
}

async function open(which) {
  stop();
  opened += 1;
  const mine = opened;
  // What was shown before is not what was asked for.
  session = null;
  document.body.classList.add("loading");
  for (const name of ["drawing", "minds", "lanes"]) byId(name).replaceChildren();
  byId("legend").textContent = "";
  byId("where").textContent = "Loading …";
  for (const name of ["at", "back", "play", "forward"]) byId(name).disabled = true;
  const answer = await (await fetch(`sessions/${encodeURIComponent(which)}`)).json();
  // Another one has been chosen meanwhile.
  if (mine !== opened) return;
  session = answer;
  document.body.classList.remove("loading");
  for (const name of ["at", "back", "play", "forward"]) byId(name).disabled = false;
  byId("at").max = session.steps.length;
  byId("legend").textContent = session.belief === null
    ? "Orange: labels. Triangles: the selector was answered. No posterior of this task was given."
    : "Blue: the model's belief, darker is surer. Orange: labels. Triangles: the selector was answered.";
  at = 0;
  drawLanes();
  show();
}

async function begin() {
  const { sessions } = await (await fetch("sessions")).json();
  const choice = byId("session");
  choice.append(...sessions.map((one) => {
    const option = document.createElement("option");
    option.value = one.id;
    option.textContent = `${one.id}: ${one.domain}, ${one.practice ? "practice" : "test"}, ` +
      `${one.length} steps${one.over ? "" : " (unfinished)"}`;
    return option;
  }));
  choice.onchange = () => open(choice.value);
  byId("back").onclick = () => { stop(); go(at - 1); };
  byId("forward").onclick = () => { stop(); go(at + 1); };
  byId("play").onclick = play;
  byId("at").oninput = (event) => { stop(); go(Number(event.target.value)); };
  const wanted = new URLSearchParams(location.search).get("participant");
  const first = sessions.find((one) => one.id.split("-")[0].split("+").includes(wanted)) ?? sessions[0];
  if (first !== undefined) {
    choice.value = first.id;
    await open(first.id);
  }
  else byId("where").textContent = "Nothing has been played yet.";
}

begin();
