// Drawing: elements, numbers as text, axes, and exploring a chart by pointer or arrow keys.
const UNIT = 10000;
const ROW = 6; // numbers in a row of bins: index, examples, confidence, accuracy, low, high
const LEFT = 46; // room for the numbers of a vertical axis
const formats = {};

function byId(id) {
  return document.getElementById(id);
}

function add(parent, name, attributes, text) {
  const space = name === "svg" ? "http://www.w3.org/2000/svg" : parent.namespaceURI;
  const made = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// As Python writes it: what lies in the middle of two goes to the even one.
function fixed(value, digits, signDisplay = "negative") {
  formats[digits + signDisplay] ??= new Intl.NumberFormat("en-US", {
    minimumFractionDigits: digits, maximumFractionDigits: digits, roundingMode: "halfEven", useGrouping: false, signDisplay,
  });
  return formats[digits + signDisplay].format(value).replace("-", "−");
}

function percent(value, digits = 2) {
  return value === null ? "n/a" : `${fixed(100 * value, digits)}%`;
}

function wholePercent(value) {
  return percent(value, 0);
}

function signed(value, digits = 1) {
  return fixed(100 * value, digits, "exceptZero");
}

function count(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 1 });
}

// Bins hold examples, or their weights where they have any.
function content(value) {
  return facts?.weighted ? `weight ${count(value)}` : `${count(value)} example${value === 1 ? "" : "s"}`;
}

function sumOf(items, read) {
  return items.reduce((sum, item) => sum + read(item), 0);
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

function niceCeil(value, parts) {
  const step = niceStep(value || 1, parts);
  return Math.ceil(value / step - 1e-9) * step;
}

// Ticks of a share from 0 to 1; fewer where there is little room.
function shareTicks(width) {
  return width < 300 ? [0, 0.5, 1] : width < 420 ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.2, 0.4, 0.6, 0.8, 1];
}

// Ticks are written with as many digits as tell them apart.
function percentTicks(ticks) {
  const digits = [0, 1, 2].find((d) => ticks.every((t) => Math.abs(100 * t - (100 * t).toFixed(d)) < 1e-6)) ?? 3;
  return (tick) => percent(tick, digits);
}

// A chart is drawn again when its host changes width or the reader changes a choice.
function chart(host, draw) {
  if (!host) return () => {};
  let drawn = 0;
  const redraw = () => {
    const width = Math.round(host.clientWidth);
    if (width < 40) return;
    drawn = width;
    const focused = host.contains(document.activeElement);
    host.textContent = "";
    const svg = add(host, "svg", { class: "chart", role: "group", "aria-roledescription": "chart", width });
    const height = draw(svg, width);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    if (focused) svg.focus({ preventScroll: true });
  };
  new ResizeObserver(() => {
    if (Math.round(host.clientWidth) !== drawn) redraw();
  }).observe(host);
  redraw();
  return redraw;
}

// A plot area with grid, ticks and titles; returns its scales and where it lies.
function frame(svg, box) {
  const { left, top, width, height } = box;
  const scale = ([from, to], start, end, bend = (value) => value) => {
    const factor = (end - start) / (bend(to) - bend(from) || 1);
    return (value) => start + (bend(value) - bend(from)) * factor;
  };
  const x = scale(box.x, left, left + width, box.logX && Math.log);
  const y = scale(box.y, top + height, top);
  const grid = add(svg, "g", { class: "grid", "aria-hidden": "true" });
  for (const tick of box.yTicks || []) {
    add(grid, "line", { x1: left, x2: left + width, y1: y(tick), y2: y(tick) });
    add(grid, "text", { x: left - 8, y: y(tick), dy: "0.32em", "text-anchor": "end" }, box.yText(tick));
  }
  for (const tick of box.xTicks || []) {
    if (box.xGrid) add(grid, "line", { x1: x(tick), x2: x(tick), y1: top, y2: top + height });
    const isLast = x(tick) > left + width - 14;
    const place = { x: x(tick) + (isLast ? 12 : 0), y: top + height + 17, "text-anchor": isLast ? "end" : "middle" };
    add(grid, "text", place, box.xText ? box.xText(tick) : tick);
  }
  add(grid, "line", { class: "axis", x1: left, x2: left + width, y1: top + height, y2: top + height });
  const xTitle = { class: "title", x: left + width / 2, y: top + height + 36, "text-anchor": "middle" };
  if (box.xTitle) add(grid, "text", xTitle, box.xTitle);
  if (box.yTitle) add(grid, "text", { class: "title", x: left - 36, y: top - 14 }, box.yTitle);
  return { ...box, x, y, bottom: top + height, right: left + width };
}

function drawPath(svg, points, name) {
  const steps = points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`);
  add(svg, "path", { class: `line ${name}`, d: steps.join("") });
}

// Makes parts of a chart speak: on hover, on touch, and by arrow keys once the chart has the focus.
function explore(svg, items, label) {
  const layer = add(svg, "g", { class: "targets" });
  const tip = byId("tip");
  let at = -1;
  const hide = () => {
    tip.hidden = true;
    layer.querySelector(".on")?.classList.remove("on");
  };
  const show = (k, speak) => {
    hide();
    at = k;
    const target = layer.children[k];
    target.classList.add("on");
    tip.textContent = "";
    items[k].lines.forEach((line, row) => add(tip, row ? "span" : "b", {}, line));
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
  items.forEach(({ x, y, width, height }, k) => {
    const target = add(layer, "rect", { x, y, width, height, class: "target" });
    for (const event of ["pointerenter", "pointerdown"]) target.addEventListener(event, () => show(k, false));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("aria-label", `${label} Use the arrow keys to read it.`);
  svg.addEventListener("keydown", (event) => {
    const last = items.length - 1;
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (event.key === "Escape") hide();
    else if (step && items.length) show(at < 0 ? (step > 0 ? 0 : last) : (at + step + items.length) % items.length, true);
    else return;
    event.preventDefault();
  });
}
