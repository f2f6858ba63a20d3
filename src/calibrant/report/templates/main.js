// Choices of the reader, and starting it all.
function setUpPredictions() {
  if (!facts) return;
  const redrawAll = [];
  for (const [id, draw] of [
    ["reliability-chart", drawReliability], ["by-bins", drawByBins], ["histogram", drawHistogram], ["regions", drawRegions], ["risk", drawRisk],
  ]) {
    redrawAll.push(chart(id, draw));
  }
  const redrawClass = chart("class-chart", drawClass);
  setUpClasses(redrawClass);
  if (facts.calibrators.length) {
    const redraw = chart("calibrator-chart", drawCalibrators);
    byId("calibrator-metric").addEventListener("change", redraw);
  }
  const slider = byId("bins");
  slider.max = facts.stops.length - 1;
  slider.value = state.stop;
  slider.addEventListener("input", () => {
    state.stop = Number(slider.value);
    tellBins();
    redrawAll[0]();
    redrawAll[1]();
  });
  for (const choice of document.querySelectorAll("input[name=side]")) {
    choice.addEventListener("change", () => {
      state.side = Number(choice.value);
      document.documentElement.dataset.side = state.side;
      tellBins();
      listClasses();
      tellClass();
      redrawAll.forEach((redraw) => redraw());
      redrawClass();
    });
  }
  // A browser that restores a form after a reload would show a choice that is not drawn.
  const first = document.querySelector("input[name=side][value='0']");
  if (first) first.checked = true;
  tellBins();
}

function setUpTheme() {
  const button = byId("theme");
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const name = () => button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
    try {
      localStorage.setItem("calibrant-theme", root.dataset.theme);
    } catch (refused) {
      // It lasts until the page is closed.
    }
  });
  prefersDark.addEventListener("change", name);
  name();
}

setUpTheme();
setUpPredictions();
setUpRuns();
document.documentElement.dataset.ready = "yes";
