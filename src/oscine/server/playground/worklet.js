// The queue of samples before the audio output. Every pushed sample is played once and in order, or dropped by a flush.
// It runs in an AudioWorklet, or on the page where there are no worklets (see player.js). It imports nothing: not every
// browser supports imports in worklets. Samples are kept as Int16: half the size of the output's Float32.

const START_S = 0.12; // more than one frame of the model: the second arrives before the first has been played
const RESUME_S = 0.24; // after a gap; less would stutter
const PROGRESS_S = 0.04;

// A track is an utterance. The first track plays until it has ended and is empty, then the next one follows at once.
export class SampleQueue {
  #tracks = [];
  #report;
  #startSamples;
  #resumeSamples;
  #progressSamples;
  #sinceProgress = 0;

  constructor(rateHz, report) {
    this.#report = report;
    this.#startSamples = Math.round(START_S * rateHz);
    this.#resumeSamples = Math.round(RESUME_S * rateHz);
    this.#progressSamples = Math.round(PROGRESS_S * rateHz);
  }

  // begin | push | end name a track by its id; a push for a track that was flushed is dropped.
  handle(message) {
    if (message.type === "begin") this.#tracks.push(newTrack(message.id, this.#startSamples));
    if (message.type === "flush") this.#flush();
    const track = this.#tracks.find((one) => one.id === message.id);
    if (!track) return;
    if (message.type === "push") {
      track.blocks.push(message.samples);
      track.waitingSamples += message.samples.length;
    }
    if (message.type === "end") track.ended = true;
  }

  // The next samples to play; silence where there are none.
  fill(output) {
    let at = 0;
    while (at < output.length && this.#tracks.length > 0) {
      const track = this.#tracks[0];
      if (track.waitingSamples === 0 && track.ended) {
        this.#tracks.shift();
        this.#report({ type: "end", id: track.id, played: track.played, flushed: false });
        continue;
      }
      if (track.waitingSamples < (track.ended ? 1 : track.neededSamples)) {
        this.#starve(track, output.length - at);
        break;
      }
      if (track.neededSamples > 1) this.#resume(track, at);
      at += take(track, output, at);
    }
    output.fill(0, at);
    this.#reportProgress(output.length);
  }

  #starve(track, silentSamples) {
    // Not a gap yet: if only the end follows, the audio was not interrupted.
    if (track.played > 0 && track.neededSamples === 1) {
      track.neededSamples = this.#resumeSamples;
      this.#report({ type: "dry", id: track.id, played: track.played });
    }
    if (track.played > 0) track.silentSamples += silentSamples;
  }

  #resume(track, offset) {
    const first = track.played === 0;
    const event = first ? { type: "start", id: track.id } : { type: "gap", id: track.id, at: track.played };
    this.#report({ ...event, offset, silentSamples: track.silentSamples });
    track.neededSamples = 1;
    track.silentSamples = 0;
  }

  #flush() {
    const dropped = this.#tracks;
    this.#tracks = [];
    for (const track of dropped) this.#report({ type: "end", id: track.id, played: track.played, flushed: true });
  }

  #reportProgress(samples) {
    this.#sinceProgress += samples;
    if (this.#sinceProgress < this.#progressSamples || this.#tracks.length === 0) return;
    this.#sinceProgress = 0;
    const track = this.#tracks[0];
    this.#report({ type: "progress", id: track.id, played: track.played, dry: track.neededSamples > 1 });
  }
}

function newTrack(id, neededSamples) {
  return { id, blocks: [], read: 0, waitingSamples: 0, neededSamples, played: 0, silentSamples: 0, ended: false };
}

// Moves samples of the track's first block; returns how many.
function take(track, output, at) {
  const block = track.blocks[0];
  const count = Math.min(output.length - at, block.length - track.read);
  for (let i = 0; i < count; i++) output[at + i] = block[track.read + i] / 32768;
  track.read += count;
  track.played += count;
  track.waitingSamples -= count;
  if (track.read === block.length) {
    track.blocks.shift();
    track.read = 0;
  }
  return count;
}

if (globalThis.registerProcessor) {
  class PlayerProcessor extends AudioWorkletProcessor {
    #queue = new SampleQueue(sampleRate, (event) => this.port.postMessage({ ...event, contextTimeS: currentTime }));

    constructor() {
      super();
      this.port.onmessage = ({ data }) => this.#queue.handle(data);
    }

    process(_inputs, [[channel]]) {
      this.#queue.fill(channel);
      return true; // alive between utterances
    }
  }
  registerProcessor("oscine-player", PlayerProcessor);
}
