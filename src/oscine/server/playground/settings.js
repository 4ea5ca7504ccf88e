// The fields that describe how to speak. The loaded model decides which of them are shown; together they are a request.

import { ApiError, call, checkSeed } from "./api.js";
import { Clip } from "./clip.js";
import { Instructions } from "./instructions.js";
import { Models } from "./models.js";
import { CLIP, titled, Voices } from "./voices.js";

const SPEEDS = [0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1, 1.1, 1.2, 1.25, 1.5, 1.75, 2, 2.5, 3, 4];

const byId = (id) => document.getElementById(id);

export class Settings {
  voices;
  #models;
  #listed = { voices: [], uploaded_voices: [], models: {} }; // as GET /v1/audio/voices lists them
  #clip;
  #instructions;
  #changed;
  #failed;
  #warned;
  #shown;

  // warned(message): it worked, but. changed(): a field has another value. shown(model): its fields are on the page.
  // preview(voice): play its sample.
  constructor({ failed, warned, shown, changed, preview }) {
    this.#failed = failed;
    this.#warned = warned;
    this.#shown = shown;
    this.#changed = changed;
    this.#clip = new Clip({ failed, changed });
    this.#instructions = new Instructions({ changed });
    this.voices = new Voices({ chosen: () => this.#showVoice(), preview });
    this.#models = new Models({ chosen: () => this.#showModel() });
    byId("voice-delete").addEventListener("click", () => this.#delete());
    byId("speed").addEventListener("input", () => this.#showSpeed());
    byId("save-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    this.#showSpeed();
  }

  // As GET /v1/models describes it.
  get model() {
    return this.#models.current;
  }

  get rateHz() {
    return this.model?.sample_rate ?? 24_000;
  }

  // Whether the server can time words of the chosen language.
  get timed() {
    return this.model?.word_timestamps.includes(byId("language").value) ?? false;
  }

  async load() {
    const { data } = await (await call("v1/models")).json();
    await this.#loadVoices();
    this.#models.show(data);
    this.#showModel();
  }

  // The plain fields of the request, without text and clip; a field at its default is left to the server.
  fields({ voice = this.voices.value, seed = byId("seed").value.trim() } = {}) {
    const fields = { ...this.#models.fields };
    if (voice && voice !== CLIP && this.model?.kind !== "voice_design") fields.voice = voice;
    if (byId("language").value !== "auto") fields.language = byId("language").value;
    if (this.#instructions.value) fields.instructions = this.#instructions.value;
    if (this.#speed !== 1) fields.speed = this.#speed;
    if (seed) fields.seed = seed;
    return fields;
  }

  // All fields of the request but its text.
  async request({ voice = this.voices.value, seed } = {}) {
    const fields = this.fields({ voice, seed });
    checkSeed(fields.seed ?? "");
    if (voice === CLIP) Object.assign(fields, await this.#clipFields());
    return fields;
  }

  // Shows the fields of an earlier request or of a link; a voice or language that this server lacks is skipped.
  apply({ model, voice, language = "auto", instructions = "", speed = 1, seed = "" }) {
    if (model !== undefined && model !== this.model?.id) {
      this.#models.choose(model);
      this.#showModel();
    }
    if (voice !== undefined) this.voices.value = voice;
    if ([...byId("language").options].some((option) => option.value === language)) byId("language").value = language;
    this.#instructions.value = instructions;
    const nearest = SPEEDS.reduce((best, one) => (Math.abs(one - speed) < Math.abs(best - speed) ? one : best));
    byId("speed").value = SPEEDS.indexOf(nearest);
    byId("seed").value = seed;
    this.#showSpeed();
    this.#showVoice();
  }

  get clipName() {
    return this.voices.value === CLIP ? (this.#clip.file?.name ?? "clip.wav") : "";
  }

  get clipType() {
    return this.#clip.type;
  }

  get clipWords() {
    return this.#clip.words;
  }

  voiceName(voice = this.voices.value) {
    if (voice === CLIP) return this.#clip.file?.name ?? "Clip";
    if (this.model?.kind === "voice_design") return "Designed voice";
    return this.voices.name(voice);
  }

  get #speed() {
    return SPEEDS[byId("speed").value];
  }

  async #clipFields() {
    const hint = "Choose or record a clip first, or pick another voice.";
    if (!this.#clip.file) throw new ApiError(hint, { param: "ref_audio" });
    const fields = { ref_audio: await this.#clip.dataUrl() };
    if (this.#clip.words) fields.ref_text = this.#clip.words;
    return fields;
  }

  #showSpeed() {
    byId("speed-value").textContent = `${this.#speed}×`;
    byId("speed").setAttribute("aria-valuetext", `${this.#speed} times`);
  }

  #showModel() {
    const { id, kind, languages } = this.model;
    this.#showVoices();
    byId("model-name").textContent = id;
    this.#instructions.show(this.model);
    byId("voice-field").hidden = kind === "voice_design";
    const named = languages.filter((name) => name !== "auto").map((name) => new Option(titled(name), name));
    const chosen = byId("language").value; // a server that was restarted has the same ones
    byId("language").replaceChildren(new Option("Detect", "auto"), ...named);
    byId("language").value = languages.includes(chosen) ? chosen : "auto";
    byId("language-field").hidden = named.length < 2;
    this.#showVoice();
    this.#shown(this.model);
  }

  async #loadVoices() {
    this.#listed = await (await call("v1/audio/voices")).json();
  }

  // Those that the model can use.
  #showVoices(chosen) {
    const { voices, uploaded_voices: uploaded, models } = this.#listed;
    const usable = (name) => models[name]?.includes(this.model.id);
    const saved = uploaded.filter((one) => usable(one.name));
    const presets = voices.filter((name) => !uploaded.some((one) => one.name === name) && usable(name));
    this.voices.show({ presets, saved, clones: this.model.clones, chosen });
  }

  #showVoice() {
    byId("clip-card").hidden = this.voices.value !== CLIP;
    byId("voice-delete").hidden = !this.voices.isSaved;
    byId("voice-delete").textContent = `Delete ${this.voices.name(this.voices.value)}`;
    delete byId("voice-delete").dataset.sure;
    byId("voice-status").textContent = "";
    this.#changed();
  }

  async #save() {
    const status = byId("clip-status");
    try {
      if (!this.#clip.file) throw new ApiError("Choose or record a clip first.", { param: "ref_audio" });
      const form = new FormData();
      form.append("name", byId("voice-name").value.trim());
      form.append("consent", byId("consent").value.trim());
      form.append("audio_sample", this.#clip.file);
      if (this.#clip.words) form.append("ref_text", this.#clip.words);
      for (const [name, value] of Object.entries(this.#models.fields)) form.append(name, value);
      status.textContent = "Saving";
      const { voice, warnings } = await (await call("v1/audio/voices", { method: "POST", body: form })).json();
      await this.#loadVoices();
      this.#showVoices(voice.id);
      this.#showVoice();
      this.voices.focus();
      status.textContent = "";
      byId("voice-status").textContent = `${this.voices.name(voice.id)} is saved and chosen.`;
      if (warnings.length > 0) this.#warned(`The voice is saved, but ${warnings.join("; ")}`);
    } catch (error) {
      status.textContent = "";
      this.#failed(error);
    }
  }

  // The first press asks, the second deletes: a voice cannot be brought back.
  async #delete() {
    const button = byId("voice-delete");
    if (!button.dataset.sure) {
      button.dataset.sure = "yes";
      button.textContent = "Really delete?";
      return;
    }
    try {
      const name = this.voices.name(this.voices.value);
      await call(`v1/audio/voices/${encodeURIComponent(this.voices.value)}`, { method: "DELETE" });
      await this.#loadVoices();
      this.#showVoices();
      this.#showVoice();
      byId("voice-status").textContent = `${name} is deleted.`;
    } catch (error) {
      this.#failed(error);
    }
  }
}
