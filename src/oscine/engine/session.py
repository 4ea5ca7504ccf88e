"""One request's life: its text, its frames, its listener. Made by the caller, then touched by the loop thread only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from oscine.config import ChunkConfig, EngineConfig
from oscine.engine.policy import FRAME_S
from oscine.engine.runaway import RunawayDetector, frame_budget
from oscine.engine.silence_trimming import Pcm, SilenceTrimmer
from oscine.runner.runner import SlotAssignment
from oscine.types import AudioChunk, FinishReason, OscineError, Prompt, SamplingParams, TooLongError, Usage

Phase = Literal["waiting", "running", "paused", "ended"]
Deliver = Callable[[AudioChunk], None]
_GAP_S = 0.001  # a shorter one is not heard


@dataclass(frozen=True, slots=True)
class Sound:
    """What a session has to know of the audio it carries."""

    sample_rate_hz: int
    samples_per_frame: int
    eos_id: int
    positions: int  # of the longest prompt plus speech


class Session:
    def __init__(
        self,
        utterance_id: str,
        sampling: SamplingParams,
        deliver: Deliver,
        config: EngineConfig,
        sound: Sound,
        *,
        budgeted: bool,
        streaming_text: bool = False,
        trim_silence: bool | None = None,
        continues: bool = False,
        plays_until_s: float | None = None,
    ) -> None:
        """`budgeted`: the request left max_new_tokens open, so that its text decides how long it may speak.
        `continues`: its listener was let in with an earlier part, and has sound of it until `plays_until_s`, if any."""
        self.utterance_id, self.sampling, self.deliver = utterance_id, sampling, deliver
        self.continues = continues
        self.streaming_text = streaming_text
        self.text_ended = not streaming_text
        self.text_ids = 0  # of the text to speak, as far as it is known
        self.prompt: Prompt | None = None
        self.slot: int | None = None
        self.finish_reason: FinishReason | None = None
        self.frames_launched = 0
        self.frames_made = 0
        self.idle_since_s: float | None = None  # waits for text since then
        self.ran_dry = False  # before the chunk given last, though its text was there
        self._sound = sound
        self._guard_config, self._budgeted = config.runaway, budgeted and config.runaway.enabled
        self._max_frames = float("inf")  # the guard's budget
        self._known_ids = 0  # text ids that frames have been promised: frame n needs the n-th
        self._unsent_ids: list[int] = []  # came while there was no slot
        self._text_was_late = False  # since the last chunk
        self._guard = RunawayDetector(config.runaway)
        trim = config.trim_silence if trim_silence is None else replace(config.trim_silence, enabled=trim_silence)
        self._silence = SilenceTrimmer(trim, sound.sample_rate_hz, sound.samples_per_frame)
        self._outbox = _Outbox(config.chunks, sound, plays_until_s)

    # --- phase and text ---

    @property
    def phase(self) -> Phase:
        if self.finish_reason is not None:
            return "ended"
        if self.slot is None:
            return "waiting"
        return "paused" if self.needs_text else "running"

    @property
    def needs_text(self) -> bool:
        """The next frame's text is not known: no frame can be made before more text comes, or its end."""
        return not self.text_ended and (self.prompt is None or self.frames_launched >= self._known_ids)

    def begin(self, prompt: Prompt, text_ids: int, *, text_ended: bool) -> None:
        """The text is known as far as the prompt needs it. Raises TooLongError where the prompt leaves no room."""
        assert self.prompt is None, self.utterance_id
        max_tokens = min(self.sampling.max_new_tokens, self._sound.positions - prompt.rows)
        if max_tokens < 2:
            raise TooLongError(
                f"the prompt has {prompt.rows} rows, the engine holds {self._sound.positions} with the speech; split "
                "the text, shorten the reference clip, or start with more positions_per_slot",
                "text",
            )
        self.prompt, self.text_ids, self.text_ended = prompt, text_ids, text_ended
        self._text_was_late |= self.idle_since_s is not None
        self._known_ids = len(prompt.trailing_ids)
        self._set_budget()
        # The runner sets memory aside for all that may be spoken: a short text needs little.
        self.sampling = replace(self.sampling, max_new_tokens=int(min(max_tokens, self._max_frames + 1)))

    def take_text(self, text_ids: Sequence[int], *, spoken_ids: int, ended: bool) -> None:
        """More ids for later frames, `spoken_ids` of them text (the others mark its end)."""
        assert self.prompt is not None and not self.text_ended, self.utterance_id
        self._text_was_late |= self.idle_since_s is not None
        self._known_ids += len(text_ids)
        self.text_ids += spoken_ids
        self.text_ended = ended
        self._set_budget()
        if self.slot is None:
            self._unsent_ids += text_ids

    def admission(self, slot: int) -> SlotAssignment:
        assert self.prompt is not None, self.utterance_id
        trailing_ids = np.concatenate((self.prompt.trailing_ids, np.array(self._unsent_ids, np.int64)))
        prompt = replace(self.prompt, trailing_ids=trailing_ids)
        return SlotAssignment(slot, prompt, self.sampling, streaming_text=not self.text_ended)

    # --- frames ---

    @property
    def can_launch(self) -> bool:
        return not self.needs_text and self.frames_launched < min(self.sampling.max_new_tokens, self._max_frames)

    def take_frame(self, code: int, pcm: Pcm, level_dbfs: float) -> FinishReason | None:
        """The next frame in order. A reason means that the speech is over; its last frame may not be part of it."""
        if code == self._sound.eos_id:
            return "stop"
        # Official meaning of max_new_tokens N: the N-th draw is looked at, but never becomes a frame.
        if self.frames_made + 1 >= self.sampling.max_new_tokens:
            return "length"
        self.frames_made += 1
        self._outbox.put(self._silence.push(pcm))
        text_spoken = self.text_ended and self.frames_made >= self.text_ids
        if self._guard.push(code, level_dbfs, text_spoken=text_spoken) or self.frames_made >= self._max_frames:
            return "runaway"
        return None

    def _set_budget(self) -> None:
        # An open text bounds itself: without text no frame is made.
        if self._budgeted and self.text_ended:
            self._max_frames = frame_budget(self._guard_config, self.text_ids)

    # --- the listener ---

    def due_chunk(self, now_s: float, tick_s: float) -> AudioChunk | None:
        """A chunk that should leave now, if there is one. Nothing is held back from a stream that waits for text."""
        if not self._outbox.due(now_s, tick_s, hurry=self.needs_text):
            return None
        return self._chunk(now_s)

    def last_chunk(self, reason: FinishReason, error: OscineError | None, now_s: float) -> AudioChunk:
        """What is left, and why it is the last. Who has cancelled wants to hear no more."""
        assert self.finish_reason is None, (self.utterance_id, self.finish_reason, reason)
        self.finish_reason = reason
        usage = Usage(self.text_ids, self.frames_made)
        if reason == "cancelled":
            self.ran_dry = False
            return AudioChunk(b"", self._outbox.sent_samples, reason, error, self.sampling.seed, usage)
        self._outbox.put(self._silence.finish())
        return replace(self._chunk(now_s), finish_reason=reason, error=error, usage=usage)

    def _chunk(self, now_s: float) -> AudioChunk:
        self.ran_dry = self._outbox.late(now_s) and not self._text_was_late
        self._text_was_late = False
        first_sample = self._outbox.sent_samples
        return AudioChunk(self._outbox.take(now_s), first_sample, seed=self.sampling.seed)

    def deadline_s(self, now_s: float) -> float | None:
        """When the listener has nothing left to play, if the frames on their way arrive and no others are launched.
        None: it plays nothing now, as it has heard nothing yet or has run dry."""
        dry_s = self._outbox.dry_s
        if dry_s is None or dry_s <= now_s:
            return None
        return dry_s + self._outbox.held_s + (self.frames_launched - self.frames_made) * FRAME_S


class _Outbox:
    """Sound on its way to the listener: held until a chunk is worth a message, never until the player waits for it."""

    def __init__(self, config: ChunkConfig, sound: Sound, plays_until_s: float | None) -> None:
        self._config, self._rate_hz = config, sound.sample_rate_hz
        self._frame_samples = sound.samples_per_frame
        self._held: list[bytes] = []  # copies: the runner may write its next frames where these came from
        self._held_samples = 0
        self.sent_samples = 0
        self.dry_s = plays_until_s  # when the player has played all that was sent; None: it has not begun

    @property
    def held_s(self) -> float:
        return self._held_samples / self._rate_hz

    def put(self, pcm: Pcm) -> None:
        if len(pcm):
            self._held.append(pcm.tobytes())
            self._held_samples += len(pcm)

    def due(self, now_s: float, tick_s: float, *, hurry: bool) -> bool:
        config = self._config
        if not self._held or hurry:
            return bool(self._held)
        if self.dry_s is None or (not self.sent_samples and self.dry_s <= now_s):
            # The player starts with this chunk: it has to last until the next one, also where trimming cut it short.
            return len(self._held) >= config.first_chunk_frames and self.held_s >= config.first_chunk_ticks * tick_s
        unplayed_samples = (self.dry_s - now_s) * self._rate_hz
        share = int(unplayed_samples * config.buffer_share / self._frame_samples)
        return len(self._held) >= min(config.steady_chunk_frames, max(1, share))

    def late(self, now_s: float) -> bool:
        """The player, once begun, has nothing to play before what is held now. At the end of speech that is nothing."""
        return bool(self._held) and self.dry_s is not None and now_s > self.dry_s + _GAP_S

    def take(self, now_s: float) -> bytes:
        """Everything held. The listener's clock starts with the first chunk, and again after every time it ran dry."""
        if not self._held:
            return b""
        pcm = b"".join(self._held)
        start_s = now_s if self.dry_s is None else max(now_s, self.dry_s)
        self.dry_s = start_s + self.held_s
        self.sent_samples += self._held_samples
        self._held, self._held_samples = [], 0
        return pcm
