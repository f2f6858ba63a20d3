// Runs before the page is drawn, so that a chosen theme does not flash.
(() => {
  try {
    const chosen = localStorage.getItem("calibrant-theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch (refused) {
    // Some browsers keep no storage for files; the system's theme is used.
  }
})();
