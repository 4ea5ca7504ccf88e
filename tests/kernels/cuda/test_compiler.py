"""Cubins are compiled once and found again; a change of source, constants, architecture or compiler makes new ones."""

import importlib.util
import logging
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from oscine.kernels.cuda import compiler as module
from oscine.kernels.cuda.compiler import (
    CompileError,
    CubinCache,
    NvccCompiler,
    NvrtcCompiler,
    default_folder,
    find_compiler,
    install_hint,
    options,
)
from oscine.kernels.cuda.linear import Epilogue, Product, linear_launch
from oscine.kernels.cuda.program import Program

SAMPLE = Program.of("sample", FIRST=0, IDS=64, X_WIDTH=64, QKV_WIDTH=128)


@dataclass
class CountingCompiler:
    identity: str = "counting 1"
    compiled: list[Program] = field(default_factory=list)

    def compile(self, program: Program, architecture: str) -> bytes:
        if dict(program.defines).get("X_WIDTH") == 7:
            raise CompileError("whole pieces")
        self.compiled.append(program)
        return f"{program} {architecture}".encode()


def test_a_cubin_is_compiled_once(tmp_path: Path) -> None:
    compiler = CountingCompiler()
    first = CubinCache(tmp_path, compiler).cubin(SAMPLE)
    assert CubinCache(tmp_path, compiler).cubin(SAMPLE) == first
    assert compiler.compiled == [SAMPLE]


def test_every_difference_makes_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CubinCache(tmp_path, CountingCompiler())
    keys = {
        cache.key(SAMPLE),
        cache.key(Program.of("sample", FIRST=0, IDS=64, X_WIDTH=64, QKV_WIDTH=256)),
        cache.key(Program.of("rms_norm", X_WIDTH=64, QKV_WIDTH=128)),
        CubinCache(tmp_path, CountingCompiler("counting 2")).key(SAMPLE),
        CubinCache(tmp_path, CountingCompiler(), "sm_100a").key(SAMPLE),
    }
    monkeypatch.setattr(Program, "text", "another source")
    keys.add(cache.key(SAMPLE))
    monkeypatch.setattr(module, "OPTIONS", ("-O1",))
    keys.add(cache.key(SAMPLE))
    assert len(keys) == 7


def test_the_order_of_constants_does_not_matter(tmp_path: Path) -> None:
    assert Program.of("sample", FIRST=0, IDS=64, QKV_WIDTH=128, X_WIDTH=64) == SAMPLE


def test_a_build_compiles_each_program_once_and_tells_its_progress(tmp_path: Path) -> None:
    compiler, seen = CountingCompiler(), []
    programs = [Program.of("sample", FIRST=0, IDS=64, X_WIDTH=width, QKV_WIDTH=128) for width in (8, 16, 8, 64)]
    cache = CubinCache(tmp_path, compiler)
    cache.cubin(SAMPLE)
    cache.build(programs, lambda done, total: seen.append((done, total)))
    assert sorted(compiler.compiled, key=str) == sorted(set(programs), key=str)
    assert seen == [(0, 2), (1, 2), (2, 2)]
    CubinCache(tmp_path, compiler).build(programs, lambda done, total: seen.append((done, total)))
    assert len(seen) == 3, "nothing is reported when everything is cached"


def test_a_damaged_cubin_is_compiled_again(tmp_path: Path) -> None:
    compiler = CountingCompiler()
    first = CubinCache(tmp_path, compiler).cubin(SAMPLE)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[1:], b"x" + whole[1:], first):
        path.write_bytes(damaged)
        cache, seen = CubinCache(tmp_path, compiler), []
        cache.build([SAMPLE], lambda done, total: seen.append((done, total)))  # noqa: B023
        assert seen == [(0, 1), (1, 1)] and cache.cubin(SAMPLE) == first
        assert path.read_bytes() == whole
    assert len(compiler.compiled) == 6


def test_processes_that_start_at_once_find_whole_cubins(tmp_path: Path) -> None:
    """Threads with caches of their own, which share the folder alone. A reader never sees half a file."""
    programs = [Program.of("sample", FIRST=0, IDS=64, X_WIDTH=width, QKV_WIDTH=128) for width in range(8, 24)]
    start, done, read = threading.Barrier(5), threading.Event(), []

    def begin() -> None:
        cache = CubinCache(tmp_path, CountingCompiler())
        start.wait()
        cache.build(programs, lambda done, total: None)

    def look() -> None:
        start.wait()
        while not done.is_set():
            found = [CubinCache(tmp_path, CountingCompiler()).find(program) for program in programs]
            for path in tmp_path.glob("sample-*"):
                assert path.read_bytes()[:-32].startswith(b"Program(")
            read.append(found)

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(look)
        for future in [pool.submit(begin) for _ in range(4)]:
            future.result()
        done.set()
        reader.result()
    assert len(list(tmp_path.iterdir())) == len(programs), "no temporary file is left"
    fresh = CountingCompiler()
    CubinCache(tmp_path, fresh).build(programs, lambda done, total: None)
    assert fresh.compiled == []


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    programs = [SAMPLE, Program.of("sample", FIRST=0, IDS=64, X_WIDTH=8, QKV_WIDTH=128)]
    for folder, warnings in ((tmp_path / "file" / "kernels", 1), (None, 0)):
        compiler = CountingCompiler()
        cache = CubinCache(folder, compiler)
        with caplog.at_level(logging.WARNING):
            cache.build(programs, lambda done, total: None)
        assert all(cache.cubin(program) for program in programs) and len(compiler.compiled) == 2
        assert len(caplog.messages) == warnings, "one warning, not one for each kernel"
        caplog.clear()


def test_a_user_without_a_home_has_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert default_folder() is None


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = Program.of("sample", FIRST=0, IDS=64, X_WIDTH=7, QKV_WIDTH=128)
    cache = CubinCache(tmp_path, CountingCompiler())
    with pytest.raises(CompileError, match="whole pieces"):
        cache.build([broken], lambda done, total: None)
    assert list(tmp_path.iterdir()) == []


def test_a_source_has_its_includes_in_place_once() -> None:
    text = Program.of("linear_few").text
    assert '#include "' not in text
    assert text.count("FUNCTION void mma(") == text.count("struct Arguments {") == 1
    assert text.index("FUNCTION void mma(") < text.index("FUNCTION void add_step(") < text.index("linear_few, THREADS")


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CompileError, match="cuda-bindings is not installed, nvcc is not on the path; `pip install"):
        find_compiler()


def test_the_compiler_to_install_is_that_of_torchs_cuda() -> None:
    assert install_hint("13.0") == "`pip install 'cuda-bindings==13.*' nvidia-cuda-nvrtc`" == install_hint(None)
    assert install_hint("12.6") == "`pip install 'cuda-bindings==12.*' nvidia-cuda-nvrtc-cu12`"


def test_a_patch_of_nvrtc_is_another_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"nvidia-cuda-nvrtc": "13.0.88", "nvidia-cuda-nvrtc-cu12": "12.8.93"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    def identity(major: int, minor: int) -> str:
        return NvrtcCompiler(SimpleNamespace(nvrtcVersion=lambda: (0, major, minor))).identity

    monkeypatch.setattr(module, "version", version)
    assert (identity(13, 0), identity(12, 8)) == ("nvrtc 13.0 13.0.88", "nvrtc 12.8 12.8.93")
    installed.clear()
    assert identity(13, 0) == "nvrtc 13.0"


def test_options_forbid_the_compiler_to_fuse_sums() -> None:
    defines = ["-DFIRST=0", "-DIDS=64", "-DQKV_WIDTH=128", "-DX_WIDTH=64"]
    assert options(SAMPLE, "sm_90a") == ["-arch=sm_90a", "-std=c++17", "-fmad=false", *defines]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_compiles_without_spills_and_reports_errors() -> None:
    compiler = NvccCompiler("nvcc")
    few = linear_launch(Product(6144, 2048, Epilogue.GLU, norm=True), 1).program
    assert compiler.compile(few, "sm_90a").startswith(b"\x7fELF")
    product = Product(6144, 2048, Epilogue.GLU)
    tiled = linear_launch(product, 128).program
    assert tiled.name == "linear_tiled"
    for program in (few, tiled):
        usage = compiler.resource_usage(program, "sm_90a")
        assert " 0 bytes spill stores, 0 bytes spill loads" in usage and "serialized" not in usage
    with pytest.raises(CompileError, match="whole pieces"):
        compiler.compile(Program.of("sample", FIRST=0, IDS=64, X_WIDTH=7, QKV_WIDTH=128), "sm_90a")
