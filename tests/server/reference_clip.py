"""A clip that the server reads and clones."""

import base64

from tests.corpora.clips import with_soundfile
from tests.speech_like import speech_like

CLIP = with_soundfile(speech_like().samples)
CLIP_URL = "data:audio/wav;base64," + base64.b64encode(CLIP).decode()
