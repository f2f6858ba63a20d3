// The reliability diagram, what its bins add up to, and the error against the number of bins.
const embedded = JSON.parse(byId("data").textContent);
const facts = embedded.predictions;
const state = { side: 0, stop: facts ? facts.stop : 0, klass: facts ? facts.sides[0].classes.order[0] : 0 };

function currentSide() {
  return facts.sides[state.side];
}

function currentBins() {
  return currentSide().bins[state.stop];
}

const SLIM = 4.5; // bars narrower than this have neither hatching, outline nor whisker

function spaceOf(plot, bins) {
  return Math.min(1.5, (plot.width / bins) * 0.12);
}

// One bar of accuracy, its gap to the confidence, and its whisker.
function drawBar(parent, plot, row, bins) {
  const space = spaceOf(plot, bins);
  const x = plot.x(row.index / bins) + space;
  const wide = plot.x((row.index + 1) / bins) - plot.x(row.index / bins) - 2 * space;
  const top = plot.y(row.accuracy);
  // Faint where few examples are known, as in figures: a single one is no finding.
  const opacity = row.count / (row.count + 3.84);
  shape("rect", {
    class: `accuracy${wide < SLIM ? " slim" : ""}`, x, y: top, width: wide, height: plot.top + plot.height - top, "data-bin": row.index, "data-count": row.count, opacity,
  }, parent);
  const gap = { x, width: wide, y: plot.y(Math.max(row.confidence, row.accuracy)), "data-bin": row.index, opacity };
  gap.height = Math.abs(plot.y(row.confidence) - top);
  shape("rect", { class: `gap ${row.gap > 0 ? "over" : "under"}${wide < SLIM ? " slim" : ""}`, ...gap }, parent);
  shape("line", { class: "confidence", x1: x, x2: x + wide, y1: plot.y(row.confidence), y2: plot.y(row.confidence) }, parent);
  // Lines would hide bars so narrow; the figures shade the interval there too.
  if (wide < SLIM) {
    shape("rect", { class: "interval", x, width: wide, y: plot.y(row.high), height: plot.y(row.low) - plot.y(row.high) }, parent);
    return { x, wide, top, gapTop: Math.min(top, gap.y) };
  }
  const middle = x + wide / 2;
  shape("line", { class: "whisker", x1: middle, x2: middle, y1: plot.y(row.low), y2: plot.y(row.high) }, parent);
  const cap = Math.min(4, wide / 3);
  for (const end of [row.low, row.high]) {
    shape("line", { class: "whisker", x1: middle - cap, x2: middle + cap, y1: plot.y(end), y2: plot.y(end) }, parent);
  }
  return { x, wide, top, gapTop: Math.min(top, gap.y) };
}

// Accuracy bars with their gap to the confidence, whiskers, the diagonal, and below it the share of examples.
function drawBins(svg, width, { rows, bins, xTitle, yTitle, said, label }) {
  const left = 46;
  const side = Math.min(width - left - 14, 430);
  const below = 64;
  const box = { left, top: 30, width: side, height: Math.min(side, 400), x: [0, 1], y: [0, 1] };
  const fifths = [0, 0.2, 0.4, 0.6, 0.8, 1];
  const plot = frame(svg, { ...box, yTicks: fifths, yText: (t) => percent(t, 0), yTitle });
  const largest = Math.max(...rows.map((row) => row.count));
  const total = rows.reduce((sum, row) => sum + row.count, 0);
  const shares = frame(svg, {
    left, width: side, top: box.top + box.height + 30, height: below, x: [0, 1], y: [0, largest / total],
    xTicks: shareTicks(width), xText: (t) => percent(t, 0), xTitle,
  });
  shape("text", { class: "note", x: left, y: shares.top - 7 }, svg, `share of ${facts.weighted ? "the weight" : "examples"}, at most ${percent(largest / total, 0)}`);
  const space = spaceOf(plot, bins);
  const items = [];
  const bars = shape("g", { class: "bars", "data-top": box.top, "data-height": box.height }, svg);
  for (const row of rows) {
    const { x, wide, top, gapTop } = drawBar(bars, plot, row, bins);
    const share = row.count / total;
    shape("rect", {
      class: "share", x, width: wide, y: shares.y(share), height: shares.top + shares.height - shares.y(share),
    }, bars);
    items.push({
      x: x - space, y: box.top, width: wide + 2 * space, height: shares.top + shares.height - box.top,
      anchor: Math.max(0, gapTop - box.top),
      lines: [
        `${percent(row.index / bins, 0)} to ${percent((row.index + 1) / bins, 0)}`,
        `${content(row.count)} (${percent(share, 1)})`,
        `${said[0]} ${percent(row.confidence, 1)}`,
        `${said[1]} ${percent(row.accuracy, 1)} (${fixed(100 * row.low, 1)} to ${fixed(100 * row.high, 1)})`,
        `${signed(row.gap)} points, ${row.gap > 0 ? said[2] : said[3]}`,
      ],
    });
  }
  shape("line", { class: "diagonal", x1: plot.x(0), y1: plot.y(0), x2: plot.x(1), y2: plot.y(1) }, svg);
  explore(svg, items, label);
  return shares.top + shares.height + 46;
}

function drawReliability(svg, width) {
  const words = facts.words;
  const view = currentBins();
  const bins = facts.stops[state.stop];
  return drawBins(svg, width, {
    rows: rowsOf(view.rows), bins, xTitle: words.x, yTitle: words.y, said: [words.x, words.y, words.over, words.under],
    label: `Reliability diagram with ${bins} bins.`,
  });
}

// What the current bins add up to, and the same as a table.
function tellBins() {
  const [before, after] = ["before", byId("switch") ? byId("switch").querySelector("[value='1'] + span").textContent.toLowerCase() : ""];
  for (const host of document.querySelectorAll(".says-shown")) host.textContent = after ? (state.side ? after : before) : "these predictions";
  for (const host of document.querySelectorAll(".says-other")) host.textContent = state.side ? before : after;
  const view = currentBins();
  const bins = facts.stops[state.stop];
  byId("bins-number").textContent = bins;
  byId("bins").setAttribute("aria-valuetext", `${bins} bins`);
  byId("bins-ece").textContent = percent(view.ece);
  byId("bins-mce").textContent = percent(view.mce);
  byId("bins-null").textContent = percent(view.null);
  byId("bins-over").textContent = `${fixed(100 * view.over, 2)} points`;
  byId("bins-over-share").textContent = `in bins that hold ${percent(view.overShare, 0)} of the ${facts.weighted ? "weight" : "examples"}`;
  byId("bins-under").textContent = `${fixed(100 * view.under, 2)} points`;
  byId("bins-under-share").textContent = `in bins that hold ${percent(view.underShare, 0)}`;
  const body = byId("bins-table");
  body.textContent = "";
  const rows = rowsOf(view.rows);
  const total = rows.reduce((sum, row) => sum + row.count, 0);
  for (const row of rows) {
    const line = element("tr", {}, body);
    element("th", { scope: "row" }, line, `${percent(row.index / bins, 1)} – ${percent((row.index + 1) / bins, 1)}`);
    element("td", {}, line, count(row.count));
    element("td", {}, line, percent(row.confidence, 1));
    element("td", {}, line, percent(row.accuracy, 1));
    element("td", {}, line, `${fixed(100 * row.low, 1)} – ${fixed(100 * row.high, 1)}`);
    element("td", {}, line, signed(row.gap));
    element("td", {}, line, percent((row.count / total) * Math.abs(row.gap)));
  }
}

function drawByBins(svg, width) {
  const left = 46;
  const stops = facts.stops;
  const sides = facts.sides;
  const most = Math.max(...sides.map((side) => Math.max(...side.bins.map((b) => Math.max(b.ece, b.p95)))));
  const top = niceCeil(100 * most, 4) / 100;
  const yTicks = niceTicks(0, top, 4);
  const plot = frame(svg, {
    left, top: 30, width: width - left - 14, height: 150, logX: true, x: [stops[0], stops[stops.length - 1]], y: [0, top],
    xTicks: [2, 5, 10, 20, 50, 100].filter((m) => m >= stops[0] && m <= stops[stops.length - 1]),
    yTicks, yText: percentTicks(yTicks), xTitle: "number of bins", yTitle: facts.words.error,
  });
  const side = currentSide();
  const line = (values, name) => shape("path", { class: name, d: path(values.map((v, k) => [plot.x(stops[k]), plot.y(v)])) }, svg);
  line(side.bins.map((b) => b.null), "line null");
  if (sides.length > 1) line(sides[1 - state.side].bins.map((b) => b.ece), "line other");
  line(side.bins.map((b) => b.ece), "line main");
  const here = [plot.x(stops[state.stop]), plot.y(side.bins[state.stop].ece)];
  shape("line", { class: "cursor", x1: here[0], x2: here[0], y1: plot.top, y2: plot.top + plot.height }, svg);
  shape("circle", { class: "dot", cx: here[0], cy: here[1], r: 5 }, svg);
  const items = stops.map((m, k) => {
    const before = k ? (plot.x(stops[k - 1]) + plot.x(m)) / 2 : plot.x(m) - 4;
    const after = k + 1 < stops.length ? (plot.x(stops[k + 1]) + plot.x(m)) / 2 : plot.x(m) + 4;
    const b = side.bins[k];
    return {
      x: before, y: plot.top, width: Math.max(after - before, 1), height: plot.height, anchor: plot.y(b.ece) - plot.top,
      lines: [`${m} bins`, `${facts.words.error} ${percent(b.ece)}`, `${facts.words.worst} ${percent(b.mce)}`, `${percent(b.null)} if calibrated`],
    };
  });
  explore(svg, items, "Calibration error against the number of bins.");
  return plot.top + plot.height + 44;
}
