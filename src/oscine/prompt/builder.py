"""The door of the model: a request is checked against the checkpoint and becomes a Prompt, or one clear error."""

from __future__ import annotations

from oscine.model.config import ModelConfig
from oscine.prompt.layout import LayoutInput, build_layout
from oscine.prompt.text import Tokenizer, check_text
from oscine.types import Prompt, RequestError, SpeechRequest, TextMode, TooLongError, VoiceError, unknown_choice
from oscine.voice import Voice

AUTO = "auto"
_TEXT_MODES: tuple[TextMode, ...] = ("whole", "streaming")
_MIN_FREE_POSITIONS = 2  # below two new positions there is not even one frame


class PromptBuilder:
    def __init__(self, config: ModelConfig, tokenizer: Tokenizer) -> None:
        self._config, self._tokenizer = config, tokenizer

    def build(self, request: SpeechRequest) -> Prompt:
        check_text(request.text)
        speaker_name, voice = self._voice(request.voice)
        turn = self._tokenizer.encode_turn("assistant", request.text)
        in_context = voice is not None and voice.transcript is not None
        layout = LayoutInput(
            role_ids=[self._config.im_start_id, *turn.role_ids],
            body_ids=turn.body_ids,
            text_mode=self._text_mode(request.text_mode),
            instruct_ids=self._instruct_ids(request.instruct),
            language_id=self._language_id(request.language, speaker_name),
            speaker_id=self._config.talker.speakers[speaker_name] if speaker_name else None,
            speaker=voice.speaker if voice else None,
            reference_ids=self._reference_ids(voice) if in_context and voice else (),
            reference_codes=voice.reference_codes if in_context and voice else None,
        )
        prompt = build_layout(self._config, layout)
        self._check_length(prompt)
        return prompt

    def _voice(self, asked: str | Voice | None) -> tuple[str | None, Voice | None]:
        """A preset's name, or a cloned voice, or neither: whichever this checkpoint takes."""
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
        if not isinstance(asked, str):
            raise VoiceError(f"a voice is a name or a Voice, got {type(asked).__name__}", "voice")
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

    def _check_length(self, prompt: Prompt) -> None:
        limit = self._config.talker.max_positions
        needed = prompt.rows + len(prompt.trailing_ids) + _MIN_FREE_POSITIONS
        if needed > limit:
            raise TooLongError(
                f"the text needs {needed} positions, this checkpoint has {limit}; split the text"
                + (" or shorten the reference clip" if prompt.reference_codes is not None else ""),
                "text",
            )
