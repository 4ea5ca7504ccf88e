// Who speaks and how: the model's card decides which fields are shown, the fields become a request.

import { ApiError, call, checkSeed } from "./api.js";
import { Clip } from "./clip.js";

const CLIP = "from:clip"; // no voice can have this name: a colon is not allowed in one
const SPEEDS = [0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1, 1.1, 1.2, 1.25, 1.5, 1.75, 2, 2.5, 3, 4];
const INSTRUCTIONS = {
  custom_voice: ["Instruction", "How to speak: calm and slow, or whispering"],
  voice_design: ["Voice description", "Who speaks: an older man, warm, close to the microphone"],
};

const byId = (id) => document.getElementById(id);
// "ono_anna" -> "Ono Anna"
const titled = (name) => name.replaceAll(/[_-]/g, " ").replaceAll(/(?<=^| )\p{L}/gu, (letter) => letter.toUpperCase());

export class Settings {
  clip;
  model = null; // as GET /v1/models describes it
  #saved = new Set();
  #failed;
  #shown;

  // shown(model): its fields are on the page.
  constructor({ failed, shown }) {
    this.#failed = failed;
    this.#shown = shown;
    this.clip = new Clip({ failed });
    byId("voice").addEventListener("change", () => this.#showVoice());
    byId("voice-delete").addEventListener("click", () => this.#delete());
    byId("speed").addEventListener("input", () => this.#showSpeed());
    byId("save-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    this.#showSpeed();
  }

  get rateHz() {
    return this.model?.sample_rate ?? 24_000;
  }

  async load() {
    // The others on the list are OpenAI's names for the same one.
    [this.model] = (await (await call("v1/models")).json()).data;
    await this.#loadVoices();
    this.#showModel();
  }

  // Every field of the request but its text; a field at its default is left to the server.
  async request() {
    const fields = {};
    const voice = byId("voice").value;
    if (voice === CLIP) Object.assign(fields, await this.#clipFields());
    else if (voice) fields.voice = voice;
    if (byId("language").value !== "auto") fields.language = byId("language").value;
    const instructions = byId("instructions").value.trim();
    if (instructions && !byId("instructions-field").hidden) fields.instructions = instructions;
    if (this.#speed !== 1) fields.speed = this.#speed;
    const seed = byId("seed").value.trim();
    checkSeed(seed);
    if (seed) fields.seed = seed;
    return fields;
  }

  get voiceName() {
    if (byId("voice").value === CLIP) return this.clip.file?.name ?? "clip";
    if (this.model?.kind === "voice_design") return "Designed voice";
    return byId("voice").selectedOptions[0]?.textContent ?? "Default";
  }

  get #speed() {
    return SPEEDS[byId("speed").value];
  }

  async #clipFields() {
    const hint = "Choose or record a clip first, or pick a saved voice.";
    if (!this.clip.file) throw new ApiError(hint, { param: "ref_audio" });
    const fields = { ref_audio: await this.clip.dataUrl() };
    if (this.clip.words) fields.ref_text = this.clip.words;
    return fields;
  }

  #showSpeed() {
    byId("speed-value").textContent = `${this.#speed}×`;
    byId("speed").setAttribute("aria-valuetext", `${this.#speed} times`);
  }

  #showModel() {
    const { id, kind, languages, takes_instructions: takesInstructions } = this.model;
    byId("model-name").textContent = id;
    const [label, placeholder] = INSTRUCTIONS[kind] ?? INSTRUCTIONS.custom_voice;
    byId("instructions-field").hidden = !takesInstructions;
    byId("instructions-label").textContent = label;
    byId("instructions").placeholder = placeholder;
    byId("voice-field").hidden = kind === "voice_design";
    const named = languages.filter((name) => name !== "auto").map((name) => new Option(titled(name), name));
    const chosen = byId("language").value; // a server that was restarted has the same ones
    byId("language").replaceChildren(new Option("Detect", "auto"), ...named);
    byId("language").value = languages.includes(chosen) ? chosen : "auto";
    this.#showVoice();
    this.#shown(this.model);
  }

  async #loadVoices(chosen = byId("voice").value) {
    const { voices, uploaded_voices: uploaded } = await (await call("v1/audio/voices")).json();
    this.#saved = new Set(uploaded.map((one) => one.name));
    const presets = voices.filter((name) => !this.#saved.has(name));
    const select = byId("voice");
    const groups = [
      ...(this.model.clones ? [new Option("From a clip", CLIP)] : []),
      ...group("Voices", presets),
      ...group("Saved", [...this.#saved]),
    ];
    select.replaceChildren(...(groups.length ? groups : [new Option("Default", "")]));
    if ([...select.options].some((option) => option.value === chosen)) select.value = chosen;
  }

  #showVoice() {
    const voice = byId("voice").value;
    byId("clip-card").hidden = voice !== CLIP;
    byId("voice-delete").hidden = !this.#saved.has(voice);
    byId("voice-delete").textContent = "Delete";
  }

  async #save() {
    const status = byId("clip-status");
    try {
      if (!this.clip.file) throw new ApiError("Choose or record a clip first.", { param: "ref_audio" });
      const form = new FormData();
      form.append("name", byId("voice-name").value.trim());
      form.append("consent", byId("consent").value.trim());
      form.append("audio_sample", this.clip.file);
      if (this.clip.words) form.append("ref_text", this.clip.words);
      status.textContent = "Saving";
      const { voice } = await (await call("v1/audio/voices", { method: "POST", body: form })).json();
      await this.#loadVoices(voice.name);
      this.#showVoice();
      byId("voice").focus();
      status.textContent = "";
    } catch (error) {
      status.textContent = "";
      this.#failed(error);
    }
  }

  // The first press asks, the second deletes: a voice cannot be brought back.
  async #delete() {
    const button = byId("voice-delete");
    if (button.textContent === "Delete") {
      button.textContent = "Really delete?";
      return;
    }
    try {
      await call(`v1/audio/voices/${encodeURIComponent(byId("voice").value)}`, { method: "DELETE" });
      await this.#loadVoices();
      this.#showVoice();
    } catch (error) {
      this.#failed(error);
    }
  }
}

function group(label, names) {
  if (names.length === 0) return [];
  const node = document.createElement("optgroup");
  node.label = label;
  node.append(...names.map((name) => new Option(titled(name), name)));
  return [node];
}
