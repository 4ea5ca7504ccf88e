"""The same seed gives every server the same requests at the same times."""

import itertools
import statistics
from pathlib import Path

import pytest

from oscine.errors import RequestError
from oscine_bench.workload import LENGTHS, SETS, Workload, arrivals, builtin_texts, load_workload


@pytest.mark.parametrize("name", SETS)
def test_texts_have_the_length_of_their_section(name: str) -> None:
    short, medium, long = ([len(text.encode()) for text in builtin_texts(name, [length])] for length in LENGTHS)
    assert max(short) < min(medium) and max(medium) < min(long)
    assert min(len(short), len(medium), len(long)) >= 4


def test_no_text_occurs_twice() -> None:
    texts = [text for name in SETS for text in builtin_texts(name, LENGTHS)]
    assert len(texts) == len(set(texts))


def test_every_pass_has_every_text_once_in_its_own_order() -> None:
    workload = load_workload("english", ["short"], seed=3)
    count = len(workload.texts)
    sent = [one.text for one in itertools.islice(workload.requests(), 3 * count)]
    passes = [sent[:count], sent[count : 2 * count], sent[2 * count :]]
    assert all(sorted(one) == sorted(workload.texts) for one in passes)
    assert passes[0] != passes[1] != passes[2]


def test_equal_seeds_give_equal_workloads() -> None:
    def planned(seed: int, phase: str = "measured") -> list[object]:
        return list(itertools.islice(load_workload("english", seed=seed).requests(phase), 40))  # type: ignore[arg-type]

    assert planned(1) == planned(1)
    assert planned(1) != planned(2)
    assert [one.text for one in planned(1)] != [one.text for one in planned(1, "warmup")]  # type: ignore[attr-defined]
    assert len({one.seed for one in planned(1)}) == 40  # type: ignore[attr-defined]


def test_arrivals_are_a_poisson_process() -> None:
    times = list(itertools.islice(arrivals(50.0, seed=1), 20000))
    gaps = [later - at for at, later in itertools.pairwise(times)]
    # The mean of so many gaps is within 3 standard errors, and their spread is their mean.
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=3 / 20000**0.5)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert times == list(itertools.islice(arrivals(50.0, seed=1), 20000))
    assert times[0] != next(arrivals(50.0, seed=2))


def test_a_higher_rate_compresses_the_same_arrivals() -> None:
    slow, fast = (list(itertools.islice(arrivals(rate, seed=5), 10)) for rate in (1.0, 10.0))
    assert fast == pytest.approx([at / 10 for at in slow])


def test_a_file_has_one_text_per_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("# not this\n\nOne.\n  Two.  \n", encoding="utf-8")
    assert load_workload(str(path)) == Workload("mine.txt", ("One.", "Two."), 0)


@pytest.mark.parametrize(
    ("texts", "lengths", "message"),
    [
        ("englisch", ["short"], "did you mean 'english'"),
        ("english", ["tiny"], "unknown length 'tiny'"),
        ("english", [], "needs at least one text"),
    ],
)
def test_an_unknown_or_empty_workload_is_refused(texts: str, lengths: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        load_workload(texts, lengths)


def test_files_without_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n# nothing\n")
    (tmp_path / "bytes.bin").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(RequestError, match="has no texts"):
        load_workload(str(tmp_path / "empty.txt"))
    with pytest.raises(RequestError, match="UTF-8"):
        load_workload(str(tmp_path / "bytes.bin"))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_above_nothing(rate: float) -> None:
    with pytest.raises(RequestError, match="above 0"):
        next(arrivals(rate))
