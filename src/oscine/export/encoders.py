"""Exports the codec encoder (clips -> codes) and the speaker encoder (clips -> speaker vectors), for cloning.

The codec encoder takes clips of several lengths in one batch: they are padded with zeros to whole frames, and `lengths`
says where each ends. Our own encoder pads at every strided convolution; the graph gets the same numbers by clearing
what lies behind the end.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.export.graph import RelativeCache
from oscine.export.onnx_file import Graph, RunGraph, difference
from oscine.model.config import CodecConfig
from oscine.model.encoders import FFT_SAMPLES, HOP_SAMPLES, PAD_SAMPLES, CodecEncoder, Quantizer, SpeakerEncoder

# If two entries are nearly equal, the nearest may differ; the finer codes of that frame then differ too.
FRAME_TOLERANCE = 0.05


class CodecEncoderModule(nn.Module):
    """The batched form of CodecEncoder."""

    def __init__(self, encoder: CodecEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, samples: Tensor, lengths: Tensor) -> Tensor:
        """samples [batch, frames * samples_per_frame], lengths [batch, 1] -> codes [batch, frames, 16]."""
        encoder, ends = self.encoder, lengths
        x = encoder.first(cleared(samples[:, None], ends))
        for residual, down, ratio in zip(encoder.residuals, encoder.downs, encoder.config.ratios, strict=True):
            x = down(cleared(F.elu(residual(x)), ends))
            ends = (ends + ratio - 1) // ratio
        x = encoder.last(F.elu(x)).transpose(1, 2)
        x = encoder.stack(x, RelativeCache(encoder.config.stack, x.shape[1])).transpose(1, 2)
        # This convolution pads by repeating the last column.
        columns = torch.minimum(torch.arange(x.shape[2]), ends - 1)
        x = encoder.downsample(x.gather(2, columns[:, None].expand(-1, x.shape[1], -1)))
        return nearest_codes(encoder.quantizer, x.transpose(1, 2))


def cleared(x: Tensor, ends: Tensor) -> Tensor:
    """Sets x [batch, channels, columns] to zero from column `ends` [batch, 1] on."""
    return x * (torch.arange(x.shape[2]) < ends)[:, None]


def nearest_codes(quantizer: Quantizer, x: Tensor) -> Tensor:
    """Does the same as Quantizer.forward for any leading dimensions, with products in place of cdist, which ONNX
    lacks."""
    semantic, acoustic = (x @ projection[..., 0].T for projection in quantizer.input_proj)
    codes = []
    for book, entries in enumerate(quantizer.entries):
        residual = acoustic if book else semantic
        # |x - e|^2 without |x|^2, which all entries share.
        codes.append((residual @ entries.T - entries.square().sum(-1) / 2).argmax(-1))
        if book:
            acoustic = acoustic - F.embedding(codes[-1], entries)
    return torch.stack(codes, dim=-1)


def codec_encoder_graph(encoder: CodecEncoder, config: CodecConfig) -> Graph:
    per_frame = config.samples_per_frame
    batch, frames = torch.export.Dim("batch"), torch.export.Dim("frames")
    return Graph(
        part="codec-encoder",
        module=CodecEncoderModule(encoder),
        arguments=(torch.zeros(2, 5 * per_frame), torch.tensor([[1], [5 * per_frame]])),
        dynamic=({0: batch, 1: per_frame * frames}, {0: batch}),
        inputs={
            "samples": f"float32 [batch, frames * {per_frame}] in -1..1, {config.sample_rate_hz} Hz, padded clips",
            "lengths": "int64 [batch, 1]: how many samples each clip has, at least 1",
        },
        outputs={"codes": f"int64 [batch, frames, {CODEBOOKS}]: the first ceil(length / {per_frame}) are the clip's"},
        checks={
            ", ".join(map(str, lengths)) + " samples": partial(_frame_error, encoder, per_frame, lengths)
            for lengths in (
                [25 * per_frame],
                [20 * per_frame + 1],
                [12 * per_frame - 1, 7 * per_frame + per_frame // 2 + 1, per_frame // 2],
            )
        },
        error_unit="the share of frames with another code",
        tolerance=FRAME_TOLERANCE,
        facts={
            "samples_per_frame": per_frame,
            "sample_rate_hz": config.sample_rate_hz,
            "codebooks": CODEBOOKS,
            "codebook_size": encoder.config.codebook_size,
        },
    )


def random_clips(rows: int, samples: int) -> Tensor:
    """Makes noise that swells and fades, at the level of speech."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(rows, samples, generator=generator)
    return 0.1 * noise * torch.sin(torch.arange(samples) / 3000.0)


@torch.inference_mode()
def _frame_error(encoder: CodecEncoder, per_frame: int, lengths: list[int], run: RunGraph) -> float:
    frames = [math.ceil(length / per_frame) for length in lengths]
    clips = random_clips(len(lengths), max(frames) * per_frame)
    codes = run({"samples": clips.numpy(), "lengths": np.array(lengths)[:, None]})["codes"]
    expected = [encoder(clip[:length]).numpy() for clip, length in zip(clips, lengths, strict=True)]
    differ = [(made[: len(own)] != own).any(-1) for made, own in zip(codes, expected, strict=True)]
    return float(np.concatenate(differ).mean())


# --- The speaker encoder: clips of one length -> speaker vectors. The spectrogram is part of the graph, as a
# convolution, because TensorRT has no STFT.

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
    """Returns windowed cosines, then sines: [2 * (FFT / 2 + 1), 1, FFT]."""
    times = torch.arange(FFT_SAMPLES, dtype=torch.float64)
    angles = torch.arange(FFT_SAMPLES // 2 + 1, dtype=torch.float64)[:, None] * times * (2 * math.pi / FFT_SAMPLES)
    return (torch.cat((angles.cos(), angles.sin())) * window.double()).float()[:, None]


def least_samples(encoder: SpeakerEncoder) -> int:
    """Returns the minimum length of a clip: a shorter one has too few columns for the convolutions' reflected ends."""
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
