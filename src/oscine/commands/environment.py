"""Environment variables of `oscine serve`. Quick to import: settings.py is not."""

from __future__ import annotations

import os

ENV_PREFIX = "OSCINE_SERVE_"


def variable_of(path: str) -> str:
    """ "engine.slots" -> its variable."""
    return ENV_PREFIX + path.upper().replace(".", "__")


def default_voices_dir() -> str:
    return f"{os.environ.get('XDG_DATA_HOME') or '~/.local/share'}/oscine/voices"


def without_settings() -> dict[str, str]:
    """The environment without the server's settings, some of which are secret."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(ENV_PREFIX)}
