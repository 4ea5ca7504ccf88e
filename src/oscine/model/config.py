"""Dimensions and special ids, read from the checkpoint's own config.json files.

Nothing here comes from the official config classes: their defaults describe other models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from oscine.model.fields import Fields, read_json
from oscine.types import CODEBOOKS, FRAME_RATE_HZ, CheckpointError, DrawParams, ModelCard, RequestError, SamplingParams

Kind = Literal["custom_voice", "voice_design", "base"]
KINDS: tuple[Kind, ...] = ("custom_voice", "voice_design", "base")


@dataclass(frozen=True, slots=True)
class StackConfig:
    """One transformer stack. Talker, code predictor and both codec transformers are four values of this."""

    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    qk_norm: bool = False
    layer_scale: bool = False
    window: int | None = None  # positions a query sees, itself included; None: all earlier ones
    norm: Literal["rms", "layer"] = "rms"
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    final_norm: bool = True


@dataclass(frozen=True, slots=True)
class TalkerConfig:
    stack: StackConfig
    code_vocab: int  # 3072: 2048 codes, then languages, speakers and control ids
    text_vocab: int
    text_width: int
    max_positions: int
    pad_id: int
    bos_id: int
    eos_id: int
    think_id: int
    nothink_id: int
    think_bos_id: int
    think_eos_id: int
    languages: Mapping[str, int]  # lower-case name -> codec id, dialects included
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]  # speaker -> dialect name, for those that have one


@dataclass(frozen=True, slots=True)
class PredictorConfig:
    stack: StackConfig
    vocab: int
    talker_width: int


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """ECAPA-TDNN. Published files give `width` and the sample rate only; the rest are the architecture's constants."""

    width: int
    sample_rate_hz: int
    channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    kernels: tuple[int, ...] = (5, 3, 3, 3, 1)
    dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    mel_bins: int = 128
    attention_channels: int = 128
    res2net_scale: int = 8
    se_channels: int = 128


@dataclass(frozen=True, slots=True)
class CodecDecoderConfig:
    stack: StackConfig
    codebook_size: int
    codebook_dim: int  # width after the quantiser's output projection; its codebooks are half as wide
    latent: int
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]
    decoder_dim: int


@dataclass(frozen=True, slots=True)
class CodecEncoderConfig:
    stack: StackConfig
    filters: int
    kernel: int
    last_kernel: int
    residual_kernel: int
    ratios: tuple[int, ...]  # in the order of the signal path
    codebook_size: int
    codebook_dim: int
    stored_codebooks: int  # 32 in the file, 16 used


@dataclass(frozen=True, slots=True)
class CodecConfig:
    decoder: CodecDecoderConfig
    encoder: CodecEncoderConfig
    sample_rate_hz: int
    samples_per_frame: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    kind: Kind
    size: str  # "1b7" or "0b6"
    talker: TalkerConfig
    predictor: PredictorConfig
    codec: CodecConfig
    speaker_encoder: SpeakerEncoderConfig | None
    im_start_id: int
    im_end_id: int
    tts_pad_id: int
    tts_bos_id: int
    tts_eos_id: int
    sampling: SamplingParams  # the checkpoint's own defaults

    @property
    def follows_instructions(self) -> bool:
        # The official package drops instructions for the small CustomVoice model without a word; Base takes none.
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.size != "0b6")

    @property
    def selectable_languages(self) -> tuple[str, ...]:
        # Dialects are reached through their speakers, never by name.
        return tuple(name for name in self.talker.languages if "dialect" not in name)

    def card(self, name: str) -> ModelCard:
        """What a front end must know; `name` is what the checkpoint is served as."""
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
        )


def read_config(folder: Path) -> ModelConfig:
    top = Fields("config.json", read_json(folder / "config.json"))
    _refuse_foreign(top)
    kind = top.text("tts_model_type")
    if kind not in KINDS:
        raise CheckpointError(f"config.json.tts_model_type is {kind!r}; supported: {', '.join(KINDS)}")
    talker_fields = top.object("talker_config")
    talker = _talker(talker_fields)
    if kind == "custom_voice" and not talker.speakers:
        raise CheckpointError(
            "config.json.talker_config.spk_id is empty; a CustomVoice checkpoint names its voices there"
        )
    return ModelConfig(
        kind=kind,
        size=top.text("tts_model_size"),
        talker=talker,
        predictor=_predictor(talker_fields.object("code_predictor_config"), talker.stack.width),
        codec=_codec(folder / "speech_tokenizer" / "config.json"),
        speaker_encoder=_speaker_encoder(top.object("speaker_encoder_config")) if kind == "base" else None,
        im_start_id=top.id("im_start_token_id", talker.text_vocab),
        im_end_id=top.id("im_end_token_id", talker.text_vocab),
        tts_pad_id=top.id("tts_pad_token_id", talker.text_vocab),
        tts_bos_id=top.id("tts_bos_token_id", talker.text_vocab),
        tts_eos_id=top.id("tts_eos_token_id", talker.text_vocab),
        sampling=_sampling(folder / "generation_config.json"),
    )


def _refuse_foreign(top: Fields) -> None:
    model_type = top.values.get("model_type")
    if model_type != "qwen3_tts":
        raise CheckpointError(
            f"config.json.model_type is {model_type!r}; Oscine serves Qwen3-TTS 12 Hz checkpoints ('qwen3_tts')"
        )
    tokenizer_type = top.values.get("tokenizer_type")
    if tokenizer_type != "qwen3_tts_tokenizer_12hz":
        raise CheckpointError(
            f"config.json.tokenizer_type is {tokenizer_type!r}; only the 12 Hz models are supported "
            "('qwen3_tts_tokenizer_12hz'): use a checkpoint whose name contains 12Hz"
        )


def _qwen_stack(fields: Fields) -> StackConfig:
    fields.expect("attention_bias", False)
    fields.expect("hidden_act", "silu")
    fields.expect("sliding_window", None)
    return _stack(fields, eps_key="rms_norm_eps", qk_norm=True)


def _stack(fields: Fields, *, eps_key: str, **kind: Any) -> StackConfig:
    """What every transformer's section has; `kind` is what sets it apart."""
    return StackConfig(
        width=fields.size("hidden_size"),
        inner=fields.size("intermediate_size"),
        layers=fields.size("num_hidden_layers"),
        heads=fields.size("num_attention_heads"),
        kv_heads=fields.size("num_key_value_heads"),
        head_dim=fields.size("head_dim"),
        eps=fields.between(eps_key, 1e-12, 1.0),
        theta=fields.between("rope_theta", 1.0, 1e12),
        **kind,
    )


def _talker(fields: Fields) -> TalkerConfig:
    fields.expect("num_code_groups", CODEBOOKS)
    vocab = fields.size("vocab_size")
    languages = fields.ids("codec_language_id", vocab)
    dialects = {name.lower(): dialect for name, dialect in fields.object("spk_is_dialect").values.items() if dialect}
    for name, dialect in dialects.items():
        if not isinstance(dialect, str) or dialect not in languages:
            raise CheckpointError(f"{fields.where}.spk_is_dialect.{name} is {dialect!r}, no key of codec_language_id")
    return TalkerConfig(
        stack=_qwen_stack(fields),
        code_vocab=vocab,
        text_vocab=fields.size("text_vocab_size"),
        text_width=fields.size("text_hidden_size"),
        max_positions=fields.size("max_position_embeddings"),
        pad_id=fields.id("codec_pad_id", vocab),
        bos_id=fields.id("codec_bos_id", vocab),
        eos_id=fields.id("codec_eos_token_id", vocab),
        think_id=fields.id("codec_think_id", vocab),
        nothink_id=fields.id("codec_nothink_id", vocab),
        think_bos_id=fields.id("codec_think_bos_id", vocab),
        think_eos_id=fields.id("codec_think_eos_id", vocab),
        languages=languages,
        speakers=fields.ids("spk_id", vocab),
        dialects=dialects,
    )


def _predictor(fields: Fields, talker_width: int) -> PredictorConfig:
    fields.expect("num_code_groups", CODEBOOKS)
    return PredictorConfig(_qwen_stack(fields), fields.size("vocab_size"), talker_width)


def _speaker_encoder(fields: Fields) -> SpeakerEncoderConfig:
    constants: dict[str, Any] = {
        ours: read(theirs)
        for ours, theirs, read in (
            ("channels", "enc_channels", fields.sizes),
            ("kernels", "enc_kernel_sizes", fields.sizes),
            ("dilations", "enc_dilations", fields.sizes),
            ("mel_bins", "mel_dim", fields.size),
            ("attention_channels", "enc_attention_channels", fields.size),
            ("res2net_scale", "enc_res2net_scale", fields.size),
            ("se_channels", "enc_se_channels", fields.size),
        )
        if theirs in fields.values
    }
    fields.between("sample_rate", 8000, 192_000)
    return SpeakerEncoderConfig(fields.size("enc_dim"), fields.size("sample_rate"), **constants)


def _codec(path: Path) -> CodecConfig:
    top = Fields("speech_tokenizer/config.json", read_json(path))
    if top.values.get("model_type") != "qwen3_tts_tokenizer_12hz":
        raise CheckpointError(
            f"speech_tokenizer/config.json.model_type is {top.values.get('model_type')!r}; "
            "only the 12 Hz codec ('qwen3_tts_tokenizer_12hz') is supported"
        )
    top.expect("encoder_valid_num_quantizers", CODEBOOKS)
    config = CodecConfig(
        decoder=_codec_decoder(top.object("decoder_config")),
        encoder=_codec_encoder(top.object("encoder_config")),
        sample_rate_hz=top.size("output_sample_rate"),
        samples_per_frame=top.size("decode_upsample_rate"),
    )
    product = 1
    for factor in config.decoder.upsampling_ratios + config.decoder.upsample_rates:
        product *= factor
    if product != config.samples_per_frame:
        raise CheckpointError(
            f"speech_tokenizer/config.json.decode_upsample_rate is {config.samples_per_frame}, "
            f"but the decoder's factors multiply to {product}"
        )
    if config.sample_rate_hz != FRAME_RATE_HZ * config.samples_per_frame:
        raise CheckpointError(
            f"speech_tokenizer/config.json.output_sample_rate is {config.sample_rate_hz}, but {FRAME_RATE_HZ:g} frames "
            f"of {config.samples_per_frame} samples (decode_upsample_rate) are one second"
        )
    return config


def _codec_decoder(fields: Fields) -> CodecDecoderConfig:
    fields.expect("num_quantizers", CODEBOOKS)
    fields.expect("attention_bias", False)
    fields.expect("hidden_act", "silu")
    return CodecDecoderConfig(
        stack=_stack(fields, eps_key="rms_norm_eps", layer_scale=True, window=fields.size("sliding_window")),
        codebook_size=fields.size("codebook_size"),
        codebook_dim=fields.size("codebook_dim"),
        latent=fields.size("latent_dim"),
        upsampling_ratios=fields.sizes("upsampling_ratios"),
        upsample_rates=fields.sizes("upsample_rates"),
        decoder_dim=fields.size("decoder_dim"),
    )


def _codec_encoder(fields: Fields) -> CodecEncoderConfig:
    fields.expect("num_residual_layers", 1)
    fields.expect("use_conv_shortcut", False)
    fields.expect("audio_channels", 1)
    fields.expect("compress", 2)
    stack = _stack(
        fields,
        eps_key="norm_eps",
        layer_scale=True,
        # The file says 250, but the official run applies a plain causal mask (its loader never asks for the
        # attention that windows), and the published codes were made that way.
        window=None,
        norm="layer",
        mlp="gelu",
        final_norm=False,
    )
    return CodecEncoderConfig(
        stack=stack,
        filters=fields.size("num_filters"),
        kernel=fields.size("kernel_size"),
        last_kernel=fields.size("last_kernel_size"),
        residual_kernel=fields.size("residual_kernel_size"),
        ratios=tuple(reversed(fields.sizes("upsampling_ratios"))),
        codebook_size=fields.size("codebook_size"),
        codebook_dim=fields.size("codebook_dim"),
        stored_codebooks=fields.size("num_quantizers"),
    )


# The official wrapper's, for a file that lacks them.
_SAMPLING_FALLBACKS: dict[str, Any] = {
    "do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0, "subtalker_dosample": True,
    "subtalker_temperature": 0.9, "subtalker_top_k": 50, "subtalker_top_p": 1.0, "repetition_penalty": 1.05,
    "max_new_tokens": 2048,
}  # fmt: skip


def _sampling(path: Path) -> SamplingParams:
    given = Fields(path.name, read_json(path) if path.exists() else {})
    fields = Fields(path.name, _SAMPLING_FALLBACKS | given.values)
    try:
        return SamplingParams(
            first=_draw(fields, "do_sample", ""),
            rest=_draw(fields, "subtalker_dosample", "subtalker_"),
            repetition_penalty=fields.number("repetition_penalty"),
            max_new_tokens=fields.count("max_new_tokens"),
        )
    except RequestError as error:
        raise CheckpointError(f"{path.name}: {error}") from None


def _draw(fields: Fields, sample_key: str, prefix: str) -> DrawParams:
    return DrawParams(
        greedy=not fields.flag(sample_key),
        temperature=fields.number(f"{prefix}temperature"),
        top_k=fields.count(f"{prefix}top_k"),
        top_p=fields.number(f"{prefix}top_p"),
    )
