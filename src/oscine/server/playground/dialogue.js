// A text whose lines all begin with the name of a voice is a dialogue: "Wren: Did you hear that?" After the name, a
// pause before the turn and instructions may stand in brackets: "Wren (0.3 s, Whisper.): There it is again."

const LINE = /^\s*([^:：()]{1,64})(?:\(([^:：()]{1,400})\)\s*)?[:：]\s*(\S.*)$/;
const DETAILS = /^\s*(?:(\d{1,2}(?:\.\d{1,3})?)\s*s(?:\s*[,;]|\s*$))?\s*(.*?)\s*$/;

// Turns as the API has them; null: the text is none. `voices` are {value, name}, as the page shows them.
export function turnsOf(text, voices) {
  const turns = text
    .split("\n")
    .filter((line) => line.trim())
    .map((line) => turnOf(line, voices));
  return turns.length > 1 && turns.every(Boolean) ? turns : null;
}

function turnOf(line, voices) {
  const [, speaker, details, words] = LINE.exec(line) ?? [];
  const called = speaker?.trim().toLowerCase();
  const known = voices.find(({ value, name }) => value && [value, name].some((one) => one.toLowerCase() === called));
  if (!known) return null;
  const [, pause, instructions] = DETAILS.exec(details ?? "") ?? [];
  const how = { ...(pause && { pause_s: Number(pause) }), ...(instructions && { instructions }) };
  return { voice: known.value, text: words.trim(), ...how };
}
