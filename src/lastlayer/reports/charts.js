// What the page draws: curves, seeds, logits, cosines and points. Each chart is drawn when it comes near the window.

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Plotly reads a little HTML in its texts; names of classes and settings are to be shown as they are.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const number = (value) => (value === null || value === undefined ? "undefined" : Number(value.toPrecision(4)).toString());
const measureOf = (name) => DATA.measures.find((one) => one.name === name);
const narrow = () => window.innerWidth < 640;
const CURVE_HEIGHT = 280;
const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };

const drawn = [];  // {host, draw}
const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const chart = drawn.find((one) => one.host === target);
    chart.near = isIntersecting;
    if (isIntersecting && chart.stale) redraw(chart);
  }
}, { rootMargin: "400px" });

function redraw(chart) {
  chart.stale = !chart.near;
  if (chart.near) chart.draw(chart.host);
}

// The height keeps the place of a chart that is not drawn yet, so that nothing jumps when it is.
function chart(host, height, draw) {
  host.style.minHeight = `${height}px`;
  const made = { host, draw, stale: true, near: false };
  drawn.push(made);
  near.observe(host);
  return made;
}

function layout(extra = {}) {
  const axis = {
    fixedrange: true, gridcolor: style("--grid"), zeroline: false, linecolor: style("--line"), tickcolor: style("--line"),
    automargin: true, ticklen: 4, tickfont: { size: 11 },
  };
  const { xaxis, yaxis, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, showlegend: false, hovermode: "closest",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: style("--soft") },
    hoverlabel: { bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--ink"), size: 12 }, align: "left" },
    margin: { l: 8, r: 16, t: 10, b: 8 }, height: 280,
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

function menu(chosen, names, act) {
  const select = make("select", { "aria-label": "Measure" });
  for (const name of names) {
    const option = make("option", { value: name, text: measureOf(name).title });
    option.selected = name === chosen;
    select.append(option);
  }
  select.addEventListener("change", () => act(select.value));
  return select;
}

function about(measure) {
  const better = { higher: " Higher is better.", lower: " Lower is better." }[measure.direction] || "";
  return `${measure.meaning[0].toUpperCase()}${measure.meaning.slice(1)}.${better}`;
}

// Curves over epochs.

function buildCurves() {
  const splits = ["test", "train"].filter((split) => DATA.curves.some((curve) => curve[split]));
  const most = Math.max(0, ...DATA.curves.map((curve) => curve.epochs.length));
  if (!splits.length || most < 2) { $("#training").hidden = true; return; }
  let split = splits[0];
  const cards = [];
  const host = $("#curve-split");
  buildSwitch(host, splits.map((one) => [one, DATA.splits[one]]), split, (value) => { split = value; cards.forEach((card) => card.update()); });
  for (const first of DATA.cards) {
    let name = first, log = null;
    const names = () => DATA.measures.map((one) => one.name).filter((one) => DATA.curves.some((curve) => curve[split] && curve[split][one]));
    const tick = make("input", { type: "checkbox" });
    const text = make("p", { className: "about" });
    const area = make("div", { className: "chart" });
    const bar = make("div", { className: "bar" }, [menu(name, names(), (value) => { name = value; log = null; update(); }), make("label", {}, [tick, "log scale"])]);
    $("#curves").append(make("div", { className: "card" }, [bar, text, area]));
    tick.addEventListener("change", () => { log = tick.checked; redraw(made); });
    const made = chart(area, CURVE_HEIGHT, () => drawCurves(area, name, split, tick, log));
    const update = () => { text.textContent = about(measureOf(name)); redraw(made); };
    text.textContent = about(measureOf(name));
    watchers.push(() => redraw(made));
    cards.push({ update });
  }
}

function drawCurves(area, name, split, tick, log) {
  const groups = shown().filter((group) => DATA.curves[group][split] && DATA.curves[group][split][name]);
  const values = groups.flatMap((group) => DATA.curves[group][split][name][0]).filter((value) => value !== null);
  const positive = values.length > 0 && values.every((value) => value > 0);
  const wide = positive && Math.max(...values) / Math.min(...values) > 30;
  const onLog = positive && (log === null ? wide : log);
  tick.checked = onLog;
  tick.disabled = !positive;
  const bands = groups.length <= 8 ? groups.map((group) => band(group, split, name, onLog ? Math.min(...values) / 3 : -Infinity)) : [];
  const lines = groups.map((group) => {
    const { epochs, [split]: measured } = DATA.curves[group];
    const [means, spreads] = measured[name];
    return {
      type: "scatter", mode: epochs.length > 1 ? "lines" : "markers", x: epochs, y: means, name: plain(DATA.groups[group]), hoverinfo: "text",
      text: means.map((mean, i) => `<b>${plain(DATA.groups[group])}</b><br>epoch ${epochs[i]}: ${number(mean)}${spreads[i] === null ? "" : ` ± ${number(spreads[i])}`}`),
      line: { color: colour(group), width: 2.2, dash: dash(group) }, marker: { color: colour(group) },
    };
  });
  const reach = groups.flatMap((group) => reachOf(DATA.curves[group], split, name)).filter((value) => !onLog || value > 0);
  Plotly.react(area, [...bands, ...lines], layout({
    height: CURVE_HEIGHT, xaxis: { title: { text: "epoch", standoff: 6 }, showgrid: false },
    yaxis: onLog ? logAxis(reach) : { nticks: 6, range: padded(reach) },
  }), CONFIG);
}

// What a curve spans after its first measurement, which is of an untrained network and would flatten all the rest.
function reachOf(curve, split, name) {
  const [means, spreads] = curve[split][name];
  const from = means.length > 3 ? 1 : 0;
  return means.flatMap((mean, i) => (mean === null || i < from ? [] : [mean, mean - (spreads[i] || 0), mean + (spreads[i] || 0)]));
}

function padded(values) {
  if (!values.length) return [0, 1];
  const low = Math.min(...values), high = Math.max(...values);
  const room = 0.05 * (high - low) || 0.05 * Math.abs(high) || 1;
  return [low - room, high + room];
}

// Plotly's own ticks on a log axis are either too few or a ladder of small digits.
function logAxis(values) {
  const range = padded(values.map(Math.log10));
  const span = range[1] - range[0];
  const steps = span > 3 ? [1] : span > 1.6 ? [1, 3] : span > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7];
  const ticks = [];
  for (let power = Math.floor(range[0]); power <= range[1]; power += 1) ticks.push(...steps.map((digit) => digit * 10 ** power));
  return { type: "log", range, tickvals: ticks, ticktext: ticks.map((value) => (value < 1e-3 || value >= 1e4 ? value.toExponential(0) : number(value))) };
}

function band(group, split, name, floor) {
  const { epochs, [split]: measured } = DATA.curves[group];
  const [means, spreads] = measured[name];
  const kept = epochs.map((_, i) => i).filter((i) => means[i] !== null && spreads[i] !== null);
  const back = [...kept].reverse();
  return {
    type: "scatter", mode: "lines", hoverinfo: "skip", fill: "toself", fillcolor: `${colour(group)}24`, line: { width: 0 },
    x: [...kept, ...back].map((i) => epochs[i]),
    y: [...kept.map((i) => means[i] + spreads[i]), ...back.map((i) => Math.max(floor, means[i] - spreads[i]))],
  };
}

// Final values, a dot a seed.

function buildStrip() {
  const host = $("#strip");
  const splits = Object.keys(DATA.finals).filter((split) => split !== "run");
  if (!splits.length) { $("#seeds").hidden = true; return; }
  let split = splits[0], name = DATA.cards[1] || DATA.cards[0];
  const text = make("p", { className: "about" });
  const area = make("div", { className: "chart" });
  const choice = make("div", { className: "switch", role: "group", "aria-label": "Seeds on" });
  const names = DATA.measures.map((one) => one.name).filter((one) => splits.some((each) => DATA.finals[each][one]));
  const made = chart(area, 60 + 30 * DATA.groups.length, () => drawStrip(area, (DATA.finals[split] || {})[name]));
  const update = () => { text.textContent = about(measureOf(name)); redraw(made); };
  buildSwitch(choice, splits.map((one) => [one, DATA.splits[one]]), split, (value) => { split = value; update(); });
  host.append(make("div", { className: "bar" }, [menu(name, names, (value) => { name = value; update(); }), choice]), text, area);
  text.textContent = about(measureOf(name));
  watchers.push(() => redraw(made));
}

function drawStrip(area, cells = []) {
  area.style.minHeight = "";
  const groups = shown().filter((group) => cells[group]).reverse();
  const seeds = groups.map((group) => Object.entries(cells[group]).filter(([, value]) => value !== null));
  const values = seeds.flat().map(([, value]) => value);
  const onLog = values.length > 0 && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 30;
  const dots = groups.map((group, row) => ({
    type: "scatter", mode: "markers", x: seeds[row].map(([, value]) => value), y: seeds[row].map(() => row), hoverinfo: "text",
    text: seeds[row].map(([seed, value]) => `<b>${plain(DATA.groups[group])}</b><br>seed ${seed}: ${number(value)}`),
    marker: { color: colour(group), size: 9, opacity: 0.75, symbol: dash(group) === "solid" ? "circle" : "diamond" },
  }));
  const means = {
    type: "scatter", mode: "markers", hoverinfo: "skip", y: groups.map((_, row) => row),
    x: seeds.map((own) => (own.length ? own.reduce((sum, [, value]) => sum + value, 0) / own.length : null)),
    marker: { symbol: "line-ns-open", size: 20, line: { width: 2.5 }, color: groups.map(colour) },
  };
  Plotly.react(area, [...dots, means], layout({
    height: 60 + 30 * groups.length, xaxis: onLog ? logAxis(values) : { nticks: narrow() ? 4 : 8 },
    yaxis: {
      tickvals: groups.map((_, row) => row), ticktext: groups.map((group) => plain(short(DATA.groups[group], narrow() ? 14 : 34))),
      range: [-0.6, groups.length - 0.4], showgrid: true, tickfont: { size: 12.5, color: style("--ink") },
    },
  }), CONFIG);
}

// Pictures of single runs: one card a loss.

function buildMany(section, height, has, draw) {
  const host = $(`#${section} .grid`);
  const groups = DATA.groups.map((_, group) => group).filter((group) => DATA.snapshots[group] && has(DATA.snapshots[group]));
  if (!groups.length) { $(`#${section}`).hidden = true; return []; }
  return groups.map((group) => {
    const area = make("div", { className: "chart" });
    const title = make("h3", {}, [swatch(group), make("span", { text: DATA.groups[group] }), make("small", { text: `seed ${DATA.snapshots[group].seed}` })]);
    const card = make("div", { className: "card" }, [title, area]);
    host.append(card);
    const made = chart(area, height, () => draw(area, DATA.snapshots[group], group));
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
  if (DATA.snapshots.some((one) => one && one.tsne)) {
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
