// The page: connects buttons, keys and fields to what they do. Each part is in its own file.

import { address, key } from "./api.js";
import { Comparison } from "./compare.js";
import { turnsOf } from "./dialogue.js";
import { firstExample, offerExamples, previewText } from "./examples.js";
import { History } from "./history.js";
import { KeyPanel } from "./key.js";
import { linkTo, readLink } from "./link.js";
import { linkMetrics } from "./metrics.js";
import { Notice } from "./notice.js";
import { Settings } from "./settings.js";
import { Share } from "./share.js";
import { encoded, fileName, receive, save } from "./speech.js";
import { Stage } from "./stage.js";
import { watchServer } from "./status.js";
import { Take } from "./take.js";
import { Typing } from "./typing.js";
import { View } from "./view.js";
import { nativeLanguage } from "./voices.js";
import { srt } from "./words.js";

const byId = (id) => document.getElementById(id);
const text = byId("text");
const apple = /Mac|iPhone|iPad/.test(navigator.platform);

let request = null; // AbortController of the request that is running
let linked = readLink(); // applied when the model is known
const samples = new Map(); // model, voice and text -> its preview
const keyPanel = new KeyPanel({ changed: useKey });
const notice = new Notice({ retry: speak, askKey: () => keyPanel.ask() });
const failed = (error) => notice.show(error);
const stage = new Stage({ changed: showStage, finished: (take) => history.add(take), failed });
const view = new View(stage, { seek });
const changed = () => share.changed();
const warned = (message) => notice.warn(message);
const settings = new Settings({ failed, warned, shown: showModel, changed, preview });
const typing = new Typing({ stage, settings, failed, warned });
const history = new History({ replay: (take) => seek(take, 0), reuse });
const comparison = new Comparison({ stage, settings, failed, seek, changed });
const share = new Share({ describe, failed });

const mode = () => document.querySelector("[name=mode]:checked").value;

// --- speaking ---

async function speak() {
  if (mode() === "live") return typing.finish();
  if (!text.value.trim()) {
    text.focus();
    return failed(Object.assign(new Error("There is no text yet. Type something to say."), { param: "input" }));
  }
  if (mode() === "compare") await run((signal) => comparison.speak(text.value, signal));
  else await run((signal, askedAtMs) => say({ text: text.value, signal, askedAtMs }));
}

async function run(work) {
  const askedAtMs = performance.now();
  stop();
  notice.clear();
  stage.open(settings.rateHz);
  const mine = new AbortController();
  request = mine;
  try {
    await work(mine.signal, askedAtMs);
  } catch (error) {
    if (error.name !== "AbortError") failed(error);
  } finally {
    if (request === mine) request = null;
  }
}

async function say({ text: words, voice = settings.voices.value, fields, preview: sample = null, signal, askedAtMs }) {
  const asked = { ...(fields ?? (await settings.request({ voice }))), input: inputOf(words) };
  if (signal.aborted) return null;
  const about = { text: words, voice: settings.voiceName(voice), rateHz: settings.rateHz };
  const take = new Take({ ...about, request: asked, preview: sample, askedAtMs });
  stage.begin(take);
  try {
    await receive(take, stage, signal, settings);
    if (take.warning) notice.warn(take.warning);
    return take;
  } catch (error) {
    if (error.name === "AbortError") return null;
    stage.fail(take);
    // A broken stream has no message of its own: the server closes it, so that a part is not taken for the whole.
    throw error.status === undefined ? new Error(`The sound broke off: ${error.message}.`) : error;
  }
}

function stop() {
  request?.abort();
  request = null;
  if (mode() === "live") typing.cancel();
  else stage.stop();
}

function seek(take, sample) {
  if (!take) return;
  if (!take.running) stopOthers(take);
  stage.open(take.rateHz);
  stage.seek(take, sample);
}

// In a comparison, the other side goes on to arrive.
function stopOthers(take) {
  if (mode() !== "compare" || !comparison.takes.includes(take)) stop();
}

// A second click stops the sample; a complete sample is kept for the next click.
async function preview(voice) {
  if (stage.take?.running && stage.take.preview === voice) return stop();
  const { languages } = settings.model;
  const chosen = byId("language").value;
  const words = previewText(languages, chosen === "auto" ? nativeLanguage(voice) : chosen);
  const name = `${settings.model.id} ${voice} ${words}`;
  if (samples.has(name)) return seek(samples.get(name), 0);
  await run(async (signal, askedAtMs) => {
    const { seed, instructions, speed, ...fields } = await settings.request({ voice });
    const take = await say({ text: words, voice, fields, preview: voice, signal, askedAtMs });
    if (take && !fields.ref_audio) samples.set(name, take);
  });
}

async function download() {
  const take = stage.take;
  const format = byId("format").value;
  try {
    save(await encoded(take, format), fileName(take, format));
  } catch (error) {
    failed(error);
  }
}

function saveSubtitles() {
  save(new Blob([srt(stage.take.words)], { type: "application/x-subrip" }), fileName(stage.take, "srt"));
}

// --- text, settings and links ---

function inputOf(words) {
  return (mode() === "whole" && turnsOf(words, settings.voices.options)) || words;
}

// In a comparison the code is that of side A.
function describe() {
  const compare = mode() === "compare";
  const sides = compare ? comparison.state : {};
  const fields = compare ? settings.fields({ voice: sides.voice, seed: sides.seed_a }) : settings.fields();
  const { seed, ...unseeded } = fields;
  const format = byId("format").value;
  const clip = settings.clipName;
  if (clip && settings.clipWords) fields.ref_text = settings.clipWords;
  return {
    link: linkTo({ mode: mode(), text: text.value, ...(compare ? { ...unseeded, ...sides } : fields) }),
    request: {
      url: address("v1/audio/speech").href,
      fields: { input: inputOf(text.value), ...fields },
      format,
      file: `speech.${format}`,
      needsKey: key.get() !== "",
      clip,
      clipType: settings.clipType,
    },
  };
}

function useLink(state) {
  choose(state.mode ?? "whole");
  settings.apply(state);
  if (state.mode === "compare") comparison.apply(state);
  text.value = state.text ?? "";
  showCount();
}

function reuse(take) {
  settings.apply({ ...take.request, seed: take.request.seed ?? "" });
  useText(take.text.trim());
}

function useText(words) {
  if (mode() === "live") choose("whole");
  text.value = words;
  text.focus();
  showCount();
}

function choose(name) {
  const radio = [...document.querySelectorAll("[name=mode]")].find((one) => one.value === name);
  if (radio && !radio.checked) radio.click();
}

async function useKey() {
  typing.leave(); // a socket keeps the key that it was opened with
  await load();
}

async function load() {
  try {
    await settings.load();
    notice.clear();
    keyPanel.accepted();
  } catch (error) {
    failed(error);
  }
}

// --- showing ---

function showModel({ languages }) {
  offerExamples(languages, useText);
  comparison.offer(settings.voices.options, settings.voices.value);
  const state = linked;
  linked = null; // a link may name another model, which is shown then
  if (state) useLink(state);
  else if (!text.value && !text.dataset.touched) text.value = firstExample(languages);
  showCount();
}

function showStage() {
  view.changed();
  comparison.changed();
  settings.voices.showPlaying(stage.take?.running ? stage.take.preview : null);
}

function showCount() {
  const letters = [...text.value].length;
  const turns = Array.isArray(inputOf(text.value)) ? `${inputOf(text.value).length} turns, ` : "";
  const count = `${turns}${letters} character${letters === 1 ? "" : "s"}`;
  byId("count").textContent = letters && mode() !== "live" ? count : "";
  changed();
}

function showMode() {
  const now = mode();
  document.body.dataset.mode = now;
  byId("whole-pane").hidden = now === "live";
  byId("live-pane").hidden = now !== "live";
  byId("listen-card").hidden = now === "compare";
  byId("compare-card").hidden = now !== "compare";
  byId("voice-title").textContent = now === "compare" ? "For both sides" : "Voice";
  byId("speak-label").textContent = { live: "Finish", compare: "Speak both", whole: "Speak" }[now];
  byId("speak-key").textContent = now === "live" ? "↵" : apple ? "⌘ ↵" : "Ctrl ↵";
  showCount();
}

byId("speak").addEventListener("click", speak);
byId("stop").addEventListener("click", stop);
byId("replay").addEventListener("click", () => seek(stage.take, 0));
byId("download").addEventListener("click", download);
byId("subtitles").addEventListener("click", saveSubtitles);
linkMetrics({ failed });
byId("seed-keep").addEventListener("click", () => {
  byId("seed").value = stage.take.seed;
  changed();
});
for (const radio of document.querySelectorAll("[name=mode]")) {
  radio.addEventListener("change", () => {
    request?.abort();
    typing.leave();
    showMode();
  });
}
text.addEventListener("input", () => {
  text.dataset.touched = "yes";
  showCount();
});
byId("settings").addEventListener("input", changed);
byId("format").addEventListener("change", changed);
addEventListener("hashchange", () => {
  const state = readLink();
  if (state) useLink(state);
});
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    speak();
  } else if (event.key === "Escape" && !event.isComposing) {
    stop();
  }
});

// For tests and the curious: the page's counters, read only.
const counters = (take) => ({
  state: take?.state ?? "idle",
  samplesReceived: take?.received ?? 0,
  samplesPlayed: take?.played ?? 0,
  underruns: take?.gaps.length ?? 0,
  pauses: take?.pauses.length ?? 0,
});
Object.defineProperty(window, "oscineStats", {
  get: () => ({ ...counters(stage.take), compared: comparison.takes.map(counters) }),
});

showMode();
history.load();
watchServer(load);
