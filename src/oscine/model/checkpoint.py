"""Finding a checkpoint (folder, hub id, the bundled demo) and reading tensors out of its safetensors files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors import SafetensorError, safe_open

from oscine.model.fields import read_json
from oscine.types import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

DEMO = "demo"
_DEMO_FOLDER = Path(__file__).resolve().parent.parent / "demo"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.txt", "*.safetensors", "speech_tokenizer/*"]


def find_checkpoint(model: str | os.PathLike[str]) -> Path:
    """The demo voice in the package, a folder as it is, or a hub id from the cache or the network."""
    name = str(model)
    if name == DEMO:  # first, as it is the default: any folder may happen to hold another one of this name
        return _DEMO_FOLDER
    try:
        folder = Path(model).expanduser()
        if folder.is_dir():
            return folder
        if folder.is_file():
            raise CheckpointError(f"{name!r} is a file; name the folder that holds config.json")
    except (OSError, RuntimeError) as error:  # a name too long, no such user's home
        raise CheckpointError(f"{name!r} cannot be opened as a folder: {error}") from None
    if not _HUB_ID.fullmatch(name):
        raise CheckpointError(f"{name!r} is neither a folder here nor a hub id of the form 'owner/name'")
    return _download(name)


def _download(hub_id: str) -> Path:
    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES))
    except RepositoryNotFoundError:
        reason = "the hub knows no such model, or it is private and no token is set (hf auth login)"
    except HFValidationError as error:
        reason = str(error)
    except LocalEntryNotFoundError:
        reason = (
            "it is not in the local cache, or not all of it, and the hub cannot be reached; download it first, or name "
            "a folder"
        )
    except Exception as error:  # the hub library has changed its HTTP client; the errors of all of them share no base
        reason = f"the download failed: {error}"
    raise CheckpointError(f"no folder {hub_id!r} here, and as a hub id: {reason}") from None


class TensorFiles:
    """The tensors of one folder: model.safetensors, or the shards that model.safetensors.index.json lists."""

    def __init__(self, folder: Path, device: str) -> None:
        self._files = []
        self._home: dict[str, tuple[Path, object]] = {}
        self.path, paths = _paths(folder)  # the one file, or the index of several
        try:
            for path in paths:
                file = self._open(path, device)
                self._files.append(file)
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    self._home[name] = path, file
        except BaseException:
            self._close()
            raise

    @staticmethod
    def _open(path: Path, device: str):  # type: ignore[no-untyped-def]
        try:
            return safe_open(path, framework="pt", device=device).__enter__()
        except FileNotFoundError:
            raise CheckpointError(f"{path.name} is missing in {path.parent}") from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is not a readable safetensors file ({error}); it may be truncated: download it again"
            ) from None

    @property
    def names(self) -> set[str]:
        return set(self._home)

    def path_of(self, name: str) -> Path:
        return self._home[name][0]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._home[name][1].get_slice(name).get_shape())  # type: ignore[attr-defined]

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._home[name][1].get_tensor(name)  # type: ignore[attr-defined]
        return tensor

    def __enter__(self) -> TensorFiles:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        self._home = {}
        while self._files:
            self._files.pop().__exit__(None, None, None)


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
            raise CheckpointError(f"{index} names {name!r}, which is no file in its own folder")
    return index, [folder / name for name in names]
