// Runs side by side: one colour, dash and mark for each method, in every chart.
const runs = embedded.runs;
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "5 2 1 2", "3 2", "1 3"];
const MARKS = ["circle", "square", "triangle", "diamond", "cross", "down", "plus", "star"];
const HUES = 8;
const hiddenRuns = new Set();

function placedRuns() {
  const picker = byId("place");
  const place = picker ? picker.value : runs[0].place;
  return runs.filter((run) => run.place === place);
}

function shownRuns() {
  return placedRuns().map((run, k) => ({ ...run, hue: k % HUES, kind: (k + Math.floor(k / HUES)) % HUES })).filter((run) => !hiddenRuns.has(run.label));
}

function mark(parent, run, x, y, size, extra) {
  const r = size;
  const outline = {
    square: `M${-r} ${-r}H${r}V${r}H${-r}Z`,
    triangle: `M0 ${-r * 1.2}L${r * 1.15} ${r * 0.9}H${-r * 1.15}Z`,
    diamond: `M0 ${-r * 1.35}L${r * 1.35} 0L0 ${r * 1.35}L${-r * 1.35} 0Z`,
    cross: `M${-r} ${-r}L${r} ${r}M${r} ${-r}L${-r} ${r}`,
    down: `M0 ${r * 1.2}L${r * 1.15} ${-r * 0.9}H${-r * 1.15}Z`,
    plus: `M0 ${-r * 1.2}V${r * 1.2}M${-r * 1.2} 0H${r * 1.2}`,
    star: `M0 ${-r * 1.3}V${r * 1.3}M${-r * 1.15} ${-r * 0.65}L${r * 1.15} ${r * 0.65}M${r * 1.15} ${-r * 0.65}L${-r * 1.15} ${r * 0.65}`,
    circle: `M${-r} 0A${r} ${r} 0 1 0 ${r} 0A${r} ${r} 0 1 0 ${-r} 0Z`,
  }[MARKS[run.kind]];
  return shape("path", { class: `mark hue${run.hue} ${extra || ""}`, d: outline, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` }, parent);
}

function legend() {
  const host = byId("run-legend");
  host.textContent = "";
  const many = placedRuns();
  many.forEach((run, k) => {
    const label = element("label", { class: "key" }, host);
    const box = element("input", { type: "checkbox" }, label);
    box.checked = !hiddenRuns.has(run.label);
    box.addEventListener("change", () => {
      if (box.checked) hiddenRuns.delete(run.label);
      else hiddenRuns.add(run.label);
      runCharts.forEach((redraw) => redraw());
    });
    const svg = shape("svg", { width: 34, height: 14, viewBox: "0 0 34 14", "aria-hidden": "true" }, label);
    const drawn = { hue: k % HUES, kind: (k + Math.floor(k / HUES)) % HUES };
    shape("line", { class: `line hue${drawn.hue}`, x1: 1, x2: 33, y1: 7, y2: 7, "stroke-dasharray": DASHES[drawn.kind] }, svg);
    mark(svg, drawn, 17, 7, 4);
    element("span", {}, label, run.label);
  });
}

function extent(values) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
}

function widen([low, high], floor) {
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [floor !== undefined && low - room < floor ? Math.min(floor, low) : low - room, high + room];
}

function nothing(svg, text) {
  shape("text", { class: "note", x: 12, y: 40 }, svg, text);
  return 70;
}

// Lines with an optional band of one standard deviation; every series is [run, xs, ys, spreads].
function drawLines(svg, width, series, { unit, xTitle, yTitle, logX, floor, label, height = 240, marks = true }) {
  if (!series.length) return nothing(svg, "No run shown here has this.");
  const left = 50;
  const inBand = series.flatMap(([, , ys, spreads]) => ys.flatMap((v, k) => (spreads && spreads.length ? [v - spreads[k], v + spreads[k]] : [v])));
  const yRange = widen(extent(inBand), floor);
  const yTicks = niceTicks(yRange[0], yRange[1], 5);
  const text = unit === "%" ? percentTicks(yTicks) : (value) => `${+value.toPrecision(3)}`;
  const [from, last] = extent(series.flatMap(([, xs]) => xs));
  const to = xTitle === "confidence" ? 1 : last;
  const decades = width < 420 ? [10, 30, 100, 300, 1000] : [5, 10, 20, 50, 100, 200, 500, 1000];
  const even = niceTicks(from, to, width < 420 ? 4 : 7).filter((t) => xTitle !== "epoch" || Number.isInteger(t));
  const xTicks = logX ? decades.filter((t) => t >= from && t <= to) : even;
  const plot = frame(svg, {
    left, top: 30, width: width - left - 16, height, logX, x: [from, to === from ? from + 1 : to], y: yRange, xTicks,
    yTicks, yText: text, xText: (t) => (xTitle === "confidence" ? percent(t, 0) : t), xTitle, yTitle,
  });
  const xText = (value) => (xTitle === "confidence" ? percent(value, 0) : value);
  for (const [run, xs, ys, spreads] of series) {
    if (spreads && spreads.some((s) => s > 0)) {
      const upper = ys.map((v, k) => [plot.x(xs[k]), plot.y(v + spreads[k])]);
      const lower = ys.map((v, k) => [plot.x(xs[k]), plot.y(v - spreads[k])]).reverse();
      shape("path", { class: `band hue${run.hue}`, d: `${path([...upper, ...lower])}Z` }, svg);
    }
  }
  for (const [run, xs, ys] of series) {
    const points = ys.map((v, k) => [plot.x(xs[k]), plot.y(v)]);
    shape("path", { class: `line hue${run.hue}`, d: path(points), "stroke-dasharray": DASHES[run.kind] }, svg);
    const every = marks ? Math.max(1, Math.ceil(points.length / 6)) : points.length;
    points.forEach(([px, py], k) => {
      if (points.length - 1 === k || (marks && k % every === Math.floor(every / 2))) mark(svg, run, px, py, 3.6);
    });
  }
  const positions = [...new Set(series.flatMap(([, xs]) => xs))].sort((a, b) => a - b);
  const step = Math.max(1, Math.ceil(positions.length / 60));
  const kept = positions.filter((_, k) => k % step === 0 || k === positions.length - 1);
  const items = kept.map((position, k) => {
    const before = k ? (plot.x(kept[k - 1]) + plot.x(position)) / 2 : plot.x(position) - 3;
    const after = k + 1 < kept.length ? (plot.x(kept[k + 1]) + plot.x(position)) / 2 : plot.x(position) + 3;
    const lines = [xTitle === "confidence" ? `${xText(position)} confident` : xTitle === "epoch" ? `epoch ${position}` : `${position} bins`];
    for (const [run, xs, ys, spreads] of series) {
      const at = xs.indexOf(position);
      if (at < 0) continue;
      const value = unit === "%" ? percent(ys[at]) : ys[at].toFixed(3);
      lines.push(`${run.label}: ${value}${spreads && spreads.length ? ` ± ${unit === "%" ? percent(spreads[at]) : spreads[at].toFixed(3)}` : ""}`);
    }
    return { x: before, y: plot.top, width: Math.max(after - before, 1), height, lines: lines.slice(0, 13) };
  });
  explore(svg, items, label);
  return plot.top + height + 46;
}

function drawCurves(svg, width) {
  const key = byId("curve-key").value;
  const has = shownRuns().filter((run) => run.curves[key]);
  const unit = key.endsWith("error") || key.endsWith("ece") ? "%" : "";
  const name = byId("curve-key").selectedOptions[0].textContent;
  return drawLines(svg, width, has.map((run) => [run, ...run.curves[key]]), { unit, xTitle: "epoch", yTitle: name, floor: 0, label: `Learning curves: ${name}.`, height: 260 });
}

function drawTradeOff(svg, width) {
  const all = shownRuns();
  if (!all.length) return nothing(svg, "No run is chosen.");
  const left = 50;
  const height = 280;
  const xs = widen(extent(all.flatMap((run) => run.points.map((p) => p[0]))), 0);
  const ys = widen(extent(all.flatMap((run) => run.points.map((p) => p[1]))), 0);
  const xTicks = niceTicks(xs[0], xs[1], width < 420 ? 4 : 6);
  const yTicks = niceTicks(ys[0], ys[1], 5);
  const plot = frame(svg, {
    left, top: 30, width: width - left - 16, height, x: xs, y: ys, xGrid: true, xTicks, xText: percentTicks(xTicks), yTicks,
    yText: percentTicks(yTicks), xTitle: "error rate", yTitle: "ECE",
  });
  const items = [];
  for (const run of all) {
    const mean = [0, 1].map((axis) => run.points.reduce((sum, p) => sum + p[axis], 0) / run.points.length);
    if (run.points.length > 1) for (const [e, c] of run.points) mark(svg, run, plot.x(e), plot.y(c), 3, "faint");
    mark(svg, run, plot.x(mean[0]), plot.y(mean[1]), 6.5);
    items.push({
      x: plot.x(mean[0]) - 12, y: plot.y(mean[1]) - 12, width: 24, height: 24,
      lines: [run.label, `error ${percent(mean[0])}`, `ECE ${percent(mean[1])}`, run.points.length > 1 ? `mean of ${run.points.length} seeds` : "one run"],
    });
  }
  explore(svg, items, "Error rate against calibration error.");
  return plot.top + height + 46;
}

function drawSweep(svg, width) {
  const key = byId("sweep-key").value;
  const has = shownRuns().filter((run) => run.sweep.n);
  return drawLines(svg, width, has.map((run) => [run, run.sweep.n, run.sweep[key]]), {
    unit: "%", xTitle: "number of bins", yTitle: key.toUpperCase(), logX: true, floor: 0, label: `${key.toUpperCase()} against the number of bins.`,
  });
}

function drawGamma(svg, width) {
  const has = shownRuns().filter((run) => run.curves.gamma_mean);
  const series = has.map((run) => [run, ...run.curves.gamma_mean.slice(0, 2), run.curves.gamma_std ? run.curves.gamma_std[1] : []]);
  return drawLines(svg, width, series, { unit: "", xTitle: "epoch", yTitle: "gamma, mean ± standard deviation", label: "Gamma over epochs." });
}

function drawGammaByConfidence(svg, width) {
  const has = shownRuns().filter((run) => run.gamma.length);
  return drawLines(svg, width, has.map((run) => [run, run.gamma[0], run.gamma[1], run.gamma[2]]), {
    unit: "", xTitle: "confidence", yTitle: "gamma, mean ± standard deviation", label: "Gamma against confidence.",
  });
}

const runCharts = [];

function setUpRuns() {
  if (!runs.length) return;
  legend();
  for (const [id, draw] of [
    ["trade-off", drawTradeOff], ["curves", drawCurves], ["gamma", drawGamma], ["gamma-confidence", drawGammaByConfidence], ["sweep", drawSweep],
  ]) {
    runCharts.push(chart(id, draw));
  }
  for (const id of ["curve-key", "sweep-key"]) byId(id)?.addEventListener("change", () => runCharts.forEach((redraw) => redraw()));
  byId("place")?.addEventListener("change", () => {
    hiddenRuns.clear();
    legend();
    runCharts.forEach((redraw) => redraw());
  });
}
