"""The door of the model: a request is checked against the checkpoint and becomes a Prompt, or one clear error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from oscine.model.config import ModelConfig
from oscine.prompt.layout import LayoutInput, build_layout
from oscine.prompt.tokenizer import Tokenizer, check_text
from oscine.types import (
    CheckpointError,
    Prompt,
    RequestError,
    SpeechRequest,
    TextMode,
    TooLongError,
    VoiceError,
    unknown_choice,
)
from oscine.voice import Voice

AUTO = "auto"
_TEXT_MODES: tuple[TextMode, ...] = ("whole", "streaming")
_MIN_FREE_POSITIONS = 2  # below two new positions there is not even one frame


class PromptBuilder:
    def __init__(self, config: ModelConfig, tokenizer: Tokenizer) -> None:
        if tokenizer.vocab_size > config.talker.text_vocab:
            raise CheckpointError(
                f"vocab.json has ids up to {tokenizer.vocab_size - 1}, config.json.talker_config.text_vocab_size is "
                f"{config.talker.text_vocab}; they are of different models"
            )
        self._config, self._tokenizer = config, tokenizer

    @property
    def config(self) -> ModelConfig:
        return self._config

    def build(self, request: SpeechRequest) -> Prompt:
        check_text(request.text)
        turn = self._tokenizer.encode_turn("assistant", request.text)
        layout = self._layout(request, self._text_mode(request.text_mode))
        return _prompt(self._config, layout, turn.role_ids, turn.body_ids)

    def open(self, request: SpeechRequest) -> StreamingPrompt:
        """For a text that arrives in pieces: everything but the text is checked here."""
        if request.text_mode not in (None, "streaming"):
            raise RequestError(
                f"a text that is still open can only be streamed, so text_mode {request.text_mode!r} cannot be used; "
                "leave it out, or send the whole text at once",
                "text_mode",
            )
        return StreamingPrompt(self._config, self._layout(request, "streaming"))

    def _layout(self, request: SpeechRequest, text_mode: TextMode) -> LayoutInput:
        """All but the text."""
        speaker_name, voice = self._voice(request.voice)
        in_context = voice is not None and voice.transcript is not None
        return LayoutInput(
            role_ids=(),
            body_ids=(),
            text_mode=text_mode,
            instruct_ids=self._instruct_ids(request.instruct),
            language_id=self._language_id(request.language, speaker_name),
            speaker_id=self._config.talker.speakers[speaker_name] if speaker_name else None,
            speaker=voice.speaker if voice else None,
            reference_ids=self._reference_ids(voice) if in_context and voice else (),
            reference_codes=voice.reference_codes if in_context and voice else None,
        )

    def _voice(self, asked: str | Voice | None) -> tuple[str | None, Voice | None]:
        """A preset's name, or a cloned voice, or neither: whichever this checkpoint takes."""
        if asked is not None and not isinstance(asked, str | Voice):
            raise VoiceError(
                f"a voice is a name or a Voice, got {type(asked).__name__}; for a speaker vector, Voice.from_embedding",
                "voice",
            )
        if self._config.kind == "custom_voice":
            return self._preset(asked), None
        if self._config.kind == "voice_design":
            if asked is not None:
                raise VoiceError(
                    "this VoiceDesign checkpoint has no voices to choose from; describe one with `instruct`", "voice"
                )
            return None, None
        if not isinstance(asked, Voice):
            named = f"has no preset voices, so {asked!r} cannot be found" if asked else "needs a voice to clone"
            raise VoiceError(
                f"this Base checkpoint {named}; give a reference clip (ref_audio), a saved voice or an embedding",
                "voice",
            )
        self._check_fit(asked)
        return None, asked

    def _preset(self, asked: str | Voice | None) -> str:
        speakers = self._config.talker.speakers
        if asked is None:
            return next(iter(speakers))
        if isinstance(asked, Voice):
            raise VoiceError(
                "this CustomVoice checkpoint speaks with preset voices only "
                f"({', '.join(sorted(speakers))}); clone with a Base checkpoint",
                "voice",
            )
        if asked.lower() not in speakers:
            raise VoiceError(unknown_choice("voice", asked, speakers), "voice")
        return asked.lower()

    def _check_fit(self, voice: Voice) -> None:
        width = self._config.talker.stack.width
        if len(voice.speaker) != width:
            raise VoiceError(
                f"the voice's speaker vector has {len(voice.speaker)} numbers, this checkpoint needs {width}; "
                "make the voice again with this checkpoint",
                "voice",
            )
        codes = voice.reference_codes
        if codes is not None and codes.max() >= self._config.predictor.vocab:
            raise VoiceError(
                f"the voice's reference codes reach {codes.max()}, this checkpoint's end at "
                f"{self._config.predictor.vocab - 1}",
                "voice",
            )

    def _language_id(self, asked: str, speaker_name: str | None) -> int | None:
        talker = self._config.talker
        if not isinstance(asked, str):
            raise RequestError(f"a language is a name, got {type(asked).__name__}", "language")
        name = asked.lower()
        if name != AUTO and name not in self._config.selectable_languages:
            choices = [AUTO, *self._config.selectable_languages]
            raise RequestError(unknown_choice("language", asked, choices), "language")
        dialect = talker.dialects.get(speaker_name or "")
        if dialect and name in (AUTO, "chinese"):
            return talker.languages[dialect]
        return None if name == AUTO else talker.languages[name]

    def _instruct_ids(self, instruct: str | None) -> list[int]:
        config = self._config
        if not instruct:
            if config.kind == "voice_design":
                raise RequestError(
                    "this VoiceDesign checkpoint needs a description of the voice in `instruct`", "instruct"
                )
            return []
        if not config.follows_instructions:
            what = "Base" if config.kind == "base" else "0.6B CustomVoice"
            raise RequestError(
                f"{what} checkpoints do not follow instructions; leave `instruct` out, or use 1.7B CustomVoice or "
                "VoiceDesign",
                "instruct",
            )
        check_text(instruct, "instruct")
        turn = self._tokenizer.encode_turn("user", instruct)
        newline = self._tokenizer.encode("\n")
        return [config.im_start_id, *turn.role_ids, *turn.body_ids, config.im_end_id, *newline]

    def _reference_ids(self, voice: Voice) -> list[int]:
        assert voice.transcript is not None
        check_text(voice.transcript, "ref_text")
        return list(self._tokenizer.encode_turn("assistant", voice.transcript).body_ids)

    def _text_mode(self, asked: TextMode | None) -> TextMode:
        if asked is None:
            return "streaming" if self._config.kind == "base" else "whole"
        if asked not in _TEXT_MODES:
            raise RequestError(unknown_choice("text mode", str(asked), _TEXT_MODES), "text_mode")
        return asked


@dataclass(frozen=True, slots=True)
class StreamingPrompt:
    """The prompt of a text that is still open: it can be built when `ids_needed` ids of the text are known, and is then
    what the whole text would have given. Later ids go to the runner, one per frame."""

    _config: ModelConfig
    _layout: LayoutInput

    @property
    def ids_needed(self) -> int:
        # In context, the text lies over the sound of the reference, and only what is longer comes with the frames.
        codes = self._layout.reference_codes
        return 1 if codes is None else max(1, 1 + len(codes) - len(self._layout.reference_ids))

    def build(self, role_ids: Sequence[int], body_ids: Sequence[int], *, ended: bool) -> Prompt:
        """Of an open text's first ids; where it has ended, of all of them, in any number but none."""
        assert body_ids and (ended or len(body_ids) >= self.ids_needed), (len(body_ids), self.ids_needed, ended)
        prompt = _prompt(self._config, self._layout, role_ids, body_ids)
        # The layout closes every text with its end mark; an open one gets it later.
        return prompt if ended else replace(prompt, trailing_ids=prompt.trailing_ids[:-1])


def _prompt(config: ModelConfig, layout: LayoutInput, role_ids: Sequence[int], body_ids: Sequence[int]) -> Prompt:
    prompt = build_layout(config, replace(layout, role_ids=[config.im_start_id, *role_ids], body_ids=body_ids))
    limit = config.talker.max_positions
    needed = prompt.rows + len(prompt.trailing_ids) + _MIN_FREE_POSITIONS
    if needed > limit:
        raise TooLongError(
            f"the text needs {needed} positions, this checkpoint has {limit}; split the text"
            + (" or shorten the reference clip" if prompt.reference_codes is not None else ""),
            "text",
        )
    return prompt
