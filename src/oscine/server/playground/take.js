// One utterance as this page knows it: the request, the samples received so far, their timing, and how it was played.

const PEAK_SAMPLES = 240; // 10 ms at 24 kHz: finer than a pixel for all but the shortest sounds

// waiting: requested, nothing played yet. speaking: played while it is generated. playing: complete, the rest is played.
const RUNNING = new Set(["waiting", "speaking", "playing"]);

export class Take {
  state = "waiting";
  outcome = "done"; // the state after playback
  complete = false; // all samples have been received
  finishReason = ""; // as reported by the server, if it did
  readAs = ""; // what the model reads, where it is not what was written
  seed = ""; // digits: a seed has 64 bits, more than a JavaScript number keeps
  received = 0;
  played = 0;
  gaps = []; // sample numbers at which playback waited for audio
  pauses = []; // sample numbers at which playback waited for the user to type
  textOpen = false;
  dry = ""; // "text" or "sound": what playback is waiting for
  firstByteMs = null;
  firstSoundMs = null;
  lastByteMs = null;
  words = []; // {word, start_s, end_s}, if the server reports them
  peaks = []; // one per PEAK_SAMPLES, 0..1
  #blocks = [];
  #askedAtMs;

  // `preview` is the voice whose sample this is; such takes stay out of the history.
  constructor({ text, voice, rateHz, request, live = false, preview = null, askedAtMs = performance.now() }) {
    Object.assign(this, { text, voice, rateHz, request, live, preview });
    this.#askedAtMs = askedAtMs;
  }

  // As it is stored, and back. The clip is left out: it is somebody's voice.
  record() {
    const { ref_audio: clip, ...request } = this.request;
    const { text, voice, rateHz, live, state, finishReason, readAs, seed, complete, firstSoundMs, words } = this;
    const fields = { text, voice, rateHz, live, finishReason, readAs, seed, complete, firstSoundMs, words };
    return { ...fields, state: this.running ? this.outcome : state, request, samples: this.samples() };
  }

  static restore({ samples, firstSoundMs, words = [], ...fields }) {
    const take = new Take(fields);
    take.add(samples);
    const { state, finishReason, readAs = "", seed, complete } = fields;
    Object.assign(take, { state, outcome: state, finishReason, readAs, seed, complete, firstSoundMs, words });
    take.played = take.received;
    take.firstByteMs = take.lastByteMs = null; // of the restore, not of the request
    return take;
  }

  add(pcm) {
    const nowMs = performance.now();
    this.firstByteMs ??= nowMs - this.#askedAtMs;
    this.lastByteMs = nowMs - this.#askedAtMs;
    this.#blocks.push(pcm);
    for (let at = 0; at < pcm.length; at++) {
      const bin = Math.floor((this.received + at) / PEAK_SAMPLES);
      this.peaks[bin] = Math.max(this.peaks[bin] ?? 0, Math.abs(pcm[at]) / 32768);
    }
    this.received += pcm.length;
  }

  // Words that could not be timed are left out.
  addWords(words) {
    this.words.push(...words.filter(({ start_s: startS }) => startS !== null));
  }

  audibleAt(atMs) {
    this.firstSoundMs ??= Math.max(atMs - this.#askedAtMs, this.firstByteMs ?? 0);
  }

  get running() {
    return RUNNING.has(this.state);
  }

  get receivedS() {
    return this.received / this.rateHz;
  }

  get playedS() {
    return this.played / this.rateHz;
  }

  // Seconds of audio per second since the request, as in the benchmarks. Meaningless at typing speed.
  get timesRealTime() {
    return this.lastByteMs && !this.live ? this.receivedS / (this.lastByteMs / 1000) : null;
  }

  get samplesPerPeak() {
    return PEAK_SAMPLES;
  }

  samples() {
    const all = new Int16Array(this.received);
    let at = 0;
    for (const block of this.#blocks) {
      all.set(block, at);
      at += block.length;
    }
    this.#blocks = [all];
    return all;
  }

  wav() {
    const samples = this.samples();
    return new Blob([wavHeader(samples.byteLength, this.rateHz), samples], { type: "audio/wav" });
  }
}

function wavHeader(pcmBytes, rateHz) {
  const view = new DataView(new ArrayBuffer(44));
  const word = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  word(0, "RIFF");
  view.setUint32(4, 36 + pcmBytes, true);
  word(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // mono
  view.setUint32(24, rateHz, true);
  view.setUint32(28, rateHz * 2, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  word(36, "data");
  view.setUint32(40, pcmBytes, true);
  return view.buffer;
}

// Chunks may end inside a sample: the odd byte waits for its other half.
export class PcmJoiner {
  #odd = new Uint8Array(0);

  push(bytes) {
    const all = new Uint8Array(this.#odd.length + bytes.length);
    all.set(this.#odd);
    all.set(bytes, this.#odd.length);
    const whole = all.length - (all.length % 2);
    this.#odd = all.slice(whole);
    return new Int16Array(all.buffer, 0, whole / 2);
  }
}
