// The pane for speaking while typing: words leave the line for the log as they are sent.

import { LiveSession, splitTyped } from "./live.js";

const byId = (id) => document.getElementById(id);

export class Typing {
  #line = byId("live-line");
  #log = byId("live-log");
  #session;
  #stage;
  #settings;
  #failed;
  #order = Promise.resolve(); // keeps words in order while a clip is being read
  #rows = new Map(); // take -> its line in the log

  constructor({ stage, settings, failed, warned }) {
    this.#stage = stage;
    this.#settings = settings;
    this.#failed = failed;
    this.#session = new LiveSession({ stage, failed, warned, ended: (take) => this.#close(take) });
    this.#line.addEventListener("input", (event) => !event.isComposing && this.#typed());
    this.#line.addEventListener("compositionend", () => this.#typed());
    this.#line.addEventListener("focus", () => this.#connect());
    this.#line.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.isComposing) this.finish();
    });
  }

  // Sends the rest of the line and ends the utterance.
  finish() {
    const rest = this.#line.value;
    this.#line.value = "";
    if (rest.trim()) this.#write(rest);
    this.#inOrder(() => {
      if (this.#session.writing) this.#rows.get(this.#session.writing).dataset.state = "sent";
      this.#session.finish();
    });
  }

  // Barge-in. Text that was typed but not sent is dropped too.
  cancel() {
    this.#line.value = "";
    const playing = this.#stage.take?.running ? this.#stage.take : null;
    this.#stage.stop(); // at once; the server follows
    this.#inOrder(() => this.#session.cancel(playing));
  }

  leave() {
    this.cancel();
    this.#inOrder(() => this.#session.close());
  }

  #connect() {
    try {
      this.#session.connect();
    } catch {
      this.#failed(new Error("A browser cannot send this API key over a WebSocket: it contains special characters."));
    }
  }

  #typed() {
    const [words, rest] = splitTyped(this.#line.value);
    if (!words) return;
    this.#line.value = rest;
    if (words.trim() || this.#session.writing) this.#write(words);
  }

  #write(text) {
    this.#stage.open(this.#settings.rateHz);
    this.#inOrder(async () => {
      const request = this.#session.writing ? null : await this.#settings.request();
      const { rateHz, timed } = this.#settings;
      const take = this.#session.write(text, () => ({ request, voice: this.#settings.voiceName(), rateHz, timed }));
      if (!this.#rows.has(take)) this.#open(take);
      this.#rows.get(take).textContent = take.text;
      this.#log.scrollTop = this.#log.scrollHeight;
    });
  }

  #inOrder(step) {
    this.#order = this.#order.then(step).catch((error) => this.#failed(error));
  }

  #open(take) {
    byId("live-hint").hidden = true;
    const row = document.createElement("p");
    row.className = "typed";
    row.dir = "auto";
    row.dataset.state = "open";
    this.#rows.set(take, row);
    this.#log.append(row);
  }

  // After an interruption the server estimates the words that were played; the rest is struck out.
  #close(take) {
    const row = this.#rows.get(take);
    if (!row) return;
    row.dataset.state = take.finishReason === "cancelled" ? "cancelled" : take.state === "failed" ? "failed" : "spoken";
    const [played, text] = [take.spokenText, take.text.trim()];
    if (take.finishReason !== "cancelled" || played === undefined || !text.startsWith(played)) return;
    const rest = document.createElement("s");
    rest.textContent = text.slice(played.length);
    row.replaceChildren(played, rest);
  }
}
