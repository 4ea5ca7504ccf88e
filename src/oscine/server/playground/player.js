// The loudspeaker: an AudioContext at the model's own rate, so that no sample is resampled on the page, fed by a queue.

import { SampleQueue } from "./worklet.js";

const IDLE_S = 30; // a running context costs a phone's battery; waking one up takes less than the first frame
const FALLBACK_BLOCK = 1024;

export class Player {
  #context = null;
  #node = null;
  #early = []; // what came before the audio thread stood
  #send = (...message) => this.#early.push(message);
  #listen;
  #opening = null;
  #idleTimer = 0;
  #tracks = new Set();
  #nextId = 1;

  // listen({type, id, ...}): start, dry, gap, progress, end; `atMs` is when it is heard, on performance.now()'s clock.
  constructor(listen) {
    this.#listen = listen;
  }

  // To be called from a click or a key: browsers let no page sound without one.
  open(rateHz) {
    clearTimeout(this.#idleTimer);
    if (this.#context?.sampleRate !== rateHz) this.#opening = this.#build(rateHz);
    this.#context?.resume(); // not awaited: it may wait for the device, and samples may come meanwhile
    return this.#opening;
  }

  begin() {
    const id = this.#nextId++;
    this.#tracks.add(id);
    clearTimeout(this.#idleTimer);
    this.#send({ type: "begin", id });
    return id;
  }

  push(id, pcm) {
    if (!this.#tracks.has(id)) return;
    const samples = pcm.slice(); // it moves to the audio thread, and the take keeps its own
    this.#send({ type: "push", id, samples }, [samples.buffer]);
  }

  end(id) {
    this.#send({ type: "end", id });
  }

  // Silence within one block of the audio thread; what was not played is dropped.
  flush() {
    this.#send({ type: "flush" });
  }

  async #build(rateHz) {
    this.#context?.close();
    for (const id of this.#tracks) this.#listen({ type: "end", id }); // the old queue will tell no more
    this.#tracks.clear();
    this.#early = [];
    this.#send = (...message) => this.#early.push(message);
    const context = new AudioContext({ sampleRate: rateHz, latencyHint: "interactive" });
    this.#context = context;
    if (context.audioWorklet) {
      await context.audioWorklet.addModule(new URL("./worklet.js", import.meta.url));
      this.#node = new AudioWorkletNode(context, "oscine-player", { numberOfInputs: 0, outputChannelCount: [1] });
      this.#node.port.onmessage = ({ data }) => this.#hear(data);
      this.#send = (message, moved = []) => this.#node.port.postMessage(message, moved);
    } else {
      this.#buildFallback(context);
    }
    this.#node.connect(context.destination);
    this.#early.splice(0).forEach((message) => this.#send(...message));
  }

  // A page from plain http on another machine has no worklets. The old node does the same on the page's own thread.
  #buildFallback(context) {
    const queue = new SampleQueue(context.sampleRate, (event) => {
      this.#hear({ ...event, contextTimeS: context.currentTime });
    });
    this.#node = context.createScriptProcessor(FALLBACK_BLOCK, 0, 1);
    this.#node.onaudioprocess = ({ outputBuffer }) => queue.fill(outputBuffer.getChannelData(0));
    this.#send = (message) => queue.obey(message);
  }

  #hear(event) {
    if (event.type === "end") {
      this.#tracks.delete(event.id);
      if (this.#tracks.size === 0) this.#idleTimer = setTimeout(() => this.#context.suspend(), IDLE_S * 1000);
    }
    const offsetS = (event.offset ?? 0) / this.#context.sampleRate;
    this.#listen({ ...event, atMs: this.#heardAtMs(event.contextTimeS + offsetS) });
  }

  #heardAtMs(contextTimeS) {
    const nowMs = performance.now();
    const stamp = this.#context.getOutputTimestamp?.();
    if (!stamp?.performanceTime) return nowMs;
    const atMs = stamp.performanceTime + (contextTimeS - stamp.contextTime) * 1000;
    // A device that has just been opened may give times of long ago.
    return Math.abs(atMs - nowMs) < 1000 ? atMs : nowMs;
  }
}
