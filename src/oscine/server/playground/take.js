// One utterance as this page knows it: what was asked, the samples that came, when, and how it was heard.

const PEAK_SAMPLES = 240; // 10 ms at 24 kHz: finer than a pixel for all but the shortest sounds

// waiting: asked, nothing heard yet. speaking: heard while it is made. playing: all of it is here, the rest is played.
const RUNNING = new Set(["waiting", "speaking", "playing"]);

export class Take {
  state = "waiting";
  outcome = "done"; // the state after the last sample
  complete = false; // the last sample has come
  finishReason = ""; // where the server told it
  seed = ""; // digits: a seed has 64 bits, more than a JavaScript number keeps
  received = 0;
  played = 0;
  gaps = []; // sample numbers before which the loudspeaker waited although the text was there
  pauses = []; // the same while more text was expected
  textOpen = false;
  dry = ""; // "text" or "sound": what the loudspeaker is waiting for
  firstByteMs = null;
  firstSoundMs = null;
  lastByteMs = null;
  peaks = []; // one per PEAK_SAMPLES, 0..1
  #blocks = [];
  #askedAtMs;

  constructor({ text, voice, rateHz, request, live = false, askedAtMs = performance.now() }) {
    Object.assign(this, { text, voice, rateHz, request, live });
    this.#askedAtMs = askedAtMs;
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

  heardAt(atMs) {
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

  // Seconds of sound per second since it was asked for, as the benchmarks have it. A typist's pace would tell nothing.
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

// Bytes come cut anywhere, also inside a sample: the odd one waits for its other half.
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
