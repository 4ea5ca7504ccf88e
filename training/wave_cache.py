"""Caches what was measured on recordings, by hash of the recordings, in a JSON file beside them. Standard library only:
both the judges' environment and ours use it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def wave_key(*recordings: Path) -> str:
    """Hash of one recording, or of several that are compared."""
    return "-".join(hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in recordings)


class WaveCache:
    """Rows by `wave_key`. Rows of other models or settings than `about` are not used; None: those of any."""

    def __init__(self, path: Path, about: Row | None = None) -> None:
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._path = path
        self.about: Row = kept.get("about", {}) if about is None else about
        self._rows: dict[str, Row] = kept["rows"] if kept.get("about") == self.about else {}

    def __getitem__(self, key: str) -> Row:
        return self._rows.get(key, {})

    def __setitem__(self, key: str, row: Row) -> None:
        """Saved at once: an interrupted run continues where it was."""
        self._rows[key] = row
        self._path.write_text(json.dumps({"about": self.about, "rows": self._rows}, indent=1), encoding="utf-8")
