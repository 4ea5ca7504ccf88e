"""Inputs of the fuzzer's corpus, and those that it has found to fail, give a result or an error of ours."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_every_input_of_the_corpus_is_read_or_refused(target: str) -> None:
    inputs = sorted((CORPUS / target).iterdir())
    assert inputs
    for one in inputs:
        TARGETS[target](one.read_bytes())
        TARGETS[target](one.read_bytes()[: one.stat().st_size // 2])


def test_every_folder_of_the_corpus_has_a_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
