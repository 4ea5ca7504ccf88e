// Audio output: an AudioContext at the model's own rate, so that the page does not resample, fed by a queue.

import { SampleQueue } from "./worklet.js";

const IDLE_S = 30; // then it is suspended, to save battery; resuming takes less time than the first frame
const FALLBACK_BLOCK = 1024;

export class Player {
  #context = null;
  #node = null;
  #early = []; // messages from before the audio thread was ready
  #send = (...message) => this.#early.push(message);
  #listen;
  #opening = null;
  #idleTimer = 0;
  #tracks = new Set();
  #nextId = 1;

  // listen({type, id, ...}): start, dry, gap, progress, end; `atMs` is when it is audible, on performance.now()'s clock.
  constructor(listen) {
    this.#listen = listen;
  }

  // Call it in a click or key handler: browsers block audio without one.
  open(rateHz) {
    clearTimeout(this.#idleTimer);
    if (this.#context?.sampleRate !== rateHz) this.#opening = this.#build(rateHz);
    this.#context?.resume(); // not awaited: it may wait for the device while samples arrive
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
    const samples = pcm.slice(); // moves to the audio thread; the take keeps its own
    this.#send({ type: "push", id, samples }, [samples.buffer]);
  }

  end(id) {
    this.#send({ type: "end", id });
  }

  // Silence within one block of the audio thread; samples that were not played are dropped.
  flush() {
    this.#send({ type: "flush" });
  }

  async #build(rateHz) {
    this.#context?.close();
    for (const id of this.#tracks) this.#listen({ type: "end", id }); // the old queue reports no more
    this.#tracks.clear();
    this.#early = [];
    this.#send = (...message) => this.#early.push(message);
    const context = new AudioContext({ sampleRate: rateHz, latencyHint: "interactive" });
    this.#context = context;
    if (context.audioWorklet) {
      await context.audioWorklet.addModule(new URL("./worklet.js", import.meta.url));
      this.#node = new AudioWorkletNode(context, "oscine-player", { numberOfInputs: 0, outputChannelCount: [1] });
      this.#node.port.onmessage = ({ data }) => this.#onQueue(data);
      this.#send = (message, moved = []) => this.#node.port.postMessage(message, moved);
    } else {
      this.#buildFallback(context);
    }
    this.#node.connect(context.destination);
    this.#early.splice(0).forEach((message) => this.#send(...message));
  }

  // Pages over plain http from another machine have no worklets. ScriptProcessor does the same on the main thread.
  #buildFallback(context) {
    const queue = new SampleQueue(context.sampleRate, (event) => {
      this.#onQueue({ ...event, contextTimeS: context.currentTime });
    });
    this.#node = context.createScriptProcessor(FALLBACK_BLOCK, 0, 1);
    this.#node.onaudioprocess = ({ outputBuffer }) => queue.fill(outputBuffer.getChannelData(0));
    this.#send = (message) => queue.handle(message);
  }

  #onQueue(event) {
    if (event.type === "end") {
      this.#tracks.delete(event.id);
      if (this.#tracks.size === 0) this.#idleTimer = setTimeout(() => this.#context.suspend(), IDLE_S * 1000);
    }
    const offsetS = (event.offset ?? 0) / this.#context.sampleRate;
    this.#listen({ ...event, atMs: this.#audibleAtMs(event.contextTimeS + offsetS) });
  }

  #audibleAtMs(contextTimeS) {
    const nowMs = performance.now();
    const stamp = this.#context.getOutputTimestamp?.();
    if (!stamp?.performanceTime) return nowMs;
    const atMs = stamp.performanceTime + (contextTimeS - stamp.contextTime) * 1000;
    // A device that was just opened may report a time long ago.
    return Math.abs(atMs - nowMs) < 1000 ? atMs : nowMs;
  }
}
