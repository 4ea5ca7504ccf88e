"""The speaker encoder: clips of one length -> speaker vectors, for cloning.

The spectrogram is part of the graph, as a convolution: TensorRT has no STFT.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from oscine.export.codec_encoder import random_clips
from oscine.export.onnx_file import Graph, RunGraph, difference
from oscine.model.speaker_encoder import FFT_SAMPLES, HOP_SAMPLES, PAD_SAMPLES, SpeakerEncoder

RELATIVE_TOLERANCE = 1e-4


class SpeakerEncoderModule(nn.Module):
    basis: Tensor

    def __init__(self, encoder: SpeakerEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("basis", fourier_basis(encoder.window))

    def forward(self, samples: Tensor) -> Tensor:
        """samples [batch, n] -> speaker vectors [batch, width]."""
        padded = nn.functional.pad(samples, (PAD_SAMPLES, PAD_SAMPLES), mode="reflect")
        real, imaginary = nn.functional.conv1d(padded[:, None], self.basis, stride=HOP_SAMPLES).chunk(2, dim=1)
        return self.encoder.embed(self.encoder.log_mel(real.square() + imaginary.square()))


def fourier_basis(window: Tensor) -> Tensor:
    """Windowed cosines, then sines: [2 * (FFT / 2 + 1), 1, FFT]."""
    times = torch.arange(FFT_SAMPLES, dtype=torch.float64)
    angles = torch.arange(FFT_SAMPLES // 2 + 1, dtype=torch.float64)[:, None] * times * (2 * math.pi / FFT_SAMPLES)
    return (torch.cat((angles.cos(), angles.sin())) * window.double()).float()[:, None]


def least_samples(encoder: SpeakerEncoder) -> int:
    """A shorter clip has too few columns for the convolutions' reflected ends."""
    config = encoder.config
    widest = max(
        dilation * (kernel - 1) // 2 for kernel, dilation in zip(config.kernels, config.dilations, strict=True)
    )
    return HOP_SAMPLES * (widest + 1)


def speaker_encoder_graph(encoder: SpeakerEncoder) -> Graph:
    config, least = encoder.config, least_samples(encoder)
    rate_hz = config.sample_rate_hz
    batch, samples = torch.export.Dim("batch"), torch.export.Dim("samples", min=least)
    return Graph(
        part="speaker-encoder",
        module=SpeakerEncoderModule(encoder),
        arguments=(torch.zeros(2, rate_hz // 2 + 1),),
        dynamic=({0: batch, 1: samples},),
        inputs={"samples": f"float32 [batch, n >= {least}] in -1..1, {rate_hz} Hz, mono; no padding"},
        outputs={"speaker": f"float32 [batch, {config.width}]"},
        checks={
            f"{rows} x {length} samples": partial(_vector_error, encoder, rows, length)
            for rows, length in ((1, least), (1, 3 * rate_hz), (3, rate_hz + 1))
        },
        error_unit="relative to the largest number of the vectors",
        tolerance=RELATIVE_TOLERANCE,
        facts={"width": config.width, "sample_rate_hz": rate_hz, "least_samples": least},
    )


@torch.inference_mode()
def _vector_error(encoder: SpeakerEncoder, rows: int, samples: int, run: RunGraph) -> float:
    clips = random_clips(rows, samples)
    expected = encoder(clips).numpy()
    return difference(run({"samples": clips.numpy()})["speaker"], expected) / float(abs(expected).max())
