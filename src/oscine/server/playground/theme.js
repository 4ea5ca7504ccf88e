// Runs before the first paint (so it is no module): a stored choice of light or dark must not flash the other one.
// Without a choice the page follows the system, in CSS alone.
"use strict";

(() => {
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  let stored = null;
  try {
    stored = localStorage.getItem("oscine.theme");
  } catch {
    // No storage: the choice holds until the page is closed.
  }
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;

  const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";

  addEventListener("DOMContentLoaded", () => {
    const toggle = document.getElementById("theme-toggle");
    const show = () => {
      toggle.setAttribute("aria-pressed", String(isDark()));
      dispatchEvent(new Event("oscine-theme")); // the waveform is a canvas and must be painted again
    };
    toggle.addEventListener("click", () => {
      const chosen = isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = chosen;
      try {
        localStorage.setItem("oscine.theme", chosen);
      } catch {
        // As above.
      }
      show();
    });
    systemDark.addEventListener("change", show);
    show();
  });
})();
