// Classes ranked by the error of their own probability, and one of them in detail.
const FEW_CLASSES = 12;
let showsAll = false;

function classSide() {
  return currentSide().classes;
}

function matchingClasses() {
  const wanted = byId("class-filter").value.trim().toLowerCase();
  const order = classSide().order;
  return wanted ? order.filter((k) => facts.names[k].toLowerCase().includes(wanted)) : order;
}

function listClasses() {
  const classes = classSide();
  const list = byId("class-list");
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.klass : null;
  const found = matchingClasses();
  const shown = showsAll ? found : found.slice(0, FEW_CLASSES);
  const most = Math.max(...facts.sides.map((side) => Math.max(...side.classes.ece))) || 1;
  list.textContent = "";
  for (const k of shown) {
    const item = element("li", {}, list);
    const button = element("button", { type: "button", "data-klass": k, "aria-pressed": k === state.klass }, item);
    element("span", { class: "rank" }, button, classes.order.indexOf(k) + 1);
    element("span", { class: "name" }, button, facts.names[k]);
    const track = element("span", { class: "track" }, button);
    const bar = element("span", { class: classes.gap[k] >= 0 ? "fill over" : "fill under" }, track);
    bar.style.width = `${(100 * classes.ece[k]) / most}%`;
    element("span", { class: "value" }, button, percent(classes.ece[k]));
  }
  if (focused !== null) list.querySelector(`[data-klass="${focused}"]`)?.focus();
  const more = byId("class-more");
  more.hidden = showsAll || found.length <= FEW_CLASSES;
  more.textContent = `Show all ${count(found.length)}`;
  byId("class-none").hidden = found.length > 0;
}

function fillPicker() {
  const picker = byId("class-picker");
  for (const k of facts.sides[0].classes.order) element("option", { value: k }, picker, facts.names[k]);
  picker.value = state.klass;
}

function tellClass() {
  const classes = classSide();
  const k = state.klass;
  byId("class-picker").value = k;
  byId("class-name").textContent = facts.named && !/^\d+$/.test(facts.names[k]) ? facts.names[k] : `Class ${facts.names[k]}`;
  const held = classes.count[k];
  const often = classes.gap[k] >= 0 ? "more often" : "less often";
  const gap = `${fixed(Math.abs(100 * classes.gap[k]), 2)} points ${often}`;
  const lines = [
    ["Calibration error", `${percent(classes.ece[k])}, rank ${classes.order.indexOf(k) + 1} of ${count(facts.names.length)}`],
    ["Probability given", Math.abs(classes.gap[k]) < 5e-5 ? "as often as the class occurs" : `${gap} than the class occurs`],
    ["Examples", `${count(held)}${classes.error[k] === null ? "" : `, ${percent(classes.error[k], 1)} of them misclassified`}`],
    ["Predicted", classes.said[k] ? `${count(classes.said[k])} times: ${percent(classes.sure[k] / UNIT, 1)} sure, ${percent(classes.right[k] / UNIT, 1)} right` : "never"],
  ];
  const told = byId("class-facts");
  told.textContent = "";
  for (const [name, value] of lines) {
    const line = element("div", {}, told);
    element("dt", {}, line, name);
    element("dd", {}, line, value);
  }
}

function drawClass(svg, width) {
  return drawBins(svg, Math.min(width, 420), {
    rows: rowsOf(classSide().bins[state.klass]), bins: facts.classBins,
    xTitle: "probability given to the class", yTitle: "share that was it",
    said: ["mean probability", "was it", "given too much", "given too little"],
    label: `Reliability of the class ${facts.names[state.klass]}.`,
  });
}

function setUpClasses(redraw) {
  const pick = (k) => {
    state.klass = Number(k);
    listClasses();
    tellClass();
    redraw();
  };
  fillPicker();
  listClasses();
  tellClass();
  byId("class-filter").addEventListener("input", listClasses);
  byId("class-picker").addEventListener("change", (event) => pick(event.target.value));
  byId("class-list").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) pick(button.dataset.klass);
  });
  byId("class-more").addEventListener("click", () => {
    showsAll = true;
    listClasses();
    byId("class-list").querySelectorAll("button")[FEW_CLASSES]?.focus();
  });
}
