// A link to this page with its text and settings in the fragment, which browsers do not send to any server. Neither the
// API key nor a clip is ever part of it.

import { CLIP } from "./voices.js";

const DEFAULTS = { mode: "whole", voice: CLIP, voice_b: CLIP };
const NAMES = ["mode", "text", "model", "voice", "language", "instructions", "speed", "seed", "voice_b", "seed_a", "seed_b"];

export function linkTo(state) {
  const given = NAMES.filter((name) => state[name] && state[name] !== DEFAULTS[name]);
  const link = new URL(document.baseURI);
  link.search = "";
  link.hash = new URLSearchParams(given.map((name) => [name, String(state[name])])).toString();
  return link.href;
}

// null where the fragment is not one of ours: #text, say, is the target of "Skip to the text".
export function readLink(hash = location.hash) {
  const given = new URLSearchParams(hash.slice(1));
  const state = Object.fromEntries(NAMES.filter((name) => given.get(name)).map((name) => [name, given.get(name)]));
  return Object.keys(state).length > 0 ? { ...state, speed: Number(state.speed) || 1 } : null;
}
