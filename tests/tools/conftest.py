"""Modules of training/, whose scripts import each other by their plain names."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

TRAINING = Path(__file__).parent.parent.parent / "training"


def _module(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.syspath_prepend(str(TRAINING))
    return importlib.import_module(name)


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _module(monkeypatch, "targets")


@pytest.fixture
def long_texts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _module(monkeypatch, "long_texts")


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _module(monkeypatch, "texts")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _module(monkeypatch, "written")


@pytest.fixture
def phonemes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _module(monkeypatch, "phonemes")


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _module(monkeypatch, "codes")
