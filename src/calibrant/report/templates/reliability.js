// The reliability diagram, what its bins add up to, and the error against the number of bins.
const embedded = JSON.parse(byId("data").textContent);
const facts = embedded.predictions;
const state = { side: 0, stop: embedded.stop, klass: facts?.sides[0].classes[0].index };
const SLIM = 4.5; // bars narrower than this have neither hatching, outline nor whisker

function currentSide() {
  return facts.sides[state.side];
}

// Accuracy bars with their gap to the confidence, whiskers, the diagonal, and below it the share of examples.
function drawDiagram(svg, width, { flat, bins, words, label }) {
  const rows = rowsOf(flat);
  const side = Math.min(width - LEFT - 14, 400);
  const total = sumOf(rows, (row) => row.count);
  const largest = Math.max(...rows.map((row) => row.count)) / total;
  const ticks = shareTicks(width);
  const across = { left: LEFT, width: side, x: [0, 1] };
  const plot = frame(svg, { ...across, top: 30, height: side, y: [0, 1], yTicks: ticks, yText: wholePercent, yTitle: words.y });
  const shares = frame(svg, {
    ...across, top: plot.bottom + 30, height: width < 300 ? 30 : 64, y: [0, largest], xTicks: ticks, xText: wholePercent, xTitle: words.x,
  });
  const what = facts?.weighted ? "share of the weight" : "share of examples";
  add(svg, "text", { class: "note", x: LEFT, y: shares.top - 7 }, `${what}, at most ${wholePercent(largest)}`);
  const space = Math.min(1.5, (side / bins) * 0.12);
  const wide = side / bins - 2 * space;
  const slim = wide < SLIM ? " slim" : "";
  const group = add(svg, "g", { class: "bars", "data-height": side });
  const items = rows.map((row) => {
    const x = plot.x(row.index / bins) + space;
    const bar = (name, top, bottom, more) =>
      add(group, "rect", { class: name + slim, x, width: wide, y: top, height: bottom - top, "data-bin": row.index, ...more });
    const whisker = (x1, x2, from, to) => add(group, "line", { class: "whisker", x1, x2, y1: plot.y(from), y2: plot.y(to) });
    const [sure, right] = [plot.y(row.confidence), plot.y(row.accuracy)];
    // Faint where few examples are known, as in figures: a single one is no finding.
    const opacity = row.count / (row.count + 3.84);
    bar("accuracy", right, plot.bottom, { opacity });
    bar(row.gap > 0 ? "gap over" : "gap under", Math.min(sure, right), Math.max(sure, right), { opacity });
    bar("share", shares.y(row.count / total), shares.bottom);
    add(group, "line", { class: "confidence", x1: x, x2: x + wide, y1: sure, y2: sure });
    // Lines would hide bars so narrow; the figures shade the interval there too.
    if (slim) bar("interval", plot.y(row.high), plot.y(row.low));
    else if (row.low < row.high) {
      const [middle, cap] = [x + wide / 2, Math.min(4, wide / 3)];
      whisker(middle, middle, row.low, row.high);
      for (const end of [row.low, row.high]) whisker(middle - cap, middle + cap, end, end);
    }
    return {
      x: x - space, y: plot.top, width: wide + 2 * space, height: shares.bottom - plot.top, anchor: Math.min(sure, right) - plot.top,
      lines: [
        `${wholePercent(row.index / bins)} to ${wholePercent((row.index + 1) / bins)}`,
        `${content(row.count)} (${percent(row.count / total, 1)})`,
        `${words.x} ${percent(row.confidence, 1)}`,
        `${words.y} ${percent(row.accuracy, 1)} (${fixed(100 * row.low, 1)} to ${fixed(100 * row.high, 1)})`,
        `${signed(row.gap)} points, ${row.gap > 0 ? words.over : words.under}`,
      ],
    };
  });
  add(svg, "line", { class: "diagonal", x1: plot.x(0), y1: plot.y(0), x2: plot.x(1), y2: plot.y(1) });
  explore(svg, items, label);
  return shares.bottom + 46;
}

function drawReliability(svg, width) {
  const [bins, flat] = [embedded.stops[state.stop], currentSide().bins[state.stop].rows];
  return drawDiagram(svg, width, { flat, bins, words: embedded.words, label: `Reliability diagram with ${bins} bins.` });
}

function tell(name, text) {
  for (const host of document.querySelectorAll(name)) host.textContent = text;
}

// What the current bins add up to, and the same as a table.
function tellBins() {
  const names = facts.sides.length > 1 ? ["before", "after"] : ["these predictions"];
  tell(".says-shown", names[state.side]);
  tell(".says-other", names[1 - state.side] ?? "");
  const view = currentSide().bins[state.stop];
  const bins = embedded.stops[state.stop];
  const rows = rowsOf(view.rows);
  const total = sumOf(rows, (row) => row.count);
  tell("#bins-ece", percent(view.ece));
  tell("#bins-mce", percent(view.mce));
  tell("#bins-null", percent(view.null));
  for (const [name, sign] of [["over", 1], ["under", -1]]) {
    const held = rows.filter((row) => row.gap * sign > 0);
    tell(`#bins-${name}`, `${fixed((100 * sumOf(held, (row) => row.count * Math.abs(row.gap))) / total, 1)} points`);
    const share = wholePercent(sumOf(held, (row) => row.count) / total);
    tell(`#bins-${name}-share`, `in bins that hold ${share} of the ${facts.weighted ? "weight" : "examples"}`);
  }
  tell("#bins-table", "");
  for (const row of rows) {
    const line = add(byId("bins-table"), "tr");
    add(line, "th", { scope: "row" }, `${percent(row.index / bins, 1)} – ${percent((row.index + 1) / bins, 1)}`);
    for (const text of [
      count(row.count), percent(row.confidence, 1), percent(row.accuracy, 1), `${fixed(100 * row.low, 1)} – ${fixed(100 * row.high, 1)}`,
      signed(row.gap), percent((row.count / total) * Math.abs(row.gap)),
    ]) add(line, "td", {}, text);
  }
}

function drawByBins(svg, width) {
  const { stops } = embedded;
  const most = Math.max(...facts.sides.flatMap((side) => side.bins.flatMap((bins) => [bins.ece, bins.p95])));
  const top = niceCeil(100 * most, 4) / 100;
  const yTicks = niceTicks(0, top, 4);
  const plot = frame(svg, {
    left: LEFT, top: 30, width: width - LEFT - 14, height: 150, logX: true, x: [stops[0], stops[stops.length - 1]], y: [0, top],
    xTicks: [2, 5, 10, 20, 50, 100], yTicks, yText: percentTicks(yTicks), xTitle: "number of bins", yTitle: embedded.words.error,
  });
  const line = (side, key, name) => drawPath(svg, side.bins.map((bins, k) => [plot.x(stops[k]), plot.y(bins[key])]), name);
  const shown = currentSide();
  line(shown, "null", "null");
  for (const side of facts.sides) line(side, "ece", side === shown ? "main" : "other");
  const here = [plot.x(stops[state.stop]), plot.y(shown.bins[state.stop].ece)];
  add(svg, "line", { class: "cursor", x1: here[0], x2: here[0], y1: plot.top, y2: plot.bottom });
  add(svg, "circle", { class: "dot", cx: here[0], cy: here[1], r: 5 });
  const items = shown.bins.map((bins, k) => {
    const [before, at, after] = [k - 1, k, k + 1].map((place) => plot.x(stops[Math.max(0, Math.min(place, stops.length - 1))]));
    return {
      x: (before + at) / 2, y: plot.top, width: Math.max((after - before) / 2, 1), height: plot.height, anchor: plot.y(bins.ece) - plot.top,
      lines: [`${stops[k]} bins`, `${embedded.words.error} ${percent(bins.ece)}`, `${embedded.words.worst} ${percent(bins.mce)}`, `${percent(bins.null)} if calibrated`],
    };
  });
  explore(svg, items, "Calibration error against the number of bins.");
  return plot.bottom + 44;
}
