"""`oscine doctor`: checks that a checkpoint works on this machine, and says why if it does not."""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from oscine import __version__
from oscine.commands.published_runs import CLIP, PUBLISHED_RUNS, PublishedRun, check_clip, verdict
from oscine.errors import EngineError, OscineError

if TYPE_CHECKING:
    import numpy as np

    from oscine.api import Oscine
    from oscine.request import SpeechRequest

_SENTENCE = "The quick brown fox jumps over the lazy dog."
_TRANSCRIPT = "Hello, this is a short clip."
_COMPARED_TOKENS = 17  # 16 frames: more than a second of speech
_SILENCE_DBFS = -60.0
_OFFICIAL_METHODS = {
    "custom_voice": "generate_custom_voice",
    "voice_design": "generate_voice_design",
    "base": "generate_voice_clone",
}


@dataclass
class _Report:
    console: Console
    failed: bool = False

    def line(self, name: str, text: str, style: str = "") -> None:
        self.console.print(Text.assemble((f"{name:<12}", "bold"), (text, style)), soft_wrap=True, highlight=False)

    def check(self, name: str, run: Callable[[], str]) -> None:
        """Runs one check; an error fails the report and does not stop it."""
        try:
            self.line(name, run())
        except OscineError as error:
            self.failed = True
            self.line(name, f"FAILED: {error}", "red")


def doctor(
    model: Annotated[str, typer.Argument(help="Checkpoint folder, hub id, or 'demo'")] = "demo",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    official_python: Annotated[
        Path | None,
        typer.Option(help="A Python that has the official qwen-tts package; default: this one, if it has it"),
    ] = None,
    reference_clip: Annotated[
        Path | None, typer.Option(help="Qwen's public clone_2.wav, with which others ran 0.6B Base: compare with them")
    ] = None,
) -> None:
    """Check a checkpoint on this machine: load it, speak a sentence, compare it with the official package."""
    report = _Report(Console())
    report.check("versions", _versions)
    report.check("device", lambda: _device(device, report))
    if speed := _expected_speed(model, device):
        report.line("expected", speed)
    loaded: list[Oscine] = []
    report.check("checkpoint", lambda: _load(model, device, report, loaded))
    if loaded:
        tts = loaded[0]
        request = _request(tts)
        report.check("speech", lambda: _speak(tts, request))
        for run in PUBLISHED_RUNS:
            if run.is_of(tts.config):
                report.check("published", partial(_compare_published, model, run, reference_clip, report))
        report.check("official", lambda: _compare(model, tts.config.kind, request, official_python))
        tts.close()
    verdict = "this checkpoint does not work here; see above" if report.failed else "this checkpoint works here"
    report.line("verdict", verdict, "bold red" if report.failed else "bold green")
    raise typer.Exit(1 if report.failed else 0)


def _versions() -> str:
    from importlib.metadata import version

    import torch

    triton = f", triton {version('triton')}" if importlib.util.find_spec("triton") else ""
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return f"oscine {__version__}, torch {torch.__version__}{triton}, {python}"


def _device(name: str, report: _Report) -> str:
    from oscine.model.device import choose_device, describe_device, free_bytes, missing_cuda_warning

    device = choose_device(name)
    if device.type == "cpu" and (warning := missing_cuda_warning()):
        report.line("warning", warning, "yellow")
    free = free_bytes(device)
    return describe_device(device) + (f", {free / 2**30:.1f} GiB of memory free" if free is not None else "")


def _expected_speed(model: str, device: str) -> str:
    """Returns nothing for a GPU, a small checkpoint, or one that cannot be read, of which the next check tells."""
    from oscine.engine.build import prepare_device
    from oscine.model.checkpoint import find_checkpoint
    from oscine.model.config import read_config
    from oscine.model.device import choose_device
    from oscine.runner.cpu.expectation import expected_speed

    try:
        chosen, config = choose_device(device), read_config(find_checkpoint(model))
    except OscineError:
        return ""
    if chosen.type != "cpu":
        return ""
    prepare_device(chosen)
    int8, fp32 = (expected_speed(config, int8=int8) for int8 in (True, False))
    return f"about {int8:.2g} x real time with --quantize int8, {fp32:.2g} without" if int8 and fp32 else ""


def _load(model: str, device: str, report: _Report, loaded: list[Oscine]) -> str:
    """Loads the checkpoint, which checks every tensor's name, shape and dtype."""
    from oscine.api import Oscine
    from oscine.model.checkpoint import find_checkpoint
    from oscine.model.device import missing_cuda_warning

    def show_warning(stage: str, done: int, total: int) -> None:
        kind, _, text = stage.partition(": ")
        if kind == "warning" and text != missing_cuda_warning():  # which _device has shown
            report.line(kind, text, "yellow")

    begun_s = time.perf_counter()
    folder = find_checkpoint(model)
    tts = Oscine(folder, device=device, slots=1, progress=show_warning)
    loaded.append(tts)
    report.line("engine", tts.device)
    stack = tts.config.talker.stack
    shape = f"{stack.layers} layers of width {stack.width}, {len(tts.voices)} preset voices"
    return f"{tts.config.kind}, {shape}; names, shapes and dtypes are right; {time.perf_counter() - begun_s:.1f} s"


def _request(tts: Oscine) -> SpeechRequest:
    """The least that this kind of checkpoint needs. A Base checkpoint clones the demo voice."""
    from oscine.request import SpeechRequest

    fields: dict[str, Any] = {}
    if tts.config.kind == "base":
        fields["voice"] = tts.clone(_demo_clip(), _TRANSCRIPT)
    elif tts.config.kind == "voice_design":
        fields["instructions"] = "A calm voice."
    else:
        fields["voice"] = tts.voices[0]
    return SpeechRequest(text=_SENTENCE, seed=0, language="auto", **fields)


def _demo_clip() -> tuple[np.ndarray, int]:
    from oscine.api import Oscine

    with Oscine("demo", device="cpu", slots=1) as demo:
        speech = demo.speak(_TRANSCRIPT, seed=0)
    return speech.audio, speech.sample_rate


def _speak(tts: Oscine, request: SpeechRequest) -> str:
    import numpy as np

    from oscine.speech.events import Started

    begun_s = time.perf_counter()
    first_s: list[float] = []
    (speech,) = tts.speak_batch(
        [request],
        on_event=lambda _, event: first_s.append(time.perf_counter() - begun_s) if isinstance(event, Started) else None,
    )
    took_s = time.perf_counter() - begun_s
    peak = float(np.abs(speech.audio).max(initial=0))
    if 20 * np.log10(peak + 1e-9) < _SILENCE_DBFS:
        raise EngineError("the checkpoint speaks silence; its weights may be damaged")
    return (
        f"{speech.duration_s:.1f} s of audio ({speech.finish_reason}), first audio after {1000 * first_s[0]:.0f} ms, "
        f"{speech.duration_s / took_s:.1f} x real time"
    )


def _compare_published(model: str, run: PublishedRun, clip: Path | None, report: _Report) -> str:
    from oscine.api import Oscine

    if run.clones and clip is None:
        return f"not compared: this run has the voice of {CLIP}; name the file with --reference-clip"
    request = run.request
    try:
        with Oscine(model, device="cpu", dtype="float32", slots=1) as tts:
            if run.clones and clip is not None:
                voice = tts.clone(clip)
                request = replace(request, voice=voice)
                report.line("clip", check_clip(voice))
            codes = tts.speak_batch([request])[0].codes
        return verdict(codes, run)
    except EngineError as error:
        if model == run.checkpoint:
            raise
        return f"other weights: {error}"  # of the same shape: trained from it, perhaps


def _compare(model: str, kind: str, request: SpeechRequest, official_python: Path | None) -> str:
    """Compares greedy codes in float32 on the CPU: ours and the official package's."""
    if official_python is None and importlib.util.find_spec("qwen_tts") is None:
        return "not compared: the qwen-tts package is not installed; name a Python that has it with --official-python"
    import numpy as np

    from oscine.api import Oscine
    from oscine.model.checkpoint import find_checkpoint

    folder = find_checkpoint(model)
    greedy = replace(request, greedy=True, max_new_tokens=_COMPARED_TOKENS)
    with Oscine(folder, device="cpu", dtype="float32", slots=1) as tts, tempfile.TemporaryDirectory() as scratch:
        clip = Path(scratch) / "clip.wav"
        fields: dict[str, Any] = {"method": _OFFICIAL_METHODS[kind], "text": greedy.text, "language": "auto"}
        if kind == "base":
            from oscine.audio.clips import write_wav

            write_wav(clip, *_demo_clip())
            greedy = replace(greedy, voice=tts.clone(clip, _TRANSCRIPT))
            fields |= {"ref_audio": str(clip), "ref_text": _TRANSCRIPT}
        elif kind == "voice_design":
            fields["instruct"] = greedy.instructions  # as the official package calls them
        else:
            fields["speaker"] = greedy.voice
        ours = tts.speak_batch([greedy])[0].codes
        theirs = _official_codes(folder, fields, official_python)
    if ours.shape != theirs.shape or not np.array_equal(ours, theirs):
        frames = min(len(ours), len(theirs))
        differing = np.flatnonzero((ours[:frames] != theirs[:frames]).any(axis=1))
        where = (
            f"from frame {differing[0]} on" if len(differing) else f"in length: {len(ours)} and {len(theirs)} frames"
        )
        raise EngineError(f"greedy codes differ from the official package's {where}")
    return f"greedy codes equal the official package's ({len(ours)} frames, float32)"


def _official_codes(folder: Path, fields: dict[str, Any], python: Path | None) -> np.ndarray:
    import numpy as np

    script = Path(__file__).with_name("official_codes.py")
    command = [str(python or sys.executable), str(script), str(folder)]
    fields |= {"max_new_tokens": _COMPARED_TOKENS}
    done = subprocess.run(command, input=json.dumps(fields), capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EngineError(f"the official package failed: {last}")
    return np.array(json.loads(done.stdout.strip().splitlines()[-1])["codes"])
