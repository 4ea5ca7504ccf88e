"""A checkpoint -> a ready SpeechModel. Each tensor is read, checked and copied to its place one at a time, so
loading needs the memory of the weights plus one tensor."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from oscine.model.checkpoint import TensorFiles
from oscine.model.config import ModelConfig, read_config
from oscine.model.layers import FusedLinear
from oscine.model.names import (
    UNUSED_CODEC,
    UNUSED_CODEC_WITHOUT_CLONING,
    UNUSED_SPEECH,
    Names,
    codec_names,
    speech_names,
)
from oscine.model.speech_model import SpeechModel
from oscine.types import CheckpointError

Progress = Callable[[int, int], None]  # tensors loaded, tensors in all

_IN_DTYPE = ("talker.", "predictor.")  # the parts that are computed in the chosen precision


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """What `load_model` will hold on its device, before anything is loaded."""
    with torch.device("meta"):
        tensors = SpeechModel(config).named_parameters()
    return sum(tensor.numel() * _dtype_of(name, dtype).itemsize for name, tensor in tensors)


def load_model(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    progress: Progress = lambda done, total: None,
) -> SpeechModel:
    """`dtype` is for talker and predictor. The codec and the encoders stay fp32, as they are stored."""
    config = read_config(folder)
    _set_libraries(device)
    with torch.device("meta"):
        model = SpeechModel(config)
    tables = _tables(config, folder)
    total = sum(len(names) for _, names, _ in tables)
    done = 0
    extremes: dict[str, Tensor] = {}  # "file: tensor" -> its least and its greatest number, on the device
    for source, names, unused in tables:
        with TensorFiles(source, str(device)) as files:
            _check_names(files, names, unused)
            for ours, theirs in names.items():
                extremes |= _fill(model, ours, theirs, files, device, _dtype_of(ours, dtype))
                done += 1
                progress(done, total)
    _check_finite(extremes)
    for module in model.modules():
        prepare = getattr(module, "prepare", None)
        if prepare is not None:
            prepare()
    return model.eval().requires_grad_(False)


def _dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    return dtype if name.startswith(_IN_DTYPE) else torch.float32


def _set_libraries(device: torch.device) -> None:
    if device.type == "cuda":
        # By default cuDNN computes fp32 convolutions in TF32, with ten bits: audible in a codec.
        torch.backends.cudnn.allow_tf32 = False
    elif platform.machine() in ("aarch64", "arm64"):
        # oneDNN has no product of its own for these cores and adds 0.65 ms to each one of 12 rows or more.
        torch.backends.mkldnn.set_flags(False)


def _tables(config: ModelConfig, folder: Path) -> list[tuple[Path, Names, re.Pattern[str]]]:
    unused_codec = UNUSED_CODEC if config.speaker_encoder else UNUSED_CODEC_WITHOUT_CLONING
    return [
        (folder, speech_names(config), UNUSED_SPEECH),
        (folder / "speech_tokenizer", codec_names(config), unused_codec),
    ]


def _check_names(files: TensorFiles, names: Names, unused: re.Pattern[str]) -> None:
    wanted = {name for sources in names.values() for name in sources}
    missing = sorted(wanted - files.names)
    if missing:
        raise CheckpointError(f"{files.path} lacks {_listed(missing)}; is this a complete Qwen3-TTS 12 Hz checkpoint?")
    extra = sorted(name for name in files.names - wanted if not unused.fullmatch(name))
    if extra:
        raise CheckpointError(
            f"{files.path} holds {_listed(extra)}, which its config.json has no place for; "
            "weights and config may be of different models"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"


def _fill(
    model: SpeechModel, ours: str, theirs: tuple[str, ...], files: TensorFiles, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    path, _, leaf = ours.rpartition(".")
    owner = model.get_submodule(path)
    shape: torch.Size = getattr(owner, leaf).shape
    value = torch.empty(shape, dtype=dtype, device=device)
    extremes = {}
    for name, place in zip(theirs, _places(owner, value, len(theirs)), strict=True):
        if files.shape(name) != tuple(place.shape):
            raise CheckpointError(
                f"{files.path_of(name)}: tensor {name} has shape {list(files.shape(name))}, "
                f"config.json asks for {list(place.shape)}"
            )
        tensor = files.read(name)
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{files.path_of(name)}: tensor {name} has dtype {tensor.dtype}; floating point is needed"
            )
        place.copy_(tensor)
        # One pass and no copy, where isfinite makes several; a NaN is both least and greatest.
        extremes[f"{files.path_of(name)}: tensor {name}"] = torch.stack(torch.aminmax(place)).float()
    setattr(owner, leaf, nn.Parameter(value, requires_grad=False))
    return extremes


def _check_finite(extremes: dict[str, Tensor]) -> None:
    """One look at all of them: to ask a GPU after every tensor would take longer than the tensors."""
    finite = torch.stack(list(extremes.values())).isfinite().all(dim=1).tolist()
    bad = [name for name, good in zip(extremes, finite, strict=True) if not good]
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise CheckpointError(
            f"{bad[0]} holds NaN or infinite numbers{more}; the checkpoint is damaged: download or export it again"
        )


def _places(owner: nn.Module, value: Tensor, count: int) -> list[Tensor]:
    """Views into our parameter, one per tensor of the checkpoint."""
    if isinstance(owner, FusedLinear):
        return list(value.split(owner.parts))
    return list(value) if count > 1 else [value]
