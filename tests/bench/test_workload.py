"""The same seed asks the same of every server, at the same times."""

import itertools
import statistics
from pathlib import Path

import pytest

from oscine.bench.workload import LENGTHS, SETS, Workload, arrivals, builtin_texts, load_workload
from oscine.types import RequestError


@pytest.mark.parametrize("name", SETS)
def test_texts_are_of_the_length_that_they_claim(name: str) -> None:
    short, medium, long = ([len(text.encode()) for text in builtin_texts(name, [length])] for length in LENGTHS)
    assert max(short) < min(medium) and max(medium) < min(long)
    assert min(len(short), len(medium), len(long)) >= 4


def test_no_text_stands_twice() -> None:
    texts = [text for name in SETS for text in builtin_texts(name, LENGTHS)]
    assert len(texts) == len(set(texts))


def test_every_pass_asks_every_text_once_in_an_order_of_its_own() -> None:
    workload = load_workload("english", ["short"], seed=3)
    count = len(workload.texts)
    asked = [one.text for one in itertools.islice(workload.utterances(), 3 * count)]
    passes = [asked[:count], asked[count : 2 * count], asked[2 * count :]]
    assert all(sorted(one) == sorted(workload.texts) for one in passes)
    assert passes[0] != passes[1] != passes[2]


def test_the_same_seed_is_the_same_workload_and_another_is_not() -> None:
    def asked(seed: int, phase: str = "measured") -> list[object]:
        return list(itertools.islice(load_workload("english", seed=seed).utterances(phase), 40))  # type: ignore[arg-type]

    assert asked(1) == asked(1)
    assert asked(1) != asked(2)
    assert [one.text for one in asked(1)] != [one.text for one in asked(1, "warmup")]  # type: ignore[attr-defined]
    assert len({one.seed for one in asked(1)}) == 40  # type: ignore[attr-defined]


def test_arrivals_are_a_poisson_process_of_their_rate() -> None:
    times = list(itertools.islice(arrivals(50.0, seed=1), 20000))
    gaps = [later - at for at, later in itertools.pairwise(times)]
    # The mean of so many gaps is within 3 standard errors, and their spread is their mean.
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=3 / 20000**0.5)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert times == list(itertools.islice(arrivals(50.0, seed=1), 20000))
    assert times[0] != next(arrivals(50.0, seed=2))


def test_a_higher_rate_is_the_same_crowd_in_less_time() -> None:
    slow, fast = (list(itertools.islice(arrivals(rate, seed=5), 10)) for rate in (1.0, 10.0))
    assert fast == pytest.approx([at / 10 for at in slow])


def test_a_file_has_a_text_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("# not this\n\nOne.\n  Two.  \n", encoding="utf-8")
    assert load_workload(str(path)) == Workload("mine.txt", ("One.", "Two."), 0)


@pytest.mark.parametrize(
    ("texts", "lengths", "said"),
    [
        ("englisch", ["short"], "did you mean 'english'"),
        ("english", ["tiny"], "unknown length 'tiny'"),
        ("english", [], "no text"),
    ],
)
def test_what_cannot_be_asked_is_refused(texts: str, lengths: list[str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        load_workload(texts, lengths)


def test_files_without_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n# nothing\n")
    (tmp_path / "bytes.bin").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(RequestError, match="holds no text"):
        load_workload(str(tmp_path / "empty.txt"))
    with pytest.raises(RequestError, match="UTF-8"):
        load_workload(str(tmp_path / "bytes.bin"))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_above_nothing(rate: float) -> None:
    with pytest.raises(RequestError, match="above 0"):
        next(arrivals(rate))
