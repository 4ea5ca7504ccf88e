// The card with a link to this page and with the current request as code, ready to be copied.

import { copy } from "./clipboard.js";
import { SNIPPETS } from "./snippet.js";

const COPIED_MS = 1500;

const byId = (id) => document.getElementById(id);

export class Share {
  #describe;
  #due = false;

  // describe(): {link, request}, where the request is what snippet.js takes.
  constructor({ describe, failed }) {
    this.#describe = describe;
    for (const radio of document.querySelectorAll("[name=share]")) {
      radio.addEventListener("change", () => this.changed());
    }
    byId("share-copy").addEventListener("click", async () => {
      try {
        await copy(this.#text());
        this.#tell("Copied");
      } catch (error) {
        failed(error);
      }
    });
  }

  changed() {
    if (this.#due) return;
    this.#due = true;
    queueMicrotask(() => {
      this.#due = false;
      byId("share-text").textContent = this.#text();
    });
  }

  #text() {
    const kind = document.querySelector("[name=share]:checked").value;
    const { link, request } = this.#describe();
    return kind === "link" ? link : SNIPPETS[kind](request);
  }

  #tell(words) {
    byId("share-copy").textContent = words;
    setTimeout(() => {
      byId("share-copy").textContent = "Copy";
    }, COPIED_MS);
  }
}
