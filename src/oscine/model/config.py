"""Reads dimensions and special ids from the checkpoint's own config.json files.

The official config classes are not used: their defaults describe other models. `field(name=...)` is the file's key.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from oscine.audio.pcm import CODEBOOKS, FRAME_RATE_HZ
from oscine.errors import CheckpointError, RequestError
from oscine.model.json_files import Section, read_json
from oscine.request import DrawParams, SamplingParams
from oscine.text.options import TextLevel
from oscine.types import ModelCard, PhoneTable

Kind = Literal["custom_voice", "voice_design", "base"]
KINDS: tuple[Kind, ...] = ("custom_voice", "voice_design", "base")

CODEC_KERNEL = 7  # of all but the first and the pointwise convolutions of the codec decoder
CODEC_FIRST_KERNEL = 3
RESIDUAL_DILATIONS = (1, 3, 9)

Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=1)]
Sizes = Annotated[tuple[Size, ...], Meta(min_length=1)]
Epsilon = Annotated[float, Meta(ge=1e-12, le=1.0)]
Theta = Annotated[float, Meta(ge=1.0, le=1e12)]


class StackConfig(Struct, frozen=True, kw_only=True):
    """The dimensions of one transformer stack."""

    width: Size = field(name="hidden_size")
    inner: Size = field(name="intermediate_size")
    layers: Size = field(name="num_hidden_layers")
    heads: Size = field(name="num_attention_heads")
    kv_heads: Size = field(name="num_key_value_heads")
    head_dim: Size
    eps: Epsilon = field(name="rms_norm_eps")
    theta: Theta = field(name="rope_theta")
    qk_norm: bool = False
    layer_scale: bool = False
    window: int | None = None  # positions a query sees, itself included; None: all earlier ones
    norm: Literal["rms", "layer"] = "rms"
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    final_norm: bool = True


class QwenStackConfig(StackConfig, frozen=True, kw_only=True):
    """The stack of the talker and of the code predictor."""

    qk_norm: bool = True


class DecoderStackConfig(StackConfig, frozen=True, kw_only=True):
    """The stack of the codec decoder."""

    layer_scale: bool = True
    window: Size = field(name="sliding_window")


class EncoderStackConfig(StackConfig, frozen=True, kw_only=True):
    """The stack of the codec encoder (Mimi's).

    `window` stays None although the file says 250: the official run applies a plain causal mask (its loader never
    selects windowed attention), and the published codes were made that way.
    """

    eps: Epsilon = field(name="norm_eps")
    layer_scale: bool = True
    norm: Literal["rms", "layer"] = "layer"
    mlp: Literal["swiglu", "gelu"] = "gelu"
    final_norm: bool = False


class TalkerConfig(Struct, frozen=True, kw_only=True):
    stack: QwenStackConfig
    code_vocab: Size = field(name="vocab_size")  # 3072: 2048 codes, then languages, speakers and control ids
    text_vocab: Size = field(name="text_vocab_size")
    text_width: Size = field(name="text_hidden_size")
    max_positions: Size = field(name="max_position_embeddings")
    pad_id: Count = field(name="codec_pad_id")
    bos_id: Count = field(name="codec_bos_id")
    eos_id: Count = field(name="codec_eos_token_id")
    think_id: Count = field(name="codec_think_id")
    nothink_id: Count = field(name="codec_nothink_id")
    think_bos_id: Count = field(name="codec_think_bos_id")
    think_eos_id: Count = field(name="codec_think_eos_id")
    languages: dict[str, int] = {}  # lower-case name -> codec id, dialects included
    speakers: dict[str, int] = {}
    dialects: dict[str, str] = {}  # speaker -> dialect, for the speakers that have one


class PredictorConfig(Struct, frozen=True, kw_only=True):
    stack: QwenStackConfig
    vocab: Size = field(name="vocab_size")
    talker_width: int


class SpeakerEncoderConfig(Struct, frozen=True, kw_only=True):
    """The dimensions of the ECAPA-TDNN. Published files give `width` and the sample rate only; the rest are the
    architecture's constants."""

    width: Size = field(name="enc_dim")
    sample_rate_hz: Annotated[int, Meta(ge=8000, le=192_000)] = field(name="sample_rate")
    channels: Sizes = field(name="enc_channels", default=(512, 512, 512, 512, 1536))
    kernels: Sizes = field(name="enc_kernel_sizes", default=(5, 3, 3, 3, 1))
    dilations: Sizes = field(name="enc_dilations", default=(1, 2, 3, 4, 1))
    mel_bins: Size = field(name="mel_dim", default=128)
    attention_channels: Size = field(name="enc_attention_channels", default=128)
    res2net_scale: Size = field(name="enc_res2net_scale", default=8)
    se_channels: Size = field(name="enc_se_channels", default=128)


class ConvInput(NamedTuple):
    """The input of a causal convolution that reads earlier columns."""

    columns: int  # new ones per frame
    past: int  # earlier ones that the convolution still reads
    channels: int


class CodecDecoderConfig(Struct, frozen=True, kw_only=True):
    stack: DecoderStackConfig
    codebook_size: Size
    codebook_dim: Size  # width after the quantizer's output projection; its codebooks are half as wide
    latent: Size = field(name="latent_dim")
    upsampling_ratios: Sizes  # before the vocoder
    upsample_rates: Sizes  # of the vocoder's blocks
    decoder_dim: Size

    @property
    def samples_per_frame(self) -> int:
        return math.prod((*self.upsampling_ratios, *self.upsample_rates))

    @property
    def vocoder_widths(self) -> tuple[int, ...]:
        """Channels before, between and after the vocoder's blocks: each block halves them."""
        return tuple(self.decoder_dim // 2**block for block in range(len(self.upsample_rates) + 1))

    @property
    def conv_inputs(self) -> tuple[ConvInput, ...]:
        """Inputs in the order of the signal path, like the tails of a StreamState."""
        past, columns = CODEC_KERNEL - 1, 1
        inputs = [ConvInput(columns, CODEC_FIRST_KERNEL - 1, self.codebook_dim)]
        for ratio in self.upsampling_ratios:
            columns *= ratio
            inputs.append(ConvInput(columns, past, self.latent))
        inputs.append(ConvInput(columns, past, self.latent))
        *before, last = self.vocoder_widths
        for rate, width in zip(self.upsample_rates, before, strict=True):
            inputs.append(ConvInput(columns, 1, width))
            columns *= rate
            inputs += [ConvInput(columns, past * dilation, width // 2) for dilation in RESIDUAL_DILATIONS]
        return (*inputs, ConvInput(columns, past, last))

    @property
    def state_elements(self) -> int:
        """Numbers in the tails of one StreamState: keys and values of the window, and each convolution's past."""
        stack = self.stack
        window = 2 * stack.layers * stack.kv_heads * (stack.window - 1) * stack.head_dim
        return window + sum(one.past * one.channels for one in self.conv_inputs)


class CodecEncoderConfig(Struct, frozen=True, kw_only=True):
    stack: EncoderStackConfig
    filters: Size = field(name="num_filters")
    kernel: Size = field(name="kernel_size")
    last_kernel: Size = field(name="last_kernel_size")
    residual_kernel: Size = field(name="residual_kernel_size")
    upsampling_ratios: Sizes  # Mimi's decoder's; the encoder downsamples in the reverse order
    codebook_size: Size
    codebook_dim: Size
    stored_codebooks: Size = field(name="num_quantizers")  # 32 in the file, 16 used

    @property
    def ratios(self) -> tuple[int, ...]:
        """Ratios in the order of the signal path."""
        return self.upsampling_ratios[::-1]


class CodecConfig(Struct, frozen=True):
    decoder: CodecDecoderConfig
    encoder: CodecEncoderConfig
    sample_rate_hz: int

    @property
    def samples_per_frame(self) -> int:
        return self.decoder.samples_per_frame


class ModelConfig(Struct, frozen=True, kw_only=True):
    kind: Kind = field(name="tts_model_type")
    size: str = field(name="tts_model_size")  # "1b7" or "0b6"
    talker: TalkerConfig
    predictor: PredictorConfig
    codec: CodecConfig
    speaker_encoder: SpeakerEncoderConfig | None
    im_start_id: Count = field(name="im_start_token_id")
    im_end_id: Count = field(name="im_end_token_id")
    tts_pad_id: Count = field(name="tts_pad_token_id")
    tts_bos_id: Count = field(name="tts_bos_token_id")
    tts_eos_id: Count = field(name="tts_eos_token_id")
    sampling: SamplingParams  # the checkpoint's own defaults
    instruction_examples: tuple[tuple[str, str], ...] = ()  # (name, instructions), of instructions.json
    phone_table: PhoneTable | None = None  # of phones.json
    # A key of ours: how far texts are rewritten for this checkpoint. Published ones read most signs themselves.
    text_level: TextLevel = field(name="oscine_text_level", default="clean")
    # Another one: the usual length of its speech, for forecasts until speeches have ended.
    frames_per_text_token: Annotated[float, Meta(gt=0, le=1000)] | None = field(
        name="oscine_frames_per_text_token", default=None
    )

    @property
    def follows_instructions(self) -> bool:
        # The official package silently drops the instructions to a small CustomVoice model; Base takes none.
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.size != "0b6")

    @property
    def selectable_languages(self) -> tuple[str, ...]:
        # A dialect is selected by its speaker, never by name.
        return tuple(name for name in self.talker.languages if "dialect" not in name)

    def card(self, name: str) -> ModelCard:
        """Returns the facts that a front end needs. `name`: the name under which the checkpoint is served."""
        return ModelCard(
            name=name,
            kind=self.kind,
            speakers=tuple(self.talker.speakers) if self.kind == "custom_voice" else (),
            languages=self.selectable_languages,
            dialects=tuple(self.talker.dialects.items()) if self.kind == "custom_voice" else (),
            takes_instructions=self.follows_instructions,
            sample_rate_hz=self.codec.sample_rate_hz,
            samples_per_frame=self.codec.samples_per_frame,
            speaker_width=self.talker.stack.width,
            instruction_examples=self.instruction_examples,
            text_level=self.text_level,
            phone_table=self.phone_table,
        )


class _CodecRates(Struct):
    output_sample_rate: Size
    decode_upsample_rate: Size


class _GenerationConfig(Struct):
    """Sampling settings of generation_config.json; the defaults are those of the official wrapper."""

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    subtalker_dosample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0
    repetition_penalty: float = 1.05
    max_new_tokens: int = 2048


def read_config(folder: Path) -> ModelConfig:
    top = Section.of("config.json", read_json(folder / "config.json"))
    top.require("model_type", "qwen3_tts", hint="; Oscine serves Qwen3-TTS 12 Hz checkpoints")
    top.require("tokenizer_type", "qwen3_tts_tokenizer_12hz", hint="; use a checkpoint whose name contains 12Hz")
    top.require("tts_model_type", *KINDS)
    kind = top.values["tts_model_type"]
    talker_section = top.section("talker_config")
    talker = _talker(talker_section)
    if kind == "custom_voice" and not talker.speakers:
        raise CheckpointError(f"{talker_section.where}.spk_id is empty; a CustomVoice checkpoint lists its voices")
    config = top.decode(
        ModelConfig,
        talker=talker,
        predictor=_predictor(talker_section.section("code_predictor_config"), talker.stack.width),
        speaker_encoder=top.section("speaker_encoder_config").decode(SpeakerEncoderConfig) if kind == "base" else None,
        codec=parse_codec_config(read_json(folder / "speech_tokenizer" / "config.json")),
        sampling=_sampling(folder / "generation_config.json"),
        instruction_examples=_instruction_examples(folder / "instructions.json"),
        phone_table=_phone_table(folder / "phones.json"),
    )
    _check_special_ids(config, talker.text_vocab, top.where)
    return config


def parse_codec_config(content: Any) -> CodecConfig:
    """`content` of speech_tokenizer/config.json."""
    top = Section.of("speech_tokenizer/config.json", content)
    top.require("model_type", "qwen3_tts_tokenizer_12hz", hint="; only the 12 Hz codec is implemented")
    top.expect(encoder_valid_num_quantizers=CODEBOOKS)
    rates = top.decode(_CodecRates)
    decoder, encoder = _codec_decoder(top.section("decoder_config")), _codec_encoder(top.section("encoder_config"))
    samples, rate_hz = decoder.samples_per_frame, rates.output_sample_rate
    if rates.decode_upsample_rate != samples:
        raise CheckpointError(
            f"{top.where}.decode_upsample_rate is {rates.decode_upsample_rate}, but the product of the decoder's "
            f"upsampling factors is {samples}"
        )
    if rate_hz != FRAME_RATE_HZ * samples:
        raise CheckpointError(
            f"{top.where}.output_sample_rate is {rate_hz}, but {FRAME_RATE_HZ:g} frames per second of {samples} "
            f"samples each are {FRAME_RATE_HZ * samples:g} Hz"
        )
    return CodecConfig(decoder, encoder, rate_hz)


def _talker(section: Section) -> TalkerConfig:
    talker = section.decode(TalkerConfig, stack=_qwen_stack(section))
    _check_special_ids(talker, talker.code_vocab, section.where)
    languages = _named_ids(section.section("codec_language_id"), talker.code_vocab)
    dialects = section.section("spk_is_dialect")
    for name, dialect in dialects.values.items():
        if dialect and (not isinstance(dialect, str) or dialect not in languages):
            raise CheckpointError(
                f"{dialects.where}.{name}: expected false or a key of codec_language_id, found {dialect!r}"
            )
    return replace(
        talker,
        languages=languages,
        speakers=_named_ids(section.section("spk_id"), talker.code_vocab),
        dialects={name.lower(): dialect for name, dialect in dialects.values.items() if dialect},
    )


def _named_ids(section: Section, vocab: int) -> dict[str, int]:
    for name, value in section.values.items():
        _check_id(value, vocab, f"{section.where}.{name}")
    return {name.lower(): value for name, value in section.values.items()}


def _check_special_ids(config: Struct, vocab: int, where: str) -> None:
    for name, key in zip(config.__struct_fields__, config.__struct_encode_fields__, strict=True):
        if name.endswith("_id"):
            _check_id(getattr(config, name), vocab, f"{where}.{key}")


def _check_id(value: object, vocab: int, where: str) -> None:
    if type(value) is not int or not 0 <= value < vocab:
        raise CheckpointError(f"{where}: expected an id from 0 to {vocab - 1} (its table's rows), found {value!r}")


def _qwen_stack(section: Section) -> QwenStackConfig:
    section.expect(num_code_groups=CODEBOOKS, attention_bias=False, hidden_act="silu", sliding_window=None)
    return section.decode(QwenStackConfig)


def _predictor(section: Section, talker_width: int) -> PredictorConfig:
    return section.decode(PredictorConfig, stack=_qwen_stack(section), talker_width=talker_width)


def _codec_decoder(section: Section) -> CodecDecoderConfig:
    section.expect(num_quantizers=CODEBOOKS, attention_bias=False, hidden_act="silu")
    return section.decode(CodecDecoderConfig, stack=section.decode(DecoderStackConfig))


def _codec_encoder(section: Section) -> CodecEncoderConfig:
    section.expect(num_residual_layers=1, use_conv_shortcut=False, audio_channels=1, compress=2)
    return section.decode(CodecEncoderConfig, stack=section.decode(EncoderStackConfig))


def _sampling(path: Path) -> SamplingParams:
    file = Section.of(path.name, read_json(path) if path.exists() else {}).decode(_GenerationConfig)
    rest = (not file.subtalker_dosample, file.subtalker_temperature, file.subtalker_top_k, file.subtalker_top_p)
    try:
        params = SamplingParams(
            first=DrawParams(not file.do_sample, file.temperature, file.top_k, file.top_p),
            rest=DrawParams(*rest),
            repetition_penalty=file.repetition_penalty,
            max_new_tokens=file.max_new_tokens,
        )
        params.check()
    except RequestError as error:
        raise CheckpointError(f"{path.name}: {error}") from None
    return params


def _instruction_examples(path: Path) -> tuple[tuple[str, str], ...]:
    """Reads instructions.json. Only checkpoints trained on a few instructions have it; published ones do not."""
    return tuple(Section.of(path.name, read_json(path)).decode(dict[str, str]).items()) if path.exists() else ()


def _phone_table(path: Path) -> PhoneTable | None:
    """Reads phones.json, which checkpoints have whose codes contain phones. Published ones do not."""
    if not path.exists():
        return None
    table = Section.of(path.name, read_json(path)).decode(PhoneTable)
    phones = len(table.added)
    if not all(0 <= one < CODEBOOKS for one in table.codebooks) or phones < 2:
        raise CheckpointError(f"{path.name}: codebooks must be from 0 to {CODEBOOKS - 1}, and there must be phones")
    for letter, costs in table.letters.items():
        if len(costs) != phones + 1:
            raise CheckpointError(f"{path.name}: letters.{letter} must have {phones + 1} costs, got {len(costs)}")
    return table
