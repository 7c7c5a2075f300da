// Pictures of single runs, one card a loss: logits, cosines, points. And, at the end, the call that builds the page.

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

function rowOf(store, packed, frame) {
  store.unpacked ||= unpack(packed);
  const { values, shape } = store.unpacked;
  const size = shape.slice(1).reduce((product, length) => product * length, 1);
  return values.subarray(frame * size, (frame + 1) * size);
}

function drawLogits(area, snapshot, group) {
  const { frames, range, true_logits, false_logits } = snapshot.logits;
  const frame = frameOf(frames);
  const [low, high] = range[frame];
  const traces = [["false", false_logits, style("--soft")], ["true", true_logits, colour(group)]].map(([kind, packed, shade]) => {
    const shares = rowOf(packed, packed, frame);
    const width = (high - low) / shares.length;
    const x = Array.from(shares, (_, i) => low + (i + 0.5) * width);
    return {
      type: "scatter", mode: "lines", line: { shape: "hvh", color: shade, width: 1.6 }, fill: "tozeroy", fillcolor: `${shade}38`, x, y: Array.from(shares),
      hoverinfo: "text", text: x.map((at, i) => `${kind} logits near ${number(at)}: ${(100 * shares[i]).toFixed(1)} %`),
    };
  });
  const label = (text, shade, x) => ({ text, xref: "paper", yref: "paper", x, y: 1.02, xanchor: x ? "right" : "left", yanchor: "bottom", showarrow: false, font: { color: shade, size: 12 } });
  Plotly.react(area, traces, layout({
    height: 205, margin: { l: 6, r: 6, t: 26, b: 8 }, xaxis: { showgrid: false, nticks: 6, range: [low, high] },
    yaxis: { showticklabels: false, rangemode: "tozero", ticklen: 0, showgrid: false, showline: false },
    annotations: [label("false", style("--soft"), 0), label("true", colour(group), 1)],
  }), CONFIG);
}

const DIVERGING = [[0, "#b2482f"], [0.25, "#e0a184"], [0.5, "#f4f1ea"], [0.75, "#7fb0cf"], [1, "#1f5f96"]];
const DIVERGING_DARK = [[0, "#e0795c"], [0.25, "#8a4a3a"], [0.5, "#23282d"], [0.75, "#31678c"], [1, "#6bb3e4"]];
const dark = matchMedia("(prefers-color-scheme: dark)");

function drawCosines(area, snapshot) {
  const { cosines } = snapshot;
  const classes = DATA.classes[snapshot.classes];
  const size = cosines.shape[1];
  const flat = rowOf(cosines, cosines, frameOf(cosines.frames));
  const z = Array.from({ length: size }, (_, row) => Array.from(flat.subarray(row * size, (row + 1) * size)));
  const nameOf = (index) => plain(short(String(classes[index] ?? index), 24));
  const ticks = size <= 20 ? { tickvals: [...Array(size).keys()], ticktext: [...Array(size).keys()].map((i) => plain(short(String(classes[i] ?? i), 7))) } : { showticklabels: false, ticklen: 0 };
  const side = area.clientWidth;
  Plotly.react(area, [{
    type: "heatmap", z, zmin: -1, zmax: 1, colorscale: dark.matches ? DIVERGING_DARK : DIVERGING, showscale: false, hoverinfo: "text",
    xgap: size <= 20 ? 1 : 0, ygap: size <= 20 ? 1 : 0,
    text: z.map((row, i) => row.map((value, j) => `${nameOf(i)} · ${nameOf(j)}<br>${value.toFixed(2)}`)),
  }], layout({
    height: Math.max(300, Math.min(340, side)), margin: { l: 4, r: 4, t: 8, b: 4 },
    xaxis: { ...ticks, showgrid: false, constrain: "domain", showline: false, tickangle: size <= 12 ? 0 : 45 },
    yaxis: { ...ticks, showgrid: false, autorange: "reversed", scaleanchor: "x", constrain: "domain", showline: false },
  }), CONFIG);
}

const CLASS_COLOURS = ["#4477cc", "#dd8844", "#339977", "#cc4477", "#8866cc", "#998811", "#22aacc", "#aa6644", "#778899", "#55aa33"];
function classColour(index, count) {
  if (count <= CLASS_COLOURS.length) return CLASS_COLOURS[index];
  return `hsl(${(index * 137.508) % 360} ${55 + 15 * (index % 2)}% ${48 + 8 * (index % 3)}%)`;
}

let view = "pca", picked = null;

function drawPoints(area, snapshot) {
  const classes = DATA.classes[snapshot.classes];
  const still = view === "tsne" && snapshot.tsne;
  const flat = still ? (snapshot.tsne.all ||= unpack(snapshot.tsne)).values : rowOf(snapshot.points, snapshot.points, frameOf(snapshot.frames));
  const everything = still ? flat : snapshot.points.unpacked.values;
  const extent = (odd) => {
    let low = Infinity, high = -Infinity;
    for (let i = odd; i < everything.length; i += 2) { low = Math.min(low, everything[i]); high = Math.max(high, everything[i]); }
    const room = 0.04 * (high - low) || 1;
    return [low - room, high + room];
  };
  const { target } = snapshot;
  const on = target.map((label) => picked === null || label === picked);
  Plotly.react(area, [{
    type: "scatter", mode: "markers", x: target.map((_, i) => flat[2 * i]), y: target.map((_, i) => flat[2 * i + 1]), hoverinfo: "text",
    text: target.map((label) => plain(short(String(classes[label] ?? label), 40))),
    marker: {
      size: 5.5, line: { width: 0 }, color: target.map((label, i) => (on[i] ? classColour(label, classes.length) : style("--line"))),
      opacity: on.map((shownPoint) => (shownPoint ? 0.85 : 0.5)),
    },
  }], layout({
    height: 300, margin: { l: 2, r: 2, t: 8, b: 2 },
    xaxis: { range: extent(0), visible: false }, yaxis: { range: extent(1), visible: false, scaleanchor: "x", scaleratio: 1 },
  }), CONFIG);
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
      const dot = make("span", { className: "dot", style: `background:${classColour(index, names.length)}` });
      const chip = make("button", { className: "chip", type: "button", "aria-pressed": "false" }, [dot, make("span", { text: short(name, 24) })]);
      chip.addEventListener("click", () => {
        picked = picked === index ? null : index;
        all(".chip", host).forEach((other, i) => press(other, i === picked));
        again();
      });
      host.append(chip);
    });
  } else {
    const select = make("select", { "aria-label": "Class" }, [make("option", { value: "", text: `all ${names.length} classes` })]);
    names.forEach((name, index) => select.append(make("option", { value: index, text: short(name, 40) })));
    select.addEventListener("change", () => { picked = select.value === "" ? null : Number(select.value); again(); });
    host.append(select);
  }
}

function buildScale() {
  const stops = dark.matches ? DIVERGING_DARK : DIVERGING;
  const ramp = `background:linear-gradient(90deg,${stops.map(([at, shade]) => `${shade} ${100 * at}%`).join(",")})`;
  const made = make("div", { className: "scale" }, [make("span", { text: "−1" }), make("i", { style: ramp }), make("span", { text: "1" })]);
  all("#cosines .scale").forEach((old) => old.remove());
  $("#cosines").append(made);
}

buildLegend();
buildTables();
buildSteppers();
buildCurves();
buildStrip();
buildMany("logits", 205, (one) => one.logits, drawLogits);
buildMany("cosines", 300, (one) => one.cosines, drawCosines);
buildScale();
buildFeatures();
if (EPOCHS.length > 1) setStep(step);
dark.addEventListener("change", () => { buildScale(); drawn.forEach((one) => { one.stale = true; redraw(one); }); });
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  drawn.forEach((one) => { if (!one.stale) redraw(one); });
});
window.addEventListener("beforeprint", () => drawn.forEach((one) => one.draw(one.host)));
