// Small charts side by side, one a method: reliability diagrams, and gamma against confidence.
const GAP = 14;

// Where each of so many panels lies, all of the same size, as many beside one another as there is room for.
function layPanels(total, width, { least, above, below, left, ratio }) {
  const fitting = Math.max(1, Math.floor((width + GAP) / (least + GAP)));
  const rows = Math.ceil(total / fitting);
  // Five are better as three and two than as four and one.
  const columns = Math.ceil(total / rows);
  const wide = Math.min((width - GAP * (columns - 1)) / columns, least * 1.7);
  const inner = wide - left - 12; // the last number of an axis stands out by so much
  const deep = Math.round(inner * ratio);
  const step = above + deep + below;
  const place = (k) => ({
    left: (k % columns) * (wide + GAP) + left, top: Math.floor(k / columns) * step + above, width: inner, height: deep,
  });
  // What the panels of a row are drawn into: on paper a row is not divided.
  const rowOf = (svg, k) => {
    const at = Math.floor(k / columns);
    return svg.querySelectorAll("g.row")[at] || shape("g", { class: "row", "data-top": at * step, "data-height": step }, svg);
  };
  return { place, rowOf, height: rows * step };
}

// As much of a text as fits; the whole is in the tip.
function fit(text, room) {
  const most = Math.max(3, Math.floor(room / 6.7));
  return [...text].length > most ? `${[...text].slice(0, most - 1).join("")}…` : text;
}

function drawGrid(svg, width) {
  const at = Number(byId("grid-bins").value);
  const bins = embedded.gridStops[at];
  // Records hold the bins of one number only.
  const known = shownRuns().filter((run) => run.diagram.stops);
  const shown = known.filter((run) => run.diagram.stops[at]);
  if (!known.length) return nothing(svg, "No run shown here has its predictions.");
  if (!shown.length) {
    const kept = embedded.gridStops.filter((_, k) => known.some((run) => run.diagram.stops[k]));
    return nothing(svg, `Without predictions these runs are known over ${kept.join(" and ")} bins only.`);
  }
  const strip = 30;
  const narrow = width < 420;
  const sizes = { least: narrow ? 145 : 190, above: narrow ? 66 : 52, below: strip + 54, left: 42, ratio: 1 };
  const panels = layPanels(shown.length, width, sizes);
  const most = Math.max(...shown.flatMap((run) => rowsOf(run.diagram.stops[at].rows).map((row) => row.count)));
  const items = shown.map((run, k) => {
    const box = panels.place(k);
    const part = panels.rowOf(svg, k);
    const { ece, rows } = run.diagram.stops[at];
    const title = { x: box.left, "text-anchor": "start" };
    const told = [`error ${percent(run.diagram.error)}`, `ECE ${percent(ece)}`];
    const notes = narrow ? told : [told.join(" · ")];
    shape("text", { class: "label strong", ...title, y: box.top - 12 - 16 * notes.length }, part, fit(run.label, box.width));
    notes.forEach((note, row) => shape("text", { class: "note", ...title, y: box.top - 11 - 15 * (notes.length - 1 - row) }, part, note));
    const plot = frame(part, { ...box, x: [0, 1], y: [0, 1], yTicks: [0, 0.5, 1], yText: (t) => percent(t, 0) });
    const group = shape("g", { class: "bars", "data-height": box.height, "data-run": run.label }, part);
    for (const row of rowsOf(rows)) drawBar(group, plot, row, bins);
    shape("line", { class: "diagonal", x1: plot.x(0), y1: plot.y(0), x2: plot.x(1), y2: plot.y(1) }, part);
    const below = frame(part, {
      left: box.left, width: box.width, top: box.top + box.height + 8, height: strip, x: [0, 1], y: [0.5, 2 * most], logY: true,
      yTicks: [1, 10 ** Math.max(1, Math.floor(Math.log10(most)))], yText: count, xTicks: [0, 0.5, 1], xText: (t) => percent(t, 0),
    });
    const space = Math.min(1, (box.width / bins) * 0.12);
    for (const row of rowsOf(rows)) {
      const y = below.y(Math.max(row.count, 0.5));
      shape("rect", {
        class: "share", x: below.x(row.index / bins) + space, width: box.width / bins - 2 * space, y, height: below.top + strip - y,
      }, group);
    }
    const worst = rowsOf(rows).reduce((a, b) => (Math.abs(b.gap) > Math.abs(a.gap) ? b : a));
    return {
      x: box.left, y: box.top, width: box.width, height: box.height + strip + 8,
      lines: [
        run.label, `error ${percent(run.diagram.error)}`, `ECE ${percent(ece)} over ${bins} bins`,
        `worst bin ${signed(worst.gap)} points, ${count(worst.count)} example${worst.count === 1 ? "" : "s"} near ${percent(worst.confidence, 0)}`,
      ],
    };
  });
  explore(svg, items, `Reliability diagrams with ${bins} bins.`);
  return panels.height;
}

// As many digits of 9 as a confidence has, up to four: most examples of a good classifier lie near 1.
function stretch(confidence) {
  return -Math.log10(1 - Math.min(confidence, 1) + 1e-4);
}

function drawGammaByConfidence(svg, width) {
  const shown = shownRuns().filter((run) => run.dots.right);
  if (!shown.length) return nothing(svg, "No run shown here has this.");
  const sizes = { least: 270, above: 30, below: 50, left: 44, ratio: 0.72 };
  const panels = layPanels(shown.length, width, sizes);
  const items = [];
  shown.forEach((run, k) => {
    const box = panels.place(k);
    const part = panels.rowOf(svg, k);
    const dots = ["right", "wrong"].map((name) => run.dots[name]);
    const least = Math.min(...dots.flatMap(([where]) => where));
    const ys = widen(extent(dots.flatMap(([, gamma]) => gamma)));
    const yTicks = niceTicks(ys[0], ys[1], 4);
    const ticks = [0.5, 0.9, 0.99, 0.999, 1].filter((t) => t > least);
    const plot = frame(part, {
      ...box, x: [stretch(least) - 0.1, 4.1], y: ys, xGrid: true, yTicks, yText: (t) => `${+t.toPrecision(4)}`,
      xTicks: ticks.map(stretch), xText: (t) => `${+(100 * (1 + 1e-4 - 10 ** -t)).toFixed(2)}%`, xTitle: "confidence",
    });
    shape("text", { class: "label strong", x: box.left, y: box.top - 12 }, part, fit(run.label, box.width));
    const spots = ([where, gamma]) => where.map((c, i) => [plot.x(stretch(c)), plot.y(gamma[i])]);
    const faint = Math.max(0.25, Math.min(0.8, 120 / dots[0][0].length));
    const circles = spots(dots[0]).map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("");
    shape("path", { class: "dots right", d: circles, "stroke-opacity": faint }, part);
    const crosses = spots(dots[1]).map(([x, y]) => `M${(x - 2.5).toFixed(1)} ${(y - 2.5).toFixed(1)}l5 5m0 -5l-5 5`).join("");
    shape("path", { class: "dots wrong", d: crosses }, part);
    for (const name of ["right", "wrong"]) {
      const points = spots(run.dots[`${name}Mean`]);
      if (!points.length) continue;
      for (const kind of ["under-mean", `mean-of ${name}`]) shape("path", { class: `line ${kind}`, d: path(points) }, part);
      run.dots[`${name}Mean`][0].forEach((c, i) => {
        shape("circle", { class: `mean-dot ${name}`, cx: points[i][0], cy: points[i][1], r: 3 }, part);
        items.push({
          x: points[i][0] - 9, y: points[i][1] - 9, width: 18, height: 18,
          lines: [run.label, `${name} predictions near ${percent(c, 1)}`, `gamma ${run.dots[`${name}Mean`][1][i].toFixed(3)} on average`],
        });
      });
    }
  });
  explore(svg, items, "Gamma against confidence, of right and of wrong predictions.");
  return panels.height;
}
