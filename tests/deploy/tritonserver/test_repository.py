from __future__ import annotations

from pathlib import Path

import pytest

from oscine.deploy.tritonserver.repository import CodecOptions, write_repository
from oscine.deploy.tritonserver.tensors import SPEECH_INPUTS, SPEECH_OUTPUTS
from oscine.errors import ConfigError, OscineError
from oscine.serving.settings import Settings, load_settings


def settings(**flags: object) -> Settings:
    return load_settings(None, flags)


def test_the_fast_way_is_one_model_with_its_settings(tmp_path: Path) -> None:
    given = settings(model="demo", devices="cuda:0,cuda:1", **{"engine.slots": 5})
    write_repository(tmp_path / "new" / "repository", given, "fast", CodecOptions())
    folder = tmp_path / "new" / "repository" / "oscine"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["1/model.py", "1/settings.toml", "config.pbtxt"]
    assert load_settings(folder / "1" / "settings.toml", {}) == given
    config = (folder / "config.pbtxt").read_text()
    assert 'name: "oscine"' in config and "decoupled: true" in config and "kind: KIND_CPU count: 2" in config
    for spec in (*SPEECH_INPUTS, *SPEECH_OUTPUTS):
        assert f'name: "{spec.name}" data_type: TYPE_{spec.datatype}' in config
    assert [path.name for path in (tmp_path / "new" / "repository").iterdir()] == ["oscine"], "nothing is left over"


def test_models_of_an_earlier_run_are_replaced_and_others_are_not(tmp_path: Path) -> None:
    write_repository(tmp_path, settings(), "fast", CodecOptions())
    (tmp_path / "oscine" / "1" / "old.txt").touch()
    write_repository(tmp_path, settings(**{"engine.slots": 3}), "fast", CodecOptions())
    assert not (tmp_path / "oscine" / "1" / "old.txt").exists()
    assert "slots = 3" in (tmp_path / "oscine" / "1" / "settings.toml").read_text()
    (tmp_path / "oscine" / "config.pbtxt").write_text('name: "oscine"\n')
    with pytest.raises(ConfigError, match="was not written by `oscine triton`; remove it, or name another"):
        write_repository(tmp_path, settings(), "fast", CodecOptions())


def test_a_repository_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OscineError, match="cannot write the repository"):
        write_repository(tmp_path / "file" / "repository", settings(), "fast", CodecOptions())
