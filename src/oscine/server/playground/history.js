// The last takes, newest first, with their audio: to play again, to save, to use again. They survive a reload.

import { fileName, save } from "./speech.js";
import { TakeStore } from "./store.js";
import { Take } from "./take.js";

const byId = (id) => document.getElementById(id);

export class History {
  #list = byId("history");
  #store = new TakeStore();
  #rows = new Map(); // take -> {row, id}; the id is null where it is not stored
  #replay;
  #reuse;

  constructor({ replay, reuse }) {
    this.#replay = replay;
    this.#reuse = reuse;
    byId("history-clear").addEventListener("click", () => [...this.#rows.keys()].forEach((take) => this.#remove(take)));
  }

  async load() {
    for (const { id, ...record } of await this.#store.all()) this.#show(Take.restore(record), id);
  }

  async add(take) {
    if (take.received === 0 || take.preview !== null || this.#rows.has(take)) return;
    this.#show(take, null);
    const { id, removed } = await this.#store.add(take.record());
    if (!this.#rows.has(take)) return id === null ? undefined : this.#store.remove(id); // removed in the meantime
    this.#rows.get(take).id = id;
    for (const [other, { id: otherId }] of this.#rows) if (removed.includes(otherId)) this.#drop(other);
  }

  #show(take, id) {
    const row = this.#row(take);
    this.#rows.set(take, { row, id });
    this.#list.prepend(row);
    this.#showEmpty();
  }

  #remove(take) {
    const { id } = this.#rows.get(take);
    this.#drop(take);
    if (id !== null) this.#store.remove(id);
  }

  #drop(take) {
    this.#rows.get(take).row.remove();
    this.#rows.delete(take);
    this.#showEmpty();
  }

  #showEmpty() {
    byId("history-empty").hidden = this.#rows.size > 0;
    byId("history-clear").hidden = this.#rows.size === 0;
  }

  #row(take) {
    const row = document.createElement("li");
    const text = element("p", "said", take.text.trim());
    text.dir = "auto";
    const facts = [take.voice, `${take.receivedS.toFixed(1)} s`];
    if (take.firstSoundMs !== null) facts.push(`first sound ${Math.round(take.firstSoundMs)} ms`);
    if (take.state === "stopped" || take.state === "failed") facts.push(take.state);
    const about = element("p", "hint", facts.join(" · "));
    const short = take.text.trim().slice(0, 40);
    const buttons = element("div", "row");
    buttons.append(
      button("Replay", `Replay “${short}”`, () => this.#replay(take)),
      button("WAV", `Download “${short}” as WAV`, () => save(take.wav(), fileName(take, "wav"))),
      button("Reuse", `Use text and settings of “${short}”`, () => this.#reuse(take)),
      button("Remove", `Remove “${short}”`, () => this.#remove(take)),
    );
    row.append(text, about, buttons);
    return row;
  }
}

function element(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

function button(text, label, press) {
  const node = element("button", "quiet", text);
  node.type = "button";
  node.setAttribute("aria-label", label);
  node.addEventListener("click", press);
  return node;
}
