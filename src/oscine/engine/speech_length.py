"""How long the speech of a text will be, learned while the engine runs: frames per text id depend on the checkpoint's
tokenizer, the language and the voice."""

from __future__ import annotations

_DECAY = 0.95  # per speech: about the last twenty count
_GUESSED_IDS = 10.0  # the first guess counts like a speech of so many text ids, half a sentence
_MIN_FRAMES_LEFT = 5.0


class SpeechLength:
    """The loop adds speeches; any thread may read."""

    def __init__(self, frames_per_text_id: float) -> None:
        """Starts with the guess that holds until speeches have ended."""
        self._ids, self._frames = _GUESSED_IDS, _GUESSED_IDS * frames_per_text_id
        self.frames_per_text_id = frames_per_text_id

    def add(self, text_ids: int, frames: int) -> None:
        """A speech that the model ended."""
        self._ids = self._ids * _DECAY + text_ids
        self._frames = self._frames * _DECAY + frames
        self.frames_per_text_id = self._frames / self._ids

    def frames_left(self, text_ids: int, frames_made: int = 0) -> float:
        """Expected. A stream that has outlived its estimate is expected to end soon."""
        return max(_MIN_FRAMES_LEFT, text_ids * self.frames_per_text_id - frames_made)
