// One colour, dash and mark for each method in every chart: those of the figures.
const runs = embedded.runs;
const hiddenRuns = new Set();

function placedRuns() {
  const picker = byId("place");
  const place = picker ? picker.value : runs[0].place;
  return runs.filter((run) => run.place === place);
}

function shownRuns() {
  return placedRuns().filter((run) => !hiddenRuns.has(run.label));
}

// Corners at these angles, in turns from the top, and distances from the middle.
function outline(corners) {
  const points = corners.map(([turn, far]) => [far * Math.sin(2 * Math.PI * turn), -far * Math.cos(2 * Math.PI * turn)]);
  return `${points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("")}Z`;
}

function polygon(sides, far, turn = 0) {
  return outline(Array.from({ length: sides }, (_, k) => [turn + k / sides, far]));
}

// The bars of a plus are as wide as a third of it; turned by an eighth it is a cross.
function plus(r, turn) {
  const far = Math.hypot(r / 3, r);
  const half = Math.atan2(1, 3) / (2 * Math.PI);
  const arm = (k) => [[turn + k / 4 - half, far], [turn + k / 4 + half, far], [turn + k / 4 + 1 / 8, (r / 3) * Math.SQRT2]];
  return outline([0, 1, 2, 3].flatMap(arm));
}

const MARKS = {
  o: (r) => `M${-r} 0A${r} ${r} 0 1 0 ${r} 0A${r} ${r} 0 1 0 ${-r} 0Z`,
  s: (r) => polygon(4, r * 1.3, 1 / 8),
  D: (r) => polygon(4, r * 1.3),
  d: (r) => outline([[0, r * 1.45], [0.25, r * 0.85], [0.5, r * 1.45], [0.75, r * 0.85]]),
  "^": (r) => polygon(3, r * 1.35),
  v: (r) => polygon(3, r * 1.35, 0.5),
  ">": (r) => polygon(3, r * 1.35, 0.25),
  "<": (r) => polygon(3, r * 1.35, 0.75),
  p: (r) => polygon(5, r * 1.2),
  h: (r) => polygon(6, r * 1.2),
  8: (r) => polygon(8, r * 1.15, 1 / 16),
  "*": (r) => outline(Array.from({ length: 10 }, (_, k) => [k / 10, k % 2 ? r * 0.65 : r * 1.6])),
  P: (r) => plus(r * 1.25, 0),
  X: (r) => plus(r * 1.25, 1 / 8),
};

function mark(parent, run, x, y, size, extra) {
  const { hue, marker, filled } = run.look;
  const kind = `mark ${hue}${filled ? "" : " open"}${extra ? ` ${extra}` : ""}`;
  return shape("path", { class: kind, d: MARKS[marker](size), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` }, parent);
}

function legend() {
  const host = byId("run-legend");
  if (!host) return;
  host.textContent = "";
  for (const run of placedRuns()) {
    const label = element("label", { class: "key" }, host);
    const box = element("input", { type: "checkbox" }, label);
    box.checked = !hiddenRuns.has(run.label);
    box.addEventListener("change", () => {
      if (box.checked) hiddenRuns.delete(run.label);
      else hiddenRuns.add(run.label);
      runCharts.forEach((redraw) => redraw());
    });
    const svg = shape("svg", { width: 40, height: 16, viewBox: "0 0 40 16", "aria-hidden": "true" }, label);
    shape("line", { class: `line ${run.look.hue}`, x1: 1, x2: 39, y1: 8, y2: 8, "stroke-dasharray": run.look.dash }, svg);
    mark(svg, run, 20, 8, 4);
    element("span", {}, label, run.label);
  }
}

function nothing(svg, text) {
  shape("text", { class: "note", x: 12, y: 40 }, svg, text);
  return 70;
}
