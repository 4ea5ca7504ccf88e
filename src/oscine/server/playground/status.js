// Shows whether the server is ready. Polls often while it starts and seldom afterwards.

import { address } from "./api.js";

const STARTING_MS = 1_000;
const READY_MS = 15_000;

// ready(): called whenever the server becomes ready, or has other models than before.
export function watchServer(ready) {
  const pill = document.getElementById("server-state");
  let timer = 0;
  let models = "";

  const show = (state, words, title = "") => {
    if (pill.textContent !== words) pill.textContent = words;
    pill.dataset.state = state;
    pill.title = title;
  };

  const ask = async () => {
    clearTimeout(timer);
    const before = `${pill.dataset.state} ${models}`;
    try {
      const answer = await fetch(address("ready"), { cache: "no-store" });
      const about = await answer.json().catch(() => ({}));
      models = readyModels(about);
      if (answer.ok) show("ready", "Ready");
      else show("starting", ...described(about));
    } catch {
      show("unreachable", "Not reachable", "The server does not answer. Trying again every second.");
    }
    if (pill.dataset.state === "ready" && before !== `ready ${models}`) ready();
    timer = setTimeout(ask, pill.dataset.state === "ready" ? READY_MS : STARTING_MS);
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : ask()));
  ask();
}

// Their names, where the server has several.
function readyModels({ models = {} }) {
  return JSON.stringify(Object.keys(models).filter((name) => models[name].ready));
}

function described({ state = "not ready", last_failure: reason }) {
  return [state[0].toUpperCase() + state.slice(1), reason ?? ""];
}
