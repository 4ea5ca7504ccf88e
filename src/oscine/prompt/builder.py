"""Builds the talker's prompt for a request: names become ids, and texts become tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from oscine.errors import CheckpointError, TooLongError, VoiceError
from oscine.model.config import ModelConfig
from oscine.prompt.layout import LayoutInput, build_layout
from oscine.prompt.tokenizer import TextTurn, Tokenizer
from oscine.request import SpeechRequest
from oscine.speech.capabilities import check_text, resolve_request
from oscine.types import Prompt
from oscine.voice import Voice

_MIN_FREE_POSITIONS = 2  # the first frame needs two
_NO_TEXT = TextTurn(role_ids=[], body_ids=[])


class PromptBuilder:
    def __init__(self, config: ModelConfig, tokenizer: Tokenizer) -> None:
        if tokenizer.vocab_size > config.talker.text_vocab:
            raise CheckpointError(
                f"vocab.json has ids up to {tokenizer.vocab_size - 1}, config.json.talker_config.text_vocab_size is "
                f"{config.talker.text_vocab}; they are of different models"
            )
        self.config = config
        self._tokenizer, self._card = tokenizer, config.card("")

    def build(self, request: SpeechRequest) -> Prompt:
        return self.build_counted(request)[0]

    def build_counted(self, request: SpeechRequest) -> tuple[Prompt, int]:
        """Returns the prompt and the number of text ids."""
        check_text(request.text)
        turn = self._tokenizer.encode_turn("assistant", request.text)
        layout = self._layout(request, turn, streaming_text=False)
        return _prompt(self.config, layout), len(turn.body_ids)

    def build_streaming(self, request: SpeechRequest) -> StreamingPrompt:
        """Starts a prompt whose text arrives in pieces; checks everything but the text."""
        return StreamingPrompt(self.config, self._layout(request, _NO_TEXT, streaming_text=True))

    def _layout(self, request: SpeechRequest, text: TextTurn, *, streaming_text: bool) -> LayoutInput:
        resolved, talker = resolve_request(request, self._card, streaming_text=streaming_text), self.config.talker
        voice = resolved.voice
        return LayoutInput(
            role_ids=[self.config.im_start_id, *text.role_ids],
            body_ids=text.body_ids,
            text_mode=resolved.text_mode,
            instruct_ids=self._instruct_ids(request.instructions) if request.instructions else (),
            language_id=talker.languages[resolved.language] if resolved.language else None,
            speaker_id=talker.speakers[resolved.speaker] if resolved.speaker else None,
            speaker=voice.speaker if voice else None,
            reference_ids=self._reference_ids(voice) if voice else (),
            reference_codes=voice.reference_codes if voice else None,
        )

    def _instruct_ids(self, instruct: str) -> list[int]:
        turn = self._tokenizer.encode_turn("user", instruct)
        newline = self._tokenizer.encode("\n")
        return [self.config.im_start_id, *turn.role_ids, *turn.body_ids, self.config.im_end_id, *newline]

    def _reference_ids(self, voice: Voice) -> list[int]:
        """Returns the ids of the reference clip's transcript; without a transcript the clip gives only its timbre."""
        if voice.transcript is None or voice.reference_codes is None:
            return []
        highest, vocab = voice.reference_codes.max(), self.config.predictor.vocab
        if highest >= vocab:
            raise VoiceError(
                f"the voice's reference codes reach {highest}, this checkpoint's end at {vocab - 1}; make the voice "
                "again with this checkpoint",
                "voice",
            )
        check_text(voice.transcript, "ref_text")
        return self._tokenizer.encode_turn("assistant", voice.transcript).body_ids


@dataclass(frozen=True, slots=True)
class StreamingPrompt:
    """The prompt of a streaming text. It can be built from the first `ids_needed` text ids and equals the prompt of the
    whole text; the runner adds later ids, one per frame."""

    _config: ModelConfig
    _layout: LayoutInput

    @property
    def ids_needed(self) -> int:
        # In-context cloning adds transcript and text to the reference frames; only the rest is added to new frames.
        codes = self._layout.reference_codes
        return 1 if codes is None else max(1, 1 + len(codes) - len(self._layout.reference_ids))

    def build(self, role_ids: Sequence[int], body_ids: Sequence[int], *, ended: bool) -> Prompt:
        """Builds the prompt from the first ids of the text, or from all of them if the text has ended."""
        assert body_ids and (ended or len(body_ids) >= self.ids_needed), (len(body_ids), self.ids_needed, ended)
        role_ids = [self._config.im_start_id, *role_ids]
        prompt = _prompt(self._config, replace(self._layout, role_ids=role_ids, body_ids=body_ids))
        # The layout ends every text with tts_eos; a text that continues gets it later.
        return prompt if ended else replace(prompt, trailing_ids=prompt.trailing_ids[:-1])


def _prompt(config: ModelConfig, layout: LayoutInput) -> Prompt:
    prompt = build_layout(config, layout)
    limit = config.talker.max_positions
    needed = prompt.rows + len(prompt.trailing_ids) + _MIN_FREE_POSITIONS
    if needed > limit:
        raise TooLongError(
            f"the text needs {needed} positions, this checkpoint has {limit}; split the text"
            + (" or shorten the reference clip" if prompt.reference_codes is not None else ""),
            "text",
        )
    return prompt
