// Pictures of single runs, one card per loss: logits, cosines, points. And, at the end, the calls that build the page.

function buildMany(section, height, has, draw) {
  const host = $(`#${section} .grid`);
  const groups = DATA.groups.map((_, group) => group).filter((group) => runOf(group, has));
  if (!groups.length) { $(`#${section}`).hidden = true; return []; }
  return groups.map((group) => {
    const area = make("div", { className: "chart" });
    const which = make("small");
    const title = make("h3", {}, [swatch(group), make("span", { text: DATA.groups[group] }), which]);
    const card = make("div", { className: "card" }, [title, area]);
    host.append(card);
    const made = chart(area, height, () => {
      const run = runOf(group, has);
      which.textContent = `seed ${run.seed}`;
      draw(area, run, group);
    });
    steppers.push(() => redraw(made));
    watchers.push(() => { card.hidden = hidden.has(group); });
    return made;
  });
}

function rowOf(packed, index) {
  packed.unpacked ||= unpack(packed).values;
  const size = packed.shape.slice(1).reduce((product, length) => product * length, 1);
  return packed.unpacked.subarray(index * size, (index + 1) * size);
}

let logitClass = "";  // the class whose logit is shown, by its position in DATA.logit_classes; "" for all classes

function drawLogits(area, run, group) {
  const one = logitClass === "" ? run.logits : run.class_logits;
  if (!one) { area.replaceChildren(make("p", { className: "about", text: "This run did not keep it." })); return; }
  const index = logitClass === "" ? frameOf(one.frames) : Number(logitClass);
  const [low, high] = one.range[index];
  const kinds = [["true", rowOf(one.true_logits, index)], ["false", rowOf(one.false_logits, index)]];
  const tallest = Math.max(...kinds.flatMap(([, shares]) => [...shares])) || 1;
  const name = logitClass === "" ? "logit" : `logit of ${short(DATA.logit_classes[index], 24)}`;
  const made = frame(area, {
    height: 215, label: `${name} of ${DATA.groups[group]}: shares of true and false logits`,
    x: { title: name, range: [low, high] }, y: { title: "share of test rows", range: [0, tallest * 1.05] },
  });
  const { at, inside, bottom, root, right } = made;
  const width = (high - low) / kinds[0][1].length;
  for (const [kind, shares] of kinds.reverse()) {
    const steps = [...shares].flatMap((share, i) => [[at.x(low + i * width), at.y(share)], [at.x(low + (i + 1) * width), at.y(share)]]);
    const d = pathOf([[at.x(low), bottom], ...steps, [at.x(high), bottom]]);
    inside.append(svg("path", { class: `shares ${kind}`, d, ...(kind === "true" ? { fill: colour(group), stroke: colour(group) } : {}) }));
  }
  const legend = svg("text", { class: "tick", x: right, y: 13, "text-anchor": "end" });
  legend.append(svg("tspan", { fill: colour(group) }, ["■"]), " true  ┄ false");
  root.append(legend);
  readable(made, area, [...kinds[0][1]].map((_, i) => [at.x(low + (i + 0.5) * width)]), (i) => [
    { text: `${name} near ${plain(low + (i + 0.5) * width)}` },
    ...kinds.map(([kind, shares]) => ({ text: `${kind}: ${(100 * shares[i]).toFixed(1)} %` })),
  ]);
}

function buildLogits() {
  const charts = buildMany("logits", 215, (one) => one.logits || one.class_logits, drawLogits);
  if (!charts.length || !DATA.logit_classes.length) return;
  const choices = [["", "all classes"], ...DATA.logit_classes.map((name, index) => [String(index), short(name, 40)])];
  logitClass = "0";
  const update = () => {
    $("#logits").classList.toggle("one-class", logitClass !== "");
    charts.forEach(redraw);
  };
  $("#logit-class").append(make("label", {}, ["Class ", menu("Class", logitClass, choices, (value) => { logitClass = value; update(); })]));
  update();
}

const DIVERGING = [[178, 72, 47], [224, 161, 132], [244, 241, 234], [127, 176, 207], [31, 95, 150]];
const DIVERGING_DARK = [[224, 121, 92], [138, 74, 58], [35, 40, 45], [49, 103, 140], [107, 179, 228]];
const dark = matchMedia("(prefers-color-scheme: dark)");

function shade(value) {
  const stops = dark.matches ? DIVERGING_DARK : DIVERGING;
  const at = 2 * (Math.max(-1, Math.min(1, value)) + 1), from = Math.min(3, Math.floor(at));
  return stops[from].map((part, i) => part + (at - from) * (stops[from + 1][i] - part));
}

function drawCosines(area, { cosines, classes }) {
  const names = DATA.classes[classes], size = cosines.shape[1];
  const flat = rowOf(cosines, frameOf(cosines.frames));
  const height = Math.max(280, Math.min(340, area.clientWidth));
  const every = Math.ceil(size / 12);
  const ticks = [...Array(size).keys()].filter((i) => i % every === 0).map((i) => ({ at: i, text: short(String(names[i] ?? i), 7) }));
  const fits = ticks.every(({ text }) => text.length * LETTER * ticks.length < area.clientWidth - 60);
  const made = frame(area, {
    height, label: "Cosines between classes",
    x: { title: "class", range: [-0.5, size - 0.5], ticks: fits ? ticks : [] }, y: { title: "class", range: [size - 0.5, -0.5], ticks },
  });
  const canvas = make("canvas", { width: size, height: size });
  const pixels = new ImageData(size, size);
  flat.forEach((value, i) => pixels.data.set([...shade(value), 255], 4 * i));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  const { at, inside, left, right, top, bottom } = made;
  const place = { x: left, y: top, width: right - left, height: bottom - top };
  inside.append(svg("image", { href: canvas.toDataURL(), preserveAspectRatio: "none", ...place }));
  const nameOf = (index) => short(String(names[index] ?? index), 24);
  const cells = Array.from(flat, (_, i) => [at.x(i % size), at.y(Math.floor(i / size))]);
  readable(made, area, cells, (i) => [{ text: `${nameOf(Math.floor(i / size))} and ${nameOf(i % size)}: ${flat[i].toFixed(2)}` }]);
}

// Colour and shape of a class. Neighbours differ in both.
const SHAPES = [
  (x, y) => `M${x - 3},${y}a3,3 0 1,0 6,0a3,3 0 1,0 -6,0`, (x, y) => `M${x - 2.6},${y - 2.6}h5.2v5.2h-5.2z`,
  (x, y) => `M${x},${y - 3.6}l3.6,6.4h-7.2z`, (x, y) => `M${x},${y - 3.8}l3.8,3.8l-3.8,3.8l-3.8,-3.8z`,
];
const SYMBOLS = "●■▲◆";
const classColour = (index, count) => (count <= COLOURS.length ? COLOURS[index] : `hsl(${(index * 137.508) % 360} ${55 + 15 * (index % 2)}% ${48 + 8 * (index % 3)}%)`);

let view = "pca", picked = null;

function drawPoints(area, run) {
  const names = DATA.classes[run.classes];
  const still = view === "tsne" && run.tsne;
  const flat = still ? unpack(run.tsne).values : rowOf(run.points, frameOf(run.frames));
  const everything = still ? flat : run.points.unpacked;
  const extent = (odd) => padded([...everything].filter((_, i) => i % 2 === odd));
  const which = (number) => (still ? `t-SNE, ${number} axis` : `${number} main direction`);
  const made = frame(area, {
    height: 300, label: "Features of test samples in a plane",
    x: { title: which("first"), range: extent(0), ticks: [] }, y: { title: which("second"), range: extent(1), ticks: [] },
  });
  const places = run.target.map((_, i) => [made.at.x(flat[2 * i]), made.at.y(flat[2 * i + 1])]);
  const labels = [...new Set(run.target)].sort((a, b) => (a === picked) - (b === picked) || a - b);
  for (const label of labels) {
    const d = run.target.map((own, i) => (own === label ? SHAPES[label % 4](...places[i].map(Math.round)) : "")).join("");
    const faded = picked !== null && label !== picked;
    made.inside.append(svg("path", { class: faded ? "points faded" : "points", d, "data-class": label, fill: classColour(label, names.length) }));
  }
  readable(made, area, places, (i) => [{ text: short(String(names[run.target[i]] ?? run.target[i]), 40) }]);
}

function buildFeatures() {
  const charts = buildMany("features", 300, (one) => one.points, drawPoints);
  if (!charts.length) return;
  const again = () => charts.forEach(redraw);
  if (RUNS.some((one) => one.tsne)) {
    const host = $("#views .switch");
    host.hidden = false;
    buildSwitch(host, [["pca", "main directions"], ["tsne", "t-SNE at the end"]], "pca", (value) => { view = value; again(); });
  }
  const host = $("#class-legend");
  const names = DATA.classes[0] || [];
  if (DATA.classes.length > 1 || !names.length) return;
  if (names.length <= 20) {
    names.forEach((name, index) => {
      const mark = make("span", { text: SYMBOLS[index % 4], style: `color:${classColour(index, names.length)}`, "aria-hidden": "true" });
      const chip = make("button", { className: "chip", type: "button", "aria-pressed": "false" }, [mark, make("span", { text: short(name, 24) })]);
      chip.addEventListener("click", () => {
        picked = picked === index ? null : index;
        all(".chip", host).forEach((other, i) => press(other, i === picked));
        again();
      });
      host.append(chip);
    });
  } else {
    const choices = [["", `all ${names.length} classes`], ...names.map((name, index) => [String(index), short(name, 40)])];
    host.append(menu("Class", "", choices, (value) => { picked = value === "" ? null : Number(value); again(); }));
  }
}

function buildScale() {
  const ramp = `background:linear-gradient(90deg,${[-1, -0.5, 0, 0.5, 1].map((value) => `rgb(${shade(value)})`).join(",")})`;
  $("#scale").replaceChildren(make("span", { text: "cosine −1" }), make("i", { style: ramp }), make("span", { text: "1" }));
}

buildLegend();
buildTables();
buildSteppers();
buildCurves();
buildLogits();
buildMany("cosines", 280, (one) => one.cosines, drawCosines);
buildScale();
buildFeatures();
if (EPOCHS.length > 1) setStep(step);
const redrawAll = () => drawn.forEach((one) => { one.stale = true; redraw(one); });
dark.addEventListener("change", () => { buildScale(); redrawAll(); });
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  redrawAll();
});
window.addEventListener("beforeprint", () => drawn.forEach((one) => one.draw(one.host)));
