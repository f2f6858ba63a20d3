// How confident the model is when right and when wrong, where it is too sure, what rejecting costs, and all calibrators.
const HISTOGRAM_BINS = 20;

function drawHistogram(svg, width) {
  const side = currentSide();
  const rows = rowsOf(side.bins[embedded.stops.indexOf(HISTOGRAM_BINS)].rows);
  const kinds = {
    right: { held: rows.map((row) => row.count * row.accuracy), sign: 1, mean: side.sureRight },
    wrong: { held: rows.map((row) => row.count * (1 - row.accuracy)), sign: -1, mean: side.sureWrong },
  };
  for (const kind of Object.values(kinds)) {
    const total = sumOf(kind.held, (value) => value) || 1;
    kind.shares = kind.held.map((value) => value / total);
  }
  // Beyond the longest bars there is room for what is written there.
  const most = Object.values(kinds).map((kind) => Math.max(...kind.shares));
  const [top, bottom] = most.map((share) => share + 0.1 * (most[0] + most[1]));
  const ticks = niceTicks(-bottom, top, 6);
  const plot = frame(svg, {
    left: LEFT, top: 30, width: width - LEFT - 14, height: 270, x: [0, 1], y: [-bottom, top], yTicks: ticks,
    yText: (t) => wholePercent(Math.abs(t)), xTicks: shareTicks(width), xText: wholePercent, xTitle: embedded.words.x, yTitle: "share of its group",
  });
  const wide = plot.width / HISTOGRAM_BINS;
  const items = rows.map((row) => ({
    x: plot.x(row.index / HISTOGRAM_BINS), y: plot.top, width: wide, height: plot.height,
    lines: [`${embedded.words.x} ${wholePercent(row.index / HISTOGRAM_BINS)} to ${wholePercent((row.index + 1) / HISTOGRAM_BINS)}`],
  }));
  for (const [name, { held, shares, sign, mean }] of Object.entries(kinds)) {
    shares.forEach((share, k) => {
      const ends = [plot.y(0), plot.y(sign * share)].sort((a, b) => a - b);
      add(svg, "rect", { class: name, x: items[k].x + 1, width: wide - 2, y: ends[0], height: ends[1] - ends[0] });
      items[k].lines.push(`${facts.weighted ? "weight " : ""}${count(Math.round(held[k]))} ${embedded.words[name]} (${percent(share, 1)} of them)`);
    });
    if (mean === null) continue;
    const x = plot.x(mean);
    const before = x - plot.left > 150;
    const end = sign > 0 ? plot.top : plot.bottom;
    const spot = { x: before ? x - 6 : x + 6, y: end + (sign > 0 ? 8 : -6), "text-anchor": before ? "end" : "start" };
    add(svg, "line", { class: "mean", x1: x, x2: x, y1: plot.y(0), y2: end });
    add(svg, "text", { class: "note strong halo", ...spot }, `${percent(mean, 1)} ${embedded.words[`mean_${name}`]}`);
  }
  add(svg, "line", { class: "zero", x1: plot.left, x2: plot.right, y1: plot.y(0), y2: plot.y(0) });
  explore(svg, items, `${embedded.words.spread}.`);
  return plot.bottom + 46;
}

function drawRegions(svg, width) {
  const rows = rowsOf(currentSide().regions);
  const total = sumOf(rows, (row) => row.count);
  // Regions below the first and above the last that hold an example are left out.
  const held = facts.sides.flatMap((side) => rowsOf(side.regions).map((row) => row.index));
  const first = Math.min(...held);
  const edges = facts.regions.slice(first, Math.max(...held) + 2);
  // A handful of examples must not flatten the other regions: what is longer than the axis is cut, and its gap written there.
  const told = facts.sides.flatMap((side) => rowsOf(side.regions).filter((row) => row.count >= 0.01 * total));
  const most = Math.min(1, niceCeil(100 * Math.max(0.02, ...told.map((row) => 1.3 * Math.abs(row.gap))), 2) / 100);
  const left = 92;
  const high = 38;
  const plot = frame(svg, {
    left, top: 34, width: width - left - 52, height: high * (edges.length - 1), x: [-most, most], y: [0, 1], xGrid: true,
    xTicks: niceTicks(-most, most, width < 420 ? 4 : 6), xText: (t) => signed(t, most < 0.04 ? 1 : 0), xTitle: embedded.words.difference,
  });
  add(svg, "text", { class: "note strong", x: plot.x(0) - 10, y: 20, "text-anchor": "end" }, `◂ ${embedded.words.less}`);
  add(svg, "text", { class: "note strong", x: plot.x(0) + 10, y: 20 }, `${embedded.words.more} ▸`);
  add(svg, "text", { class: "note", x: width - 4, y: 20, "text-anchor": "end" }, "share");
  const names = edges.slice(1).map((edge, k) => `${wholePercent(edges[k])} – ${wholePercent(edge)}`);
  const middle = (k) => ({ y: plot.top + (k + 0.5) * high, dy: "0.32em", "text-anchor": "end" });
  names.forEach((name, k) => add(svg, "text", { class: "label", x: left - 10, ...middle(k) }, name));
  const items = rows.map((row) => {
    const place = row.index - first;
    const [y, share] = [plot.top + place * high, row.count / total];
    add(svg, "text", { class: "note", x: width - 4, ...middle(place) }, share < 0.0005 ? "< 0.1%" : percent(share, share < 0.1 ? 1 : 0));
    const cut = Math.max(-most, Math.min(most, row.gap));
    const ends = [plot.x(0), plot.x(cut)].sort((a, b) => a - b);
    const over = row.gap > 0;
    add(svg, "rect", { class: `gap ${over ? "over" : "under"}`, x: ends[0], width: ends[1] - ends[0], y: y + 9, height: high - 18 });
    const inside = (value) => Math.max(plot.left, Math.min(plot.right, plot.x(row.confidence - value)));
    if (cut !== row.gap) add(svg, "text", { class: "note strong halo", x: plot.x(0.97 * cut), ...middle(place), "text-anchor": over ? "end" : "start" }, signed(row.gap));
    else add(svg, "line", { class: "whisker", x1: inside(row.high), x2: inside(row.low), y1: y + high / 2, y2: y + high / 2 });
    return {
      x: plot.left, width: plot.width, y, height: high,
      lines: [
        `${embedded.words.x} ${names[place]}`, `${content(row.count)} (${percent(share, 1)})`,
        `${embedded.words.x} ${percent(row.confidence, 1)}, ${embedded.words.y} ${percent(row.accuracy, 1)}`,
        `${signed(row.gap)} points, ${over ? embedded.words.over : embedded.words.under}`,
      ],
    };
  });
  add(svg, "line", { class: "zero", x1: plot.x(0), x2: plot.x(0), y1: plot.top, y2: plot.bottom });
  explore(svg, items, `${embedded.words.regions}.`);
  return plot.bottom + 44;
}

function pairsOf(flat) {
  return flat.flatMap((value, k) => (k % 2 ? [] : [[value / UNIT, flat[k + 1] / UNIT]]));
}

function drawRisk(svg, width) {
  const side = currentSide();
  const pairs = pairsOf(side.risk);
  const ideal = (c) => Math.max(0, 1 - (1 - side.error) / c);
  const others = facts.sides.flatMap((each) => pairsOf(each.risk).filter(([c]) => c > 0.04));
  const most = niceCeil(100 * Math.max(side.error, ...others.map(([, r]) => r), 0.005), 4) / 100;
  const yTicks = niceTicks(0, most, 4);
  const plot = frame(svg, {
    left: LEFT, top: 30, width: width - LEFT - 16, height: 240, x: [0, 1], y: [0, most], yTicks, yText: percentTicks(yTicks),
    xTicks: shareTicks(width), xText: wholePercent, xTitle: "answered: the most confident share", yTitle: "error among them",
  });
  const clip = ([c, r]) => [plot.x(c), plot.y(Math.min(r, most))];
  drawPath(svg, pairs.map(([c]) => clip([c, ideal(c)])), "null");
  for (const each of facts.sides) drawPath(svg, pairsOf(each.risk).map(clip), each === side ? "main" : "other");
  const step = Math.max(1, Math.round(pairs.length / 50));
  const kept = pairs.filter((_, k) => (k + 1) % step === 0 || k + 1 === pairs.length);
  const wide = plot.width / kept.length;
  const items = kept.map(([c, r]) => ({
    x: plot.x(c) - wide / 2, y: plot.top, width: wide, height: plot.height, anchor: clip([c, r])[1] - plot.top,
    lines: [`answer the ${wholePercent(c)} most confident`, `${percent(r)} of them wrong`, `${percent(ideal(c))} if all errors came last`],
  }));
  explore(svg, items, "Risk-coverage curve.");
  tell("#risk-area", percent(side.aurc));
  tell("#risk-text", "");
  // A few examples have not all of these shares, and none is told twice.
  for (const [c, r] of new Set([1, 0.9, 0.8, 0.5].map((c) => pairs.reduce((a, b) => (Math.abs(b[0] - c) < Math.abs(a[0] - c) ? b : a))))) {
    const line = add(byId("risk-text"), "tr");
    add(line, "th", { scope: "row" }, wholePercent(c));
    add(line, "td", {}, percent(r));
  }
  return plot.bottom + 46;
}

function drawCalibrators(svg, width) {
  const key = byId("calibrator-metric").value;
  const isEce = key === "ece";
  const all = facts.calibrators.filter((entry) => entry[key][0] !== null);
  const left = Math.min(170, Math.max(width * 0.36, 148));
  const high = 27;
  const values = all.flatMap((entry) => entry[key].filter((value) => value !== null)).sort((a, b) => a - b);
  const low = isEce ? 0 : values[0];
  const idle = all.find((entry) => entry.idle);
  // One method that fails badly must not flatten the others.
  const most = Math.min(values[values.length - 1], Math.max(idle ? idle[key][2] : 0, values[Math.floor(values.length / 2)] * 2.5));
  const ticks = niceTicks(low, most, width < 420 ? 3 : 5);
  const plot = frame(svg, {
    left, top: 8, width: width - left - 24, height: high * all.length, x: [low, most + (most - low) * 0.04], y: [0, 1], xGrid: true,
    xTicks: ticks, xText: isEce ? percentTicks(ticks) : (value) => `${+value.toPrecision(4)}`,
    xTitle: `${isEce ? embedded.words.error : "negative log-likelihood"} on the test data`,
  });
  const clip = (value) => (value === null ? plot.right + 8 : Math.min(plot.x(value), plot.right + 8));
  if (idle) add(svg, "line", { class: "cursor", x1: clip(idle[key][0]), x2: clip(idle[key][0]), y1: plot.top, y2: plot.bottom });
  const write = (value) => (value === null ? "infinite" : isEce ? percent(value) : fixed(value, 4));
  const items = all.map((entry, k) => {
    const y = plot.top + (k + 0.5) * high;
    const [value, from, to] = entry[key];
    const kind = entry.chosen ? "chosen" : entry.idle ? "idle" : "";
    const label = { class: entry.chosen ? "label strong" : "label", x: left - 10, y, dy: "0.32em", "text-anchor": "end" };
    add(svg, "text", label, entry.chosen ? `${entry.name} ✓` : entry.name);
    add(svg, "line", { class: `range ${kind}`, x1: clip(from), x2: clip(to), y1: y, y2: y });
    add(svg, "circle", { class: `dot ${kind}`, cx: clip(value), cy: y, r: 5 });
    return {
      x: 0, width, y: y - high / 2, height: high,
      lines: [entry.name, `${isEce ? embedded.words.error : "NLL"} ${write(value)}`, `95% interval ${write(from)} to ${write(to)}`],
    };
  });
  explore(svg, items, "Calibrators on the test data.");
  return plot.bottom + 44;
}
