// How confident the model is when right and when wrong, where it is too sure, what rejecting costs, and all calibrators.
const HISTOGRAM_BINS = 20;
const ROOM = 20;

function drawHistogram(svg, width) {
  const side = currentSide();
  const rows = rowsOf(side.bins[facts.stops.indexOf(HISTOGRAM_BINS)].rows);
  const right = rows.map((row) => row.count * row.accuracy);
  const wrong = rows.map((row) => row.count * (1 - row.accuracy));
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const share = (values) => values.map((value) => value / (sum(values) || 1));
  const up = share(right);
  const down = share(wrong);
  const top = niceCeil(Math.max(...up), 3);
  const height = 270;
  // Below the longest bar there is room for what is written there.
  const longest = Math.max(...down);
  const room = (ROOM * (top + longest)) / (height - ROOM);
  const bottom = sum(wrong) > 0 ? Math.max(niceCeil(longest, 3), longest + room) : 0.1;
  const left = 46;
  const upper = niceTicks(0, top, top > 2 * bottom ? 4 : 3);
  const ticks = [...upper, ...upper.slice(1).filter((t) => t <= bottom + 1e-9).map((t) => -t)];
  const plot = frame(svg, {
    left, top: 30, width: width - left - 14, height, x: [0, 1], y: [-bottom, top], yTicks: ticks,
    yText: (t) => percent(Math.abs(t), 0), xTicks: shareTicks(width), xText: (t) => percent(t, 0),
    xTitle: "confidence", yTitle: "share of its group",
  });
  const amount = (value) => `${facts.weighted ? "weight " : ""}${count(Math.round(value))}`;
  const wide = plot.width / HISTOGRAM_BINS - 2;
  const items = [];
  rows.forEach((row, k) => {
    const x = plot.x(row.index / HISTOGRAM_BINS) + 1;
    shape("rect", { class: "right", x, width: wide, y: plot.y(up[k]), height: plot.y(0) - plot.y(up[k]) }, svg);
    shape("rect", { class: "wrong", x, width: wide, y: plot.y(0), height: plot.y(-down[k]) - plot.y(0) }, svg);
    items.push({
      x: x - 1, y: plot.top, width: wide + 2, height, anchor: plot.y(up[k]) - plot.top,
      lines: [
        `${percent(row.index / HISTOGRAM_BINS, 0)} to ${percent((row.index + 1) / HISTOGRAM_BINS, 0)} sure`,
        `${amount(right[k])} right (${percent(up[k], 1)} of the right)`,
        `${amount(wrong[k])} wrong (${percent(down[k], 1)} of the wrong)`,
      ],
    });
  });
  shape("line", { class: "zero", x1: plot.left, x2: plot.left + plot.width, y1: plot.y(0), y2: plot.y(0) }, svg);
  for (const [value, name, level, place] of [
    [side.sureRight, "when right", plot.top + 4, "start"], [side.sureWrong, "when wrong", plot.top + height - 8, "end"],
  ]) {
    if (value === null) continue;
    const x = plot.x(value);
    const ends = place === "start" ? [plot.top, plot.y(0)] : [plot.y(0), plot.top + height];
    shape("line", { class: "mean", x1: x, x2: x, y1: ends[0], y2: ends[1] }, svg);
    const before = x - plot.left > 150;
    const spot = { x: before ? x - 6 : x + 6, y: level + 4, "text-anchor": before ? "end" : "start" };
    shape("text", { class: "note strong halo", ...spot }, svg, `${percent(value, 1)} sure ${name}`);
  }
  explore(svg, items, "Confidence when right and when wrong.");
  return plot.top + height + 46;
}

function drawRegions(svg, width) {
  const rows = rowsOf(currentSide().regions);
  const total = rows.reduce((sum, row) => sum + row.count, 0);
  const edges = facts.regions;
  const everywhere = facts.sides.flatMap((side) => rowsOf(side.regions));
  const reach = (row) => Math.max(Math.abs(row.gap), Math.min(Math.abs(row.confidence - row.low), Math.abs(row.gap) * 2.2));
  const most = niceCeil(Math.max(0.02, ...everywhere.map(reach)) * 100, 2) / 100;
  const left = 92;
  const row = 38;
  const height = row * (edges.length - 1);
  const plot = frame(svg, {
    left, top: 34, width: width - left - 52, height, x: [-most, most], y: [0, 1], xGrid: true,
    xTicks: niceTicks(-most, most, width < 420 ? 4 : 6), xText: (t) => (t ? signed(t, most < 0.04 ? 1 : 0) : "0"), xTitle: "confidence − accuracy, in points",
  });
  shape("text", { class: "note strong", x: plot.x(0) - 10, y: 20, "text-anchor": "end" }, svg, "◂ not sure enough");
  shape("text", { class: "note strong", x: plot.x(0) + 10, y: 20 }, svg, "too sure ▸");
  const items = [];
  edges.slice(0, -1).forEach((low, k) => {
    const y = plot.top + k * row;
    const name = `${percent(low, 0)} – ${percent(edges[k + 1], 0)}`;
    shape("text", { class: "label", x: left - 10, y: y + row / 2, dy: "0.32em", "text-anchor": "end" }, svg, name);
    const found = rows.find((entry) => entry.index === k);
    const share = found ? found.count / total : 0;
    const text = found ? percent(share, share < 0.1 ? 1 : 0) : "none";
    shape("text", { class: "note", x: width - 4, y: y + row / 2, dy: "0.32em", "text-anchor": "end" }, svg, text);
    if (!found) return;
    const over = found.gap > 0;
    const ends = [plot.x(0), plot.x(found.gap)].sort((a, b) => a - b);
    shape("rect", { class: `gap ${over ? "over" : "under"}`, x: ends[0], width: ends[1] - ends[0], y: y + 9, height: row - 18 }, svg);
    const inside = (value) => Math.max(plot.left, Math.min(plot.left + plot.width, plot.x(found.confidence - value)));
    shape("line", { class: "whisker", x1: inside(found.high), x2: inside(found.low), y1: y + row / 2, y2: y + row / 2 }, svg);
    items.push({
      x: plot.left, width: plot.width, y, height: row,
      lines: [
        `${name} sure`, `${content(found.count)} (${percent(share, 1)})`,
        `${percent(found.confidence, 1)} sure, ${percent(found.accuracy, 1)} right`,
        `${signed(found.gap)} points, ${over ? "over-confident" : "under-confident"}`,
      ],
    });
  });
  shape("text", { class: "note", x: width - 4, y: 20, "text-anchor": "end" }, svg, "share");
  shape("line", { class: "zero", x1: plot.x(0), x2: plot.x(0), y1: plot.top, y2: plot.top + height }, svg);
  explore(svg, items, "Over- and under-confidence by region of confidence.");
  return plot.top + height + 44;
}

function pairsOf(flat) {
  const pairs = [];
  for (let k = 0; k < flat.length; k += 2) pairs.push([flat[k] / UNIT, flat[k + 1] / UNIT]);
  return pairs;
}

function drawRisk(svg, width) {
  const side = currentSide();
  const pairs = pairsOf(side.risk);
  const error = side.error;
  const others = facts.sides.map((each) => pairsOf(each.risk).filter(([c]) => c > 0.04));
  const most = niceCeil(100 * Math.max(error, ...others.flat().map(([, r]) => r), 0.005), 4) / 100;
  const left = 46;
  const plot = frame(svg, {
    left, top: 30, width: width - left - 16, height: 240, x: [0, 1], y: [0, most], yTicks: niceTicks(0, most, 4),
    yText: percentTicks(niceTicks(0, most, 4)), xTicks: shareTicks(width), xText: (t) => percent(t, 0),
    xTitle: "answered: the most confident share", yTitle: "error among them",
  });
  const clip = ([c, r]) => [plot.x(c), plot.y(Math.min(r, most))];
  const ideal = pairs.map(([c]) => [c, Math.max(0, 1 - (1 - error) / c)]);
  shape("path", { class: "line null", d: path(ideal.map(clip)) }, svg);
  if (facts.sides.length > 1) shape("path", { class: "line other", d: path(pairsOf(facts.sides[1 - state.side].risk).map(clip)) }, svg);
  shape("path", { class: "line main", d: path(pairs.map(clip)) }, svg);
  const step = Math.max(1, Math.round(pairs.length / 50));
  const kept = pairs.filter((_, k) => (k + 1) % step === 0 || k + 1 === pairs.length);
  const wide = plot.width / kept.length;
  const items = kept.map(([c, r]) => ({
    x: plot.x(c) - wide / 2, y: plot.top, width: wide, height: plot.height, anchor: plot.y(Math.min(r, most)) - plot.top,
    lines: [`answer the ${percent(c, 0)} most confident`, `${percent(r)} of them wrong`, `${percent(Math.max(0, 1 - (1 - error) / c))} if all errors came last`],
  }));
  explore(svg, items, "Risk-coverage curve.");
  byId("risk-text").textContent = "";
  // A few examples have not all of these shares, and none is told twice.
  const told = new Set([1, 0.9, 0.8, 0.5].map((c) => pairs.reduce((a, b) => (Math.abs(b[0] - c) < Math.abs(a[0] - c) ? b : a))));
  for (const [c, r] of told) {
    const line = element("tr", {}, byId("risk-text"));
    element("th", { scope: "row" }, line, percent(c, 0));
    element("td", {}, line, percent(r));
  }
  byId("risk-area").textContent = percent(side.aurc);
  return plot.top + plot.height + 46;
}

function drawCalibrators(svg, width) {
  const key = byId("calibrator-metric").value;
  const all = facts.calibrators;
  const left = Math.min(170, Math.max(width * 0.36, 148));
  const row = 27;
  const height = row * all.length;
  const idle = all.find((entry) => entry.idle);
  const values = all.flatMap((entry) => entry[key].filter((value) => value !== null));
  const low = key === "ece" ? 0 : Math.min(...values);
  const sorted = [...values].sort((a, b) => a - b);
  // One method that fails badly must not flatten the others.
  const most = Math.min(sorted[sorted.length - 1], Math.max(idle ? idle[key][2] : 0, sorted[Math.floor(sorted.length / 2)] * 2.5));
  const ticks = niceTicks(low, most, width < 420 ? 3 : 5);
  const text = key === "ece" ? percentTicks(ticks) : (value) => `${+value.toPrecision(4)}`;
  const plot = frame(svg, {
    left, top: 8, width: width - left - 24, height, x: [low, most + (most - low) * 0.04], y: [0, 1], xGrid: true,
    xTicks: ticks, xText: text, xTitle: key === "ece" ? "ECE on the test data" : "negative log-likelihood on the test data",
  });
  if (idle) {
    shape("line", { class: "cursor", x1: plot.x(idle[key][0]), x2: plot.x(idle[key][0]), y1: plot.top, y2: plot.top + height }, svg);
  }
  const clip = (value) => Math.min(plot.x(value), plot.left + plot.width + 8);
  const items = all.map((entry, k) => {
    const y = plot.top + (k + 0.5) * row;
    const name = entry.chosen ? `${entry.name} ✓` : entry.name;
    shape("text", { class: entry.chosen ? "label strong" : "label", x: left - 10, y, dy: "0.32em", "text-anchor": "end" }, svg, name);
    const [value, from, to] = entry[key];
    if (value !== null) {
      const kind = entry.chosen ? "chosen" : entry.idle ? "idle" : "";
      shape("line", { class: `range ${kind}`, x1: clip(from), x2: clip(to), y1: y, y2: y }, svg);
      if (plot.x(value) > plot.left + plot.width + 8) {
        shape("text", { class: "note", x: plot.left + plot.width + 12, y, dy: "0.32em" }, svg, "▸");
      } else shape("circle", { class: `dot ${kind}`, cx: plot.x(value), cy: y, r: 5 }, svg);
    }
    const write = (v) => (v === null ? "infinite" : key === "ece" ? percent(v) : fixed(v, 4));
    return {
      x: 0, width, y: y - row / 2, height: row,
      lines: [entry.name, `${key === "ece" ? "ECE" : "NLL"} ${write(value)}`, `95% interval ${write(from)} to ${write(to)}`],
    };
  });
  explore(svg, items, "Calibrators on the test data.");
  return plot.top + height + 44;
}
