"""How many echoes of a reference are found, and how much other speech is taken for one.

    python -m benchmarks.echo --out docs/results

The demo voice does not clone, but its codes are those of speech: a reference is a sentence, its echo is the end of that
sentence said again in another utterance with another seed, before another text. Every text also meets the references
of the other sentences, of which it is no echo.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from benchmarks.results import read_arguments, save
from oscine import Oscine, Speech
from oscine.audio.clips import pcm16
from oscine.audio.pcm import rms_dbfs
from oscine.config import EchoConfig
from oscine.engine.trimming import EchoTrimmer

SENTENCES = (  # beginning and end of a reference, and another text
    ("We talked about the new plan for the shop", "and the services that we want to build", "Good morning, everybody."),
    ("Please bring your tickets and your bags", "before the train leaves the station tonight", "Your order is ready."),
    ("I had to carry the table alone", "because nobody else was there to help", "The meeting starts at ten."),
    ("She always starts the morning slowly", "with a cup of tea and two small cakes", "How can I help you?"),
    ("The children played with a yellow ball", "in the garden behind the old house", "Yes."),
    ("This is the story of my first journey", "and that is all I have to say", "The museum is closed on Mondays."),
    ("There were seven of them on the boat", "as far as I can remember it now", "Click the blue button to go on."),
    ("The birds return to the large oak tree", "when the sun goes down over the hills", "My brother lives by the sea."),
    ("They danced and laughed for many hours", "until the last guest had gone home", "It will rain in the evening."),
    ("It rained for days near the lake", "so we went back to the city again", "Do not forget to lock the door."),
)


class Outcome(NamedTuple):
    echo_frames: int
    held_frames: int  # before the first one was let go


def trimmed(reference: Speech, answer: Speech) -> Outcome:
    trimmer = EchoTrimmer(EchoConfig(), reference.codes, answer.sample_rate)
    frames = pcm16(answer.audio).reshape(len(answer.codes), -1)
    levels_dbfs = rms_dbfs(frames)
    for number, (pcm, codes, level_dbfs) in enumerate(zip(frames, answer.codes, levels_dbfs, strict=True)):
        if trimmer.push(pcm, int(codes[0]), float(level_dbfs)):
            return Outcome(trimmer.echo_frames, number + 1)
    trimmer.finish()
    return Outcome(trimmer.echo_frames, len(frames))


def measure(tts: Oscine) -> dict[str, Any]:
    echoes: list[Outcome] = []
    others: list[Outcome] = []
    errors_frames: list[int] = []  # of the place of the cut
    for voice in ("wren", "finch"):

        def speak(text: str, seed: int, voice: str = voice) -> Speech:
            return tts.speak(text, voice=voice, seed=seed)

        said = []
        for i, (begin, end, text) in enumerate(SENTENCES):
            texts = (f"{begin} {end}.", f"{end}. {text}", text, f"{end}.")
            said.append([speak(one, 100 * kind + i) for kind, one in enumerate(texts, 1)])
        for (i, (reference, *_)), (j, (_, echo, other, again)) in product(enumerate(said), enumerate(said)):
            others.append(trimmed(reference, other))
            outcome = trimmed(reference, echo)
            (echoes if i == j else others).append(outcome)
            if i == j and outcome.echo_frames:
                errors_frames.append(abs(outcome.echo_frames - len(again.codes)))
    held = [outcome.held_frames for outcome in others]
    return {
        "echoes": len(echoes),
        "echoes_found": sum(outcome.echo_frames > 0 for outcome in echoes),
        "cut_error_frames_p50": float(np.median(errors_frames)),
        "cut_error_frames_max": max(errors_frames),
        "other_speech": len(others),
        "other_speech_cut": sum(outcome.echo_frames > 0 for outcome in others),
        "held_frames_p50": float(np.median(held)),
        "held_frames_max": max(held),
    }


def main() -> None:
    options = read_arguments(__doc__)
    with Oscine("demo") as tts:
        figures = measure(tts)
    print(figures)
    print(save(options.out, "echo", figures))


if __name__ == "__main__":
    main()
