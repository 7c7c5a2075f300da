// Curves over epochs: mean over seeds, and a band of one standard deviation.

const CURVE_HEIGHT = 270;

function menu(label, chosen, choices, act) {
  const select = make("select", { "aria-label": label });
  for (const [value, text] of choices) {
    const option = make("option", { value, text });
    option.selected = value === chosen;
    select.append(option);
  }
  select.addEventListener("change", () => act(select.value));
  return select;
}

function about(measure) {
  const better = { higher: " Higher is better.", lower: " Lower is better." }[measure.direction] || "";
  return `${measure.meaning[0].toUpperCase()}${measure.meaning.slice(1)}.${better}`;
}

function buildCurves() {
  const splits = ["test", "train"].filter((split) => DATA.curves.some((curve) => curve[split]));
  const most = Math.max(0, ...DATA.curves.map((curve) => curve.epochs.length));
  if (!splits.length || most < 2) { $("#training").hidden = true; return; }
  let split = splits[0];
  const cards = [];
  buildSwitch($("#curve-split"), splits.map((one) => [one, DATA.splits[one]]), split, (value) => { split = value; cards.forEach(redraw); });
  const choices = DATA.measures.filter(({ name }) => DATA.curves.some((curve) => splits.some((one) => curve[one] && curve[one][name])));
  for (const first of DATA.cards) {
    let name = first, log = null;
    const tick = make("input", { type: "checkbox" });
    const text = make("p", { className: "about" });
    const area = make("div", { className: "chart" });
    const choose = menu("Measure", name, choices.map((one) => [one.name, one.plain]), (value) => { name = value; log = null; redraw(made); });
    const bar = make("div", { className: "bar" }, [choose, make("label", {}, [tick, "log scale"])]);
    $("#curves").append(make("div", { className: "card" }, [bar, text, area]));
    tick.addEventListener("change", () => { log = tick.checked; redraw(made); });
    const made = chart(area, CURVE_HEIGHT, () => {
      text.textContent = about(measureOf(name));
      drawCurves(area, name, split, tick, log);
    });
    watchers.push(() => redraw(made));
    cards.push(made);
  }
}

function drawCurves(area, name, split, tick, log) {
  const measure = measureOf(name);
  const groups = shown().filter((group) => DATA.curves[group][split] && DATA.curves[group][split][name]);
  const values = groups.flatMap((group) => DATA.curves[group][split][name][0]).filter((value) => value !== null);
  const positive = values.length > 0 && values.every((value) => value > 0);
  const wide = positive && Math.max(...values) / Math.min(...values) > 30;
  const onLog = positive && (log === null ? wide : log);
  tick.checked = onLog;
  tick.disabled = !positive;
  const floor = onLog ? Math.min(...values) / 3 : measure.low ?? -Infinity, ceiling = measure.high ?? Infinity;
  const series = groups.map((group) => {
    const { epochs, [split]: measured } = DATA.curves[group];
    const [means, spreads] = measured[name];
    const clip = (value) => Math.min(ceiling, Math.max(floor, value));
    return { group, points: epochs.map((epoch, i) => ({
      epoch, mean: means[i], spread: spreads[i], low: clip(means[i] - spreads[i]), high: clip(means[i] + spreads[i]),
    })).filter(({ mean }) => mean !== null) };
  });
  const epochs = [...new Set(series.flatMap(({ points }) => points.map(({ epoch }) => epoch)))].sort((a, b) => a - b);
  const where = `${measure.plain} on ${DATA.splits[split]}`;
  // The first measurement is of an untrained network, and would flatten all the rest.
  const reach = series.flatMap(({ points }) => (points.length > 3 ? points.slice(1) : points).flatMap(({ mean, low, high }) => [mean, low, high]));
  const made = frame(area, {
    height: CURVE_HEIGHT, label: `${where} by epoch`,
    x: { title: "epoch", range: [epochs[0] ?? 0, epochs.at(-1) ?? 1] },
    y: { title: where, range: padded(reach, measure, onLog), log: onLog },
  });
  const { at, inside } = made;
  if (groups.length <= 8) {
    for (const { group, points } of series) {
      const band = [...points.map(({ epoch, high }) => [at.x(epoch), at.y(high)]), ...[...points].reverse().map(({ epoch, low }) => [at.x(epoch), at.y(low)])];
      if (points.some(({ spread }) => spread !== null)) inside.append(svg("path", { class: "band", d: pathOf(band), fill: colour(group) }));
    }
  }
  for (const { group, points } of series) {
    const d = pathOf(points.map(({ epoch, mean }) => [at.x(epoch), at.y(mean)]));
    inside.append(svg("path", { class: "line", d, stroke: colour(group), "stroke-dasharray": dash(group), "data-group": group }));
  }
  readable(made, area, epochs.map((epoch) => [at.x(epoch)]), (index) => [{ text: `epoch ${epochs[index]}` }, ...series.flatMap(({ group, points }) => {
    const point = points.find(({ epoch }) => epoch === epochs[index]);
    return point ? [{ group, text: `${DATA.groups[group]}: ${plain(point.mean)}${point.spread === null ? "" : ` ± ${plain(point.spread)}`}` }] : [];
  })]);
}
