// A clip of a voice: chosen, dropped or recorded. It stays on this page until it is sent with a request or saved.

const MAX_RECORDING_S = 30; // the model needs a few seconds; this stops a forgotten recording
const TYPES = ["audio/webm;codecs=opus", "audio/mp4", "audio/ogg;codecs=opus"];

const byId = (id) => document.getElementById(id);

export class Clip {
  #file = null;
  #recorder = null;
  #failed;
  #changed;

  constructor({ failed, changed }) {
    this.#failed = failed;
    this.#changed = changed;
    byId("clip-words").addEventListener("input", changed);
    byId("clip-file").addEventListener("change", ({ target }) => target.files[0] && this.#choose(target.files[0]));
    byId("clip-clear").addEventListener("click", () => this.#choose(null));
    byId("record").addEventListener("click", () => (this.#recorder ? this.#recorder.stop() : this.#record()));
    byId("clip-audio").addEventListener("loadedmetadata", () => this.#checked(true));
    byId("clip-audio").addEventListener("error", () => this.#checked(false));
    this.#takeDrops(byId("drop"));
    if (!navigator.mediaDevices?.getUserMedia || !window.MediaRecorder) {
      byId("record").disabled = true;
      byId("clip-hint").textContent += " Recording works only over https or on the machine that runs the server.";
    }
  }

  get file() {
    return this.#file;
  }

  get words() {
    return byId("clip-words").value.trim();
  }

  // Without parameters such as codecs=: not every reader of data URLs expects them.
  get type() {
    return this.#file?.type.split(";")[0] || "application/octet-stream";
  }

  // As the API takes it.
  async dataUrl() {
    const bytes = new Uint8Array(await this.#file.arrayBuffer());
    let binary = "";
    for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
    return `data:${this.type};base64,${btoa(binary)}`;
  }

  // Words typed before the first clip belong to it; those of an earlier clip do not.
  #choose(file) {
    if (this.#file) byId("clip-words").value = "";
    this.#file = file;
    this.#changed();
    const audio = byId("clip-audio");
    if (audio.src) URL.revokeObjectURL(audio.src);
    byId("clip-chosen").hidden = !file;
    byId("clip-status").textContent = "";
    if (!file) {
      audio.removeAttribute("src");
      byId("clip-file").value = "";
      return;
    }
    audio.src = URL.createObjectURL(file);
    byId("clip-name").textContent = `${file.name} (${Math.max(1, Math.round(file.size / 1024))} KB)`;
  }

  // The browser has looked into the file. It may know fewer kinds of audio than the server, which decodes the clip itself.
  #checked(readable) {
    const { name, type } = this.#file ?? {};
    if (!name) return; // removed in the meantime
    const unknown = /^(audio|video)\//.test(type) && !byId("clip-audio").canPlayType(type);
    if (readable) byId("clip-status").textContent = "The clip is ready.";
    else if (unknown) byId("clip-status").textContent = "This browser cannot play the clip. The server may know its format.";
    else this.#refuse(`“${name}” is not an audio file. Choose a WAV, MP3, FLAC, Ogg, M4A or WebM file.`);
  }

  // Words that were typed for it are kept for the right file.
  #refuse(reason) {
    this.#file = null;
    this.#choose(null);
    byId("clip-status").textContent = reason;
  }

  #takeDrops(zone) {
    const over = (event, inside) => {
      event.preventDefault();
      zone.classList.toggle("over", inside);
    };
    zone.addEventListener("dragover", (event) => over(event, true));
    zone.addEventListener("dragleave", (event) => over(event, false));
    zone.addEventListener("drop", (event) => {
      over(event, false);
      if (event.dataTransfer.files[0]) this.#choose(event.dataTransfer.files[0]);
    });
  }

  async #record() {
    let stream;
    try {
      // Unprocessed: echo and noise filters also change the voice.
      const untouched = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
      stream = await navigator.mediaDevices.getUserMedia({ audio: untouched });
    } catch (error) {
      this.#failed(new Error(`The microphone cannot be used: ${error.message}`));
      return;
    }
    const pieces = [];
    const recorder = new MediaRecorder(stream, { mimeType: TYPES.find((type) => MediaRecorder.isTypeSupported(type)) });
    const button = byId("record");
    let startMs, timer;
    recorder.onstart = () => {
      startMs = performance.now();
      timer = setInterval(() => {
        const seconds = (performance.now() - startMs) / 1000;
        button.textContent = `Stop (${Math.floor(seconds)} s)`;
        if (seconds > MAX_RECORDING_S) recorder.stop();
      }, 250);
    };
    recorder.ondataavailable = ({ data }) => pieces.push(data);
    recorder.onstop = () => {
      clearInterval(timer);
      for (const track of stream.getTracks()) track.stop();
      this.#recorder = null;
      button.textContent = "Record";
      button.setAttribute("aria-pressed", "false");
      const type = recorder.mimeType.split(";")[0];
      this.#choose(new File(pieces, `recording.${type.split("/")[1]}`, { type }));
    };
    recorder.start();
    this.#recorder = recorder;
    button.textContent = "Stop (0 s)";
    button.setAttribute("aria-pressed", "true");
  }
}
