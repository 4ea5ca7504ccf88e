"""Finds a checkpoint (folder, hub id, the bundled demo) and reads tensors from its safetensors files."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from oscine.errors import CheckpointError
from oscine.model.json_files import read_json

if TYPE_CHECKING:
    from torch import Tensor

DEMO = "demo"
DEMO_FOLDER = Path(__file__).resolve().parent.parent / "demo"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.txt", "*.safetensors", "speech_tokenizer/*"]


def find_checkpoint(model: str | os.PathLike[str]) -> Path:
    """Returns the folder of the bundled demo, of a local checkpoint, or of a hub id (downloaded if it is not
    cached)."""
    name = str(model)
    if name == DEMO:  # checked first: a local folder of this name must not change the default
        return DEMO_FOLDER
    try:
        folder = Path(model).expanduser()
        if folder.is_dir():
            return folder
        if folder.is_file():
            raise CheckpointError(f"{name!r} is a file; name the folder that holds config.json")
    except (OSError, RuntimeError) as error:  # a name too long, no such user's home
        raise CheckpointError(f"{name!r} cannot be opened as a folder: {error}") from None
    if not _HUB_ID.fullmatch(name):
        raise CheckpointError(f"{name!r} is neither a local folder nor a hub id of the form 'owner/name'")
    return _download(name)


def _download(hub_id: str) -> Path:
    # Slow to import, and a local checkpoint does not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES))
    except RepositoryNotFoundError:
        reason = "the hub has no such model, or it is private and no token is set (hf auth login)"
    except HFValidationError as error:
        reason = str(error)
    except LocalEntryNotFoundError:
        reason = "the local cache lacks some of it and the hub cannot be reached: download it first, or use a folder"
    except Exception as error:  # the HTTP clients of the hub library's versions share no base class of errors
        reason = f"the download failed: {error}"
    raise CheckpointError(f"{hub_id!r} is not a local folder, and as a hub id: {reason}") from None


class TensorFiles:
    """The tensors of one folder: model.safetensors, or the shards that model.safetensors.index.json lists. They are
    views of the mapped files."""

    def __init__(self, folder: Path) -> None:
        self._home: dict[str, tuple[Path, Any]] = {}  # tensor -> the file that holds it
        self.path, paths = _paths(folder)  # the one file, or the index of several
        with ExitStack() as opened:
            for path in paths:
                file = opened.enter_context(_open(path))
                self._home |= dict.fromkeys(file.keys(), (path, file))
            self._opened = opened.pop_all()

    @property
    def names(self) -> set[str]:
        return set(self._home)

    def path_of(self, name: str) -> Path:
        return self._home[name][0]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._home[name][1].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._home[name][1].get_tensor(name)
        return tensor

    def __enter__(self) -> TensorFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._home.clear()
        self._opened.close()


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing in {path.parent}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a readable safetensors file ({error}); it may be truncated: download it again"
        ) from None


def _paths(folder: Path) -> tuple[Path, list[Path]]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists() or not index.exists():
        return single, [single]
    weight_map = read_json(index)
    files = weight_map.get("weight_map") if isinstance(weight_map, dict) else None
    if not isinstance(files, dict) or not files:
        raise CheckpointError(f"{index} has no weight_map")
    names = sorted({str(name) for name in files.values()})
    for name in names:
        if Path(name).name != name or "\0" in name:
            raise CheckpointError(f"{index} names {name!r}, which is not a file in its own folder")
    return index, [folder / name for name in names]
