// The panel for the API key. It opens by itself when the server wants one.

import { key } from "./api.js";

const HINT = "Only needed if the server was started with keys. It is kept in this tab until you close it.";
const NEEDED = "This server needs an API key. Ask whoever runs it for one.";
const WRONG = "The server does not accept this key. Check it for typing mistakes.";

const byId = (id) => document.getElementById(id);

export class KeyPanel {
  // changed(): another key is in use.
  constructor({ changed }) {
    byId("key").value = key.get();
    byId("key-toggle").addEventListener("click", () => this.#show(byId("key-panel").hidden));
    byId("key-panel").addEventListener("submit", (event) => {
      event.preventDefault();
      key.set(byId("key").value.trim());
      this.#show(false);
      byId("key-toggle").focus();
      changed();
    });
  }

  ask() {
    this.#show(true, key.get() ? WRONG : NEEDED);
    byId("key").select();
  }

  accepted() {
    if (!byId("key-panel").hidden) this.#show(false);
  }

  #show(open, hint = HINT) {
    byId("key-panel").hidden = !open;
    byId("key-hint").textContent = hint;
    byId("key-toggle").setAttribute("aria-expanded", String(open));
    if (open) byId("key").focus();
  }
}
