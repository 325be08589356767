"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const percent = (value) => (value === null ? "–" : value.toFixed(2));
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
const TITLES = {
  gaussian_sxy: "Smoothing width, pixels", gaussian_compat: "Smoothing strength",
  bilateral_sxy: "Width in pixels", bilateral_srgb: "Width in colour", bilateral_compat: "Strength", iterations: "Steps",
};
const SCREEN = getComputedStyle(document.documentElement);
const rgb = (name) => SCREEN.getPropertyValue(name).trim().match(/\w\w/g).map((part) => parseInt(part, 16));
const MARKS = { fixed: rgb("--fixed"), broken: rgb("--broken"), wrong: rgb("--wrong") };
const last = data.miou[0].length - 1;
const untouched = data.miou[0][0];
const values = data.parameters.map((_, place) => [...new Set(data.settings.map((one) => one[place]))].sort((a, b) => a - b));
const now = { setting: data.best[0], iterations: data.best[1], view: "result" };
let drawing = 0;

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// ---- labels ----

const unpacked = new Map();
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// the labels after 0, ..., T iterations, one after the other, from what changes between them
async function states(image, setting) {
  const key = image.name + " " + setting;
  if (!unpacked.has(key)) {
    if (unpacked.size > 60) unpacked.delete(unpacked.keys().next().value);
    unpacked.set(key, (async () => {
      const changes = await unpack(image.states[setting]);
      const size = image.width * image.height;
      const all = new Uint8Array(size + changes.length);
      all.set(image.before);
      for (let place = size; place < all.length; place++) all[place] = all[place - size] + changes[place - size];
      return all;
    })());
  }
  return unpacked.get(key);
}

function paint(image, labels, view) {
  const { pixels, grey, truth, before } = image;
  const shown = image.context.createImageData(image.width, image.height);
  const to = shown.data;
  const counts = { fixed: 0, broken: 0, wrong: 0, known: 0 };
  for (let place = 0, at = 0; place < labels.length; place++, at += 4) {
    const known = truth[place] !== data.unknown;
    const right = labels[place] === truth[place], was = before[place] === truth[place];
    const mark = !known ? null : right ? (was ? null : "fixed") : was ? "broken" : "wrong";
    if (known) counts.known++;
    if (mark) counts[mark]++;
    let colour = null, weight = 0;
    if (view === "errors") {
      colour = mark && MARKS[mark];
      weight = 0.85;
    } else if (view !== "photo") {
      const label = view === "truth" ? truth[place] : view === "before" ? before[place] : labels[place];
      colour = label === data.unknown ? [255, 255, 255] : data.labels[label].colour;
      weight = colour.some((part) => part) ? 0.6 : 0.45;
    }
    for (let channel = 0; channel < 3; channel++) {
      const photo = view === "errors" ? 0.75 * grey[place] : pixels[at + channel];
      to[at + channel] = colour ? weight * colour[channel] + (1 - weight) * photo : photo;
    }
    to[at + 3] = 255;
  }
  image.context.putImageData(shown, 0, 0);
  return counts;
}

// ---- settings ----

const scale = values.map((list) => {
  const positive = list.filter((value) => value > 0);
  return Math.log((positive.at(-1) ?? 1) / (positive[0] ?? 1)) || 1;
});
function distance(one, other) {
  return one.reduce((sum, value, place) => {
    const low = 0.5 * (values[place].find((some) => some > 0) ?? 1);
    return sum + (Math.log(Math.max(value, low) / Math.max(other[place], low)) / scale[place]) ** 2;
  }, 0);
}

// of the settings with a value, the nearest to the one that is shown
function choose(place, value) {
  const wanted = data.settings[now.setting].slice();
  wanted[place] = value;
  let best = -1;
  data.settings.forEach((one, index) => {
    if (one[place] === value && (best < 0 || distance(one, wanted) < distance(data.settings[best], wanted))) best = index;
  });
  now.setting = best;
  const exact = distance(data.settings[best], wanted) === 0;
  element("note").textContent = exact ? "" : "The rest of this combination was not tried: the nearest one that was is shown.";
  show();
}

function go(setting, iterations) {
  Object.assign(now, { setting, iterations });
  element("note").textContent = "";
  show();
}

function buildSliders() {
  const names = [...data.parameters, "iterations"];
  names.forEach((name, place) => {
    const list = place < data.parameters.length ? values[place] : Array.from({ length: last + 1 }, (_, t) => t);
    const id = "slider-" + name;
    const label = make("label", { for: id }, TITLES[name] + " ", make("span", {}, name));
    const output = make("output", { for: id, id: "value-" + name });
    const row = make("div", { class: "slider" }, label, output);
    if (list.length > 1) {
      const input = make("input", { type: "range", id, min: 0, max: list.length - 1, step: 1 });
      input.addEventListener("input", () => {
        if (name === "iterations") go(now.setting, list[input.value]);
        else choose(place, list[input.value]);
      });
      row.append(input, make("div", { class: "ticks" }, ...list.map(() => make("i"))));
    }
    element("sliders").append(row);
  });
}

function showSliders() {
  const current = {};
  data.parameters.forEach((name, place) => (current[name] = data.settings[now.setting][place]));
  current.iterations = now.iterations;
  for (const [name, value] of Object.entries(current)) {
    element("value-" + name).textContent = value;
    const input = element("slider-" + name);
    const place = data.parameters.indexOf(name);
    if (input) {
      input.value = place < 0 ? value : values[place].indexOf(value);
      input.setAttribute("aria-valuetext", value);
    }
  }
  const lines = Object.entries(current).map(([name, value]) => `${name}: ${value}`);
  element("code").textContent = lines.join("\n");
}

// ---- figures ----

function difference(before, after) {
  if (before === null || after === null) return make("span", {}, "–");
  const change = after - before;
  return make("span", { class: Math.abs(change) < 0.005 ? "" : change > 0 ? "up" : "down" }, signed(change));
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const all = data.miou.flat().filter((value) => value !== null);
const top_ = Math.max(...all), bottom = Math.max(Math.min(...all), top_ - 4 * Math.max(top_ - untouched, 1));
const along = (t) => 34 + (t / last) * 276;
const up = (value) => 8 + (1 - (Math.max(value, bottom) - bottom) / (top_ - bottom || 1)) * 100;
const path = (row) => row.map((value, t) => `${t ? "L" : "M"}${along(t).toFixed(1)} ${up(value).toFixed(1)}`).join("");

function buildCurve() {
  const curve = element("curve");
  curve.append(svg("path", { d: data.miou.map(path).join(""), fill: "none", stroke: "var(--faint)", "stroke-width": 0.6, opacity: 0.7 }));
  curve.append(svg("line", { x1: along(0), x2: along(last), y1: up(untouched), y2: up(untouched), stroke: "var(--soft)", "stroke-dasharray": "3 3" }));
  for (const value of [top_, untouched, bottom]) {
    if (value === top_ || value === bottom || Math.abs(up(value) - up(top_)) > 12 && Math.abs(up(value) - up(bottom)) > 12)
      curve.append(svg("text", { x: 30, y: up(value) + 3, "text-anchor": "end" }, value.toFixed(1)));
  }
  for (let t = 0; t <= last; t++) if (last <= 12 || t % 5 === 0) curve.append(svg("text", { x: along(t), y: 124, "text-anchor": "middle" }, t));
  curve.append(svg("path", { id: "line", fill: "none", stroke: "var(--accent)", "stroke-width": 2.2, "stroke-linejoin": "round" }));
  curve.append(svg("circle", { id: "dot", r: 4.5, fill: "var(--accent)", stroke: "var(--card)", "stroke-width": 2 }));
  curve.addEventListener("click", (event) => {
    const box = curve.getBoundingClientRect();
    const t = Math.round(((event.clientX - box.left) / box.width * 320 - 34) / 276 * last);
    go(now.setting, Math.min(last, Math.max(0, t)));
  });
}

function showCurve() {
  const row = data.miou[now.setting];
  element("line").setAttribute("d", path(row));
  element("dot").setAttribute("cx", along(now.iterations));
  element("dot").setAttribute("cy", up(row[now.iterations]));
}

// the best setting and number of iterations of each pair of bilateral widths
const byWidths = new Map();
data.settings.forEach((one, setting) => {
  const key = one[2] + " " + one[3];
  data.miou[setting].forEach((value, iterations) => {
    if (iterations && !(byWidths.get(key)?.value >= value)) byWidths.set(key, { value, setting, iterations });
  });
});
const bests = [...byWidths.values()].map((one) => one.value);
const lowest = Math.min(...bests), highest = Math.max(...bests);

function showHeat() {
  const heat = element("heat");
  const current = data.settings[now.setting];
  const [x, y] = [2, 3].map((place) => values[place]);
  heat.style.gridTemplateColumns = `auto repeat(${x.length}, minmax(0, 1fr))`;
  const cells = [];
  for (const colour of [...y].reverse()) {
    cells.push(make("span", {}, colour));
    for (const width of x) {
      const best = byWidths.get(width + " " + colour);
      if (!best) { cells.push(make("i")); continue; }
      const share = Math.round(10 + 80 * (best.value - lowest) / (highest - lowest || 1));
      const cell = make("button", {
        type: "button", title: `bilateral_sxy ${width}, bilateral_srgb ${colour}: ${percent(best.value)} (${signed(best.value - untouched)})`,
        "aria-label": `widths ${width} and ${colour}: ${percent(best.value)}`, "aria-pressed": width === current[2] && colour === current[3],
        style: `background: color-mix(in srgb, var(${best.value >= untouched ? "--fixed" : "--broken"}) ${share}%, var(--card))`,
      }, x.length <= 7 ? best.value.toFixed(1) : "");
      cell.addEventListener("click", () => go(best.setting, best.iterations));
      cells.push(cell);
    }
  }
  cells.push(make("span", {}, "srgb \\ sxy"), ...x.map((width) => make("span", {}, width)));
  heat.replaceChildren(...cells);
}

function showClasses() {
  const head = make("tr", {}, make("th", {}, "label"), ...["before", "now", "change"].map((text) => make("th", { class: "n" }, text)), make("th"));
  const rows = data.labels.map((label, index) => {
    const before = data.iou[now.setting][0][index], after = data.iou[now.setting][now.iterations][index];
    const swatch = make("b", { style: `background: rgb(${label.colour})` });
    const bars = make("span", { class: "meter" });
    if (before !== null && after !== null) {
      bars.append(make("i", { style: `left:0;width:${Math.min(before, after)}%;background:var(--soft)` }));
      const gained = after >= before ? "--good" : "--bad";
      bars.append(make("i", { style: `left:${Math.min(before, after)}%;width:${Math.abs(after - before)}%;background:var(${gained})` }));
    }
    return make("tr", {}, make("td", {}, swatch, label.name), make("td", { class: "n" }, percent(before)), make("td", { class: "n" }, percent(after)),
      make("td", { class: "n" }, difference(before, after)), make("td", {}, bars));
  });
  element("classes").replaceChildren(head, ...rows);
}

function buildFolds() {
  const told = ([setting, iterations]) => {
    const [s, a, xy, colour, b] = data.settings[setting];
    return `smoothing ${s} × ${a}, bilateral (${xy}, ${colour}) × ${b}, ${iterations} iterations`;
  };
  const number = (value) => make("td", { class: "n" }, percent(value));
  const head = make("tr", {}, ...["part", "images", "maps", "defaults", "held out"].map((text, place) => make("th", place ? { class: "n" } : {}, text)), make("th", {}, "chosen on the other parts"));
  const rows = data.folds.map((fold, index) => {
    const button = make("button", { type: "button" }, told(fold.choice));
    button.addEventListener("click", () => go(...fold.choice));
    return make("tr", {}, make("td", {}, index + 1), make("td", { class: "n" }, fold.images), ...fold.miou.map(number), make("td", {}, button));
  });
  rows.push(make("tr", {}, make("td", {}, "all"), make("td", { class: "n" }, data.count), ...data.figures.map(number), make("td")));
  element("folds").append(head, ...rows);
}

function buildHead() {
  const [maps, defaults, heldOut] = data.figures;
  element("summary").textContent = `${data.count} images, ${data.labels.length} labels, ${data.settings.length} settings, each with up to ${last} iterations.`;
  element("count").textContent = data.count;
  const figure = (title, value) => make("div", {}, make("dt", {}, title), make("dd", {}, percent(value), " ", make("small", {}, title === "maps as they are" ? "" : difference(maps, value))));
  element("figures").append(figure("maps as they are", maps), figure("default settings", defaults), figure("tuned, on images held out", heldOut));
}

// ---- everything ----

function showLegend(counts) {
  const swatch = (colour, text) => make("span", {}, make("b", { style: `background: rgb(${colour})` }), text);
  let entries = [];
  if (now.view === "errors") {
    const share = (name) => (100 * counts[name] / Math.max(1, counts.known)).toFixed(2) + " %";
    entries = [swatch(MARKS.fixed, `put right ${share("fixed")}`), swatch(MARKS.broken, `spoiled ${share("broken")}`), swatch(MARKS.wrong, `still wrong ${share("wrong")}`)];
  } else if (now.view !== "photo") entries = data.labels.map((label) => swatch(label.colour, label.name));
  element("legend").replaceChildren(...entries);
}

async function show() {
  const ticket = ++drawing;
  const { setting, iterations, view } = now;
  const value = data.miou[setting][iterations];
  element("miou").textContent = percent(value);
  element("delta").replaceChildren(difference(untouched, value));
  for (const [name, place] of Object.entries({ best: data.best, default: data.default, none: [setting, 0] }))
    document.querySelector(`[data-go=${name}]`).setAttribute("aria-pressed", place[0] === setting && place[1] === iterations);
  for (const button of document.querySelectorAll("[data-view]")) button.setAttribute("aria-pressed", button.dataset.view === view);
  showSliders();
  showCurve();
  showHeat();
  showClasses();
  const labels = await Promise.all(data.images.map((image) => states(image, setting)));
  if (ticket !== drawing) return;
  const total = { fixed: 0, broken: 0, wrong: 0, known: 0 };
  data.images.forEach((image, index) => {
    const size = image.width * image.height;
    image.labels = labels[index].subarray(iterations * size, (iterations + 1) * size);
    const counts = paint(image, image.labels, view);
    for (const name in total) total[name] += counts[name];
    const before = image.miou[setting][0], after = image.miou[setting][iterations];
    image.score.replaceChildren(`${percent(before)} → ${percent(after)} `, difference(before, after));
  });
  showLegend(total);
  document.body.dataset.shown = `${setting} ${iterations} ${view}`;
}

async function buildImages() {
  await Promise.all(data.images.map(async (image) => {
    const canvas = make("canvas", { width: image.width, height: image.height, role: "img", "aria-label": image.name });
    image.score = make("span");
    element("images").append(make("figure", {}, canvas, make("figcaption", {}, make("b", { title: image.name }, image.name), image.score)));
    image.context = canvas.getContext("2d", { willReadFrequently: true });
    const photo = new Image();
    photo.src = image.photo;
    [image.truth, image.before] = await Promise.all([unpack(image.truth), unpack(image.map), photo.decode()]);
    image.context.drawImage(photo, 0, 0);
    image.pixels = image.context.getImageData(0, 0, image.width, image.height).data;
    image.grey = Uint8Array.from({ length: image.width * image.height }, (_, place) => (image.pixels[4 * place] + image.pixels[4 * place + 1] + image.pixels[4 * place + 2]) / 3);
    const held = (on) => () => image.labels && paint(image, image.labels, on ? "before" : now.view);
    canvas.addEventListener("pointerdown", held(true));
    for (const kind of ["pointerup", "pointerleave", "pointercancel"]) canvas.addEventListener(kind, held(false));
  }));
}

for (const button of document.querySelectorAll("[data-view]")) button.addEventListener("click", () => { now.view = button.dataset.view; show(); });
const places = { best: () => data.best, default: () => data.default, none: () => [now.setting, 0] };
for (const button of document.querySelectorAll("[data-go]")) button.addEventListener("click", () => go(...places[button.dataset.go]()));
document.addEventListener("keydown", (event) => {
  const view = [...document.querySelectorAll("[data-view]")][Number(event.key) - 1];
  if (view && !event.ctrlKey && !event.metaKey && !event.altKey) view.click();
});
element("copy").addEventListener("click", async () => {
  const text = element("code").textContent;
  try { await navigator.clipboard.writeText(text); } catch {
    getSelection().selectAllChildren(element("code"));
    document.execCommand("copy");
  }
  element("copy").textContent = "Copied";
  setTimeout(() => (element("copy").textContent = "Copy"), 1500);
});

buildHead();
buildSliders();
buildCurve();
buildFolds();
if (typeof DecompressionStream === "undefined") element("images").append("Pictures need a browser of 2023 or later.");
else buildImages().then(show);
