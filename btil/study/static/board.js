// Draws the map: walls, flag, items and the two agents, as SVG made of elements, never of text.

import { say } from "./texts.js";

const SVG = "http://www.w3.org/2000/svg";
const CELL = 100;

export function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== "") made.textContent = text;
  return made;
}

function centre([x, y]) {
  return [(x + 0.5) * CELL, (y + 0.5) * CELL];
}

function letters(x, y, size, text, fill) {
  return element("text", {
    x, y, fill,
    "font-size": size,
    "font-weight": 700,
    "text-anchor": "middle",
    "dominant-baseline": "central",
    "font-family": "system-ui, sans-serif",
  }, text);
}

function floor(board) {
  const group = element("g");
  const walls = new Set(board.walls.map(String));
  for (let x = 0; x < board.width; x++) {
    for (let y = 0; y < board.height; y++) {
      const wall = walls.has(String([x, y]));
      group.append(element("rect", {
        x: x * CELL, y: y * CELL, width: CELL, height: CELL,
        fill: wall ? "#4a5562" : "#fbfbf7", stroke: wall ? "#4a5562" : "#ccd3da", "stroke-width": 2,
      }));
      if (wall) {
        group.append(element("path", {
          d: `M${x * CELL + 15} ${y * CELL + 85}L${x * CELL + 85} ${y * CELL + 15}`,
          stroke: "#6b7783", "stroke-width": 6,
        }));
      }
    }
  }
  return group;
}

function flag([x, y]) {
  const [left, top] = [x * CELL, y * CELL];
  const group = element("g");
  group.append(element("rect", {
    x: left + 3, y: top + 3, width: CELL - 6, height: CELL - 6, fill: "#d9eee1",
  }));
  group.append(element("path", {
    d: `M${left + 28} ${top + 88}V${top + 14}`, stroke: "#1d2733", "stroke-width": 6,
    "stroke-linecap": "round",
  }));
  group.append(element("path", {
    d: `M${left + 30} ${top + 15}L${left + 78} ${top + 30}L${left + 30} ${top + 46}Z`,
    fill: "#00795a", stroke: "#1d2733", "stroke-width": 3, "stroke-linejoin": "round",
  }));
  return group;
}

function thing(kind, number, x, y, size) {
  const group = element("g");
  const half = size / 2;
  const look = { fill: "#f0cf8e", stroke: "#5a3e12", "stroke-width": 4 };
  if (kind === "bag") {
    group.append(element("path", {
      d: `M${x - half * 0.35} ${y - half * 0.55}C${x - half * 1.3} ${y + half * 0.1} ` +
        `${x - half} ${y + half} ${x} ${y + half}S${x + half * 1.3} ${y + half * 0.1} ` +
        `${x + half * 0.35} ${y - half * 0.55}Z`, ...look,
    }));
    group.append(element("path", {
      d: `M${x - half * 0.6} ${y - half}L${x - half * 0.35} ${y - half * 0.55}H${x + half * 0.35}` +
        `L${x + half * 0.6} ${y - half}Z`, ...look,
    }));
    group.append(letters(x, y + half * 0.28, size * 0.55, number, "#3a2605"));
  } else {
    group.append(element("rect", { x: x - half, y: y - half, width: size, height: size, rx: 4, ...look }));
    group.append(element("path", {
      d: `M${x - half} ${y - half * 0.55}H${x + half}`, stroke: "#5a3e12", "stroke-width": 3,
    }));
    group.append(letters(x, y + half * 0.2, size * 0.6, number, "#3a2605"));
  }
  return group;
}

function person(x, y, letter) {
  const group = element("g", { fill: "#00649c", stroke: "#fff", "stroke-width": 3 });
  group.append(element("circle", { cx: x, cy: y - 20, r: 14 }));
  group.append(element("path", { d: `M${x - 24} ${y + 34}V${y + 14}a24 20 0 0 1 48 0V${y + 34}Z` }));
  const text = letters(x, y + 16, 26, letter, "#fff");
  text.setAttribute("stroke", "none");
  group.append(text);
  return group;
}

function robot(x, y, letter) {
  const group = element("g", { fill: "#a34000", stroke: "#fff", "stroke-width": 3 });
  group.append(element("path", { d: `M${x} ${y - 32}V${y - 44}`, stroke: "#1d2733", "stroke-width": 5 }));
  group.append(element("rect", { x: x - 18, y: y - 34, width: 36, height: 26, rx: 4 }));
  for (const side of [-8, 8]) {
    group.append(element("circle", { cx: x + side, cy: y - 21, r: 4.5, fill: "#fff", stroke: "none" }));
  }
  group.append(element("rect", { x: x - 24, y: y - 4, width: 48, height: 38, rx: 6 }));
  const text = letters(x, y + 16, 26, letter, "#fff");
  text.setAttribute("stroke", "none");
  group.append(text);
  return group;
}

// An agent is a robot where an AI plays, and a person where one does.
function agent(index, names, robots, x, y) {
  const drawn = (robots[index] ? robot : person)(x, y, names[index][0]);
  drawn.setAttribute("fill", index === 0 ? "#00649c" : "#a34000");
  return drawn;
}

function place([x, y]) {
  return say("at_place", { x: x + 1, y: y + 1 });
}

// The map in words, for those who do not see it.
export function describe(board, { names, world, you = -1 }) {
  const words = board.agents.map((at, k) =>
    `${names[k]}${k === you ? say("you_mark") : ""} ${say("at", { place: place(at) })}`);
  for (const item of board.items) {
    const where = item.where === "goal" ? say("on_flag")
      : item.where === "held"
        ? say("held_by", { names: item.holders.map((k) => names[k]).join(say("and")) })
        : say("at", { place: place(item.at) });
    words.push(`${say(`${world}.numbered`, { number: item.number })} ${where}`);
  }
  words.push(say("flag_at", { place: place(board.goal) }));
  return `${words.join("; ")}.`;
}

export function drawBoard(board, told) {
  const { thing: kind, names, you = -1, destination = null, robots } = told;
  const svg = element("svg", {
    viewBox: `0 0 ${board.width * CELL} ${board.height * CELL}`,
    role: "img",
    "aria-label": `${say("map_of", board)} ${describe(board, told)}`,
  });
  svg.append(floor(board), flag(board.goal));
  const delivered = board.items.filter((item) => item.where === "goal");
  delivered.forEach((item, k) => {
    const [x, y] = [board.goal[0] * CELL, board.goal[1] * CELL];
    svg.append(thing(kind, item.number, x + 50 + (k % 2) * 30, y + 64 + Math.floor(k / 2) * 4 - 4 * k, 26));
  });
  for (const item of board.items) {
    const [x, y] = centre(item.origin);
    if (item.where !== "origin") {
      svg.append(element("rect", {
        x: x - 31, y: y - 31, width: 62, height: 62, rx: 4, fill: "none", stroke: "#8a94a0",
        "stroke-width": 3, "stroke-dasharray": "8 7",
      }));
    }
  }
  const taken = new Set(board.agents.map(String));
  const together = String(board.agents[0]) === String(board.agents[1]);
  board.agents.forEach((at, k) => {
    let [x, y] = centre(at);
    if (together) x += k === 0 ? -24 : 24;
    const drawn = agent(k, names, robots, x, y + 4);
    if (k === you) drawn.setAttribute("stroke", "#1d2733");
    svg.append(drawn);
  });
  for (const item of board.items) {
    if (item.where === "goal") continue;
    let [x, y] = centre(item.at);
    if (item.where === "origin") {
      // Beside the feet of whoever stands there.
      const below = taken.has(String(item.at));
      svg.append(thing(kind, item.number, x, y + (below ? 26 : 0), below ? 40 : 62));
      continue;
    }
    if (together && item.holders.length === 1) x += item.holders[0] === 0 ? -24 : 24;
    svg.append(thing(kind, item.number, x, y - 26, 40));
  }
  if (destination !== null) {
    const [x, y] = centre(destination);
    svg.append(element("circle", {
      cx: x, cy: y, r: 44, fill: "none", stroke: "#fff", "stroke-width": 12,
    }));
    svg.append(element("circle", {
      cx: x, cy: y, r: 44, fill: "none", stroke: "#c40000", "stroke-width": 7,
      class: "destination",
    }));
  }
  return svg;
}
