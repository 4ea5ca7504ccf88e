// Streaming text over one WebSocket: words go out as they are typed, audio comes in. An utterance begins with its first
// word.

import { address, ApiError, key, requestJson } from "./api.js";
import { PcmJoiner, Take } from "./take.js";

const IDLE = 4408;
const LOST = "The connection to the server was lost.";
const CLOSED = {
  1009: "The text or clip is too large for this server.",
  1011: "The server failed. Type the text again.",
};

// Everything up to the last word boundary. Chinese and Japanese have none: each character counts as a word.
const WHOLE_WORDS = /^.*[\s、。，！？…\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/su;

// "words done, wor" -> ["words done, ", "wor"]: complete words, and the word that is being typed.
export function splitTyped(typed) {
  const whole = WHOLE_WORDS.exec(typed)?.[0] ?? "";
  return [whole, typed.slice(whole.length)];
}

export class LiveSession {
  #stage;
  #failed;
  #ended;
  #warned;
  #socket = null;
  #sentConfig = "";
  #takes = []; // by the server's utterance_index
  #writing = null; // the take whose text is open
  #unconfirmed = null; // the take whose settings the server has not confirmed yet
  #sounding = null; // the take whose bytes arrive
  #joiner = null;
  #lastError = null; // sent by the server before it closed the socket

  // failed(error): show it. warned(message): likewise. ended(take): its state is
  // final; after a cancel, take.spokenText is set.
  constructor({ stage, failed, ended, warned }) {
    this.#stage = stage;
    this.#failed = failed;
    this.#ended = ended;
    this.#warned = warned;
  }

  get writing() {
    return this.#writing;
  }

  connect() {
    if (this.#socket && this.#socket.readyState <= WebSocket.OPEN) return;
    const url = address("v1/audio/speech/stream");
    url.protocol = url.protocol.replace("http", "ws");
    // The subprotocol also asks for session.ready, audio.segment and audio.words.
    const socket = new WebSocket(url, key.get() ? ["oscine", `bearer.${key.get()}`] : ["oscine"]);
    socket.binaryType = "arraybuffer";
    socket.waiting = []; // messages from before the socket was open
    socket.onopen = () => socket.waiting.splice(0).forEach((message) => socket.send(message));
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.#onEvent(data) : this.#onAudio(data));
    socket.onclose = ({ code }) => socket === this.#socket && this.#closed(code);
    this.#socket = socket;
    this.#sentConfig = "";
    this.#takes = [];
    this.#unconfirmed = this.#lastError = null;
  }

  // The next piece of text. `describe()` gives a new utterance's {request, voice, rateHz, timed}.
  write(text, describe) {
    if (this.#writing === null) this.#begin(describe());
    this.#writing.text += text;
    this.#send({ type: "input.text", text });
    return this.#writing;
  }

  finish() {
    if (this.#writing === null) return;
    this.#writing.textOpen = false;
    this.#writing = null;
    this.#send({ type: "input.done" });
  }

  // Cancels all utterances. `playing` is the take that was interrupted: the server may have sent all of it long ago.
  cancel(playing) {
    const index = this.#takes.indexOf(playing);
    if (this.#writing) this.#writing.textOpen = false;
    this.#writing = this.#unconfirmed = null;
    const place = index < 0 ? {} : { utterance_index: index, played_s: playing.playedS };
    if (index >= 0 || this.#takes.some((take) => !take.ended)) this.#send({ type: "input.cancel", ...place });
  }

  close() {
    this.#socket?.close(1000);
    this.#socket = null;
    this.#writing = null;
  }

  #begin({ request, voice, rateHz, timed }) {
    this.connect();
    const words = timed ? { word_timestamps: true } : {};
    const config = requestJson({ type: "session.config", ...request, response_format: "pcm", ...words });
    const take = new Take({ text: "", voice, rateHz, request, live: true });
    if (config !== this.#sentConfig) {
      this.#sendText(config);
      this.#sentConfig = config;
      this.#unconfirmed = take;
    }
    take.textOpen = true;
    this.#writing = take;
    this.#takes.push(take);
    this.#stage.begin(take);
  }

  #send(message) {
    this.#sendText(JSON.stringify(message));
  }

  #sendText(message) {
    if (this.#socket?.readyState === WebSocket.CONNECTING) this.#socket.waiting.push(message);
    else this.#socket?.send(message);
  }

  #onEvent(text) {
    const message = JSON.parse(text);
    const take = this.#takes[message.utterance_index];
    if (message.type === "session.ready") {
      this.#unconfirmed = null;
    } else if (message.type === "audio.start") {
      this.#sounding = take;
      this.#joiner = new PcmJoiner();
      if (take) take.seed = /"seed":\s*(\d+)/.exec(text)?.[1] ?? ""; // as digits: see requestJson
    } else if (message.type === "audio.segment") {
      if (message.warning) this.#warned(message.warning);
      if (message.spoken && take) take.readAs = `${take.readAs} ${message.spoken}`.trim();
    } else if (message.type === "audio.words" && take) {
      take.addWords(message.words);
    } else if (message.type === "audio.done" && take) {
      take.ended = true;
      take.finishReason = message.finish_reason;
      this.#stage.end(take);
      this.#ended(take);
    } else if (message.type === "session.done" && take && !take.ended) {
      take.ended = true; // it had no audio: cancelled before its start, or without words
      this.#stage.end(take);
      this.#ended(take);
    } else if (message.type === "input.cancelled" && take) {
      take.finishReason = "cancelled";
      take.spokenText = message.spoken_text;
      this.#ended(take);
    } else if (message.type === "error") {
      const { message: text, code, param } = message.error;
      const status = code === "invalid_api_key" ? 401 : 0;
      const retryAfterS = message.retry_after_s ?? null;
      const error = new ApiError(text, { code, status, retryAfterS, param: param ?? "" });
      if (take) this.#refused(take, error);
      else this.#messageRefused(error);
    }
  }

  #onAudio(bytes) {
    if (this.#sounding) this.#stage.feed(this.#sounding, this.#joiner.push(new Uint8Array(bytes)));
  }

  #refused(take, error) {
    take.ended = true;
    this.#stage.fail(take);
    this.#ended(take);
    if (take === this.#writing) this.finish(); // the server skips the rest of its text
    if (error.code !== "not_configured") this.#failed(error); // the reason was shown: the settings were refused
  }

  // Settings or text that the server refused, or its last error before it closes the socket.
  #messageRefused(error) {
    this.#lastError = error;
    const take = this.#unconfirmed ?? this.#writing;
    if (take === null) return;
    this.#stage.fail(take);
    this.#failed(error);
    this.#stage.stop();
    this.cancel(null); // the server would speak it with other settings
    this.#sentConfig = ""; // to be sent again
  }

  #closed(code) {
    const error = this.#lastError ?? new ApiError(CLOSED[code] ?? LOST);
    const cut = this.#takes.filter((take) => !take.ended);
    for (const take of cut) this.#stage.fail(take);
    for (const take of cut) this.#ended(take);
    this.#socket = null;
    this.#writing = null;
    // The next word opens a socket that was closed for being idle.
    if (cut.length > 0 || (this.#lastError && code !== IDLE)) this.#failed(error);
  }
}
