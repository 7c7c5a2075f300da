// Charts in SVG. Every axis has a title and shows no impossible value. Pointer and arrow keys read the values.

const plain = (value) => (value === null || value === undefined ? "undefined" : Number(value.toPrecision(4)).toString());
const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const measureOf = (name) => DATA.measures.find((one) => one.name === name);
const LETTER = 6.6;  // width of a letter on an axis, in pixels

function svg(tag, attributes = {}, children = []) {
  const element = SVG(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const drawn = [];  // {host, draw}: a chart is drawn when it comes near the window
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

function ticksOf({ range: [low, high], log, ticks }, most) {
  if (ticks) return ticks;
  if (log) return logTicks(low, high);
  const rough = (high - low) / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((digit) => digit * power >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1) found.push(i * step);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const text = (at) => (Math.abs(at) >= 1e5 || digits > 5 ? at.toExponential(1) : at.toFixed(digits));
  return found.map((at) => ({ at, text: text(at) }));
}

function logTicks(low, high) {
  const span = Math.log10(high / low);
  const digits = span > 3 ? [1] : span > 1.6 ? [1, 3] : span > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
    found.push(...digits.map((digit) => digit * 10 ** power).filter((at) => at >= low && at <= high));
  }
  const every = Math.ceil(found.length / 7);
  return found.filter((_, i) => i % every === 0).map((at) => ({ at, text: at < 1e-3 || at >= 1e4 ? at.toExponential(0) : plain(at) }));
}

// Room around the values, but never beyond what the measure can be.
function padded(values, { low = null, high = null } = {}, log = false) {
  if (!values.length) return log ? [0.1, 1] : [0, 1];
  const f = log ? Math.log10 : Number, back = log ? (at) => 10 ** at : Number;
  const from = f(Math.min(...values)), to = f(Math.max(...values));
  const room = Math.max(0.06 * (to - from), log ? 0.02 : 0.002 * Math.abs(to)) || 0.05;
  return [Math.max(back(from - room), low === null || log ? -Infinity : low), Math.min(back(to + room), high === null ? Infinity : high)];
}

// The frame of a chart: title and ticks of both axes, and `inside`, which clips what is drawn in it.
// An axis is {title, range, log, ticks}; `ticks` are [{at, text}], and [] for an axis without numbers.
function frame(area, { height, label, x, y }) {
  const width = Math.max(area.clientWidth, 180);
  const rows = ticksOf(y, height / 60);
  const left = rows.length ? 10 + LETTER * Math.max(...rows.map(({ text }) => text.length)) : 2;
  const right = width - 14, top = 26;
  const columns = ticksOf(x, (right - left) / 75);
  const bottom = height - (columns.length ? 40 : 22);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const place = ({ range, log }, from, to) => {
    const f = log ? Math.log10 : Number, [low, high] = range.map(f);
    return (value) => from + ((f(value) - low) / (high - low || 1)) * (to - from);
  };
  const at = { x: place(x, left, right), y: place(y, bottom, top) };
  const write = (text, attributes) => { const made = svg("text", attributes); made.textContent = text; root.append(made); };
  for (const tick of rows) {
    const middle = at.y(tick.at);
    if (!y.ticks) root.append(svg("line", { class: "rule", x1: left, x2: right, y1: middle, y2: middle }));
    write(tick.text, { class: "tick", x: left - 6, y: middle + 4, "text-anchor": "end" });
  }
  for (const tick of columns) write(tick.text, { class: "tick", x: at.x(tick.at), y: bottom + 15, "text-anchor": "middle" });
  root.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  write(y.title + (y.log ? ", log scale" : ""), { class: "title y", x: 2, y: 13 });
  write(x.title, { class: "title x", x: right, y: height - 5, "text-anchor": "end" });
  const size = { x: left, y: top - 4, width: right - left, height: bottom - top + 6 };
  const inside = svg("svg", { ...size, viewBox: `${size.x} ${size.y} ${size.width} ${size.height}` });
  root.append(inside);
  area.replaceChildren(root);
  return { root, inside, at, top, bottom, left, right };
}

// Points are [x, y], or null where the line has a gap.
function pathOf(points) {
  let pen = "M";
  return points.map((point) => {
    const piece = point ? `${pen}${point[0].toFixed(1)},${point[1].toFixed(1)}` : "";
    pen = point ? "L" : "M";
    return piece;
  }).join("");
}

// Reading values: the stop nearest to the pointer, or the next one by arrow keys. Stops are [x] or [x, y] in pixels.
function readable({ root, inside, top, bottom }, area, stops, linesOf) {
  const mark = svg("g", { class: "mark" });
  inside.append(mark);
  let current = -1;
  const show = (index) => {
    if (!stops[index]) return;
    current = index;
    const [x, y] = stops[index];
    mark.replaceChildren(y === undefined ? svg("line", { x1: x, x2: x, y1: top, y2: bottom }) : svg("circle", { cx: x, cy: y, r: 6 }));
    const { left, top: above } = root.getBoundingClientRect();
    showTip(linesOf(index), left + x, above + (y ?? top));
  };
  const hide = () => { current = -1; mark.replaceChildren(); $("#tip").hidden = true; };
  area.onpointermove = ({ clientX, clientY }) => {
    const { left, top: above } = root.getBoundingClientRect();
    const far = ([x, y]) => Math.abs(x - clientX + left) + (y === undefined ? 0 : Math.abs(y - clientY + above));
    show(stops.reduce((best, stop, index) => (far(stop) < far(stops[best]) ? index : best), 0));
  };
  area.onpointerleave = hide;
  area.onblur = hide;
  area.onkeydown = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") hide();
    if (by === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(stops.length - 1, current + by)));
  };
  area.tabIndex = 0;
}

function showTip(lines, x, y) {
  const tip = $("#tip");
  tip.hidden = false;
  tip.replaceChildren(...lines.map(({ group, text }) => make("div", {}, group === undefined ? [text] : [swatch(group), text])));
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 14 + width > window.innerWidth ? x - width - 14 : x + 14)}px`;
  tip.style.top = `${Math.max(4, Math.min(y, window.innerHeight - height - 4))}px`;
}
