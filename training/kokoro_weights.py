"""Converts the teacher's weights from the ONNX file of the registry packages, and splits them into pieces for transfer.

    python training/kokoro_weights.py convert KOKORO.onnx CONFIG.json OUT.safetensors [--exact]    needs `onnx`
    python training/kokoro_weights.py split OUT.safetensors FOLDER [--piece-mb 33]

The result is packed (packed_weights.py); --exact stores float32. Parameter names survive in the ONNX file except for
folded weight-norm weights, transposed Linear weights and stacked LSTM weights; those are found through the node that
uses them.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kokoro_net import WHEEL_NAME, Kokoro
from packed_weights import packed
from safetensors.torch import save_file


def _model_name(name: str) -> str:
    """ONNX parameter name, or path of the node of a module -> name in kokoro_net.Kokoro."""
    if name.startswith("/"):
        name = name[1:].rpartition("/")[0].replace("/", ".")
    name = re.sub(r"^(encoder|decoder)\.", "", name)
    return re.sub(r"^(?=(F0|N|lstm|shared|duration_proj)\b)", "predictor.", name)


def _torch_gates(stack: Any) -> Any:
    """ONNX gate order i, o, f, c -> torch order i, f, g, o."""
    i, o, f, c = np.split(stack, 4)
    return np.concatenate([i, f, c, o])


def read_onnx(path: Path) -> dict[str, Any]:
    import onnx
    from onnx.numpy_helper import to_array

    graph = onnx.load(path).graph
    tensor = {one.name: to_array(one) for one in graph.initializer}
    found = {_model_name(name): one for name, one in tensor.items() if name.startswith(("encoder.", "decoder."))}
    for node in graph.node:
        inputs = list(node.input)
        if node.op_type in ("Conv", "ConvTranspose") and inputs[1] in tensor:
            bias = inputs[2] if len(inputs) > 2 else ""
            owner = _model_name(bias)[: -len(".bias")] if bias else _model_name(node.name)
            found[owner + ".weight"] = tensor[inputs[1]]
        elif node.op_type == "MatMul" and inputs[1] in tensor:
            found[_model_name(node.name) + ".weight"] = tensor[inputs[1]].T
        elif node.op_type == "LSTM":
            owner = _model_name(node.name)
            for direction, tail in enumerate(("", "_reverse")):
                found[f"{owner}.weight_ih_l0{tail}"] = _torch_gates(tensor[inputs[1]][direction])
                found[f"{owner}.weight_hh_l0{tail}"] = _torch_gates(tensor[inputs[2]][direction])
                of_input, of_state = np.split(tensor[inputs[3]][direction], 2)
                found[f"{owner}.bias_ih_l0{tail}"] = _torch_gates(of_input)
                found[f"{owner}.bias_hh_l0{tail}"] = _torch_gates(of_state)
    return found


def convert(source: Path, config: Path, target: Path, exact: bool) -> None:

    found, state = read_onnx(source), {}
    model = Kokoro(json.loads(config.read_text(encoding="utf-8")), config.parent / WHEEL_NAME)
    for name, want in model.state_dict().items():
        if re.search(r"(norm\d|adain\d\.\d)\.norm\.(weight|bias)$", name):
            state[name] = want  # the instance norms have no affine part: 1 and 0
            continue
        value = torch.from_numpy(np.array(found.pop(name), order="C"))
        assert value.shape == want.shape, (name, value.shape, want.shape)
        state[name] = value
    assert all(".stft." in name or re.search(r"_\d+\.weight$", name) for name in found), sorted(found)
    save_file(state if exact else packed(state), target)
    print(f"{len(state)} tensors, {sum(one.numel() for one in state.values())} numbers, {target.stat().st_size} bytes")


def split(source: Path, folder: Path, piece_mb: float) -> None:
    """Writes FOLDER/00/NAME.00, FOLDER/01/NAME.01, ...: one folder per transfer."""
    content, size = source.read_bytes(), round(piece_mb * 2**20)
    for number, begin in enumerate(range(0, len(content), size)):
        piece = folder / f"{number:02d}" / f"{source.name}.{number:02d}"
        piece.parent.mkdir(parents=True, exist_ok=True)
        piece.write_bytes(content[begin : begin + size])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    converting = commands.add_parser("convert")
    for name in ("source", "config", "target"):
        converting.add_argument(name, type=Path)
    converting.add_argument("--exact", action="store_true")
    splitting = commands.add_parser("split")
    splitting.add_argument("source", type=Path)
    splitting.add_argument("folder", type=Path)
    splitting.add_argument("--piece-mb", type=float, default=33.0)
    options = parser.parse_args()
    if options.command == "convert":
        convert(options.source, options.config, options.target, options.exact)
    else:
        split(options.source, options.folder, options.piece_mb)


if __name__ == "__main__":
    main()
