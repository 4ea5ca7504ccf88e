// The words of the shown take, highlighted while they are heard; a click plays from there. And the same as subtitles.

const byId = (id) => document.getElementById(id);

export class Words {
  #node = byId("words");
  #shown = null; // the list of words that is on the page
  #count = 0;
  #seek;

  // seek(take, sample): the listener wants to hear it from there.
  constructor({ seek }) {
    this.#seek = seek;
  }

  paint(take) {
    const words = take?.words ?? [];
    this.#node.hidden = words.length === 0;
    if (words !== this.#shown || words.length < this.#count) {
      this.#node.replaceChildren();
      this.#shown = words;
      this.#count = 0;
    }
    for (; this.#count < words.length; this.#count++) this.#append(take, words[this.#count]);
    for (const [index, span] of [...this.#node.children].entries()) {
      const { start_s: startS, end_s: endS } = words[index];
      const state = take.playedS >= endS ? "past" : take.running && take.playedS >= startS ? "now" : "";
      if (span.dataset.state !== state) span.dataset.state = state;
    }
  }

  #append(take, { word, start_s: startS }) {
    const span = document.createElement("span");
    span.textContent = word;
    span.addEventListener("click", () => this.#seek(take, startS * take.rateHz));
    if (this.#count > 0 && needsSpace(this.#shown[this.#count - 1].word, word)) this.#node.append(" ");
    this.#node.append(span);
  }
}

// A cue is a sentence of one speaker, or a part of a long one.
export function srt(words) {
  const cues = [];
  for (const { word, start_s: startS, end_s: endS, voice } of words) {
    const cue = cues.at(-1);
    const joined = cue && cue.text + (needsSpace(cue.text, word) ? " " : "") + word;
    const other = cue?.voice !== voice;
    if (!cue || other || joined.length > 76 || endS - cue.startS > 6 || /[.!?…。！？]["'”’」』)）]*$/.test(cue.text)) {
      cues.push({ text: word, startS, endS, voice });
    } else {
      Object.assign(cue, { text: joined, endS });
    }
  }
  const said = ({ voice, text }) => (voice ? `${voice}: ${text}` : text);
  return cues
    .map((cue, at) => `${at + 1}\n${clock(cue.startS)} --> ${clock(cue.endS)}\n${said(cue)}\n`)
    .join("\n");
}

const WIDE = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}、-〟！-｠]/u;

function needsSpace(before, after) {
  return !(WIDE.test(before.at(-1)) && WIDE.test(after[0]));
}

function clock(seconds) {
  return new Date(Math.round(seconds * 1000)).toISOString().slice(11, 23).replace(".", ",");
}
