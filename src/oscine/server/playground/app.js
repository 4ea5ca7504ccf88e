// The page: buttons and keys are joined to what they do. What each part does stands in its own file.

import { key } from "./api.js";
import { offerExamples } from "./examples.js";
import { fileName, History } from "./history.js";
import { Notice } from "./notice.js";
import { Settings } from "./settings.js";
import { encoded, receive, save } from "./speech.js";
import { Stage } from "./stage.js";
import { watchServer } from "./status.js";
import { Take } from "./take.js";
import { Typing } from "./typing.js";
import { View } from "./view.js";

const byId = (id) => document.getElementById(id);
const text = byId("text");
const apple = /Mac|iPhone|iPad/.test(navigator.platform);

let request = null; // AbortController of the text that is being spoken
const notice = new Notice({ retry: speak, wantKey: () => showKey(true) });
const failed = (error) => notice.show(error);
const stage = new Stage({ changed: () => view.changed(), finished: (take) => history.add(take), failed });
const view = new View(stage);
const settings = new Settings({ failed, shown: (model) => offerExamples(model.languages, useText) });
const typing = new Typing({ stage, settings, failed });
const history = new History({ replay, reuse: (take) => useText(take.text.trim()) });

const isLive = () => document.querySelector("[name=mode]:checked").value === "live";

async function speak() {
  if (isLive()) return typing.finish();
  const askedAtMs = performance.now();
  stop();
  notice.clear();
  if (!text.value.trim()) {
    text.focus();
    return failed(Object.assign(new Error("There is no text yet: type something to say."), { param: "input" }));
  }
  stage.open(settings.rateHz);
  const mine = new AbortController();
  request = mine;
  let take = null;
  try {
    const fields = { ...(await settings.request()), input: text.value };
    const { voiceName: voice, rateHz } = settings;
    if (mine.signal.aborted) return;
    take = new Take({ text: text.value, voice, rateHz, request: fields, askedAtMs });
    stage.begin(take);
    await receive(take, stage, mine.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    // A stream that breaks has no words of its own: the server closes it so that no half is taken for a whole.
    const cause = error.status === undefined ? new Error(`The sound broke off: ${error.message}.`) : error;
    if (take) stage.fail(take);
    failed(cause);
  } finally {
    if (request === mine) request = null;
  }
}

function stop() {
  request?.abort();
  request = null;
  if (isLive()) typing.cancel();
  else stage.stop();
}

function replay(take) {
  if (!take) return;
  stop();
  stage.open(take.rateHz);
  stage.replay(take);
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

function useText(words) {
  if (isLive()) document.querySelector("[name=mode][value=whole]").click();
  text.value = words;
  text.focus();
  showCount();
}

function showCount() {
  const letters = [...text.value].length;
  byId("count").textContent = letters && !isLive() ? `${letters} character${letters === 1 ? "" : "s"}` : "";
}

function showMode() {
  const live = isLive();
  byId("whole-pane").hidden = live;
  byId("live-pane").hidden = !live;
  byId("speak-label").textContent = live ? "Finish" : "Speak";
  byId("speak-key").textContent = live ? "↵" : apple ? "⌘ ↵" : "Ctrl ↵";
  showCount();
}

function showKey(open) {
  byId("key-panel").hidden = !open;
  byId("key-toggle").setAttribute("aria-expanded", String(open));
  if (open) byId("key").focus();
}

async function load() {
  try {
    await settings.load();
    notice.clear();
  } catch (error) {
    failed(error);
  }
}

byId("speak").addEventListener("click", speak);
byId("stop").addEventListener("click", stop);
byId("replay").addEventListener("click", () => replay(stage.take));
byId("download").addEventListener("click", download);
byId("format").addEventListener("change", () => view.changed());
byId("seed-keep").addEventListener("click", () => {
  byId("seed").value = stage.take.seed;
});
byId("key-toggle").addEventListener("click", () => showKey(byId("key-panel").hidden));
byId("key-panel").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  showKey(false);
  byId("key-toggle").focus();
  typing.leave(); // a socket keeps the key that it was opened with
  load();
});
for (const radio of document.querySelectorAll("[name=mode]")) {
  radio.addEventListener("change", () => {
    request?.abort();
    typing.leave();
    showMode();
  });
}
text.addEventListener("input", showCount);
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    speak();
  } else if (event.key === "Escape" && !event.isComposing) {
    stop();
  }
});

// For tests and curious people: what the page counts, read only.
Object.defineProperty(window, "oscineStats", {
  get: () => ({
    state: stage.take?.state ?? "idle",
    samplesReceived: stage.take?.received ?? 0,
    samplesPlayed: stage.take?.played ?? 0,
    underruns: stage.take?.gaps.length ?? 0,
    pauses: stage.take?.pauses.length ?? 0,
  }),
});

byId("key").value = key.get();
showMode();
watchServer(load);
