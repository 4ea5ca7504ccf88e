"""Maps our parameter names to the checkpoint's tensors. Several tensors may be joined into one parameter.

They become one matrix (the projections of a FusedLinear, one below the other) or one stack (new first axis).
"""

from __future__ import annotations

import re

from oscine.audio.pcm import CODEBOOKS
from oscine.model.config import CodecDecoderConfig, CodecEncoderConfig, ModelConfig, SpeakerEncoderConfig, StackConfig

Names = dict[str, tuple[str, ...]]

# Tensors that a checkpoint may hold and inference does not use. Any other unknown tensor is an error.
UNUSED_SPEECH = re.compile(r"(?!)")  # none
UNUSED_CODEC = re.compile(
    r"decoder\.quantizer\.rvq_(first|rest)\.input_proj\.weight"  # decoding looks codes up; only encoding searches
    r"|encoder\.quantizer\.\w+\.output_proj\.weight"
    r"|encoder\.quantizer\.\w+\.layers\.\d+\.codebook\.initialized"
    r"|encoder\.quantizer\.acoustic_residual_vector_quantizer\.layers\.(1[5-9]|[2-9]\d)\.codebook\.\w+"  # 16 of 32 used
)
UNUSED_CODEC_WITHOUT_CLONING = re.compile(UNUSED_CODEC.pattern + r"|encoder\..*")


def speech_names(config: ModelConfig) -> Names:
    """Returns the names of model.safetensors."""
    talker, predictor = "talker.model", "talker.code_predictor"
    books = range(CODEBOOKS - 1)
    names: Names = {
        "talker.text_embedding.weight": (f"{talker}.text_embedding.weight",),
        "talker.code_embedding.weight": (f"{talker}.codec_embedding.weight",),
        "talker.head.weight": ("talker.codec_head.weight",),
        **_affine("talker.text_in", "talker.text_projection.linear_fc1"),
        **_affine("talker.text_out", "talker.text_projection.linear_fc2"),
        **_stack("talker.stack", talker, config.talker.stack),
        "predictor.embeddings": tuple(f"{predictor}.model.codec_embedding.{book}.weight" for book in books),
        "predictor.heads": tuple(f"{predictor}.lm_head.{book}.weight" for book in books),
        **_stack("predictor.stack", f"{predictor}.model", config.predictor.stack),
    }
    if config.predictor.talker_width != config.predictor.stack.width:
        names |= _affine("predictor.narrow", f"{predictor}.small_to_mtp_projection")
    if config.speaker_encoder:
        names |= _speaker_encoder(config.speaker_encoder)
    return names


def codec_names(config: ModelConfig) -> Names:
    """Returns the names of speech_tokenizer/model.safetensors."""
    names = codec_decoder_names(config.codec.decoder)
    if config.speaker_encoder:
        names |= codec_encoder_names(config.codec.encoder)
    return names


def _affine(ours: str, theirs: str) -> Names:
    return {f"{ours}.{leaf}": (f"{theirs}.{leaf}",) for leaf in ("weight", "bias")}


def _snake(ours: str, theirs: str) -> Names:
    return {f"{ours}.{leaf}": (f"{theirs}.{leaf}",) for leaf in ("alpha", "beta")}


def _stack(ours: str, theirs: str, config: StackConfig) -> Names:
    names: Names = {f"{ours}.norm.weight": (f"{theirs}.norm.weight",)} if config.final_norm else {}
    norm_leaves = ("weight",) if config.norm == "rms" else ("weight", "bias")
    for n in range(config.layers):
        our, their = f"{ours}.layers.{n}", f"{theirs}.layers.{n}"
        names[f"{our}.attention.qkv.weight"] = tuple(f"{their}.self_attn.{x}_proj.weight" for x in "qkv")
        names[f"{our}.attention.out.weight"] = (f"{their}.self_attn.o_proj.weight",)
        if config.qk_norm:
            names[f"{our}.attention.q_norm.weight"] = (f"{their}.self_attn.q_norm.weight",)
            names[f"{our}.attention.k_norm.weight"] = (f"{their}.self_attn.k_norm.weight",)
        if config.mlp == "swiglu":
            names[f"{our}.mlp.gate_up.weight"] = tuple(f"{their}.mlp.{x}_proj.weight" for x in ("gate", "up"))
            names[f"{our}.mlp.down.weight"] = (f"{their}.mlp.down_proj.weight",)
        else:
            names[f"{our}.mlp.up.weight"] = (f"{their}.mlp.fc1.weight",)
            names[f"{our}.mlp.down.weight"] = (f"{their}.mlp.fc2.weight",)
        for leaf in norm_leaves:
            names[f"{our}.attention_norm.{leaf}"] = (f"{their}.input_layernorm.{leaf}",)
            names[f"{our}.mlp_norm.{leaf}"] = (f"{their}.post_attention_layernorm.{leaf}",)
        if config.layer_scale:
            names[f"{our}.attention_scale.scale"] = (f"{their}.self_attn_layer_scale.scale",)
            names[f"{our}.mlp_scale.scale"] = (f"{their}.mlp_layer_scale.scale",)
    return names


def codec_decoder_names(config: CodecDecoderConfig) -> Names:
    quantizer = "decoder.quantizer"
    books = [f"{quantizer}.rvq_first.vq.layers.0._codebook"]
    books += [f"{quantizer}.rvq_rest.vq.layers.{n}._codebook" for n in range(CODEBOOKS - 1)]
    names: Names = {
        "codec.dequantizer.embedding_sum": tuple(f"{book}.embedding_sum" for book in books),
        "codec.dequantizer.cluster_usage": tuple(f"{book}.cluster_usage" for book in books),
        "codec.dequantizer.output_proj": tuple(f"{quantizer}.rvq_{x}.output_proj.weight" for x in ("first", "rest")),
        **_affine("codec.pre_conv", "decoder.pre_conv.conv"),
        **_affine("codec.stack_in", "decoder.pre_transformer.input_proj"),
        **_stack("codec.stack", "decoder.pre_transformer", config.stack),
        **_affine("codec.stack_out", "decoder.pre_transformer.output_proj"),
        **_affine("codec.vocoder_in", "decoder.decoder.0.conv"),
    }
    for n in range(len(config.upsampling_ratios)):
        ours, theirs = f"codec.convnexts.{n}", f"decoder.upsample.{n}.1"
        names |= _affine(f"codec.upsamples.{n}", f"decoder.upsample.{n}.0.conv")
        names |= _affine(f"{ours}.depthwise", f"{theirs}.dwconv.conv")
        names |= _affine(f"{ours}.norm", f"{theirs}.norm")
        names |= _affine(f"{ours}.up", f"{theirs}.pwconv1") | _affine(f"{ours}.down", f"{theirs}.pwconv2")
        names[f"{ours}.gamma"] = (f"{theirs}.gamma",)
    blocks = len(config.upsample_rates)
    for n in range(blocks):
        ours, theirs = f"codec.blocks.{n}", f"decoder.decoder.{n + 1}.block"
        names |= _snake(f"{ours}.snake", f"{theirs}.0") | _affine(f"{ours}.upsample", f"{theirs}.1.conv")
        for unit in range(3):
            our, their = f"{ours}.units.{unit}", f"{theirs}.{unit + 2}"
            for half in (1, 2):
                names |= _snake(f"{our}.snake{half}", f"{their}.act{half}")
                names |= _affine(f"{our}.conv{half}", f"{their}.conv{half}.conv")
    names |= _snake("codec.snake", f"decoder.decoder.{blocks + 1}")
    return names | _affine("codec.vocoder_out", f"decoder.decoder.{blocks + 2}.conv")


def codec_encoder_names(config: CodecEncoderConfig) -> Names:
    convs, quantizer = "encoder.encoder.layers", "encoder.quantizer"
    groups = [f"{quantizer}.{group}_residual_vector_quantizer" for group in ("semantic", "acoustic")]
    books = [f"{groups[0]}.layers.0.codebook"] + [f"{groups[1]}.layers.{n}.codebook" for n in range(CODEBOOKS - 1)]
    ours = "codec_encoder"
    names: Names = {
        **_affine(f"{ours}.first", f"{convs}.0.conv"),
        # A stage is a residual block, an activation (which has an index too) and the strided convolution.
        **_affine(f"{ours}.last", f"{convs}.{3 * len(config.ratios) + 2}.conv"),
        **_stack(f"{ours}.stack", "encoder.encoder_transformer", config.stack),
        f"{ours}.downsample.weight": ("encoder.downsample.conv.weight",),
        f"{ours}.quantizer.embedding_sum": tuple(f"{book}.embed_sum" for book in books),
        f"{ours}.quantizer.cluster_usage": tuple(f"{book}.cluster_usage" for book in books),
        f"{ours}.quantizer.input_proj": tuple(f"{group}.input_proj.weight" for group in groups),
    }
    for n in range(len(config.ratios)):
        residual = f"{convs}.{3 * n + 1}.block"
        names |= _affine(f"{ours}.residuals.{n}.conv1", f"{residual}.1.conv")
        names |= _affine(f"{ours}.residuals.{n}.conv2", f"{residual}.3.conv")
        names |= _affine(f"{ours}.downs.{n}", f"{convs}.{3 * n + 3}.conv")
    return names


def _speaker_encoder(config: SpeakerEncoderConfig) -> Names:
    ours, theirs = "speaker_encoder", "speaker_encoder"
    names: Names = {
        **_affine(f"{ours}.first.conv", f"{theirs}.blocks.0.conv"),
        **_affine(f"{ours}.merge.conv", f"{theirs}.mfa.conv"),
        **_affine(f"{ours}.pooling.tdnn.conv", f"{theirs}.asp.tdnn.conv"),
        **_affine(f"{ours}.pooling.conv", f"{theirs}.asp.conv"),
        **_affine(f"{ours}.last", f"{theirs}.fc"),
    }
    for n in range(len(config.channels) - 2):
        our, their = f"{ours}.blocks.{n}", f"{theirs}.blocks.{n + 1}"
        names |= _affine(f"{our}.tdnn1.conv", f"{their}.tdnn1.conv")
        names |= _affine(f"{our}.tdnn2.conv", f"{their}.tdnn2.conv")
        names |= _affine(f"{our}.squeeze.conv1", f"{their}.se_block.conv1")
        names |= _affine(f"{our}.squeeze.conv2", f"{their}.se_block.conv2")
        for group in range(config.res2net_scale - 1):
            names |= _affine(f"{our}.res2net.blocks.{group}.conv", f"{their}.res2net_block.blocks.{group}.conv")
    return names
