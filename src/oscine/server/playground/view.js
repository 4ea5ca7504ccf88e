// The sound card: state, waveform and figures of the take that is shown. Painted once per frame, however much changed.

import { canEncode } from "./speech.js";
import { Waveform } from "./waveform.js";

const WORDS = {
  idle: "Nothing spoken yet",
  waiting: "Waiting for the first sound",
  speaking: "Speaking",
  playing: "All received, playing",
  done: "Done",
  stopped: "Stopped",
  failed: "Failed",
};
const REASONS = {
  length: "Done: the length limit was reached",
  runaway: "Done: cut, as the model would not have ended",
};

const DRY = {
  text: "Waiting for more text",
  sound: "Waiting for more sound",
};

const byId = (id) => document.getElementById(id);

export class View {
  #waveform = new Waveform(byId("wave"));
  #stage;
  #due = false;

  constructor(stage) {
    this.#stage = stage;
    this.#paint();
  }

  changed() {
    if (this.#due) return;
    this.#due = true;
    // A hidden tab gets no animation frames, and needs none: but it needs its state.
    if (document.hidden) this.#paint();
    else requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    this.#due = false;
    const take = this.#stage.take;
    this.#waveform.paint(take);
    this.#paintState(take);
    const milliseconds = (value) => (value === null || value === undefined ? "–" : Math.round(value).toString());
    byId("figure-byte").textContent = milliseconds(take?.firstByteMs);
    byId("figure-sound").textContent = milliseconds(take?.firstSoundMs);
    byId("figure-rate").textContent = take?.timesRealTime ? take.timesRealTime.toFixed(1) : "–";
    byId("figure-received").textContent = take ? take.receivedS.toFixed(2) : "–";
    byId("figure-played").textContent = take ? take.playedS.toFixed(2) : "–";
    byId("figure-gaps").textContent = take ? String(take.gaps.length) : "–";
    byId("figure-gaps").classList.toggle("bad", Boolean(take?.gaps.length));
    this.#paintButtons(take);
  }

  #paintState(take) {
    const state = take?.state ?? "idle";
    const node = byId("take-state");
    const words = (state === "done" && REASONS[take.finishReason]) || (take?.running && DRY[take.dry]) || WORDS[state];
    // A live region speaks up at every write: only news is written.
    if (node.textContent !== words) node.textContent = words;
    node.dataset.state = state;
    if (!take || take.running) return;
    const sound = `Waveform of “${take.text.slice(0, 80)}”, ${take.receivedS.toFixed(1)} seconds`;
    byId("wave").setAttribute("aria-label", sound);
  }

  #paintButtons(take) {
    byId("stop").disabled = !this.#stage.busy;
    const finished = Boolean(take && !take.running && take.received);
    byId("replay").disabled = !finished;
    byId("download").disabled = !finished || !canEncode(take, byId("format").value);
    const refused = finished && byId("download").disabled;
    byId("download").title = refused ? "Only WAV: this sound cannot be made a second time" : "";
    byId("seed-note").hidden = !take?.seed;
    byId("seed-used").textContent = take?.seed ?? "";
  }
}
