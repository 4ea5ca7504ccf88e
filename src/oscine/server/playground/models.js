// The choice among the served models. A single model needs no choice and is never named in a request.

const KINDS = { custom_voice: "preset voices", voice_design: "described voices", base: "cloned voices" };

const byId = (id) => document.getElementById(id);

export class Models {
  #select = byId("model");
  #models = []; // as GET /v1/models describes them

  // chosen(): the user has chosen another model.
  constructor({ chosen }) {
    this.#select.addEventListener("change", chosen);
  }

  get several() {
    return this.#models.length > 1;
  }

  get current() {
    return this.#models.find((model) => model.id === this.#select.value) ?? this.#models[0] ?? null;
  }

  // The field of a request.
  get fields() {
    return this.several ? { model: this.current.id } : {};
  }

  // `listed` also has OpenAI's names, which stand for these models. A choice that is still there is kept.
  show(listed) {
    const before = this.#select.value;
    this.#models = listed.filter((model) => model.root === model.id);
    this.#select.replaceChildren(...this.#models.map((model) => new Option(described(model), model.id)));
    this.choose(before);
    byId("model-field").hidden = !this.several;
  }

  // A model that this server does not have is not chosen.
  choose(id) {
    if (this.#models.some((model) => model.id === id)) this.#select.value = id;
  }
}

function described({ id, kind, state }) {
  return `${id} (${KINDS[kind]}${state === "ready" ? "" : `, ${state}`})`;
}
