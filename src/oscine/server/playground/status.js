// Shows whether the server is ready. Polls often while it starts and seldom afterwards.

import { address } from "./api.js";

const STARTING_MS = 1_000;
const READY_MS = 15_000;

// ready(): called whenever the server becomes ready.
export function watchServer(ready) {
  const pill = document.getElementById("server-state");
  let timer = 0;

  const show = (state, words, title = "") => {
    if (pill.textContent !== words) pill.textContent = words;
    pill.dataset.state = state;
    pill.title = title;
  };

  const ask = async () => {
    clearTimeout(timer);
    const before = pill.dataset.state;
    try {
      const answer = await fetch(address("ready"), { cache: "no-store" });
      if (answer.ok) show("ready", "Ready");
      else show("starting", ...described(await answer.json().catch(() => ({}))));
    } catch {
      show("unreachable", "Not reachable", "The server does not answer. Trying again every second.");
    }
    if (pill.dataset.state === "ready" && before !== "ready") ready();
    timer = setTimeout(ask, pill.dataset.state === "ready" ? READY_MS : STARTING_MS);
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : ask()));
  ask();
}

function described({ state = "not ready", last_failure: reason }) {
  return [state[0].toUpperCase() + state.slice(1), reason ?? ""];
}
