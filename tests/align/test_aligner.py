"""The aligner process, with a scripted library: its answers, its failures, its restarts."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from oscine.align.aligner import Aligner, AlignerError
from oscine.audio.pcm import Samples
from oscine.errors import ConfigError
from tests.align.scripted_whisper import HEARD, scripted_whisper

pytestmark = pytest.mark.slow

RATE_HZ = 24_000
OpenAligner = Callable[..., Aligner]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAligner]:
    aligners: list[Aligner] = []
    monkeypatch.syspath_prepend(tmp_path / "library")

    def open_aligner(behavior: str = "", *, multilingual: bool = False, job_s: float = 60.0) -> Aligner:
        aligners.append(Aligner(scripted_whisper(tmp_path, behavior=behavior, multilingual=multilingual), job_s=job_s))
        return aligners[-1]

    yield open_aligner
    for aligner in aligners:
        aligner.close()


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aligner]:
    folder = tmp_path_factory.mktemp("working")
    with pytest.MonkeyPatch.context() as patch, Aligner(scripted_whisper(folder, multilingual=True)) as aligner:
        patch.syspath_prepend(folder / "library")
        aligner.start()
        yield aligner


def behave(tmp_path: Path, behavior: str) -> None:
    (tmp_path / "whisper" / "behavior").write_text(behavior)


def sound(seconds: float) -> Samples:
    return np.full(round(seconds * RATE_HZ), 0.3, np.float32)


@pytest.mark.parametrize(
    "text", ["Hello there - you.", "你好，世界！", "word " * 300], ids=["words", "characters", "long"]
)
@pytest.mark.parametrize("seconds", [0.0, 0.01, 2.0, 75.0])
def test_every_word_has_a_time_within_the_audio_in_order(working: Aligner, text: str, seconds: float) -> None:
    words = working.align(sound(seconds), RATE_HZ, text)
    assert "".join(word.word for word in words) == "".join(text.split())
    times = [time for word in words for time in (word.start_s, word.end_s)]
    assert None not in times and times == sorted(times)  # type: ignore[type-var]
    assert times[0] >= 0 and times[-1] <= seconds  # type: ignore[operator]


def test_a_text_without_words_needs_no_process(opened: OpenAligner) -> None:
    assert opened("broken").align(sound(1), RATE_HZ, " \n ") == []


def test_it_transcribes(working: Aligner) -> None:
    assert working.transcribe(sound(2), RATE_HZ) == HEARD
    assert working.transcribe(sound(65), RATE_HZ) == " ".join([HEARD] * 3)


def test_a_language_is_a_name_a_code_or_auto(working: Aligner) -> None:
    assert working.languages == {"en", "de", "zh"}
    for language in ("auto", "german", "zh", "sichuan_dialect"):
        assert len(working.align(sound(1), RATE_HZ, "Guten Tag", language)) == 2
    with pytest.raises(AlignerError, match="knows de, en, zh, not russian"):
        working.align(sound(1), RATE_HZ, "Guten Tag", "russian")


def test_a_folder_for_english_alone_refuses_other_languages_and_scripts(opened: OpenAligner) -> None:
    aligner = opened()
    aligner.start()
    assert len(aligner.align(sound(1), RATE_HZ, "An emoji \U0001f600")) == 3
    with pytest.raises(AlignerError, match="knows en, not german"):
        aligner.align(sound(1), RATE_HZ, "Guten Tag", "german")
    with pytest.raises(AlignerError, match="in another script"):
        aligner.align(sound(1), RATE_HZ, "你好世界 Tom")


@pytest.mark.parametrize(
    ("behavior", "message"), [("crash", "ended with status -9"), ("hang", "took more than 1 s"), ("fail", "no memory")]
)
def test_a_job_that_breaks_the_process_costs_only_its_own_answer(
    opened: OpenAligner, tmp_path: Path, behavior: str, message: str
) -> None:
    aligner = opened(job_s=1.0 if behavior == "hang" else 60.0)
    aligner.start()
    behave(tmp_path, behavior)
    with pytest.raises(AlignerError, match=message):
        aligner.transcribe(sound(0.1), RATE_HZ)
    behave(tmp_path, "")
    assert aligner.transcribe(sound(1), RATE_HZ) == HEARD


def test_a_process_that_died_while_it_was_idle_is_started_again(opened: OpenAligner) -> None:
    aligner = opened()
    aligner.start()
    assert aligner.pid is not None
    os.kill(aligner.pid, signal.SIGKILL)
    os.waitid(os.P_PID, aligner.pid, os.WEXITED | os.WNOWAIT)
    assert aligner.transcribe(sound(1), RATE_HZ) == HEARD


def test_closing_ends_a_job_that_hangs(opened: OpenAligner) -> None:
    aligner, failures = opened("hang"), []
    aligner.start()

    def transcribe() -> None:
        with pytest.raises(AlignerError) as failure:
            aligner.transcribe(sound(1), RATE_HZ)
        failures.append(failure)

    thread = threading.Thread(target=transcribe)
    thread.start()
    aligner.close()
    thread.join()
    assert failures
    with pytest.raises(AlignerError, match="closed"):
        aligner.transcribe(sound(1), RATE_HZ)


def test_jobs_of_several_threads_get_their_own_answers(working: Aligner) -> None:
    found = {}

    def align(count: int) -> None:
        found[count] = working.align(sound(1), RATE_HZ, "word " * count)

    threads = [threading.Thread(target=align, args=(count,)) for count in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {count: len(words) for count, words in found.items()} == {count: count for count in range(1, 9)}


def test_a_folder_that_cannot_be_used_is_one_clear_error(opened: OpenAligner, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no model\.bin; name the folder of a Whisper model"):
        Aligner(tmp_path)
    aligner = opened("broken")
    with pytest.raises(ConfigError, match="cannot be loaded: unsupported model binary version"):
        aligner.start()
    with pytest.raises(AlignerError, match="unsupported model binary version"):
        aligner.transcribe(sound(1), RATE_HZ)


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path / "library")
    folder = scripted_whisper(tmp_path)
    (tmp_path / "library" / "ctranslate2.py").write_text("raise ImportError(name='ctranslate2')")
    with pytest.raises(ConfigError, match=r"need ctranslate2; install it: pip install 'oscine\[align\]'"):
        Aligner(folder).start()
