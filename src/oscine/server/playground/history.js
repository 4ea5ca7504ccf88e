// The last utterances, newest first, with their sound: for listening again and for saving.

import { save } from "./speech.js";

const MOST = 12;

export class History {
  #list = document.getElementById("history");
  #entries = new Map(); // take -> its row
  #replay;
  #reuse;

  constructor({ replay, reuse }) {
    this.#replay = replay;
    this.#reuse = reuse;
  }

  add(take) {
    if (take.received === 0 || this.#entries.has(take)) return;
    const row = this.#row(take);
    this.#entries.set(take, row);
    this.#list.prepend(row);
    document.getElementById("history-empty").hidden = true;
    if (this.#entries.size <= MOST) return;
    const [oldest] = this.#entries.keys();
    this.#entries.get(oldest).remove();
    this.#entries.delete(oldest);
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
      button("Edit", `Edit “${short}”`, () => this.#reuse(take)),
    );
    row.append(text, about, buttons);
    return row;
  }
}

// "oscine-the-first-words.wav": letters of any script, nothing that a file system minds.
export function fileName(take, format) {
  const words = take.text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return `${["oscine", ...words.slice(0, 6)].join("-").slice(0, 60)}.${format}`;
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
