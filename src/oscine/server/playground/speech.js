// A whole text at once: POST /v1/audio/speech, with samples passed on as they arrive.

import { call, requestJson } from "./api.js";
import { PcmJoiner } from "./take.js";

// Resolves after the last sample; throws ApiError, or AbortError after signal.abort(). `timed`: with the times of words.
export async function receive(take, stage, signal, { timed = false } = {}) {
  const form = timed ? { word_timestamps: true, stream_format: "sse" } : {};
  const json = requestJson({ ...take.request, response_format: "pcm", ...form });
  const answer = await call("v1/audio/speech", { method: "POST", json, signal });
  take.seed = answer.headers.get("x-seed") ?? "";
  take.readAs = decodeURIComponent(answer.headers.get("x-read-as") ?? "");
  take.warning = answer.headers.get("x-warning") ?? "";
  const rateHz = Number(answer.headers.get("x-sample-rate")) || take.rateHz;
  if (rateHz !== take.rateHz) throw new Error(`expected audio at ${take.rateHz} Hz, the server sends ${rateHz} Hz`);
  const joiner = new PcmJoiner();
  const events = new EventReader({
    "speech.audio.delta": ({ audio }) => stage.feed(take, joiner.push(bytesOf(audio))),
    "speech.audio.words": ({ words, voice }) => take.addWords(words.map((word) => ({ ...word, voice }))),
  });
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (timed) events.push(value);
    else stage.feed(take, joiner.push(value));
  }
  stage.end(take);
}

// Server-sent events, whose pieces may end anywhere.
class EventReader {
  #decoder = new TextDecoder();
  #text = "";
  #handlers; // by type

  constructor(handlers) {
    this.#handlers = handlers;
  }

  push(bytes) {
    const events = (this.#text + this.#decoder.decode(bytes, { stream: true })).split("\n\n");
    this.#text = events.pop();
    for (const event of events) {
      const message = JSON.parse(event.slice(event.indexOf("data: ") + 6)); // a line with its name comes before
      this.#handlers[message.type]?.(message);
    }
  }
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

// The received samples as a file. WAV is written here; the server encodes the other formats without speaking again.
export async function encoded(take, format) {
  if (format === "wav") return take.wav();
  const path = `v1/audio/encode?response_format=${format}&sample_rate=${take.rateHz}`;
  return (await call(path, { method: "POST", body: new Blob([take.samples()], { type: "audio/pcm" }) })).blob();
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser reads it after the click has returned
}

// "oscine-the-first-words.wav": letters of any script, no character that a file system rejects.
export function fileName(take, format) {
  const words = take.text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return `${["oscine", ...words.slice(0, 6)].join("-").slice(0, 60)}.${format}`;
}
