// Charts and the first of them: curves over epochs, final values by seed. Each is drawn when it comes near the window.

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
