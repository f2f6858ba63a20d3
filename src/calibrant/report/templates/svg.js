// Drawing: elements, scales, axes, and exploring a chart by pointer or arrow keys.
const NAMESPACE = "http://www.w3.org/2000/svg";
const UNIT = 10000;
const ROW = 6; // numbers in a row of bins: index, examples, confidence, accuracy, low, high

function byId(id) {
  return document.getElementById(id);
}

function shape(name, attributes, parent, text) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

function element(name, attributes, parent, text) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

// As Python writes it: what lies in the middle of two goes to the even one, where toFixed takes the larger.
function fixed(value, digits) {
  const scaled = Math.abs(value * 10 ** digits);
  const isMiddle = scaled % 1 === 0.5 && Number.isInteger(value * 2 ** (digits + 1));
  if (!isMiddle) return value.toFixed(digits);
  return (Math.sign(value) * 2 * Math.round(scaled / 2) / 10 ** digits).toFixed(digits);
}

function percent(value, digits = 2) {
  return value === null || value === undefined ? "n/a" : fixed(100 * value, digits).replace("-", "−") + "%";
}

function signed(value, digits = 1) {
  const text = fixed(100 * value, digits);
  return (value >= 0 && !text.startsWith("-") ? "+" : "") + text.replace("-", "−");
}

function count(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 1 });
}

// Bins hold examples, or their weights where they have any.
function content(value) {
  return facts.weighted ? `weight ${count(value)}` : `${count(value)} example${value === 1 ? "" : "s"}`;
}

function linear(from, to, start, end) {
  const factor = (end - start) / (to - from || 1);
  return (value) => start + (value - from) * factor;
}

function logarithmic(from, to, start, end) {
  const inner = linear(Math.log(from), Math.log(to), start, end);
  return (value) => inner(Math.log(value));
}

function niceStep(span, parts) {
  const raw = span / parts;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((m) => m * power).find((step) => step >= raw * 0.999);
}

function niceTicks(from, to, parts) {
  if (!(to > from)) return [from];
  const step = niceStep(to - from, parts);
  const ticks = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k++) ticks.push(+(k * step).toPrecision(12));
  return ticks;
}

// Ticks are written with as many digits as tell them apart.
function percentTicks(ticks) {
  const digits = [0, 1, 2, 3].find((d) => ticks.every((t) => Math.abs(100 * t - Number((100 * t).toFixed(d))) < 1e-6)) ?? 3;
  return (tick) => percent(tick, digits);
}

// Ticks of a share from 0 to 1; fewer where there is little room.
function shareTicks(width) {
  return width < 420 ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.2, 0.4, 0.6, 0.8, 1];
}

function niceCeil(value, parts) {
  const step = niceStep(value || 1, parts);
  return Math.ceil(value / step - 1e-9) * step;
}

// Charts are drawn again when their host changes width or the reader changes a choice.
const charts = [];

function chart(id, draw) {
  const host = byId(id);
  if (!host) return () => {};
  let drawn = 0;
  const redraw = () => {
    const width = Math.round(host.clientWidth);
    if (width < 40) return;
    drawn = width;
    const focused = host.contains(document.activeElement);
    const old = host.querySelector("svg");
    const svg = shape("svg", { class: "chart", role: "group", "aria-roledescription": "chart" });
    const height = draw(svg, width);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    if (host.dataset.label) svg.setAttribute("aria-label", host.dataset.label);
    if (old) host.replaceChild(svg, old);
    else host.appendChild(svg);
    slice(host, svg, width);
    if (focused && svg.tabIndex === 0) svg.focus({ preventScroll: true });
  };
  new ResizeObserver(() => {
    if (Math.round(host.clientWidth) !== drawn) redraw();
  }).observe(host);
  charts.push(redraw);
  redraw();
  return redraw;
}

// A picture of several rows is printed in as many pictures: a page may end between them, and not in the midst of one.
function slice(host, svg, width) {
  const rows = svg.querySelectorAll("g.row");
  host.querySelector(".slices")?.remove();
  host.classList.toggle("sliced", rows.length > 1);
  if (rows.length < 2) return;
  const slices = element("div", { class: "slices", "aria-hidden": "true" }, host);
  rows.forEach((row, k) => {
    row.id = `${host.id}-row-${k}`;
    const { top, height } = row.dataset;
    const part = shape("svg", { class: "slice", viewBox: `0 ${top} ${width} ${height}` }, slices);
    shape("use", { href: `#${row.id}` }, part);
  });
}

// A plot area with grid, ticks and titles; returns its scales and where it lies.
function frame(svg, box) {
  const { left, top, width, height } = box;
  const makeX = box.logX ? logarithmic : linear;
  const x = makeX(box.x[0], box.x[1], left, left + width);
  // What lies below a logarithmic axis, as zero does, is drawn at its foot.
  const y = box.logY ? (value) => logarithmic(box.y[0], box.y[1], top + height, top)(Math.max(value, box.y[0])) : linear(box.y[0], box.y[1], top + height, top);
  const grid = shape("g", { class: "grid", "aria-hidden": "true" }, svg);
  for (const tick of box.yTicks || []) {
    shape("line", { x1: left, x2: left + width, y1: y(tick), y2: y(tick) }, grid);
    shape("text", { x: left - 8, y: y(tick), dy: "0.32em", "text-anchor": "end" }, grid, box.yText ? box.yText(tick) : tick);
  }
  for (const tick of box.xTicks || []) {
    if (box.xGrid) shape("line", { x1: x(tick), x2: x(tick), y1: top, y2: top + height }, grid);
    const isLast = x(tick) > left + width - 14;
    const text = { x: x(tick) + (isLast ? 12 : 0), y: top + height + 17, "text-anchor": isLast ? "end" : "middle" };
    shape("text", text, grid, box.xText ? box.xText(tick) : tick);
  }
  shape("line", { class: "axis", x1: left, x2: left + width, y1: top + height, y2: top + height }, grid);
  if (box.xTitle) {
    shape("text", { class: "title", x: left + width / 2, y: top + height + 36, "text-anchor": "middle" }, grid, box.xTitle);
  }
  if (box.yTitle) shape("text", { class: "title", x: left - 36, y: top - 14, "text-anchor": "start" }, grid, box.yTitle);
  return { ...box, x, y };
}

function path(points) {
  return points.map(([px, py], k) => `${k ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
}

// Makes parts of a chart speak: on hover, on touch, and by arrow keys once the chart has the focus.
function explore(svg, items, label) {
  if (!items.length) return;
  const layer = shape("g", { class: "targets" }, svg);
  const tip = byId("tip");
  let at = -1;
  const show = (k, speak) => {
    at = k;
    layer.querySelectorAll(".on").forEach((old) => old.classList.remove("on"));
    const target = layer.children[k];
    target.classList.add("on");
    tip.textContent = "";
    items[k].lines.forEach((line, row) => element(row ? "span" : "b", {}, tip, line));
    tip.hidden = false;
    const spot = target.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    const middle = spot.left + Math.min(spot.width, 40) / 2;
    tip.style.left = `${Math.max(8, Math.min(middle - size.width / 2, room - size.width - 8)) + window.scrollX}px`;
    const above = spot.top + (items[k].anchor || 0) - size.height - 10;
    tip.style.top = `${(above > 56 ? above : spot.bottom + 10) + window.scrollY}px`;
    if (speak) byId("live").textContent = items[k].lines.join(", ");
  };
  const hide = () => {
    tip.hidden = true;
    layer.querySelectorAll(".on").forEach((old) => old.classList.remove("on"));
  };
  items.forEach((item, k) => {
    const { x, y, width, height } = item;
    const target = shape("rect", { x, y, width, height, class: "target" }, layer);
    target.addEventListener("pointerenter", () => show(k, false));
    target.addEventListener("pointerdown", () => show(k, false));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.setAttribute("tabindex", "0");
  if (label) svg.setAttribute("aria-label", `${label} Use the arrow keys to read it.`);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (step) show(at < 0 ? (step > 0 ? 0 : items.length - 1) : (at + step + items.length) % items.length, true);
    else if (event.key === "Home") show(0, true);
    else if (event.key === "End") show(items.length - 1, true);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
}

function rowsOf(flat) {
  const rows = [];
  for (let k = 0; k < flat.length; k += ROW) {
    const [index, held, ...shares] = flat.slice(k, k + ROW);
    const [confidence, accuracy, low, high] = shares.map((share) => share / UNIT);
    rows.push({ index, count: held, confidence, accuracy, low, high, gap: confidence - accuracy });
  }
  return rows;
}
