// Classes ranked by the error of their own probability, and one of them in detail.
function listClasses() {
  const { classes } = currentSide();
  const list = byId("class-list");
  const focused = document.activeElement.dataset.klass;
  const wanted = byId("class-filter").value.trim().toLowerCase();
  const most = Math.max(...facts.sides.flatMap((side) => side.classes.map((entry) => entry.ece))) || 1;
  list.textContent = "";
  classes.forEach(({ index, ece, gap }, rank) => {
    if (!facts.names[index].toLowerCase().includes(wanted)) return;
    const pressed = { type: "button", "data-klass": index, "aria-pressed": index === state.klass };
    const button = add(add(list, "li"), "button", pressed);
    add(button, "span", { class: "rank" }, rank + 1);
    add(button, "span", { class: "name" }, facts.names[index]);
    const bar = add(add(button, "span", { class: "track" }), "span", { class: gap >= 0 ? "fill over" : "fill under" });
    bar.style.width = `${(100 * ece) / most}%`;
    add(button, "span", { class: "value" }, percent(ece));
  });
  list.querySelector(`[data-klass="${focused}"]`)?.focus();
  byId("class-none").hidden = list.children.length > 0;
}

function misclassified({ count: held, error }) {
  return `${count(held)}${error === null ? "" : `, ${percent(error, 1)} of them misclassified`}`;
}

function tellClass() {
  const { classes } = currentSide();
  const rank = classes.findIndex((entry) => entry.index === state.klass);
  const { ece, gap } = classes[rank];
  tell("#class-name", facts.named ? facts.names[state.klass] : `Class ${state.klass}`);
  tell("#class-facts", "");
  for (const [name, value] of [
    ["Calibration error", `${percent(ece)}, rank ${rank + 1} of ${count(classes.length)}`],
    ["Mean probability", `${fixed(Math.abs(100 * gap), 2)} points ${gap >= 0 ? "above" : "below"} how often the class occurs`],
    ["Examples", misclassified(classes[rank])],
  ]) {
    const line = add(byId("class-facts"), "div");
    add(line, "dt", {}, name);
    add(line, "dd", {}, value);
  }
}

function drawClass(svg, width) {
  const { rows } = currentSide().classes.find((entry) => entry.index === state.klass);
  const words = { x: "probability given to the class", y: "share that was it", over: "given too much", under: "given too little" };
  const label = `Reliability of the class ${facts.names[state.klass]}.`;
  return drawDiagram(svg, width, { flat: rows, bins: facts.classBins, words, label });
}

// Two classes have no list: what is too much for one is too little for the other.
function tellBoth() {
  for (const entry of currentSide().classes) {
    tell(entry.index ? ".says-right" : ".says-wrong", `: ${misclassified(entry)}`);
  }
}

function setUpClasses() {
  if (!byId("classes")) {
    tellBoth();
    return tellBoth;
  }
  const redraw = chart(byId("class-chart"), drawClass);
  const update = () => {
    listClasses();
    tellClass();
    redraw();
  };
  byId("class-filter").addEventListener("input", listClasses);
  byId("class-list").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    state.klass = Number(button.dataset.klass);
    update();
  });
  update();
  return update;
}
