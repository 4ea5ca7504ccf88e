// The voices as cards: choose one, or listen to a short sample of any with one click.

export const CLIP = "from:clip"; // no voice has this name or id: neither presets nor ids contain a colon

// The language or dialect that a preset of the published checkpoints speaks natively, or how a demo voice sounds.
const NOTES = {
  wren: "Higher voice",
  finch: "Lower voice",
  vivian: "Chinese",
  serena: "Chinese",
  uncle_fu: "Chinese",
  dylan: "Beijing",
  eric: "Sichuan",
  ryan: "English",
  aiden: "English",
  ono_anna: "Japanese",
  sohee: "Korean",
};
const DIALECTS = { Beijing: "chinese", Sichuan: "chinese" };

const byId = (id) => document.getElementById(id);
// "ono_anna" -> "Ono Anna"
export const titled = (name) =>
  name.replaceAll(/[_-]/g, " ").replaceAll(/(?<=^| )\p{L}/gu, (letter) => letter.toUpperCase());

export function nativeLanguage(voice) {
  const note = NOTES[voice.toLowerCase()] ?? "";
  return DIALECTS[note] ?? note.toLowerCase();
}

export class Voices {
  #list = byId("voices");
  #options = []; // {value, name, note}, as shown
  #saved = new Set();
  #preview;

  // chosen(): another card was chosen. preview(value): its sample is wanted, or wanted no more.
  constructor({ chosen, preview }) {
    this.#preview = preview;
    this.#list.addEventListener("change", () => {
      this.#rove();
      chosen();
    });
  }

  // An empty value is the server's own default.
  get value() {
    return this.#list.querySelector(":checked")?.value ?? "";
  }

  set value(value) {
    const input = [...this.#list.querySelectorAll("input")].find((one) => one.value === value);
    if (input) input.checked = true;
    this.#rove();
  }

  get options() {
    return this.#options;
  }

  get isSaved() {
    return this.#saved.has(this.value);
  }

  name(value) {
    return this.#options.find((option) => option.value === value)?.name ?? "Default voice";
  }

  focus() {
    this.#list.querySelector(":checked")?.focus();
  }

  show({ presets, saved, clones, chosen = this.value }) {
    this.#saved = new Set(saved.map((one) => one.id));
    const named = (value, note) => ({ value, name: titled(value), note: NOTES[value.toLowerCase()] ?? note });
    this.#options = [
      ...(clones ? [{ value: CLIP, name: "From a clip", note: "Your own" }] : []),
      ...presets.map((name) => named(name, "Preset")),
      ...saved.map(({ id, name }) => ({ value: id, name: titled(name), note: "Saved" })),
    ];
    if (this.#options.length === 0) this.#options = [{ value: "", name: "Default voice", note: "" }];
    this.#list.replaceChildren(...this.#options.map((option) => this.#card(option)));
    this.#list.querySelector("input").checked = true;
    this.value = chosen;
  }

  // The card whose sample is playing shows a stop sign.
  showPlaying(value) {
    for (const button of this.#list.querySelectorAll(".preview")) {
      const playing = button.dataset.voice === value;
      button.setAttribute("aria-pressed", String(playing));
    }
  }

  #card({ value, name, note }) {
    const card = element("div", "voice");
    const label = element("label", "");
    const input = document.createElement("input");
    Object.assign(input, { type: "radio", name: "voice", value, id: `voice-${value.replace(":", "-")}` });
    label.append(input, element("span", "voice-name", name), element("span", "hint", note));
    const button = element("button", "preview");
    button.type = "button";
    button.dataset.voice = value;
    button.title = "Listen to a sample";
    button.setAttribute("aria-label", `Listen to ${name}`);
    button.style.setProperty("--hue", hue(name));
    button.addEventListener("click", () => this.#preview(value));
    card.append(button, label);
    return card;
  }

  // One stop for the Tab key: the chosen card and its sample. Arrow keys choose, as in any radio group.
  #rove() {
    for (const card of this.#list.children) {
      card.querySelector(".preview").tabIndex = card.querySelector("input").checked ? 0 : -1;
    }
  }
}

// A colour of its own for each name.
function hue(name) {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) % 360;
  return String(sum);
}

function element(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}
