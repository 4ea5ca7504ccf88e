// Two takes of one text side by side: two voices, or one voice with two seeds.

import { receive } from "./speech.js";
import { Take } from "./take.js";
import { Waveform } from "./waveform.js";

const byId = (id) => document.getElementById(id);

export class Comparison {
  #sides;
  #settings;
  #stage;
  #failed;

  constructor({ stage, settings, failed, seek, changed }) {
    this.#stage = stage;
    this.#settings = settings;
    this.#failed = failed;
    this.#sides = ["a", "b"].map((name) => new Side(name, { seek }));
    for (const side of this.#sides) {
      side.voice.addEventListener("change", changed);
      side.seed.addEventListener("input", changed);
    }
  }

  get takes() {
    return this.#sides.map((side) => side.take);
  }

  // As the fields of a link.
  get state() {
    const [a, b] = this.#sides;
    return { voice: a.voice.value, seed_a: a.seed.value, voice_b: b.voice.value, seed_b: b.seed.value };
  }

  apply({ voice, voice_b: voiceB, seed_a: seedA = "", seed_b: seedB = "" }) {
    const [a, b] = this.#sides;
    a.choose(voice, seedA);
    b.choose(voiceB, seedB);
  }

  // The voices that there are; at first the sides differ, where they can.
  offer(options, chosen) {
    const other = options.find((option) => option.value !== chosen)?.value ?? chosen;
    this.#sides[0].offer(options, chosen);
    this.#sides[1].offer(options, other);
  }

  // They are played one after the other, so B is requested when A has arrived: a small server, or one with a limit for
  // each key, takes one request at a time.
  async speak(text, signal) {
    for (const side of this.#sides) side.clear();
    for (const side of this.#sides) await this.#speakSide(side, { text, signal });
  }

  changed() {
    for (const side of this.#sides) side.paint();
  }

  async #speakSide(side, { text, signal }) {
    if (signal.aborted) return;
    const askedAtMs = performance.now();
    const [voice, seed] = [side.voice.value, side.seed.value.trim()];
    try {
      const request = { ...(await this.#settings.request({ voice, seed })), input: text };
      if (signal.aborted) return;
      const { rateHz } = this.#settings;
      side.take = new Take({ text, voice: this.#settings.voiceName(voice), rateHz, request, askedAtMs });
      this.#stage.begin(side.take);
      await receive(side.take, this.#stage, signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (side.take) this.#stage.fail(side.take);
      this.#failed(error);
    }
  }
}

class Side {
  take = null;
  #name;
  #waveform;

  constructor(name, { seek }) {
    this.#name = name;
    this.voice = byId(`compare-voice-${name}`);
    this.seed = byId(`compare-seed-${name}`);
    this.#waveform = new Waveform(byId(`compare-wave-${name}`), { seek });
    byId(`compare-play-${name}`).addEventListener("click", () => seek(this.take, 0));
  }

  offer(options, chosen) {
    const before = this.voice.value;
    this.voice.replaceChildren(...options.map((option) => new Option(option.name, option.value)));
    this.choose(options.some((option) => option.value === before && before) ? before : chosen, this.seed.value);
  }

  choose(voice, seed) {
    if ([...this.voice.options].some((option) => option.value === voice)) this.voice.value = voice;
    this.seed.value = seed;
  }

  clear() {
    this.take = null;
  }

  paint() {
    this.#waveform.paint(this.take);
    byId(`compare-play-${this.#name}`).disabled = !this.take?.received;
    const { take } = this;
    const facts = take ? [`${take.receivedS.toFixed(1)} s`] : ["Nothing spoken yet"];
    if (take?.seed) facts.push(`seed ${take.seed}`);
    if (take?.state === "failed") facts.push("failed");
    const node = byId(`compare-state-${this.#name}`);
    if (node.textContent !== facts.join(" · ")) node.textContent = facts.join(" · ");
  }
}
