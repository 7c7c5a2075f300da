"use strict";
// What the page shares: the data, the colours, which losses are shown, the table, the steps through training.

const DATA = JSON.parse(document.getElementById("data").textContent);
// Each is at least three times as bright, or as dark, as the paper, in light and dark. Neighbours differ in dash too.
const COLOURS = ["#2f6fde", "#d96a1c", "#1f9e77", "#cf4173", "#8262dd", "#a87d00", "#2496bb", "#9c6b52", "#77828f"];
const DASHES = ["none", "7 3", "2 3", "8 3 2 3"];
const SVG = document.createElementNS.bind(document, document.documentElement.namespaceURI.replace("1999/xhtml", "2000/svg"));
const $ = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const colour = (group) => COLOURS[group % COLOURS.length];
const dash = (group) => DASHES[group % DASHES.length];

const hidden = new Set();
const shown = () => DATA.groups.map((_, group) => group).filter((group) => !hidden.has(group));
const watchers = [];  // called when the shown losses change
const steppers = [];  // called when the epoch changes

function make(tag, options = {}, children = []) {
  const { className, text, ...attributes } = options;
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A short line in the loss's colour and dash, as it is drawn in the charts.
function swatch(group) {
  const line = svg("line", { x1: 1, x2: 25, y1: 4, y2: 4, stroke: colour(group), "stroke-width": 3, "stroke-dasharray": dash(group) });
  return svg("svg", { class: "swatch", width: 26, height: 8, "aria-hidden": "true" }, [line]);
}

function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

function buildSwitch(host, choices, chosen, act) {
  for (const [value, text] of choices) {
    const button = make("button", { type: "button", text, "data-value": value });
    press(button, value === chosen);
    button.addEventListener("click", () => {
      all("button", host).forEach((other) => press(other, other === button));
      act(value);
    });
    host.append(button);
  }
}

// The legend: a click hides or shows a loss everywhere; with Shift it shows this loss alone, or all again.
function buildLegend() {
  const host = $("#legend");
  const chips = DATA.groups.map((label, group) => {
    const chip = make("button", { className: "chip", type: "button", title: "Hide or show this loss. With Shift: this one alone." }, [swatch(group), make("span", { text: label })]);
    chip.addEventListener("click", ({ shiftKey }) => {
      const alone = shown().length === 1 && !hidden.has(group);
      if (shiftKey) DATA.groups.forEach((_, other) => (alone || other === group ? hidden.delete(other) : hidden.add(other)));
      else hidden.has(group) ? hidden.delete(group) : hidden.add(group);
      refresh();
    });
    host.append(chip);
    return chip;
  });
  const refresh = () => {
    chips.forEach((chip, group) => press(chip, !hidden.has(group)));
    for (const row of all("tr[data-group]")) {
      const group = DATA.groups.indexOf(row.dataset.group);
      row.hidden = group >= 0 && hidden.has(group);
    }
    watchers.forEach((watch) => watch());
  };
  chips.forEach((chip) => press(chip, true));
}

function buildTables() {
  for (const row of all("tr[data-group]")) {
    const group = DATA.groups.indexOf(row.dataset.group);
    if (group >= 0) $(".name", row).prepend(swatch(group));
  }
  for (const block of all(".tables")) {
    for (const button of all(".splits button", block)) {
      button.addEventListener("click", () => {
        all(".splits button", block).forEach((other) => press(other, other === button));
        all(".scroll", block).forEach((table) => (table.hidden = table.dataset.split !== button.dataset.split));
      });
    }
    for (const button of all(".columns button", block)) {
      button.addEventListener("click", () => {
        all(".columns button", block).forEach((other) => press(other, other === button));
        all("table", block).forEach((table) => table.classList.toggle("all", button.dataset.columns === "all"));
      });
    }
  }
  all("table.results").forEach((table) => all("thead th", table).forEach((head, column) => {
    $("button", head).addEventListener("click", () => sortBy(table, head, column));
  }));
}

// First click: the better end first. Rows without a value stay at the end either way.
function sortBy(table, head, column) {
  const measure = DATA.measures.find((one) => one.name === head.dataset.measure);
  const first = measure && measure.direction === "higher" ? "descending" : "ascending";
  const before = head.getAttribute("aria-sort");
  const order = before === "none" ? first : before === "ascending" ? "descending" : "ascending";
  all("thead th", table).forEach((other) => other.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const body = $("tbody", table);
  const rows = all("tr", body).map((row) => {
    const cell = row.children[column];
    const raw = column === 0 ? row.dataset.group : cell.dataset.value;
    return { row, key: column === 0 ? raw : raw === "" ? null : Number(raw) };
  });
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    return sign * (column === 0 ? a.key.localeCompare(b.key, undefined, { numeric: true }) : a.key - b.key);
  });
  body.append(...rows.map(({ row }) => row));
}

// One epoch and one seed for all pictures: moving one slider moves the others.
const RUNS = DATA.snapshots.flat();
const EPOCHS = [...new Set(RUNS.flatMap((one) => one.frames || one.epochs))].sort((a, b) => a - b);
const SEEDS = [...new Set(RUNS.map((one) => one.seed))].sort((a, b) => a - b);
let step = Math.max(0, EPOCHS.length - 1);
let seed = SEEDS[0];
let playing = null;

// The run of a loss whose picture is shown: that of the chosen seed, or the first that has such a picture.
function runOf(group, has) {
  const own = DATA.snapshots[group].filter(has);
  return own.find((one) => one.seed === seed) || own[0];
}

function setSeed(value) {
  seed = value;
  all(".stepper select").forEach((select) => { select.value = seed; });
  steppers.forEach((show) => show());
}

function setStep(value) {
  step = value;
  for (const host of all(".stepper")) {
    $("input", host).value = step;
    $("output", host).textContent = `epoch ${EPOCHS[step]}`;
    const button = $("button", host);
    button.textContent = playing === null ? "▶" : "❚❚";
    button.setAttribute("aria-label", playing === null ? "Play the training" : "Stop");
  }
  steppers.forEach((show) => show());
}

function stop() {
  clearInterval(playing);
  playing = null;
}

function buildSteppers() {
  for (const host of all(".stepper")) {
    if (SEEDS.length > 1) {
      const select = make("select", { "aria-label": "Seed" }, SEEDS.map((one) => make("option", { value: one, text: `seed ${one}` })));
      select.addEventListener("change", () => setSeed(Number(select.value)));
      host.append(select);
    }
    if (EPOCHS.length < 2) continue;
    const play = make("button", { type: "button" });
    const slider = make("input", { type: "range", min: 0, max: EPOCHS.length - 1, step: 1, "aria-label": "Epoch" });
    host.append(play, slider, make("output"));
    slider.addEventListener("input", () => { stop(); setStep(Number(slider.value)); });
    play.addEventListener("click", () => {
      if (playing !== null) { stop(); setStep(step); return; }
      playing = setInterval(() => {
        if (step === EPOCHS.length - 1) stop();
        setStep(Math.min(step + 1, EPOCHS.length - 1));
      }, 650);
      setStep(step === EPOCHS.length - 1 ? 0 : step);
    });
  }
}

// The newest frame that is not after the chosen epoch.
function frameOf(frames) {
  let found = 0;
  frames.forEach((epoch, index) => { if (epoch <= EPOCHS[step]) found = index; });
  return found;
}

function unpack({ data, bits, scale, shape }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const whole = bits === 8 ? new Int8Array(bytes.buffer) : new Int16Array(bytes.buffer);
  return { values: Float32Array.from(whole, (value) => value * scale), shape };
}
