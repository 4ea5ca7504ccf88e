// Text while it is typed: one WebSocket, words out, sound in. An utterance begins with its first word.

import { address, ApiError, key, requestJson } from "./api.js";
import { PcmJoiner, Take } from "./take.js";

const IDLE = 4408;
const LOST = "The connection to the server was lost.";
const CLOSED = {
  1009: "The text or clip is larger than the server takes.",
  1011: "The server failed; the text may be sent again.",
};

// Everything up to the last break of a word. Chinese and Japanese have none: each of their letters counts.
const WHOLE_WORDS = /^.*[\s、。，！？…\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/su;

// "words done, words" -> ["words done, ", "words"]: what can be sent, and what is still being typed.
export function splitTyped(typed) {
  const whole = WHOLE_WORDS.exec(typed)?.[0] ?? "";
  return [whole, typed.slice(whole.length)];
}

export class LiveSession {
  #stage;
  #failed;
  #ended;
  #socket = null;
  #sentConfig = "";
  #takes = []; // by the server's utterance_index
  #writing = null; // the take whose text is open
  #unconfirmed = null; // the take whose settings the server has not yet taken
  #sounding = null; // the take whose bytes arrive
  #joiner = null;
  #lastWords = null; // the server's error before it closed the socket

  // failed(error): shown to the user. ended(take): there is news of how it ended; take.spokenText after a cancel.
  constructor({ stage, failed, ended }) {
    this.#stage = stage;
    this.#failed = failed;
    this.#ended = ended;
  }

  get writing() {
    return this.#writing;
  }

  connect() {
    if (this.#socket && this.#socket.readyState <= WebSocket.OPEN) return;
    const url = address("v1/audio/speech/stream");
    url.protocol = url.protocol.replace("http", "ws");
    const socket = key.get() ? new WebSocket(url, ["oscine", `bearer.${key.get()}`]) : new WebSocket(url);
    socket.binaryType = "arraybuffer";
    socket.waiting = []; // what was typed before the socket stood
    socket.onopen = () => socket.waiting.splice(0).forEach((message) => socket.send(message));
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.#hear(data) : this.#sound(data));
    socket.onclose = ({ code }) => socket === this.#socket && this.#closed(code);
    this.#socket = socket;
    this.#sentConfig = "";
    this.#takes = [];
    this.#unconfirmed = this.#lastWords = null;
  }

  // The next piece of text. `describe()` gives a new utterance's {request, voice, rateHz}.
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

  // Everything that is spoken or waits for it. `heard` is the take that was interrupted: the server may have made all
  // of it long ago.
  cancel(heard) {
    const index = this.#takes.indexOf(heard);
    if (this.#writing) this.#writing.textOpen = false;
    this.#writing = this.#unconfirmed = null;
    const place = index < 0 ? {} : { utterance_index: index, played_s: heard.playedS };
    if (index >= 0 || this.#takes.some((take) => !take.told)) this.#send({ type: "input.cancel", ...place });
  }

  close() {
    this.#socket?.close(1000);
    this.#socket = null;
    this.#writing = null;
  }

  #begin({ request, voice, rateHz }) {
    this.connect();
    const config = requestJson({ type: "session.config", ...request, response_format: "pcm" });
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

  #hear(text) {
    const message = JSON.parse(text);
    const take = this.#takes[message.utterance_index];
    if (message.type === "session.ready") {
      this.#unconfirmed = null;
    } else if (message.type === "audio.start") {
      this.#sounding = take;
      this.#joiner = new PcmJoiner();
      if (take) take.seed = /"seed":\s*(\d+)/.exec(text)?.[1] ?? ""; // its digits: see requestJson
    } else if (message.type === "audio.done" && take) {
      take.told = true;
      take.finishReason = message.finish_reason;
      this.#stage.end(take);
      this.#ended(take);
    } else if (message.type === "session.done" && take && !take.told) {
      take.told = true; // it never began: dropped by a cancel, or there was no word in it
      this.#stage.end(take);
      this.#ended(take);
    } else if (message.type === "input.cancelled" && take) {
      take.finishReason = "cancelled";
      take.spokenText = message.spoken_text;
      this.#ended(take);
    } else if (message.type === "error") {
      const { message: words, code, param } = message.error;
      const status = code === "invalid_api_key" ? 401 : 0;
      const retryAfterS = message.retry_after_s ?? null;
      const error = new ApiError(words, { code, status, retryAfterS, param: param ?? "" });
      if (take) this.#refused(take, error);
      else this.#misunderstood(error);
    }
  }

  #sound(bytes) {
    if (this.#sounding) this.#stage.feed(this.#sounding, this.#joiner.push(new Uint8Array(bytes)));
  }

  #refused(take, error) {
    take.told = true;
    this.#stage.fail(take);
    this.#ended(take);
    if (take === this.#writing) this.finish(); // the server skips the rest of its text
    this.#failed(error);
  }

  // Settings or a piece of text that the server did not take, or its last words before it closes the socket.
  #misunderstood(error) {
    this.#lastWords = error;
    const take = this.#unconfirmed ?? this.#writing;
    if (take === null) return;
    this.#stage.fail(take);
    this.#failed(error);
    this.#stage.stop();
    this.cancel(null); // the server would speak it in another voice
    this.#sentConfig = ""; // to be sent again
  }

  #closed(code) {
    const error = this.#lastWords ?? new ApiError(CLOSED[code] ?? LOST);
    const cut = this.#takes.filter((take) => !take.told);
    for (const take of cut) this.#stage.fail(take);
    for (const take of cut) this.#ended(take);
    this.#socket = null;
    this.#writing = null;
    // A socket that was idle for too long is opened again by the next word.
    if (cut.length > 0 || (this.#lastWords && code !== IDLE)) this.#failed(error);
  }
}
