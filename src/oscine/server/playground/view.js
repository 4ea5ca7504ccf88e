// The sound card: state, waveform and figures of the shown take. Painted at most once per animation frame.

import { Waveform } from "./waveform.js";
import { Words } from "./words.js";

const WORDS = {
  idle: "Nothing spoken yet",
  waiting: "Waiting for the first sound",
  speaking: "Speaking",
  playing: "Playing",
  done: "Done",
  stopped: "Stopped",
  failed: "Failed",
};
const REASONS = {
  length: "Done: the length limit was reached",
  runaway: "Done: cut off, because the model did not stop by itself",
};
const DRY = {
  text: "Waiting for more text",
  sound: "Waiting for more sound",
};

const byId = (id) => document.getElementById(id);

export class View {
  #waveform;
  #words;
  #stage;
  #due = false;

  constructor(stage, { seek }) {
    this.#stage = stage;
    this.#waveform = new Waveform(byId("wave"), { seek });
    this.#words = new Words({ seek });
    this.#paint();
  }

  changed() {
    if (this.#due) return;
    this.#due = true;
    // A hidden tab gets no animation frames, but its state must be current.
    if (document.hidden) this.#paint();
    else requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    this.#due = false;
    const take = this.#stage.take;
    this.#waveform.paint(take);
    this.#words.paint(take);
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
    // Screen readers announce every write to a live region.
    if (node.textContent !== words) node.textContent = words;
    node.dataset.state = state;
  }

  #paintButtons(take) {
    byId("stop").disabled = !this.#stage.busy;
    const finished = Boolean(take && !take.running && take.received);
    byId("replay").disabled = !finished;
    byId("download").disabled = !finished;
    byId("subtitles").hidden = !(finished && take.words.length);
    byId("read-as").hidden = !take?.readAs;
    byId("read-as-text").textContent = take?.readAs ?? "";
    byId("seed-note").hidden = !take?.seed;
    byId("seed-used").textContent = take?.seed ?? "";
  }
}
