"""Compares the phones that a checkpoint says with those of the teacher: the errors of the talker, without a recognizer.

    python training/phone_errors.py CARRY/training/heldout.tsv [--model demo] [--limit 100] [--voice wren]
        [--mode streaming] [--language english] [--instruct "Speak slowly."]

The codes contain the phones (codes.py), so nothing has to be recognized. Prints the sentences with errors and the phone
error rate. Stress counts; lengths do not.
"""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import paths  # noqa: F401
from codes import LAST_PHONE, PHONES, phone_name
from sizes import SPEAKERS
from teacher import STRESS, read_sentences, symbols

from oscine import Oscine
from oscine.audio.pcm import Codes
from oscine_eval.word_error_rate import align


def said_phones(codes: Codes) -> list[str]:
    return _names(codes[:, (*PHONES, LAST_PHONE)].flatten())


def taught_phones(phonemes: str) -> list[str]:
    alphabet = {symbol: number for number, symbol in enumerate((*STRESS, *phonemes))}  # any numbers
    return _names(symbols(phonemes, alphabet).phones)


def _names(numbers: npt.NDArray[np.integer[Any]]) -> list[str]:
    """Keeps one of neighbors that are equal, such as those of "this song", only one: codes do not tell them apart."""
    return [phone_name(number) for number, _ in groupby(numbers.tolist()) if number]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phonemes", type=Path)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--voice", choices=SPEAKERS, action="append")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--mode", choices=["whole", "streaming"], default="whole")
    parser.add_argument("--language", default="auto")
    parser.add_argument("--instruct")
    options = parser.parse_args()
    variant = {"text_mode": options.mode, "language": options.language, "instructions": options.instruct}
    with Oscine(options.model, device="cpu") as tts:
        for voice in options.voice or SPEAKERS:
            wrong = total = 0
            for number, sentence in enumerate(read_sentences(options.phonemes)[: options.limit]):
                wanted = taught_phones(sentence.phonemes)
                said = said_phones(tts.speak(sentence.text, voice=voice, seed=number, **variant).codes)
                errors = sum(one != other for one, other in align(wanted, said).pairs)
                wrong, total = wrong + errors, total + len(wanted)
                if errors:
                    print(f"{number:3} {errors:2}  {sentence.text}\n        {''.join(wanted)}\n        {''.join(said)}")
            print(f"{voice}: {wrong} of {total} phones wrong, {wrong / total:.2%}", flush=True)


if __name__ == "__main__":
    main()
