// Runs before the first paint (not a module, on purpose): a stored choice of light or dark must not flash the other one.
// Without a choice the page follows the system, in CSS alone.
"use strict";

(() => {
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  let stored = null;
  try {
    stored = localStorage.getItem("oscine.theme");
  } catch {
    // Storage is off: the choice holds until the page is closed.
  }
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;

  const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";

  addEventListener("DOMContentLoaded", () => {
    const toggle = document.getElementById("theme-toggle");
    const show = () => {
      toggle.setAttribute("aria-pressed", String(isDark()));
      dispatchEvent(new Event("oscine-theme")); // the waveform is painted by hand and has to be painted again
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
