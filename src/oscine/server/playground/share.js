// The card with a link to this page and with the current request as code, ready to be copied.

import { copy } from "./clipboard.js";
import { SNIPPETS, streams } from "./snippet.js";

const COPIED_MS = 1500;
const STREAMS = "The file is written while the speech is generated.";
const WHOLE = "The file arrives when the speech is complete. Choose MP3, Opus or AAC beside Download to receive it earlier.";

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
      byId("share-hint").hidden = this.#kind === "link";
      byId("share-hint").textContent = streams(this.#kind, byId("format").value) ? STREAMS : WHOLE;
    });
  }

  get #kind() {
    return document.querySelector("[name=share]:checked").value;
  }

  #text() {
    const { link, request } = this.#describe();
    return this.#kind === "link" ? link : SNIPPETS[this.#kind](request);
  }

  #tell(words) {
    byId("share-copy").textContent = words;
    setTimeout(() => {
      byId("share-copy").textContent = "Copy";
    }, COPIED_MS);
  }
}
