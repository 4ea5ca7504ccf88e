"""One request: its text, its frames, its audio. The caller creates it; then only the loop's thread uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from oscine.audio.pcm import CODEBOOKS, Codes, Pcm
from oscine.config import ChunkConfig, EngineConfig
from oscine.engine.policy import FRAME_S
from oscine.engine.runaway import RunawayDetector, frame_budget
from oscine.engine.trimming import EchoTrimmer, SilenceTrimmer
from oscine.errors import OscineError, TooLongError
from oscine.request import SamplingParams
from oscine.runner.runner import SlotAssignment
from oscine.types import AudioChunk, FinishReason, Prompt, Usage

_MIN_GAP_S = 0.001  # a shorter gap is inaudible


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Properties of the model that every stream has."""

    sample_rate_hz: int
    samples_per_frame: int
    eos_id: int
    positions: int  # of the longest prompt plus speech


class Session:
    def __init__(
        self,
        utterance_id: str,
        sampling: SamplingParams,
        deliver: Callable[[AudioChunk], None],
        config: EngineConfig,
        spec: StreamSpec,
        *,
        budgeted: bool,
        streaming_text: bool = False,
        trim_silence: bool | None = None,
        echo: EchoTrimmer | None = None,
        continues: bool = False,
        resumes: bool = False,
        plays_until_s: float | None = None,
        return_codes: bool = False,
        stream_codes: bool = False,
    ) -> None:
        """`budgeted`: the request sets no max_new_tokens, so the length of its text limits its frames. `continues`: an
        earlier segment of the same speech was admitted; its audio, if any is left, lasts until `plays_until_s`.
        `resumes`: it continues after a pause in which it had no slot."""
        self.utterance_id, self.sampling, self.deliver = utterance_id, sampling, deliver
        self.continues, self.resumes = continues, resumes
        self.text_ended = not streaming_text
        self.text_ids = 0  # of the text that has arrived
        self.prompt: Prompt | None = None
        self.slot: int | None = None
        self.queued_s: float | None = None  # when it began to wait for a slot
        self.running_s: float | None = None  # when it got one
        self.finish_reason: FinishReason | None = None
        self.frames_launched = 0
        self.frames_made = 0
        self.idle_since_s: float | None = None  # when it began to wait for text
        self.ran_dry = False  # the player ran out of audio before the last chunk, though the text was there
        self._spec, self._runaway_config = spec, config.runaway
        self._max_new_tokens = min(sampling.max_new_tokens, config.max_new_tokens)
        self._budgeted = budgeted and config.runaway.enabled
        self._max_frames = float("inf")  # the frame budget
        self._known_ids = 0  # text ids that arrived for frames: frame n needs the n-th
        self._unsent_ids: list[int] = []  # arrived before the slot
        self._text_was_late = False  # since the last chunk
        self._codes: list[Codes] | None = (
            [] if return_codes or stream_codes else None
        )  # those not sent with a chunk yet
        self._stream_codes = stream_codes
        self._runaway = RunawayDetector(config.runaway)
        trim = config.trim_silence.enabled if trim_silence is None else trim_silence
        self._echo = echo  # before the trimmer: silence may follow an echo
        self._trimmer = SilenceTrimmer(config.trim_silence, spec.sample_rate_hz, spec.samples_per_frame, enabled=trim)
        self._buffer = _ChunkBuffer(config.chunks, spec, plays_until_s)

    # --- text ---

    @property
    def needs_text(self) -> bool:
        """Whether the next frame needs more text, or the text's end, first."""
        return not self.text_ended and (self.prompt is None or self.frames_launched >= self._known_ids)

    @property
    def queue_rank(self) -> int:
        """Sessions with a lower rank get a slot first."""
        return 2 if not self.continues else 1 if self.resumes else 0

    def queued_for_s(self, now_s: float) -> float:
        """Returns how long it has waited for a slot."""
        return 0.0 if self.slot is not None or self.queued_s is None else now_s - self.queued_s

    def begin(self, prompt: Prompt, text_ids: int, *, text_ended: bool) -> None:
        """Sets the prompt. Raises TooLongError if it leaves no room for speech."""
        assert self.prompt is None, self.utterance_id
        max_tokens = min(self._max_new_tokens, self._spec.positions - prompt.rows)
        if max_tokens < 2:
            raise TooLongError(
                f"the prompt has {prompt.rows} rows and the engine holds {self._spec.positions} with the speech; split "
                "the text, shorten the reference clip, or start with more positions_per_slot",
                "text",
            )
        self.prompt, self.text_ids, self.text_ended = prompt, text_ids, text_ended
        self._text_was_late |= self.idle_since_s is not None
        self._known_ids = len(prompt.trailing_ids)
        self._set_budget()
        # The runner reserves memory for the longest speech, and a short text needs little.
        self.sampling = replace(self.sampling, max_new_tokens=int(min(max_tokens, self._max_frames + 1)))

    def append_text(self, text_ids: Sequence[int], *, spoken_ids: int, ended: bool) -> None:
        """Adds ids for later frames: `spoken_ids` of them are text, the others mark its end."""
        assert self.prompt is not None and not self.text_ended, self.utterance_id
        self._text_was_late |= self.idle_since_s is not None
        self._known_ids += len(text_ids)
        self.text_ids += spoken_ids
        self.text_ended = ended
        self._set_budget()
        if self.slot is None:
            self._unsent_ids += text_ids

    def assignment(self, slot: int) -> SlotAssignment:
        assert self.prompt is not None, self.utterance_id
        prompt = self.prompt
        if self._unsent_ids:
            trailing_ids = np.concatenate((prompt.trailing_ids, np.array(self._unsent_ids, np.int64)))
            prompt = replace(prompt, trailing_ids=trailing_ids)
        return SlotAssignment(slot, prompt, self.sampling, streaming_text=not self.text_ended)

    def _set_budget(self) -> None:
        # A streaming text limits itself: without text there is no frame.
        if self._budgeted and self.text_ended:
            self._max_frames = frame_budget(self._runaway_config, self.text_ids)

    # --- frames ---

    @property
    def can_launch(self) -> bool:
        return not self.needs_text and self.frames_launched < min(self.sampling.max_new_tokens, self._max_frames)

    def take_frame(self, codes: Codes, pcm: Pcm, level_dbfs: float) -> FinishReason | None:
        """Takes the next frame. Returns a reason if the speech ends with it."""
        code = int(codes[0])
        if code == self._spec.eos_id:
            return "stop"
        # Upstream's meaning of max_new_tokens N: the N-th draw is checked for the end, but never becomes a frame.
        if self.frames_made + 1 >= self.sampling.max_new_tokens:
            return "length"
        self.frames_made += 1
        if self._codes is not None:
            self._codes.append(codes.copy())
        for let_go in self._echo.push(pcm, code, level_dbfs) if self._echo else (pcm,):
            self._buffer.put(self._trimmer.push(let_go))
        text_spoken = self.text_ended and self.frames_made >= self.text_ids
        if self._runaway.push(codes, level_dbfs, text_spoken=text_spoken) or self.frames_made >= self._max_frames:
            return "runaway"
        return None

    # --- audio ---

    @property
    def has_sent_audio(self) -> bool:
        return self._buffer.sent_samples > 0

    def due_chunk(self, now_s: float, tick_s: float) -> AudioChunk | None:
        """Returns the chunk to send now, if any. A stream that waits for text holds nothing back."""
        return self._chunk(now_s) if self._buffer.due(now_s, tick_s, flush=self.needs_text) else None

    def last_chunk(self, reason: FinishReason, error: OscineError | None, now_s: float) -> AudioChunk:
        """Returns the rest of the audio; none of it after a cancel."""
        assert self.finish_reason is None, (self.utterance_id, self.finish_reason, reason)
        self.finish_reason = reason
        usage = Usage(self.text_ids, self.frames_made)
        if reason == "cancelled":
            self.ran_dry = False
            return AudioChunk(b"", self._buffer.sent_samples, reason, error, self.sampling.seed, usage)
        for let_go in self._echo.finish() if self._echo else ():
            self._buffer.put(self._trimmer.push(let_go))
        self._buffer.put(self._trimmer.finish())
        codes, echo_s = self._take_codes(), self._echo.echo_s if self._echo else 0.0
        last = self._chunk(now_s)
        return replace(last, finish_reason=reason, error=error, usage=usage, codes=codes, echo_s=echo_s)

    def _chunk(self, now_s: float) -> AudioChunk:
        self.ran_dry = self._buffer.late(now_s) and not self._text_was_late
        self._text_was_late = False
        first_sample = self._buffer.sent_samples
        codes = self._take_codes() if self._stream_codes else None
        return AudioChunk(self._buffer.take(now_s), first_sample, seed=self.sampling.seed, codes=codes)

    def _take_codes(self) -> Codes | None:
        if self._codes is None:
            return None
        taken, self._codes = self._codes, []
        return np.array(taken, np.int64).reshape(-1, CODEBOOKS)

    def deadline_s(self, now_s: float) -> float | None:
        """Returns when the player runs out of audio, counting frames in flight; None while it is not playing."""
        dry_s = self._buffer.dry_s
        if dry_s is None or dry_s <= now_s:
            return None
        return dry_s + self._buffer.held_s + (self.frames_launched - self.frames_made) * FRAME_S


class _ChunkBuffer:
    """Collects audio until a chunk is large enough; never while the player waits for it."""

    def __init__(self, config: ChunkConfig, spec: StreamSpec, plays_until_s: float | None) -> None:
        self._config, self._rate_hz = config, spec.sample_rate_hz
        self._frame_samples = spec.samples_per_frame
        self._held: list[bytes] = []  # copies: the runner may reuse its arrays
        self._held_samples = 0
        self.sent_samples = 0
        self.dry_s = plays_until_s  # when the player has played everything that was sent; None before it has started

    @property
    def held_s(self) -> float:
        return self._held_samples / self._rate_hz

    def put(self, pcm: Pcm) -> None:
        if len(pcm):
            self._held.append(pcm.tobytes())
            self._held_samples += len(pcm)

    def due(self, now_s: float, tick_s: float, *, flush: bool) -> bool:
        config = self._config
        if not self._held or flush:
            return bool(self._held)
        if self.dry_s is None or (not self.sent_samples and self.dry_s <= now_s):
            # The player starts with this chunk, so it must last until the next one, also if trimming shortened it.
            return len(self._held) >= config.first_chunk_frames and self.held_s >= config.first_chunk_ticks * tick_s
        unplayed_samples = (self.dry_s - now_s) * self._rate_hz
        share = int(unplayed_samples * config.buffer_share / self._frame_samples)
        return len(self._held) >= min(config.steady_chunk_frames, max(1, share))

    def late(self, now_s: float) -> bool:
        """Whether the player has started and ran dry before it gets the audio that is held now."""
        return bool(self._held) and self.dry_s is not None and now_s > self.dry_s + _MIN_GAP_S

    def take(self, now_s: float) -> bytes:
        """Returns everything held. The player's clock starts with the first chunk, and again after it ran dry."""
        if not self._held:
            return b""
        pcm = b"".join(self._held)
        start_s = now_s if self.dry_s is None else max(now_s, self.dry_s)
        self.dry_s = start_s + self.held_s
        self.sent_samples += self._held_samples
        self._held, self._held_samples = [], 0
        return pcm
