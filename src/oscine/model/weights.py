"""Loads a checkpoint into a SpeechModel, one tensor at a time: peak memory is the weights plus one tensor."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from oscine.errors import CheckpointError
from oscine.model.checkpoint import TensorFiles
from oscine.model.config import ModelConfig, read_config
from oscine.model.device import PinnedUpload
from oscine.model.int8 import Int8Linear, bytes_per_value
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

TensorProgress = Callable[[int, int], None]  # tensors loaded, tensors in all

_IN_DTYPE = ("talker.", "predictor.")  # the modules that use the chosen dtype, or int8
_PACKED = ("talker.stack.", "predictor.stack.", "predictor.heads")  # those that are packed, too, for several streams
_MAPPED = "talker.text_embedding.weight"  # beside int8 matrices: a third of the checkpoint, of which speech reads rows


def weight_bytes(config: ModelConfig, dtype: torch.dtype, *, int8: bool = False) -> int:
    """Computes the size of `load_model`'s result on its device, before loading."""
    with torch.device("meta"):
        model = SpeechModel(config)

    def element_bytes(name: str, matrix: torch.Size) -> int:
        if int8 and name == _MAPPED:
            return torch.bfloat16.itemsize
        if not int8 or not _is_matrix(model, name):
            return _dtype_of(name, dtype).itemsize
        return bytes_per_value(matrix.numel()) if name.startswith(_PACKED) else 1

    return sum(p.numel() * element_bytes(name, p.shape[-2:]) for name, p in model.named_parameters())


def load_model(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    progress: TensorProgress = lambda done, total: None,
    parts: Iterable[str] | None = None,
    int8: bool = False,
) -> SpeechModel:
    """Loads the parameters of a checkpoint. `dtype` applies to talker and predictor; codec and encoders stay fp32, as
    they are stored. `int8`: the matrices of talker and predictor become Int8Linear, each as soon as it is read.

    `parts`: the modules of the SpeechModel to load, such as "codec"; the others hold no weights. By default all are
    loaded."""
    config = read_config(folder)
    _configure_backends(device)
    with torch.device("meta"):
        model = SpeechModel(config)
    loaded = {name for name, _ in model.named_children()} if parts is None else set(parts)
    tables = _tables(config, folder)
    total = sum(_part_of(ours) in loaded for _, names, _ in tables for ours in names)
    done = 0
    upload = PinnedUpload(device) if device.type == "cuda" else lambda tensor: tensor
    extremes: dict[str, Tensor] = {}  # "file: tensor" -> its minimum and maximum, on the device
    for source, names, unused in tables:
        with TensorFiles(source) as files:
            _check_names(files, names, unused)
            for ours, theirs in names.items():
                if _part_of(ours) not in loaded:
                    continue
                if int8 and ours == _MAPPED:
                    continue  # below
                extremes |= _fill(model, ours, theirs, files, upload, device, _dtype_of(ours, dtype))
                if int8:
                    _quantize_complete(model, ours)
                done += 1
                progress(done, total)
    _check_finite(extremes)
    if int8 and _part_of(_MAPPED) in loaded:
        # Opened again: what was read of the first mapping would stay in memory as long as it.
        with TensorFiles(folder) as files:
            (name,) = tables[0][1][_MAPPED]
            _replace(model, _MAPPED, _read(files, name, model.get_parameter(_MAPPED).shape))
        progress(total, total)
    for part in loaded:
        for module in model.get_submodule(part).modules():
            prepare = getattr(module, "prepare", None)
            if prepare is not None:
                prepare()
    return model.eval().requires_grad_(False)


def _part_of(name: str) -> str:
    """Returns the module of a parameter: "codec.stack.norm.weight" -> "codec"."""
    return name.partition(".")[0]


def _dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    return dtype if name.startswith(_IN_DTYPE) else torch.float32


def _is_matrix(model: SpeechModel, name: str) -> bool:
    owner = model.get_submodule(name.rpartition(".")[0])
    matrix = name == "predictor.heads" or (isinstance(owner, nn.Linear) and name.endswith(".weight"))
    return matrix and name.startswith(_IN_DTYPE)


def _quantize_complete(model: SpeechModel, name: str) -> None:
    """Makes an Int8Linear of each matrix that this parameter completes."""
    path = name.rpartition(".")[0]
    owner = model.get_submodule(path)
    if name == "predictor.heads":
        heads = model.predictor.heads
        del owner.heads
        owner.add_module("heads", nn.ModuleList(Int8Linear.of(head) for head in heads))
    elif isinstance(owner, nn.Linear) and name.startswith(_IN_DTYPE) and not any(p.is_meta for p in owner.parameters()):
        model.set_submodule(path, Int8Linear.of(owner.weight, owner.bias))


def _configure_backends(device: torch.device) -> None:
    if device.type == "cuda":
        # cuDNN's default for fp32 convolutions is TF32; its 10-bit mantissa is audible in a codec.
        torch.backends.cudnn.allow_tf32 = False
    elif platform.machine() in ("aarch64", "arm64"):
        # oneDNN has no matrix product for these cores and adds 0.65 ms to each product of 12 rows or more.
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
            f"{files.path} holds {_listed(extra)}, unknown to its config.json; "
            "weights and config may be of different models"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"


def _fill(
    model: SpeechModel,
    ours: str,
    theirs: tuple[str, ...],
    files: TensorFiles,
    upload: Callable[[Tensor], Tensor],
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    value = torch.empty(model.get_parameter(ours).shape, dtype=dtype, device=device)
    owner = model.get_submodule(ours.rpartition(".")[0])
    extremes = {}
    for name, view in zip(theirs, tensor_views(owner, value, len(theirs)), strict=True):
        view.copy_(upload(_read(files, name, view.shape)))
        # aminmax is one pass without a copy (isfinite makes several) and returns NaN if there is one.
        extremes[f"{files.path_of(name)}: tensor {name}"] = torch.stack(torch.aminmax(view)).float()
    _replace(model, ours, value)
    return extremes


def _replace(model: SpeechModel, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, nn.Parameter(value, requires_grad=False))


def _read(files: TensorFiles, name: str, shape: torch.Size) -> Tensor:
    """Returns a view of the mapped file."""
    if files.shape(name) != tuple(shape):
        raise CheckpointError(
            f"{files.path_of(name)}: tensor {name} has shape {list(files.shape(name))}, "
            f"config.json requires {list(shape)}"
        )
    tensor = files.read(name)
    if not tensor.is_floating_point():
        raise CheckpointError(f"{files.path_of(name)}: tensor {name} has dtype {tensor.dtype}; expected floating point")
    return tensor


def _check_finite(extremes: dict[str, Tensor]) -> None:
    """Reads all results back at once: a synchronization per tensor would take longer than loading."""
    finite = torch.stack(list(extremes.values())).isfinite().all(dim=1).tolist()
    bad = [name for name, good in zip(extremes, finite, strict=True) if not good]
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise CheckpointError(
            f"{bad[0]} holds NaN or infinite numbers{more}; the checkpoint is damaged: download or export it again"
        )


def tensor_views(owner: nn.Module, value: Tensor, count: int) -> list[Tensor]:
    """Returns views of our parameter's `value`, one for each of its `count` tensors in the checkpoint."""
    if isinstance(owner, FusedLinear):
        return list(value.split(owner.heights))
    return list(value) if count > 1 else [value]
