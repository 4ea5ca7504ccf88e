// A whole text at once: POST /v1/audio/speech, with the samples handed on as they arrive.

import { call, requestJson } from "./api.js";
import { PcmJoiner } from "./take.js";

// Resolves when the last sample has arrived; throws ApiError, or AbortError after signal.abort().
export async function receive(take, stage, signal) {
  const json = requestJson({ ...take.request, response_format: "pcm" });
  const answer = await call("v1/audio/speech", { method: "POST", json, signal });
  take.seed = answer.headers.get("x-seed") ?? "";
  const rateHz = Number(answer.headers.get("x-sample-rate")) || take.rateHz;
  if (rateHz !== take.rateHz) throw new Error(`asked for sound at ${take.rateHz} Hz, the server sends ${rateHz} Hz`);
  const joiner = new PcmJoiner();
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    stage.feed(take, joiner.push(value));
  }
  stage.end(take);
}

// Another format is made by the server: the same request with the same seed gives the same sound.
export async function encoded(take, format) {
  if (format === "wav") return take.wav();
  const json = requestJson({ ...take.request, seed: take.seed, response_format: format, stream: false });
  return (await call("v1/audio/speech", { method: "POST", json })).blob();
}

export function canEncode(take, format) {
  // A text that came in pieces is spoken in another way than the same text at once; a stopped one would go on.
  return format === "wav" || (!take.live && take.complete && take.seed !== "");
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser reads it after the click has returned
}
