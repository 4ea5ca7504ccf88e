"""The folder of a Whisper model in CTranslate2's format."""

from __future__ import annotations

from pathlib import Path

from oscine.errors import ConfigError

TOKENIZER = "tokenizer.json"
_FILES = ("model.bin", TOKENIZER)


def check_folder(folder: Path) -> None:
    """Raises ConfigError. Cheap: nothing is loaded."""
    for name in _FILES:
        if not (folder / name).is_file():
            hint = "name the folder of a Whisper model in CTranslate2's format"
            raise ConfigError(f"the aligner {str(folder)!r} has no {name}; {hint}")
