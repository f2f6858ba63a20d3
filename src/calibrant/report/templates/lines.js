// Lines of several runs with bands of one standard deviation.
function extent(values) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
}

function widen([low, high], floor) {
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [floor !== undefined && low - room < floor ? Math.min(floor, low) : low - room, high + room];
}

// 1, 2, 5, 10 and so on; fewer if these are many, more if they are few.
function logTicks([low, high]) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) powers.push(power);
  const ticks = (leading) =>
    powers.flatMap((power) => leading.map((digit) => +(digit * 10 ** power).toPrecision(12))).filter((t) => t >= low && t <= high);
  const [usual, ...fewer] = [[1, 2, 5], [1, 3], [1]].map(ticks);
  if (usual.length > 8) return fewer[0].length <= 8 ? fewer[0] : fewer[1];
  if (usual.length >= 3) return usual;
  const more = ticks([1, 1.5, 2, 3, 5, 7]);
  return more.length >= 3 ? more : niceTicks(low, high, 4);
}

// Around all lines and bands; a logarithmic axis begins below the least value above zero.
function verticalRange(series, { logY, floor, least: from = 0 }) {
  const spread = (spreads, k) => (spreads && spreads.length ? spreads[k] : 0);
  const tops = series.flatMap(([, , ys, spreads]) => ys.map((v, k) => v + spread(spreads, k)));
  if (!logY) return widen(extent([...tops, ...series.flatMap(([, , ys, spreads]) => ys.map((v, k) => v - spread(spreads, k)))]), floor);
  const least = Math.min(...series.flatMap(([, , ys]) => ys.filter((v) => v > 0)));
  return [Math.max(least, from) / 1.15, Math.max(...tops) * 1.15];
}

// Every series is [run, xs, ys, spreads]; chance is one too, drawn without marks below the others.
function drawLines(svg, width, series, options) {
  const { unit, xTitle, yTitle, logX, floor, label, height = 240, drops = [], chance } = options;
  if (!series.length) return nothing(svg, "No run shown here has this.");
  const left = 50;
  const all = chance ? [...series, chance] : series;
  const logY = options.logY && series.some(([, , ys]) => ys.some((v) => v > 0));
  const yRange = verticalRange(all, { logY, floor, least: options.least });
  const yTicks = logY ? logTicks(yRange) : niceTicks(yRange[0], yRange[1], 5);
  const yText = unit === "%" ? percentTicks(yTicks) : (value) => `${+value.toPrecision(3)}`;
  const [from, to] = extent(series.flatMap(([, xs]) => xs));
  const narrow = width < 420;
  const decades = narrow ? [10, 30, 100, 300, 1000] : [10, 20, 50, 100, 200, 500, 1000];
  const xTicks = logX ? decades.filter((t) => t >= from && t <= to) : niceTicks(from, to, narrow ? 4 : 7).filter(Number.isInteger);
  const plot = frame(svg, {
    left, top: 30, width: width - left - 16, height, logX, logY, x: [from, to === from ? from + 1 : to], y: yRange,
    xTicks, yTicks, yText, xTitle, yTitle,
  });
  for (const drop of drops.filter((epoch) => epoch > from && epoch <= to)) {
    const x = plot.x(drop - 0.5);
    shape("line", { class: "drop", x1: x, x2: x, y1: plot.top, y2: plot.top + height }, svg);
  }
  for (const [run, xs, ys, spreads] of series) {
    if (!(spreads && spreads.some((s) => s > 0))) continue;
    const upper = ys.map((v, k) => [plot.x(xs[k]), plot.y(v + spreads[k])]);
    const lower = ys.map((v, k) => [plot.x(xs[k]), plot.y(v - spreads[k])]).reverse();
    shape("path", { class: `band ${run.look.hue}`, d: `${path([...upper, ...lower])}Z` }, svg);
  }
  if (chance) shape("path", { class: "chance", d: path(chance[2].map((v, k) => [plot.x(chance[1][k]), plot.y(v)])) }, svg);
  series.forEach(([run, xs, ys], place) => {
    const points = ys.map((v, k) => [plot.x(xs[k]), plot.y(v)]);
    shape("path", { class: `line ${run.look.hue}`, d: path(points), "stroke-dasharray": run.look.dash }, svg);
    // About eight marks a line, of which those of different lines do not coincide.
    const every = Math.max(1, Math.ceil(points.length / 8));
    const start = points.length > 16 ? Math.floor((place * every) / series.length) : 0;
    points.forEach(([px, py], k) => {
      if (k % every === start) mark(svg, run, px, py, 3.6);
    });
  });
  explore(svg, readings(plot, all, { unit, height, said: options.said }), label);
  return plot.top + height + 46;
}

// What the lines say at every place that any of them has, or at some sixty of them.
function readings(plot, series, { unit, height, said }) {
  const positions = [...new Set(series.flatMap(([, xs]) => xs))].sort((a, b) => a - b);
  const step = Math.max(1, Math.ceil(positions.length / 60));
  const kept = positions.filter((_, k) => (positions.length - 1 - k) % step === 0);
  const write = (value) => (unit === "%" ? percent(value) : fixed(value, 3));
  return kept.map((position, k) => {
    const before = k ? (plot.x(kept[k - 1]) + plot.x(position)) / 2 : plot.x(position) - 3;
    const after = k + 1 < kept.length ? (plot.x(kept[k + 1]) + plot.x(position)) / 2 : plot.x(position) + 3;
    const lines = [said(position)];
    for (const [run, xs, ys, spreads] of series) {
      const at = xs.indexOf(position);
      if (at >= 0) lines.push(`${run.label}: ${write(ys[at])}${spreads && spreads.length ? ` ± ${write(spreads[at])}` : ""}`);
    }
    return { x: before, y: plot.top, width: Math.max(after - before, 1), height, lines: lines.slice(0, 16) };
  });
}
