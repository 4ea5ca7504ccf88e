"""Names of Qwen's hosted speech models. Clients of the cloud send them; each stands for any served model."""

from __future__ import annotations

import re

_CLOUD_MODEL = re.compile(r"qwen3?-tts(-instruct|-vc|-vd)?(-flash)?(-realtime)?(-latest|-20\d\d-\d\d-\d\d)?")


def is_cloud_model(name: object) -> bool:
    return isinstance(name, str) and _CLOUD_MODEL.fullmatch(name[:80]) is not None
