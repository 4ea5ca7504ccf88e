// Instructions to start from, as chips: those that the server says the loaded checkpoint follows.

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

  show({ kind, takes_instructions: takesInstructions, instruction_examples: examples }) {
    byId("instructions-field").hidden = !takesInstructions;
    const [label, placeholder] = LABELS[kind] ?? LABELS.custom_voice;
    byId("instructions-label").textContent = label;
    this.#field.placeholder = placeholder;
    this.#chips.replaceChildren(...Object.entries(examples).map(([name, text]) => chip(name, text)));
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
