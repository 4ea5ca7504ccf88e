"""Packages of `make asr`: ctranslate2, faster-whisper, and the weights of whisper tiny.en."""

from pathlib import Path

from tests.conftest import require_environment


def whisper_packages() -> Path:
    return next((require_environment("asr", "the recognizer is") / "lib").glob("python3*/site-packages"))
