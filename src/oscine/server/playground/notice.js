// What went wrong, in the server's words, beside the button that asked for it; with a countdown where it says when to
// come back.

const byId = (id) => document.getElementById(id);

// The field of the page for a field of the API.
const FIELDS = {
  input: "text",
  text: "text",
  voice: "voice",
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

export class Notice {
  #timer = 0;
  #marked = null;

  constructor({ retry, wantKey }) {
    this.wantKey = wantKey;
    byId("notice-close").addEventListener("click", () => this.clear());
    byId("notice-retry").addEventListener("click", () => {
      this.clear();
      retry();
    });
  }

  show(error) {
    this.clear();
    byId("notice-text").textContent = error.message;
    byId("notice-detail").textContent = error.requestId ? `Request ${error.requestId}` : "";
    byId("notice").hidden = false;
    byId("notice").scrollIntoView({ block: "nearest" }); // on a phone the button may be far from it
    this.#mark(FIELDS[error.param]);
    if (error.status === 401) this.wantKey();
    if (error.retryAfterS !== null && error.retryAfterS !== undefined) this.#countDown(error.retryAfterS);
  }

  clear() {
    clearInterval(this.#timer);
    byId("notice").hidden = true;
    byId("notice-retry").hidden = true;
    this.#marked?.removeAttribute("aria-invalid");
    this.#marked?.removeAttribute("aria-errormessage");
    this.#marked = null;
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
