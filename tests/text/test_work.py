"""The work on a text is bounded whatever it holds, counted in calls: seconds would depend on the machine."""

import random
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from oscine.errors import RequestError
from oscine.text.options import TextOptions
from oscine.text.preparation import StreamingPreparation, prepare_text
from oscine.text.segmenter import SegmenterConfig

SHARED = {f"a{'b' * (number % 60)}{number}": "x" for number in range(200)}  # one first letter
NESTED = {"a " * length + "b": "x" for length in range(1, 31)}  # each begins the next one
LEVELS = {
    "raw": (TextOptions(text_level="raw"), "english", 9),
    "pronunciations": (TextOptions(text_level="raw", pronunciations=SHARED), "english", 20),
    "nested": (TextOptions(text_level="raw", pronunciations=NESTED), "english", 23),
    "clean": (TextOptions(text_level="clean"), "english", 22),
    "english": (TextOptions(text_level="spoken"), "english", 29),
    "all": (TextOptions(text_level="spoken", pronunciations=SHARED), "english", 36),
    "german": (TextOptions(text_level="spoken"), "german", 80),
    "auto": (TextOptions(text_level="spoken"), "auto", 68),
    "chinese": (TextOptions(text_level="spoken"), "chinese", 84),
}
_DRAW = random.Random(5)
DENSE = """a |US$|1 |$1 |Dr. |( |a.|A|1/2 |+|May |@|x@|-1|é |1,000 |12:30 |😀|😀 |**|*a* |<b>|<!--|<|&amp;|&|[a](b)|[|](
|---|--|— |…|’|“a” |\n- a|# a\n|\n\n|\t|FBI |K7Q |a/b |a@b.c |5 5 |2026-11-16 |½ |(555) |e.g. |Chapter IV |年|5% |€5|
|1x1 |"—|(<br>|<a |$|𝐀|1st |<sub alias="|<sub alias="a">b</sub>|<sub a="">|<say-as |<s>a</s>|<p>
|<say-as interpret-as="digits">1</say-as> |<say-as interpret-as="|hello world. """.replace("\n|", "").split("|")
TEXTS = [
    *filter(None, DENSE),
    "".join(_DRAW.choices("aB1 .,$€%/-:@#&()'\"½éßIVX\n*+=<>_", k=1000)),
    " ".join(str(_DRAW.randrange(10**6)) for _ in range(150)),
    " ".join(f"${_DRAW.randrange(10**4) / 100}" for _ in range(150)),
]


def calls(work: Callable[[], object]) -> int:
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    except RequestError:
        pass  # no words, or an entity that is none
    finally:
        sys.setprofile(None)
    return count


def of_length(repeated: str, chars: int) -> str:
    return (repeated * (chars // len(repeated) + 1))[:chars]


@pytest.mark.parametrize("level", LEVELS)
def test_the_work_on_a_character_is_bounded(level: str) -> None:
    options, language, limit = LEVELS[level]
    prepare_text("5 a", options, language)  # loads tables
    excess = {}
    for repeated in TEXTS:
        text = of_length(repeated, 600)
        work = calls(lambda text=text: prepare_text(text, options, language)) / len(text)  # type: ignore[misc]
        if work > limit:
            excess[repeated[:20]] = round(work)
    assert not excess


@pytest.mark.parametrize(("level", "chars"), [("all", 1), ("auto", 7)])
def test_the_work_on_a_piece_does_not_grow_with_the_text_before_it(level: str, chars: int) -> None:
    options, language, _ = LEVELS[level]
    excess = {}
    for repeated in TEXTS:
        counts = []
        for length in (400, 1200):
            text, stream = of_length(repeated, length), StreamingPreparation(options, language, SegmenterConfig())
            pieces = [text[at : at + chars] for at in range(0, length, chars)]
            counts.append(calls(lambda pieces=pieces, stream=stream: [*map(stream.push, pieces), stream.finish()]))  # type: ignore[misc]
        if counts[1] > 5 * counts[0]:  # quadratic: 9
            excess[repeated[:20]] = counts
    assert not excess


def test_the_work_ends_when_the_request_is_cancelled() -> None:
    class GoneError(Exception):
        pass

    checks = 0

    def check_cancelled() -> None:
        nonlocal checks
        checks += 1
        if checks == 3:
            raise GoneError

    def prepare() -> None:
        with pytest.raises(GoneError):
            prepare_text("$1 " * 5_000, LEVELS["english"][0], "english", check_cancelled=check_cancelled)

    assert calls(prepare) < 60 * 10_000
