"""`oscine say` from the command line: results on standard output, all else on standard error, one line per error.

Most tests call the entry point of the console script in this process; a few run the script itself.
"""

import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile

from oscine import Oscine, SpeechRequest, Voice, __version__
from oscine.audio.clips import pcm16
from oscine.commands import main as cli
from tests.conftest import CheckpointMaker
from tests.speakers import RATE, noise
from tests.speech_like import speech_like

pytestmark = pytest.mark.slow

OSCINE = Path(sys.executable).with_name("oscine")
VOICES = "aiden, dylan, eric, ono_anna, ryan, serena, sohee, uncle_fu, vivian"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def results(self) -> list[dict]:
        return json.loads(self.out)["results"]


class Shell:
    """Runs `oscine ...` in its own folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "300")  # no box is broken into lines

    def __call__(self, *words: object, stdin: str | bytes = "") -> Ran:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        self._monkeypatch.setattr(sys, "argv", ["oscine", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        seen = self._capsys.readouterr()
        return Ran(ended.value.code or 0, seen.out, seen.err)  # type: ignore[arg-type]


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path, capsys, monkeypatch)


@pytest.fixture(scope="module")
def custom_voice(small_checkpoints: CheckpointMaker) -> Path:
    return small_checkpoints("1b7", "custom_voice")


@pytest.fixture(scope="module")
def base(small_checkpoints: CheckpointMaker) -> Path:
    return small_checkpoints("1b7", "base")


@pytest.fixture(scope="module")
def tts(custom_voice: Path) -> Oscine:
    return Oscine(custom_voice, device="cpu")


@pytest.fixture(scope="module")
def base_tts(base: Path) -> Oscine:
    return Oscine(base, device="cpu")


def say(model: Path, *words: object, tokens: int = 4) -> list[object]:
    return ["say", *words, "-m", model, "--device", "cpu", "--max-new-tokens", tokens]


def wav_samples(path: Path) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="int16")
    assert rate == RATE
    return samples


# Options and results


def test_the_file_holds_the_audio_of_the_api(shell: Shell, custom_voice: Path, tts: Oscine) -> None:
    ran = shell(*say(custom_voice, "hello there", "--voice", "ryan", "--seed", 5, "-o", "out.wav"))
    assert (ran.code, ran.out) == (0, "out.wav: 0.24 s, seed 5, ended by length\n")
    speech = tts.speak("hello there", voice="ryan", seed=5, max_new_tokens=4)
    np.testing.assert_array_equal(wav_samples(Path("out.wav")), pcm16(speech.audio))
    assert "x real time" in ran.err
    assert [path.name for path in shell.folder.iterdir()] == ["out.wav"]


OPTIONS = {
    "voice": (["--voice", "vivian"], {"voice": "vivian"}),
    "language": (["--language", "German"], {"language": "german"}),
    "instructions": (["--instructions", "whisper"], {"instructions": "whisper"}),
    "text mode": (["--text-mode", "streaming"], {"text_mode": "streaming"}),
    "greedy": (["--greedy"], {"greedy": True}),
    "temperature": (["--temperature", "3.5"], {"temperature": 3.5}),
    "top k": (["--top-k", "2"], {"top_k": 2}),
    "top p": (["--top-p", "0.2"], {"top_p": 0.2}),
    "penalty": (["--repetition-penalty", "0.01"], {"repetition_penalty": 0.01}),
    "seed": (["--seed", str(2**64 - 1)], {"seed": 2**64 - 1}),
    "tokens": (["--max-new-tokens", "7"], {"max_new_tokens": 7}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_reaches_the_speech(shell: Shell, custom_voice: Path, tts: Oscine, name: str) -> None:
    words, fields = OPTIONS[name]
    ran = shell(*say(custom_voice, "hello you", "--seed", 11), *words, "--save-codes", "codes.npy", "--json")
    assert ran.code == 0, ran.err
    asked = {"text": "hello you", "seed": 11, "max_new_tokens": 4}
    (plain, expected) = tts.speak_batch([SpeechRequest(**asked), SpeechRequest(**(asked | fields))])
    np.testing.assert_array_equal(np.load("codes.npy"), expected.codes)
    assert not np.array_equal(plain.codes, expected.codes)  # otherwise this test would show nothing
    assert ran.results[0]["seed"] == expected.seed


def test_codes_are_saved_as_they_are_described(shell: Shell, custom_voice: Path) -> None:
    assert shell(*say(custom_voice, "hello", "--seed", 5, "--save-codes", "codes.npy", tokens=6)).code == 0
    codes = np.load("codes.npy")
    assert codes.shape == (5, 16)
    assert codes.dtype.kind == "i"
    assert 0 <= codes.min() <= codes.max() < 2048


def test_a_seed_gives_the_same_speech_and_none_gives_a_new_one(shell: Shell, custom_voice: Path) -> None:
    def spoken(*words: object) -> tuple[bytes, int]:
        ran = shell(*say(custom_voice, "hello", "--json", *words))
        return Path("speech.wav").read_bytes(), ran.results[0]["seed"]

    first, seed = spoken()
    other, other_seed = spoken()
    assert seed != other_seed
    assert first != other
    assert spoken("--seed", seed) == (first, seed)  # the reported seed repeats the speech


def test_with_json_standard_output_has_only_json(shell: Shell, custom_voice: Path) -> None:
    ran = shell(*say(custom_voice, "hello", "--json", "--seed", 3))
    answer = json.loads(ran.out)
    assert set(answer) == {"results", "took_s", "x_real_time"}
    assert answer["results"] == [
        {"output": "speech.wav", "duration_s": 0.24, "frames": 3, "finish_reason": "length", "seed": 3}
    ]
    assert answer["took_s"] > 0


@pytest.mark.parametrize("words", [(), ("-",)])
def test_text_comes_from_standard_input(shell: Shell, custom_voice: Path, tts: Oscine, words: tuple[str, ...]) -> None:
    ran = shell(*say(custom_voice, *words, "--seed", 2, "--save-codes", "codes.npy"), stdin="hello there\n")
    assert ran.code == 0, ran.err
    np.testing.assert_array_equal(np.load("codes.npy"), tts.speak("hello there", seed=2, max_new_tokens=4).codes)


def test_every_line_of_a_file_becomes_a_wav(shell: Shell, custom_voice: Path, tts: Oscine) -> None:
    lines = [f"hello {number}" for number in range(9)]  # more than one batch
    Path("lines.txt").write_text("\n\n".join(lines) + "\n  \n", encoding="utf-8")
    words = ["--file", "lines.txt", "-o", "spoken/here", "--seed", 1, "--save-codes", "codes", "--json"]
    ran = shell(*say(custom_voice, *words, tokens=3))
    assert ran.code == 0, ran.err
    paths = [Path("spoken/here") / f"{number:03}.wav" for number in range(1, 10)]
    assert [result["output"] for result in ran.results] == [str(path) for path in paths]
    assert sorted(Path("spoken/here").iterdir()) == paths
    assert len(list(Path("codes").iterdir())) == len(paths)
    alone = tts.speak_batch([SpeechRequest(text=line, seed=1, max_new_tokens=3) for line in lines])
    for path, speech in zip(paths, alone, strict=True):
        np.testing.assert_array_equal(np.load(Path("codes") / f"{path.stem}.npy"), speech.codes)
        # The codec's sums depend on the batch size: one step of PCM16.
        np.testing.assert_allclose(wav_samples(path).astype(int), pcm16(speech.audio).astype(int), atol=1)


def test_without_an_output_the_lines_of_a_file_go_to_speech(shell: Shell, custom_voice: Path) -> None:
    Path("lines.txt").write_text("hello\nyou\n")
    ran = shell(*say(custom_voice, "--file", "lines.txt", tokens=3))
    assert [line.split(":")[0] for line in ran.out.splitlines()] == ["speech/001.wav", "speech/002.wav"]
    assert all(Path(line.split(":")[0]).is_file() for line in ran.out.splitlines())


def test_what_is_wrong_with_a_clip_is_said_and_the_clip_is_used(shell: Shell, base: Path) -> None:
    clip = speech_like(1)
    soundfile.write("clip.wav", clip.samples, clip.rate_hz)
    ran = shell(*say(base, "hello", "--ref-audio", "clip.wav", "--ref-text", "ba " * 200, "-o", "out.wav"))
    assert ran.code == 0 and Path("out.wav").exists()
    warnings = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
    assert "of speech; 3 to 20 s clone better" in warnings[0] and "the transcript does not seem to fit" in warnings[1]


def test_a_clip_is_cloned_and_the_voice_is_saved(shell: Shell, base: Path, base_tts: Oscine) -> None:
    soundfile.write("clip.wav", noise(0.5), RATE)
    clone = ["--ref-audio", "clip.wav", "--ref-text", "some words", "--seed", 4, "--save-codes", "codes.npy"]
    assert shell(*say(base, "hello", *clone, "--save-voice", "ann.safetensors")).code == 0
    voice = base_tts.clone("clip.wav", "some words")
    assert Voice.load("ann.safetensors") == voice
    expected = base_tts.speak("hello", voice=voice, seed=4, max_new_tokens=4).codes
    np.testing.assert_array_equal(np.load("codes.npy"), expected)

    again = ["--voice", "ann.safetensors", "--seed", 4, "--save-codes", "again.npy"]
    assert shell(*say(base, "hello", *again)).code == 0
    np.testing.assert_array_equal(np.load("again.npy"), expected)


@pytest.mark.parametrize("words", [["--x-vector-only"], ["--x-vector-only", "--ref-text", "some words"], []])
def test_without_a_transcript_only_the_timbre_is_cloned(
    shell: Shell, base: Path, base_tts: Oscine, words: list[str]
) -> None:
    soundfile.write("clip.wav", noise(0.5), RATE)
    clone = ["--ref-audio", "clip.wav", *words, "--save-voice", "ann.safetensors"]
    assert shell(*say(base, "hello", *clone, tokens=3)).code == 0
    assert Voice.load("ann.safetensors") == base_tts.clone("clip.wav")


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch's warning on a CPU without bf16 instructions
def test_the_dtype_reaches_the_model(shell: Shell, custom_voice: Path) -> None:
    words = ["--dtype", "bfloat16", "--seed", 1, "--save-codes", "codes.npy"]
    assert shell(*say(custom_voice, "hello", *words)).code == 0
    tts = Oscine(custom_voice, device="cpu", dtype="bfloat16", slots=1)
    expected = tts.speak("hello", seed=1, max_new_tokens=4).codes
    np.testing.assert_array_equal(np.load("codes.npy"), expected)


# Errors


def check_refusal(ran: Ran, code: int, *said: str) -> None:
    """One line on standard error, besides the progress bar; nothing on standard output."""
    assert ran.code == code, ran.err
    assert ran.out == ""
    *before, last = [line for line in ran.err.splitlines() if line.strip()]
    assert last.startswith("error: ")
    for words in said:
        assert words in last
    assert all("loading" in line for line in before), ran.err
    assert "Traceback" not in ran.err
    assert "speaking" not in ran.err


def test_an_unknown_voice_is_refused_with_the_nearest_and_all_names(shell: Shell, custom_voice: Path) -> None:
    ran = shell(*say(custom_voice, "hello", "--voice", "ryam"))
    check_refusal(ran, 2, "unknown voice 'ryam'; did you mean 'ryan'?", f"(possible: {VOICES})")
    assert list(shell.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hello", "--language", "klingon"], "unknown language 'klingon'"),
        (["hello", "--temperature", "-1"], "temperature must be 0 (no randomness) or a number"),
        (["hello", "--top-p", "2"], "top_p must be a number above 0 and at most 1"),
        (["hello", "--seed", "-2"], "seed must be a whole number from 0"),
        (["hello", "--max-new-tokens", "1"], "max_new_tokens must be a whole number of at least 2"),
        (["  "], "text is only white space"),
        (["a\ud83d"], "half a surrogate pair (U+D83D) at index 1"),
        (["hello", "--voice", "missing.safetensors"], "there is no voice file 'missing.safetensors'"),
        (["hello", "--ref-audio", "missing.wav"], "cannot clone"),
        (["hello", "--voice", "[red]:smile:[/red]"], "unknown voice '[red]:smile:[/red]'"),
    ],
)
def test_a_bad_request_ends_with_code_2_and_one_line(
    shell: Shell, custom_voice: Path, words: list[str], said: str
) -> None:
    check_refusal(shell(*say(custom_voice), *words), 2, said)
    assert list(shell.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hello", "--file", "lines.txt"], "either as an argument or in --file, not both"),
        (["--file", "missing.txt"], "cannot read 'missing.txt' as UTF-8 text"),
        (["--file", "binary.txt"], "cannot read 'binary.txt' as UTF-8 text"),
        (["--file", "blank.txt"], "'blank.txt' holds no text"),
        (["--file", "lines.txt", "-o", "all.wav"], "--output is a folder; 'all.wav' looks like a file"),
        (["--file", "lines.txt", "-o", "lines.txt"], "lines.txt' is a file"),
        (["hello", "-o", "no/such/folder.wav"], "there is no folder 'no/such'; make it first"),
        (["hello", "-o", "."], "'.' is a folder; add a file name"),
        (["hello", "--save-codes", "no/codes.npy"], "there is no folder 'no'; make it first"),
        (
            ["hello", "--ref-audio", "a.wav", "--save-voice", "no/a.safetensors"],
            "there is no folder 'no'; make it first",
        ),
        (["hello", "--voice", "ryan", "--ref-audio", "a.wav"], "either --voice or --ref-audio, not both"),
        (["hello", "--ref-text", "words"], "--ref-text needs --ref-audio"),
        (["hello", "--x-vector-only"], "--x-vector-only needs --ref-audio"),
        (["hello", "--save-voice", "a.safetensors"], "--save-voice needs --ref-audio"),
        (["hello", "--speed", "9"], "speed must be a number from 0.25 to 4, got 9.0"),
        (["hello", "--sample-rate", "11"], "sample_rate must be one of 8000, "),
        (["hello", "--sample-rate", "22050", "-o", "a.opus"], "opus does not support 22050 Hz"),
        (["hello", "--play", "--speed", "nan"], "speed must be a number from"),
    ],
)
def test_options_that_cannot_work_are_refused_before_the_model_is_loaded(
    shell: Shell, words: list[str], said: str
) -> None:
    Path("lines.txt").write_text("hello\n")
    Path("binary.txt").write_bytes(b"\xff\xfe\xff")
    Path("blank.txt").write_text("\n \n")
    ran = shell("say", *words, "-m", "/no/such/model")
    check_refusal(ran, 2, said)
    assert "loading" not in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "/no/such/model"], "'/no/such/model' is neither a local folder nor a hub id"),
        (["-m", "[bold]/x"], "'[bold]/x' is neither a local folder"),
        (["-m", "."], "config.json is missing in ."),
        (["-m", ".", "--device", "gpu"], "unknown device 'gpu' (possible: auto, cpu, cuda"),
        (["-m", ".", "--device", "cuda:99"], "device 'cuda:99' is not on this machine"),
    ],
)
def test_a_model_that_cannot_be_used_ends_with_code_1(shell: Shell, words: list[str], said: str) -> None:
    check_refusal(shell("say", "hello", *words), 1, said)


def test_input_that_is_not_text_is_refused(shell: Shell) -> None:
    check_refusal(shell("say", stdin=b"\xff\xfe"), 2, "standard input is not UTF-8 text")


def test_a_bad_line_of_a_file_is_refused_before_any_is_spoken(shell: Shell, custom_voice: Path) -> None:
    Path("lines.txt").write_text("hello\n" * 12 + "a\0b\n")
    check_refusal(shell(*say(custom_voice, "--file", "lines.txt", "-o", "out")), 2, "NUL character at index 1")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["say", "hello", "--sped", "2"], "No such option"),
        (["say", "hello", "--dtype", "float16"], "'float16' is not one of"),
        (["say", "hello", "--text-mode", "fast"], "'fast' is not one of"),
        (["say", "hello", "--seed", "lucky"], "Invalid value for '--seed'"),
        (["sing"], "No such command"),
    ],
)
def test_unknown_options_end_with_code_2(shell: Shell, words: list[str], said: str) -> None:
    ran = shell(*words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_version(shell: Shell) -> None:
    assert shell("--version") == Ran(0, f"oscine {__version__}\n", "")


# The console script


def run_script(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [str(OSCINE), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload]


def test_the_script_speaks_and_standard_output_holds_only_the_result(custom_voice: Path, tmp_path: Path) -> None:
    words = say(custom_voice, "-", "--greedy", "--json", "-o", tmp_path / "out.wav")
    done = run_script(*words, input="hello")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["frames"] == 3
    assert wav_samples(tmp_path / "out.wav").shape == (3 * 1920,)


def test_the_script_refuses_without_a_traceback(custom_voice: Path, tmp_path: Path) -> None:
    done = run_script(*say(custom_voice, "hello", "--voice", "ryam"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: unknown voice 'ryam'; did you mean 'ryan'?" in done.stderr
    assert "Traceback" not in done.stderr
    assert "speaking" not in done.stderr


@pytest.mark.parametrize("words", ["", "say", "serve", "export", "bench run", "eval run", "voices list"])
def test_flags_have_no_type_in_the_help(shell: Shell, words: str) -> None:
    typed = [line for line in shell(*words.split(), "--help").out.splitlines() if "<bool>" in line]
    assert all("--help" in line or "completion" in line for line in typed), typed  # these are Typer's own


def test_help_does_not_import_torch() -> None:
    program = "import sys; from oscine.commands.main import app; app(['say', '--help'], standalone_mode=False)\n"
    done = subprocess.run(
        [sys.executable, "-c", program + "assert 'torch' not in sys.modules"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--ref-audio" in done.stdout


def test_voices_are_added_listed_and_removed_without_a_server(shell: Shell, base: Path, base_tts: Oscine) -> None:
    soundfile.write("clip.wav", noise(0.5), RATE)
    where, consent = ["--voices-dir", "voices"], ["--consent", "she said yes"]
    added = shell("voices", "add", "Ann", "clip.wav", "--model", base, *consent, *where)
    assert (added.code, added.out) == (0, "Ann\n"), added.err
    base_tts.clone("clip.wav", "some words").save("bob.safetensors")
    assert shell("voices", "add", "bob", "bob.safetensors", *consent, *where).out == "bob\n"
    listed = json.loads(shell("voices", "list", "--json", "--model", base, *where).out)
    assert [(one["name"], one["mode"]) for one in listed] == [("Ann", "timbre"), ("bob", "in_context")]
    assert listed[0]["content_hash"] == base_tts.clone("clip.wav").content_hash
    assert "she said yes" in shell("voices", "list", *where).out
    assert shell("voices", "remove", "ann", *where).out == "Ann\n"
    for words, said in (
        (("remove", "ann"), "there is no uploaded voice 'ann'"),
        (("add", "alloy", "clip.wav", *consent), "'alloy' is reserved"),
        (("add", "carl", "clip.wav", *consent), "name a Base checkpoint with --model"),
        (("add", "carl\a", "clip.wav", *consent), "use 1 to 64 printable characters"),
    ):
        refused = shell("voices", *words, *where)
        assert refused.code == 2 and said in refused.err, refused.err
