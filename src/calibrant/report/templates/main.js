// Choices of the reader, and starting it all.
function setUpSlider(slider, update) {
  if (!slider) return;
  const say = () => {
    const bins = embedded.stops[slider.value];
    tell(`#${slider.id}-number`, bins);
    slider.setAttribute("aria-valuetext", `${bins} bins`);
  };
  slider.max = embedded.stops.length - 1;
  slider.value = embedded.stop;
  slider.addEventListener("input", () => {
    say();
    update(Number(slider.value));
  });
  say();
}

function setUpPredictions() {
  if (!facts) return;
  const redraws = Object.entries({
    "reliability-chart": drawReliability, "by-bins": drawByBins, histogram: drawHistogram, regions: drawRegions, risk: drawRisk,
  }).map(([id, draw]) => chart(byId(id), draw));
  const updateClasses = setUpClasses();
  const redrawCalibrators = chart(byId("calibrator-chart"), drawCalibrators);
  byId("calibrator-metric")?.addEventListener("change", redrawCalibrators);
  setUpSlider(byId("bins"), (stop) => {
    state.stop = stop;
    tellBins();
    redraws[0]();
    redraws[1]();
  });
  for (const choice of document.querySelectorAll("input[name=side]")) {
    // A browser that restores a form after a reload would show a choice that is not drawn.
    choice.checked = choice.value === "0";
    choice.addEventListener("change", () => {
      state.side = Number(choice.value);
      tellBins();
      updateClasses();
      redraws.forEach((redraw) => redraw());
    });
  }
  tellBins();
}

setUpPredictions();
setUpRuns();
document.documentElement.dataset.ready = "yes";
