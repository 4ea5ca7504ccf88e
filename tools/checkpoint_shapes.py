"""Contents of a Qwen3-TTS checkpoint: the published configs, tiny configs of the same form, and the names and shapes of
all tensors for a config. Independent of src/oscine, which is tested against it.
"""

from typing import Any

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

SIZES = ("1b7", "0b6")
KINDS = ("custom_voice", "voice_design", "base")

LANGUAGES = {
    "chinese": 2055, "english": 2050, "german": 2053, "italian": 2070, "portuguese": 2071,
    "spanish": 2054, "japanese": 2058, "korean": 2064, "french": 2061, "russian": 2069,
}  # fmt: skip
DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {
    "serena": 3066, "vivian": 3065, "uncle_fu": 3010, "ryan": 3061, "aiden": 2861,
    "ono_anna": 2873, "sohee": 2864, "eric": 2875, "dylan": 2878,
}  # fmt: skip
SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}

# Their ids follow the vocabulary in this order. Tokenizers match the second group in text, but not as "special" tokens.
CHAT_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
MARKUP_TOKENS = [
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
]  # fmt: skip
SPEECH_TOKENS = [
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>",
    "<|audio_pad|>",
]  # fmt: skip
ADDED_TOKENS = CHAT_TOKENS + MARKUP_TOKENS + SPEECH_TOKENS
QWEN_VOCABULARY = 151643  # entries of the published vocab.json

# The published config.json of a Base model has only enc_dim and sample_rate; the others are the official defaults.
SPEAKER_ENCODER_DEFAULTS: Config = {
    "mel_dim": 128, "enc_channels": [512, 512, 512, 512, 1536], "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_attention_channels": 128, "enc_res2net_scale": 8, "enc_se_channels": 128,
}  # fmt: skip


# --- configs --------------------------------------------------------------------------------------------------------


def special_ids(vocabulary: int = QWEN_VOCABULARY, assistant: int = 77091) -> dict[str, int]:
    """The token ids in config.json for a vocabulary of this size."""
    ids = {token: vocabulary + place for place, token in enumerate(ADDED_TOKENS)}
    return {
        "assistant_token_id": assistant,
        "im_end_token_id": ids["<|im_end|>"],
        "im_start_token_id": ids["<|im_start|>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "tts_pad_token_id": ids["<tts_pad>"],
    }


def published_config(size: str, kind: str, transformers_version: str = "4.57.3") -> Config:
    if size not in SIZES or kind not in KINDS:
        raise ValueError(f"unknown model '{size}-{kind}'; sizes are {SIZES}, kinds are {KINDS}")
    shared = {
        "attention_bias": False, "attention_dropout": 0, "head_dim": 128, "hidden_act": "silu",
        "initializer_range": 0.02, "num_attention_heads": 16, "num_code_groups": 16, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000, "sliding_window": None, "use_cache": True,
        "use_sliding_window": False,
    }  # fmt: skip
    predictor = shared | {
        "model_type": "qwen3_tts_talker_code_predictor", "hidden_size": 1024, "intermediate_size": 3072,
        "layer_types": ["full_attention"] * 5, "max_position_embeddings": 65536, "max_window_layers": 28,
        "num_hidden_layers": 5, "rope_scaling": None, "vocab_size": 2048,
    }  # fmt: skip
    named_voices = kind == "custom_voice"
    width = 2048 if size == "1b7" else 1024
    talker = shared | {
        "model_type": "qwen3_tts_talker", "code_predictor_config": predictor, "hidden_size": width,
        "intermediate_size": 3 * width, "num_hidden_layers": 28, "max_position_embeddings": 32768,
        "codec_bos_id": 2149, "codec_eos_token_id": 2150, "codec_think_id": 2154, "codec_nothink_id": 2155,
        "codec_pad_id": 2148, "codec_think_bos_id": 2156, "codec_think_eos_id": 2157,
        "codec_language_id": LANGUAGES | (DIALECTS if named_voices else {}),
        "spk_id": dict(SPEAKERS) if named_voices else {},
        "spk_is_dialect": {name: SPEAKER_DIALECTS.get(name, False) for name in SPEAKERS} if named_voices else {},
        "position_id_per_seconds": 13, "text_hidden_size": 2048, "text_vocab_size": 151936, "vocab_size": 3072,
        "rope_scaling": {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
                         "type": "default"},
    }  # fmt: skip
    config: Config = special_ids() | {
        "architectures": ["Qwen3TTSForConditionalGeneration"], "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz", "tts_model_size": size, "tts_model_type": kind,
        "talker_config": talker, "transformers_version": transformers_version,
    }  # fmt: skip
    if kind == "base":
        config["speaker_encoder_config"] = {"enc_dim": width, "sample_rate": 24000}
    return config


def tiny_config(size: str, kind: str, transformers_version: str = "4.57.3") -> Config:
    """Published ids, vocabularies and head width, with smaller widths and depths.

    As in the published models, the 1.7B talker is wider than its predictor (so a projection exists); the 0.6B is not.
    """
    config = published_config(size, kind, transformers_version)
    talker = config["talker_config"]
    talker |= {
        "hidden_size": 96 if size == "1b7" else 64, "intermediate_size": 160, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 1, "text_hidden_size": 32,
    }  # fmt: skip
    talker["code_predictor_config"] |= {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2,
        "num_attention_heads": 2, "num_key_value_heads": 1,
    }  # fmt: skip
    if kind == "base":
        config["speaker_encoder_config"] |= {
            "enc_dim": talker["hidden_size"], "enc_channels": [32, 32, 32, 32, 96], "enc_attention_channels": 16,
            "enc_se_channels": 16,
        }  # fmt: skip
    return config


def published_codec_config(transformers_version: str = "4.57.3") -> Config:
    decoder = {
        "attention_bias": False, "attention_dropout": 0.0, "latent_dim": 1024, "codebook_dim": 512,
        "codebook_size": 2048, "decoder_dim": 1536, "hidden_act": "silu", "hidden_size": 512,
        "intermediate_size": 1024, "layer_scale_initial_scale": 0.01, "max_position_embeddings": 8000,
        "head_dim": 64, "num_attention_heads": 16, "num_hidden_layers": 8, "num_key_value_heads": 16,
        "num_quantizers": 16, "num_semantic_quantizers": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000,
        "semantic_codebook_size": 4096, "sliding_window": 72, "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2], "vector_quantization_hidden_dimension": 512,
    }  # fmt: skip
    encoder = {
        "model_type": "mimi", "_frame_rate": 12.5, "attention_bias": False, "attention_dropout": 0.0,
        "audio_channels": 1, "codebook_dim": 256, "codebook_size": 2048, "compress": 2, "dilation_growth_rate": 2,
        "head_dim": 64, "hidden_act": "gelu", "hidden_size": 512, "initializer_range": 0.02,
        "intermediate_size": 2048, "kernel_size": 7, "last_kernel_size": 3, "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000, "norm_eps": 1e-5, "normalize": False, "num_attention_heads": 8,
        "num_filters": 64, "num_hidden_layers": 8, "num_key_value_heads": 8, "num_quantizers": 32,
        "num_residual_layers": 1, "num_semantic_quantizers": 1, "pad_mode": "constant", "residual_kernel_size": 3,
        "rope_theta": 10000.0, "sampling_rate": 24000, "sliding_window": 250, "trim_right_ratio": 1.0,
        "upsample_groups": 512, "upsampling_ratios": [8, 6, 5, 4], "use_cache": False, "use_causal_conv": True,
        "use_conv_shortcut": False, "use_streaming": False, "vector_quantization_hidden_dimension": 256,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"], "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": 16, "input_sample_rate": 24000, "output_sample_rate": 24000,
        "decode_upsample_rate": 1920, "encode_downsample_rate": 1920, "decoder_config": decoder,
        "encoder_config": encoder, "transformers_version": transformers_version,
    }  # fmt: skip


def tiny_codec_config(transformers_version: str = "4.57.3", *, few_blocks: bool = False) -> Config:
    """`few_blocks`: two steps between frames and samples instead of four, which halves the operations."""
    config = published_codec_config(transformers_version)
    config["decoder_config"] |= {
        "latent_dim": 48, "codebook_dim": 32, "decoder_dim": 64, "hidden_size": 32, "intermediate_size": 64,
        "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2,
        "vector_quantization_hidden_dimension": 32,
    }  # fmt: skip
    config["encoder_config"] |= {
        "codebook_dim": 16, "vector_quantization_hidden_dimension": 16, "hidden_size": 32, "intermediate_size": 64,
        "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "num_filters": 4, "upsample_groups": 32,
    }  # fmt: skip
    if few_blocks:
        config["decoder_config"]["upsample_rates"] = [24, 20]
        config["encoder_config"]["upsampling_ratios"] = [32, 30]
    return config


# --- names and shapes -----------------------------------------------------------------------------------------------


def _under(prefix: str, shapes: Shapes) -> Shapes:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def _conv(name: str, out_channels: int, in_channels: int, kernel: int) -> Shapes:
    return {f"{name}.weight": (out_channels, in_channels, kernel), f"{name}.bias": (out_channels,)}


def _linear(name: str, out_width: int, in_width: int) -> Shapes:
    return {f"{name}.weight": (out_width, in_width), f"{name}.bias": (out_width,)}


def _attention(config: Config) -> Shapes:
    width, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    return {
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (width, queries),
    }


def _gated_layer(config: Config) -> Shapes:
    """A pre-norm layer with SwiGLU: the talker's, the predictor's and the codec decoder's."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    return _attention(config) | {
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
    }


def _language_stack(prefix: str, config: Config) -> Shapes:
    head_norms = {f"self_attn.{name}_norm.weight": (config["head_dim"],) for name in "qk"}
    layer: Shapes = _gated_layer(config) | head_norms
    shapes: Shapes = {f"{prefix}.norm.weight": (config["hidden_size"],)}
    for place in range(config["num_hidden_layers"]):
        shapes |= _under(f"{prefix}.layers.{place}", layer)
    return shapes


def _speaker_encoder(config: Config) -> Shapes:
    config = SPEAKER_ENCODER_DEFAULTS | config
    channels, kernels = config["enc_channels"], config["enc_kernel_sizes"]
    scale, squeezed = config["enc_res2net_scale"], config["enc_se_channels"]
    pooled = channels[-1]
    shapes = _conv("blocks.0.conv", channels[0], config["mel_dim"], kernels[0])
    for place in range(1, len(channels) - 1):
        width, chunk = channels[place], channels[place] // scale
        block = _conv("tdnn1.conv", width, channels[place - 1], 1) | _conv("tdnn2.conv", width, width, 1)
        block |= _conv("se_block.conv1", squeezed, width, 1) | _conv("se_block.conv2", width, squeezed, 1)
        for branch in range(scale - 1):
            block |= _conv(f"res2net_block.blocks.{branch}.conv", chunk, chunk, kernels[place])
        shapes |= _under(f"blocks.{place}", block)
    shapes |= _conv("mfa.conv", pooled, sum(channels[1:-1]), kernels[-1])
    shapes |= _conv("asp.tdnn.conv", config["enc_attention_channels"], 3 * pooled, 1)
    shapes |= _conv("asp.conv", pooled, config["enc_attention_channels"], 1)
    shapes |= _conv("fc", config["enc_dim"], 2 * pooled, 1)
    return _under("speaker_encoder", shapes)


def talker_shapes(config: Config) -> Shapes:
    """Names and shapes of model.safetensors for a whole config.json."""
    talker = config["talker_config"]
    predictor = talker["code_predictor_config"]
    width, text_width = talker["hidden_size"], talker["text_hidden_size"]
    shapes = _language_stack("talker.model", talker)
    shapes |= {
        "talker.model.codec_embedding.weight": (talker["vocab_size"], width),
        "talker.model.text_embedding.weight": (talker["text_vocab_size"], text_width),
        "talker.codec_head.weight": (talker["vocab_size"], width),
    }
    shapes |= _linear("talker.text_projection.linear_fc1", text_width, text_width)
    shapes |= _linear("talker.text_projection.linear_fc2", width, text_width)
    shapes |= _language_stack("talker.code_predictor.model", predictor)
    for step in range(talker["num_code_groups"] - 1):
        # The predictor's tables have the talker's width: their rows are also summed into the talker's next input.
        shapes[f"talker.code_predictor.model.codec_embedding.{step}.weight"] = (predictor["vocab_size"], width)
        shapes[f"talker.code_predictor.lm_head.{step}.weight"] = (predictor["vocab_size"], predictor["hidden_size"])
    if width != predictor["hidden_size"]:
        shapes |= _linear("talker.code_predictor.small_to_mtp_projection", predictor["hidden_size"], width)
    if config["tts_model_type"] == "base":
        shapes |= _speaker_encoder(config["speaker_encoder_config"])
    return shapes


def _codec_decoder(config: Config) -> Shapes:
    width, latent, codes = config["hidden_size"], config["latent_dim"], config["codebook_dim"]
    shapes: Shapes = {}
    semantic = config["num_semantic_quantizers"]
    for group, depth in (("rvq_first", semantic), ("rvq_rest", config["num_quantizers"] - semantic)):
        quantizer: Shapes = {
            "input_proj.weight": (codes // 2, codes, 1),
            "output_proj.weight": (codes, codes // 2, 1),
        }
        for place in range(depth):
            quantizer[f"vq.layers.{place}._codebook.cluster_usage"] = (config["codebook_size"],)
            quantizer[f"vq.layers.{place}._codebook.embedding_sum"] = (config["codebook_size"], codes // 2)
        shapes |= _under(f"quantizer.{group}", quantizer)
    shapes |= _conv("pre_conv.conv", latent, codes, 3)

    scales = {f"{part}_layer_scale.scale": (width,) for part in ("self_attn", "mlp")}
    layer: Shapes = _gated_layer(config) | scales
    for place in range(config["num_hidden_layers"]):
        shapes |= _under(f"pre_transformer.layers.{place}", layer)
    shapes |= {"pre_transformer.norm.weight": (width,)}
    shapes |= _linear("pre_transformer.input_proj", width, latent)
    shapes |= _linear("pre_transformer.output_proj", latent, width)

    for place, ratio in enumerate(config["upsampling_ratios"]):
        # A transposed convolution stores (in, out, kernel).
        stage: Shapes = {"0.conv.weight": (latent, latent, ratio), "0.conv.bias": (latent,), "1.gamma": (latent,)}
        stage |= _conv("1.dwconv.conv", latent, 1, 7) | {"1.norm.weight": (latent,), "1.norm.bias": (latent,)}
        stage |= _linear("1.pwconv1", 4 * latent, latent) | _linear("1.pwconv2", latent, 4 * latent)
        shapes |= _under(f"upsample.{place}", stage)

    channels = config["decoder_dim"]
    shapes |= _conv("decoder.0.conv", channels, latent, 7)
    for place, rate in enumerate(config["upsample_rates"], start=1):
        half = channels // 2
        block: Shapes = {"0.alpha": (channels,), "0.beta": (channels,)}
        block |= {"1.conv.weight": (channels, half, 2 * rate), "1.conv.bias": (half,)}
        for unit in (2, 3, 4):
            block |= {f"{unit}.{act}.{curve}": (half,) for act in ("act1", "act2") for curve in ("alpha", "beta")}
            block |= _conv(f"{unit}.conv1.conv", half, half, 7) | _conv(f"{unit}.conv2.conv", half, half, 1)
        shapes |= _under(f"decoder.{place}.block", block)
        channels = half
    last = len(config["upsample_rates"]) + 1
    shapes |= {f"decoder.{last}.alpha": (channels,), f"decoder.{last}.beta": (channels,)}
    return _under("decoder", shapes | _conv(f"decoder.{last + 1}.conv", 1, channels, 7))


def _codec_encoder(config: Config) -> Shapes:
    width, inner, channels = config["hidden_size"], config["intermediate_size"], config["num_filters"]
    shapes = _conv("encoder.layers.0.conv", channels, config["audio_channels"], config["kernel_size"])
    place = 1
    for ratio in reversed(config["upsampling_ratios"]):
        middle = channels // config["compress"]
        for _ in range(config["num_residual_layers"]):
            shapes |= _conv(f"encoder.layers.{place}.block.1.conv", middle, channels, config["residual_kernel_size"])
            shapes |= _conv(f"encoder.layers.{place}.block.3.conv", channels, middle, 1)
            place += 1
        place += 1  # the activation has an index but no weights
        shapes |= _conv(f"encoder.layers.{place}.conv", 2 * channels, channels, 2 * ratio)
        place, channels = place + 1, 2 * channels
    shapes |= _conv(f"encoder.layers.{place + 1}.conv", width, channels, config["last_kernel_size"])

    layer: Shapes = _attention(config) | {"mlp.fc1.weight": (inner, width), "mlp.fc2.weight": (width, inner)}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        layer |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    layer |= {f"{part}_layer_scale.scale": (width,) for part in ("self_attn", "mlp")}
    for place in range(config["num_hidden_layers"]):
        shapes |= _under(f"encoder_transformer.layers.{place}", layer)
    shapes["downsample.conv.weight"] = (width, width, 4)

    codes, semantic = config["vector_quantization_hidden_dimension"], config["num_semantic_quantizers"]
    for group, depth in (("semantic", semantic), ("acoustic", config["num_quantizers"] - semantic)):
        quantizer: Shapes = {"input_proj.weight": (codes, width, 1), "output_proj.weight": (width, codes, 1)}
        for place in range(depth):
            book = f"layers.{place}.codebook"
            quantizer[f"{book}.initialized"] = (1,)
            quantizer[f"{book}.cluster_usage"] = (config["codebook_size"],)
            quantizer[f"{book}.embed_sum"] = (config["codebook_size"], config["codebook_dim"])
        shapes |= _under(f"quantizer.{group}_residual_vector_quantizer", quantizer)
    return _under("encoder", shapes)


def codec_shapes(codec_config: Config) -> Shapes:
    """Names and shapes of speech_tokenizer/model.safetensors."""
    return _codec_encoder(codec_config["encoder_config"]) | _codec_decoder(codec_config["decoder_config"])
