// A whole text at once: POST /v1/audio/speech, with samples passed on as they arrive.

import { call, requestJson } from "./api.js";
import { PcmJoiner } from "./take.js";

// Resolves after the last sample; throws ApiError, or AbortError after signal.abort().
export async function receive(take, stage, signal) {
  const json = requestJson({ ...take.request, response_format: "pcm" });
  const answer = await call("v1/audio/speech", { method: "POST", json, signal });
  take.seed = answer.headers.get("x-seed") ?? "";
  take.warning = answer.headers.get("x-warning") ?? "";
  const rateHz = Number(answer.headers.get("x-sample-rate")) || take.rateHz;
  if (rateHz !== take.rateHz) throw new Error(`expected audio at ${take.rateHz} Hz, the server sends ${rateHz} Hz`);
  const joiner = new PcmJoiner();
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    stage.feed(take, joiner.push(value));
  }
  stage.end(take);
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
