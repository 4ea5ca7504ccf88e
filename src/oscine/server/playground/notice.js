// What went wrong, in plain words, beside the button that was pressed; with a countdown where the server says when to
// try again. A missing key is no error: the page asks for it.

const byId = (id) => document.getElementById(id);

// The field of the page for a field of the API.
const FIELDS = {
  input: "text",
  text: "text",
  voice: "voices",
  language: "language",
  instructions: "instructions",
  speed: "speed",
  seed: "seed",
  ref_audio: "clip-file",
  audio_sample: "clip-file",
  ref_text: "clip-words",
  name: "voice-name",
  consent: "consent",
};

// Errors that are not about one field, in a person's words; the server's own words stand below them.
const WORDS = {
  overloaded: "The server is busy with other listeners.",
  too_many_streams: "Your key is already speaking elsewhere.",
  not_ready: "The server is not ready yet.",
  engine_failed: "The speech engine stopped. It starts again by itself.",
  internal_error: "The server made a mistake. It is not your fault, and it has been logged.",
};

export class Notice {
  #timer = 0;
  #marked = null;
  #askKey;

  // askKey(words): asks the user for a key.
  constructor({ retry, askKey }) {
    this.#askKey = askKey;
    byId("notice-close").addEventListener("click", () => this.clear());
    byId("notice-retry").addEventListener("click", () => {
      this.clear();
      retry();
    });
  }

  show(error) {
    this.clear();
    if (error.status === 401) return this.#askKey();
    const words = WORDS[error.code];
    const detail = [words ? sentence(error.message) : "", error.requestId ? `Request ${error.requestId}` : ""];
    this.#tell("bad", words ?? sentence(error.message), detail.filter(Boolean).join(" "));
    this.#mark(FIELDS[error.param]);
    if (error.retryAfterS !== null && error.retryAfterS !== undefined) this.#countDown(error.retryAfterS);
  }

  warn(message) {
    this.clear();
    this.#tell("warn", sentence(message), "");
  }

  clear() {
    clearInterval(this.#timer);
    byId("notice").hidden = true;
    byId("notice-retry").hidden = true;
    this.#marked?.removeAttribute("aria-invalid");
    this.#marked?.removeAttribute("aria-errormessage");
    this.#marked = null;
  }

  #tell(kind, words, detail) {
    byId("notice-text").textContent = words;
    byId("notice-detail").textContent = detail;
    byId("notice").dataset.kind = kind;
    byId("notice").hidden = false;
    byId("notice").scrollIntoView({ block: "nearest" }); // on a phone the button may be far from it
  }

  #mark(id) {
    if (!id) return;
    this.#marked = byId(id);
    this.#marked.setAttribute("aria-invalid", "true");
    this.#marked.setAttribute("aria-errormessage", "notice-text");
  }

  #countDown(seconds) {
    const button = byId("notice-retry");
    const endMs = performance.now() + seconds * 1000;
    const tell = () => {
      const left = Math.ceil((endMs - performance.now()) / 1000);
      button.disabled = left > 0;
      button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
      if (left <= 0) clearInterval(this.#timer);
    };
    button.hidden = false;
    tell();
    this.#timer = setInterval(tell, 200);
  }
}

// "the text is empty; give a word" -> "The text is empty; give a word."
function sentence(message) {
  const text = message.trim();
  return text[0].toUpperCase() + text.slice(1) + (/[.!?)]$/.test(text) ? "" : ".");
}
