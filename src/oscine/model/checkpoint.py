"""Finding a checkpoint (folder, hub id, the bundled demo) and reading tensors out of its safetensors files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import TracebackType

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from oscine.model.config import read_json
from oscine.types import CheckpointError

DEMO = "demo"
_DEMO_FOLDER = Path(__file__).resolve().parent.parent / "demo"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.txt", "*.safetensors", "speech_tokenizer/*"]


def find_checkpoint(model: str | os.PathLike[str]) -> Path:
    """A folder as it is, a hub id from the cache or the network, or the demo voice in the package."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise CheckpointError(f"{str(model)!r} is a file; name the folder that holds config.json")
    name = str(model)
    if name == DEMO:
        if (_DEMO_FOLDER / "config.json").is_file():
            return _DEMO_FOLDER
        raise CheckpointError(
            "this build carries no demo voice; name a checkpoint: a folder, or a hub id such as "
            "'Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice'"
        )
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
        reason = "it is not in the local cache and the hub cannot be reached; download it first, or name a folder"
    except (HfHubHTTPError, OSError) as error:
        reason = f"the download failed: {error}"
    raise CheckpointError(f"no folder {hub_id!r} here, and as a hub id: {reason}") from None


class TensorFiles:
    """The tensors of one folder: model.safetensors, or the shards that model.safetensors.index.json lists."""

    def __init__(self, folder: Path, device: str) -> None:
        self._files = []
        self._home: dict[str, object] = {}
        try:
            for path in _paths(folder):
                file = self._open(path, device)
                self._files.append(file)
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    self._home[name] = file
        except BaseException:
            self._close()
            raise
        self.folder = folder

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

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._home[name].get_slice(name).get_shape())  # type: ignore[attr-defined]

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._home[name].get_tensor(name)  # type: ignore[attr-defined]
        return tensor

    def __enter__(self) -> TensorFiles:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        self._home = {}
        while self._files:
            self._files.pop().__exit__(None, None, None)


def _paths(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists() or not index.exists():
        return [single]
    weight_map = read_json(index)
    files = weight_map.get("weight_map") if isinstance(weight_map, dict) else None
    if not isinstance(files, dict) or not files:
        raise CheckpointError(f"{index} has no weight_map")
    names = sorted({str(name) for name in files.values()})
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index} names files outside its folder: {names}")
    return [folder / name for name in names]
