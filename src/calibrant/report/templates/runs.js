// Runs side by side: error against calibration error, learning curves, gamma, and errors against the number of bins.
function drawCurves(svg, width) {
  const key = byId("curve-key").value;
  const has = shownRuns().filter((run) => run.curves[key]);
  const unit = key.endsWith("error") || key.endsWith("ece") ? "%" : "";
  const name = byId("curve-key").selectedOptions[0].textContent;
  return drawLines(svg, width, has.map((run) => [run, ...run.curves[key]]), {
    unit, xTitle: "epoch", yTitle: name, floor: 0, logY: byId("curve-log").checked, drops: has.length ? has[0].drops : [],
    said: (epoch) => `epoch ${epoch}`, label: `Learning curves: ${name}.`, height: 260,
  });
}

// The stepped line through the methods that no other one beats in both, from the least error on.
function drawFront(svg, plot, all) {
  const best = all.filter((run) => run.front).map((run) => run.mean).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  if (!best.length) return;
  const corners = best.flatMap(([error, ece], k) => (k ? [[error, best[k - 1][1]], [error, ece]] : [[error, ece]]));
  const first = [plot.x(best[0][0]), plot.top];
  const last = [plot.left + plot.width, plot.y(best[best.length - 1][1])];
  shape("path", { class: "front", d: path([first, ...corners.map(([e, c]) => [plot.x(e), plot.y(c)]), last]) }, svg);
}

// Names beside their points, where there is room for them: first the front's, then the others'.
function nameSpots(svg, plot, spots) {
  const taken = spots.map(({ x, y }) => [x - 8, y - 8, x + 8, y + 8]);
  const collides = (box) => taken.some(([a, b, c, d]) => box[0] < c && box[2] > a && box[1] < d && box[3] > b);
  const inside = (box) => box[0] >= plot.left && box[2] <= plot.left + plot.width && box[1] >= plot.top && box[3] <= plot.top + plot.height;
  for (const { x, y, run } of [...spots].sort((a, b) => b.run.front - a.run.front)) {
    const wide = [...run.label].length * 6.9;
    const places = [[12, -6], [-12 - wide, -6], [-wide / 2, -24], [-wide / 2, 11], [8, -21], [8, 8], [-8 - wide, -21], [-8 - wide, 8]];
    const boxes = places.map(([dx, dy]) => [x + dx, y + dy, x + dx + wide, y + dy + 14]);
    const free = boxes.find((box) => inside(box) && !collides(box));
    if (!free) continue;
    taken.push(free);
    shape("text", { class: "label halo", x: free[0], y: free[1] + 11 }, svg, run.label);
  }
}

function drawTradeOff(svg, width) {
  const all = shownRuns().filter((run) => run.points.length);
  if (!all.length) return nothing(svg, "No run shown here has both.");
  const left = 50;
  const height = 300;
  const rates = extent(all.flatMap((run) => run.points.map((p) => p[0])));
  // As in the figures: a method that failed leaves the others room.
  const logX = rates[0] > 0 && rates[1] > 2.5 * rates[0];
  const xs = logX ? [rates[0] / 1.15, rates[1] * 1.15] : widen(rates, 0);
  const errors = extent(all.flatMap((run) => run.points.map((p) => p[1])));
  // As in the figures, unless an error is zero.
  const logY = errors[0] > 0;
  const ys = logY ? [errors[0] / 1.25, errors[1] * 1.25] : widen(errors, 0);
  const xTicks = logX ? logTicks(xs) : niceTicks(xs[0], xs[1], width < 420 ? 4 : 6);
  const yTicks = logY ? logTicks(ys) : niceTicks(ys[0], ys[1], 5);
  const plot = frame(svg, {
    left, top: 30, width: width - left - 16, height, logX, logY, x: xs, y: ys, xGrid: true, xTicks, xText: percentTicks(xTicks),
    yTicks, yText: percentTicks(yTicks), xTitle: "error rate", yTitle: "ECE",
  });
  drawFront(svg, plot, all);
  for (const run of all) {
    if (run.points.length > 1) for (const [e, c] of run.points) mark(svg, run, plot.x(e), plot.y(c), 3, "faint");
  }
  const spots = all.map((run) => {
    const [error, ece] = run.mean;
    mark(svg, run, plot.x(error), plot.y(ece), 6.5);
    return { x: plot.x(error), y: plot.y(ece), run, error, ece };
  });
  nameSpots(svg, plot, spots);
  const items = spots.map(({ x, y, run, error, ece }) => ({
    x: x - 12, y: y - 12, width: 24, height: 24,
    lines: [
      run.label, `error ${percent(error)}`, `ECE ${percent(ece)}`, run.points.length > 1 ? `mean of ${run.points.length} seeds` : "one run",
      run.front ? "no method beats it in both" : "another method beats it",
    ],
  }));
  explore(svg, items, "Error rate against calibration error.");
  return plot.top + height + 46;
}

// What a calibrated model would show, as in the figures: for the one of least ECE among the runs shown that know it.
function chanceOf(shown, key) {
  const known = shown.filter((run) => run.sweep.chance);
  if (!known.length) return null;
  const least = known.reduce((best, run) => (run.sweep.chance.rank < best.sweep.chance.rank ? run : best));
  return [{ label: `${least.label} if calibrated` }, ...least.sweep.chance[key]];
}

function drawSweep(svg, width) {
  const key = byId("sweep-key").value;
  const has = shownRuns().filter((run) => run.sweep[key]);
  const chance = chanceOf(has, key);
  const note = byId("sweep-chance");
  if (note) {
    note.hidden = !chance;
    note.querySelector(".key span").textContent = chance ? chance[0].label : "";
  }
  // As in the figures: the ECE on a logarithmic axis, the MCE, which reaches 100 %, on an even one.
  return drawLines(svg, width, has.map((run) => [run, ...run.sweep[key]]), {
    unit: "%", xTitle: "number of bins", yTitle: key.toUpperCase(), logX: true, logY: key === "ece", floor: 0, height: 300, chance,
    said: (n) => `${n} bins`, label: `${key.toUpperCase()} against the number of bins.`,
  });
}

function drawGamma(svg, width) {
  const has = shownRuns().filter((run) => run.gamma.length);
  // As in the figures: both are seen where one method's gamma grows twenty times as large as another's.
  const peaks = extent(has.map((run) => Math.max(...run.gamma[1])).filter((peak) => peak > 0));
  const logY = peaks[1] > 20 * peaks[0];
  return drawLines(svg, width, has.map((run) => [run, ...run.gamma]), {
    unit: "", xTitle: "epoch", yTitle: "gamma", logY, least: peaks[0] / 30, said: (epoch) => `epoch ${epoch}`, label: "Gamma over epochs.",
  });
}

const runCharts = [];

function tellGrid() {
  const slider = byId("grid-bins");
  if (!slider) return;
  const bins = embedded.gridStops[Number(slider.value)];
  byId("grid-bins-number").textContent = bins;
  slider.setAttribute("aria-valuetext", `${bins} bins`);
}

function setUpRuns() {
  if (!runs.length) return;
  legend();
  const slider = byId("grid-bins");
  if (slider) {
    slider.max = embedded.gridStops.length - 1;
    slider.value = embedded.gridStops.indexOf(15);
  }
  tellGrid();
  const redraws = {};
  for (const [id, draw] of [
    ["trade-off", drawTradeOff], ["sweep", drawSweep], ["grid", drawGrid], ["curves", drawCurves], ["gamma", drawGamma],
    ["gamma-confidence", drawGammaByConfidence],
  ]) {
    redraws[id] = chart(id, draw);
    runCharts.push(redraws[id]);
  }
  slider?.addEventListener("input", () => {
    tellGrid();
    redraws.grid();
  });
  for (const [id, name] of [["curve-key", "curves"], ["curve-log", "curves"], ["sweep-key", "sweep"]]) byId(id)?.addEventListener("change", redraws[name]);
  byId("place")?.addEventListener("change", () => {
    hiddenRuns.clear();
    legend();
    runCharts.forEach((redraw) => redraw());
  });
}
