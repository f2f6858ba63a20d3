// Runs side by side: their charts are pictures, of which the reader chooses; reliability diagrams are drawn for as many bins as wanted.
const runs = embedded.runs;
const hiddenRuns = new Set();

function placeNumber() {
  return byId("place") ? Number(byId("place").value) : 0;
}

function shownRuns() {
  return runs.filter((run) => run.place === placeNumber() && !hiddenRuns.has(run.label));
}

// Shows the pictures of the chosen data and choice, and in them the chosen methods.
function choosePictures() {
  const place = String(placeNumber());
  const section = byId("runs");
  for (const part of section.querySelectorAll("fieldset[data-place]")) part.hidden = part.dataset.place !== place;
  for (const figure of section.querySelectorAll("figure.pictures")) {
    const choice = figure.querySelector("select")?.value ?? "";
    let found = false;
    for (const picture of figure.querySelectorAll(".picture")) {
      picture.hidden = picture.dataset.place !== place || picture.dataset.choice !== choice;
      found ||= !picture.hidden;
    }
    figure.querySelector(".missing").hidden = found;
  }
  for (const part of section.querySelectorAll(".picture [data-run]")) part.classList.toggle("gone", hiddenRuns.has(part.dataset.run));
}

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
  if (!shown.length) {
    const kept = embedded.gridStops.filter((_, k) => known.some((run) => run.diagram.stops[k]));
    const why = kept.length ? `Without predictions these runs are known over ${kept.join(" and ")} bins only.` : "No run shown here has its predictions.";
    shape("text", { class: "note", x: 12, y: 40 }, svg, why);
    return 70;
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

function setUpRuns() {
  if (!runs.length) return;
  const redraw = chart("grid", drawGrid);
  const update = () => {
    choosePictures();
    redraw();
  };
  const slider = byId("grid-bins");
  slider?.addEventListener("input", () => {
    byId("grid-bins-number").textContent = embedded.gridStops[Number(slider.value)];
    slider.setAttribute("aria-valuetext", `${embedded.gridStops[Number(slider.value)]} bins`);
    redraw();
  });
  for (const select of byId("runs").querySelectorAll("select")) select.addEventListener("change", update);
  for (const box of byId("runs").querySelectorAll("fieldset input")) {
    box.checked = true;
    box.addEventListener("change", () => {
      if (box.checked) hiddenRuns.delete(box.value);
      else hiddenRuns.add(box.value);
      update();
    });
  }
  choosePictures();
}
