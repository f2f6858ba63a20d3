// Runs side by side: their charts are pictures, of which the reader chooses; reliability diagrams are drawn for as many bins as wanted.
const { runs } = embedded;
const hiddenRuns = new Set();

// Shows the pictures of the chosen data and choice, and in them the chosen methods.
function choosePictures() {
  const place = byId("place")?.value ?? "0";
  const section = byId("runs");
  for (const part of section.querySelectorAll("fieldset[data-place]")) part.hidden = part.dataset.place !== place;
  for (const figure of section.querySelectorAll("figure.pictures")) {
    const choice = figure.querySelector("select")?.value ?? "";
    const pictures = [...figure.querySelectorAll(".picture")];
    for (const picture of pictures) picture.hidden = picture.dataset.place !== place || picture.dataset.choice !== choice;
    figure.querySelector(".missing").hidden = pictures.some((picture) => !picture.hidden);
  }
  for (const part of section.querySelectorAll(".picture [data-run]")) part.classList.toggle("gone", hiddenRuns.has(part.dataset.run));
  const shown = runs.filter((run) => String(run.place) === place && !hiddenRuns.has(run.label) && run.diagram);
  drawGrid(shown);
}

function drawGrid(shown) {
  const grid = byId("grid");
  if (!grid) return;
  const stop = Number(byId("grid-bins").value);
  const bins = embedded.stops[stop];
  grid.textContent = shown.length ? "" : "No run shown here has its predictions.";
  for (const { label, diagram } of shown) {
    const panel = add(grid, "div", { class: "panel" });
    add(panel, "b", {}, label);
    const view = diagram.stops[stop];
    const kept = embedded.stops.filter((_, k) => diagram.stops[k]).join(" and ");
    const said = view ? `error ${percent(diagram.error)} · ECE ${percent(view.ece)}` : `Without predictions, only ${kept} bins are known.`;
    add(panel, "small", {}, said);
    const draw = (svg, width) =>
      drawDiagram(svg, width, { flat: view.rows, bins, words: embedded.run_words, label: `Reliability diagram of ${label} with ${bins} bins.` });
    if (view) chart(add(panel, "div"), draw);
  }
}

function setUpRuns() {
  if (!runs.length) return;
  setUpSlider(byId("grid-bins"), choosePictures);
  for (const select of byId("runs").querySelectorAll("select")) select.addEventListener("change", choosePictures);
  for (const box of byId("runs").querySelectorAll("fieldset input")) {
    box.checked = true;
    box.addEventListener("change", () => {
      hiddenRuns[box.checked ? "delete" : "add"](box.value);
      choosePictures();
    });
  }
  choosePictures();
}
