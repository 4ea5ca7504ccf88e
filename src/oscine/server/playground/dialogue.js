// A text whose lines all begin with the name of a voice is a dialogue: "Wren: Did you hear that?"

const LINE = /^\s*([^:：]{1,64})[:：]\s*(\S.*)$/;

// Turns as the API has them; null: the text is none. `voices` are {value, name}, as the page shows them.
export function turnsOf(text, voices) {
  const turns = text
    .split("\n")
    .filter((line) => line.trim())
    .map((line) => turnOf(line, voices));
  return turns.length > 1 && turns.every(Boolean) ? turns : null;
}

function turnOf(line, voices) {
  const [, speaker, words] = LINE.exec(line) ?? [];
  const called = speaker?.trim().toLowerCase();
  const known = voices.find(({ value, name }) => value && [value, name].some((one) => one.toLowerCase() === called));
  return known ? { voice: known.value, text: words.trim() } : null;
}
