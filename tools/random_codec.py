"""A codec with random weights, for tests and benchmarks that need no checkpoint."""

import torch

from oscine.model.codec import Codec
from oscine.model.config import CodecConfig

_SEED = 3
_GAINS = {"conv2": 0.3, "blocks.": 0.7, "vocoder_out": 0.15}  # few samples reach the clamp


def random_codec(config: CodecConfig, device: str = "cpu") -> Codec:
    """A codec in fp32, with activations near one. On `meta` it holds no weights."""
    generator = None if device == "meta" else torch.Generator(device).manual_seed(_SEED)
    with torch.device(device):
        codec = Codec(config)
        for name, parameter in codec.named_parameters():
            leaf, noise = name.rsplit(".", 1)[-1], torch.randn(parameter.shape, generator=generator)
            if leaf == "cluster_usage":
                noise = noise.abs() + 1
            elif leaf in ("alpha", "beta", "bias"):
                noise *= 0.3
            elif leaf in ("scale", "gamma") or noise.ndim == 1:
                noise = 1 + 0.1 * noise
            else:
                noise *= (noise.shape[0] if "upsample" in name else noise[0].numel()) ** -0.5
                noise *= next((gain for part, gain in _GAINS.items() if part in name), 1.0)
            parameter.data = noise
        for module in list(codec.modules()):
            if prepare := getattr(module, "prepare", None):
                prepare()
    return codec.eval().requires_grad_(False)
