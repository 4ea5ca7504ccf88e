// Instructions to start from, as chips: only those that the loaded checkpoint follows.

const PRESETS = {
  // The demo voice was trained on these four styles and ignores others.
  demo: [
    ["Slow", "Speak slowly."],
    ["Fast", "Speak fast."],
    ["High", "Speak with a high voice."],
    ["Low", "Speak with a low voice."],
  ],
  custom_voice: [
    ["Calm", "Speak calmly and slowly."],
    ["Cheerful", "Sound cheerful and friendly."],
    ["Whisper", "Whisper."],
    ["Serious", "Sound serious and formal."],
    ["Excited", "Speak fast and with great excitement."],
  ],
  voice_design: [
    ["Narrator", "An older man with a warm, deep voice, who speaks slowly and close to the microphone."],
    ["Presenter", "A young woman with a bright, clear voice, who speaks fast and cheerfully."],
    ["Grandmother", "An old woman with a soft, slightly hoarse voice, who speaks gently."],
  ],
};
const LABELS = {
  custom_voice: ["Style", "How to speak, in your own words"],
  voice_design: ["Voice description", "Who speaks: age, timbre, manner"],
};

const byId = (id) => document.getElementById(id);

export class Instructions {
  #field = byId("instructions");
  #chips = byId("instruction-presets");

  constructor({ changed }) {
    this.#field.addEventListener("input", () => this.#mark());
    this.#chips.addEventListener("click", ({ target }) => {
      const preset = target.dataset.instruction;
      if (preset === undefined) return;
      this.value = this.value === preset ? "" : preset;
      changed();
    });
  }

  // What the request carries; a hidden field says nothing.
  get value() {
    return byId("instructions-field").hidden ? "" : this.#field.value.trim();
  }

  set value(text) {
    this.#field.value = text;
    this.#mark();
  }

  show({ id, kind, takes_instructions: takesInstructions }) {
    byId("instructions-field").hidden = !takesInstructions;
    const [label, placeholder] = LABELS[kind] ?? LABELS.custom_voice;
    byId("instructions-label").textContent = label;
    this.#field.placeholder = placeholder;
    const presets = (id === "demo" ? PRESETS.demo : PRESETS[kind]) ?? [];
    this.#chips.replaceChildren(...presets.map(([name, text]) => chip(name, text)));
    this.#mark();
  }

  #mark() {
    for (const one of this.#chips.children) {
      one.setAttribute("aria-pressed", String(one.dataset.instruction === this.#field.value.trim()));
    }
  }
}

function chip(name, text) {
  const node = document.createElement("button");
  node.type = "button";
  node.className = "chip";
  node.textContent = name;
  node.title = text;
  node.dataset.instruction = text;
  return node;
}
