"""`oscine say` with long texts, and where its results go. Most tests hand it a mouth that speaks at once."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import typer
from tests.commands.test_main import OSCINE, Ran, Shell, check_refusal, wav_samples
from tests.speakers import RATE

from oscine import SpeechRequest, Voice, cli
from oscine.audio import pcm16
from oscine.narration import narrate
from oscine.segmenter import segment_text
from oscine.types import AudioChunk, Speech, SpokenFrames, Usage, VoiceError

FRAME_SAMPLES = 1920
LONG = " ".join(f"This is the sentence with the number {number}, and it is not short." for number in range(40))
PARTS = segment_text(LONG)
ENDLESS = "endless"  # a text with this word runs away


class Mouth:
    """Speaks by itself as an Oscine, and as an engine: noise that depends on text and seed."""

    sample_rate = RATE
    voices = ("ryan",)

    def __init__(self, kind: str = "custom_voice", max_frames: int = 10_000) -> None:
        self.config = SimpleNamespace(kind=kind)
        self.max_frames = max_frames
        self.batches: list[list[SpeechRequest]] = []

    def check(self, requests: list[SpeechRequest]) -> None:
        if any(request.voice == "nobody" for request in requests):
            raise VoiceError("unknown voice 'nobody'", "voice")

    def speak_batch(self, requests: list[SpeechRequest], on_chunk: Callable[[SpokenFrames], None]) -> list[Speech]:
        self.batches.append(requests)
        speeches = [self.spoken(request) for request in requests]
        for row, one in enumerate(speeches):
            on_chunk(SpokenFrames(row, 0, one.audio, one.codes, one.seed, one.finish_reason))
        return speeches

    def spoken(self, request: SpeechRequest) -> Speech:
        assert request.seed is not None
        wanted = 1 + len(request.text) // 100
        most = self.max_frames if request.max_new_tokens is None else request.max_new_tokens - 1
        frames = min(wanted, most)
        random = np.random.default_rng([request.seed, *request.text.encode()])
        audio = random.uniform(-1, 1, frames * FRAME_SAMPLES).astype(np.float32)
        reason = "length" if frames < wanted else "runaway" if ENDLESS in request.text else "stop"
        return Speech(audio, RATE, random.integers(0, 2048, (frames, 16)), reason, request.seed)

    def submit(
        self, request: SpeechRequest, deliver: Callable[[AudioChunk], None], *, streaming_text: bool = False
    ) -> str:
        one = self.spoken(request)
        pcm = pcm16(one.audio).tobytes()
        deliver(AudioChunk(pcm[:1000], 0, seed=one.seed))
        deliver(AudioChunk(pcm[1000:], 500, one.finish_reason, seed=one.seed, usage=Usage(0, len(one.codes))))
        return "1"


def heard_from_a_server(mouth: Mouth, request: SpeechRequest) -> tuple[bytes, str | None]:
    async def heard() -> tuple[bytes, str | None]:
        with ThreadPoolExecutor(1) as pool:
            parts = segment_text(request.text)
            sounds = [sound async for sound in narrate(mouth, request, parts, RATE, pool)]  # type: ignore[arg-type]
        return b"".join(sound.pcm for sound in sounds), sounds[-1].finish_reason

    return asyncio.run(heard())


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path, capsys, monkeypatch)


@pytest.fixture
def mouth(monkeypatch: pytest.MonkeyPatch) -> Mouth:
    mouth = Mouth()
    monkeypatch.setattr(cli, "load", lambda model, device, dtype: mouth)
    return mouth


# Long texts


@pytest.mark.parametrize("tokens", [None, 5, 12, 20, 1000])
@pytest.mark.parametrize("text", [LONG, LONG.replace("13", ENDLESS)], ids=["stops", "runs away"])
def test_a_long_text_sounds_as_the_server_says_it(shell: Shell, mouth: Mouth, text: str, tokens: int | None) -> None:
    limit = [] if tokens is None else ["--max-new-tokens", tokens]
    ran = shell("say", text, "--seed", 7, "-o", "long.wav", "--json", *limit)
    assert ran.code == 0, ran.err
    pcm, reason = heard_from_a_server(mouth, SpeechRequest(text=text, seed=7, max_new_tokens=tokens))
    assert wav_samples(Path("long.wav")).astype("<i2").tobytes() == pcm
    assert ran.results[0]["finish_reason"] == reason
    assert ran.results[0]["duration_s"] == round(len(pcm) / 2 / RATE, 3)


def test_no_part_of_a_long_text_is_lost(shell: Shell, mouth: Mouth) -> None:
    assert len(PARTS) > 3
    ran = shell("say", LONG, "--seed", 7, "--save-codes", "codes.npy", "--json")
    spoken = [request for batch in mouth.batches for request in batch]
    assert [request.text for request in spoken] == PARTS
    assert {request.seed for request in spoken} == {7}
    codes = np.concatenate([mouth.spoken(request).codes for request in spoken])
    np.testing.assert_array_equal(np.load("codes.npy"), codes)
    assert ran.results[0]["frames"] == len(codes)
    assert len(wav_samples(Path("speech.wav"))) == len(codes) * FRAME_SAMPLES


def test_without_a_seed_all_parts_have_the_one_that_is_told(shell: Shell, mouth: Mouth) -> None:
    Path("two.txt").write_text(f"{LONG}\nhello\n")
    long, short = shell("say", "--file", "two.txt", "--json").results
    seeds = [request.seed for batch in mouth.batches for request in batch]
    assert seeds == [long["seed"]] * len(PARTS) + [short["seed"]]
    assert long["seed"] != short["seed"]


def test_a_short_text_is_the_model_s_sound_to_the_bit(shell: Shell, mouth: Mouth) -> None:
    shell("say", "hello there", "--seed", 7)
    expected = mouth.spoken(SpeechRequest(text="hello there", seed=7)).audio
    np.testing.assert_array_equal(wav_samples(Path("speech.wav")), pcm16(expected))


@pytest.mark.parametrize(
    ("words", "told"), [([LONG, "--max-new-tokens", 9], "length"), ([LONG.replace("31", ENDLESS)], "runaway")]
)
def test_how_a_part_ended_is_told(shell: Shell, mouth: Mouth, words: list[object], told: str) -> None:
    assert shell("say", *words).out.endswith(f", ended by {told}\n")


def test_nothing_follows_a_part_that_used_up_the_length(shell: Shell, mouth: Mouth) -> None:
    mouth.max_frames = 1  # the checkpoint's own limit: all parts were spoken side by side
    ran = shell("say", LONG, "--json")
    assert (ran.results[0]["frames"], ran.results[0]["finish_reason"]) == (1, "length")


def test_parts_and_texts_of_a_file_are_spoken_in_bounded_batches(shell: Shell, mouth: Mouth) -> None:
    Path("lines.txt").write_text(f"one\n{LONG}\n{LONG}\n{LONG}\n" + "two\n" * 9)
    ran = shell("say", "--file", "lines.txt", "--seed", 7)
    assert ran.code == 0, ran.err
    parts = 3 * len(PARTS) + 10
    assert [len(batch) for batch in mouth.batches] == [8] * (parts // 8) + [parts % 8] * (parts % 8 > 0)
    assert " 13/13 texts, " in ran.err  # all of them, at the end
    samples = [wav_samples(Path(f"speech/{number:03}.wav")) for number in range(1, 14)]
    np.testing.assert_array_equal(samples[1], samples[3])
    assert len(samples[4]) == FRAME_SAMPLES


def test_a_text_that_is_cut_counts_as_finished(shell: Shell, mouth: Mouth) -> None:
    Path("lines.txt").write_text(f"one\n{LONG}\nthree\n")
    assert " 3/3 texts, " in shell("say", "--file", "lines.txt", "--max-new-tokens", 3).err


# Where results go


def test_without_a_name_the_wav_goes_to_standard_output(tmp_path: Path) -> None:
    words = [str(OSCINE), "say", "hi", "-o", "-", "--seed", "1", "--max-new-tokens", "4", "--json"]
    done = subprocess.run(words, capture_output=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "heard.wav").write_bytes(done.stdout)
    assert wav_samples(tmp_path / "heard.wav").shape == (3 * FRAME_SAMPLES,)
    assert json.loads(done.stderr.splitlines()[-1])["results"][0]["output"] == "-"
    assert not (tmp_path / "-").exists()


def test_a_full_standard_output_is_told_in_one_line(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    for output in ("out.wav", "-"):
        words = [str(OSCINE), "say", "hi", "-o", output, "--max-new-tokens", "3"]
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=120, check=False
            )
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "standard output" in done.stderr and "No space left on device" in done.stderr
    assert (tmp_path / "out.wav").is_file()


def refused(shell: Shell, *words: object) -> Ran:
    """What cannot work is refused before the model is looked for."""
    return shell("say", *words, "-m", "/no/such/model")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hi", "-o", "x.mp3"], "'x.mp3': say writes WAV only; name it 'x.wav'"),
        (["hi", "-o", "h.wav", "--save-codes", "./h.wav"], "--output and --save-codes are the same file"),
        (["hi", "--save-codes", "speech.wav"], "--output and --save-codes are the same file"),
        (["hi", "-o", "h.wav", "--save-codes", "link"], "--output and --save-codes are the same file"),
        (["hi", "-o", "a", "--ref-audio", "c", "--save-voice", "a"], "--output and --save-voice are the same file"),
        (["hi", "--save-codes", "a", "--ref-audio", "c", "--save-voice", "a"], "--save-codes and --save-voice are"),
        (["hi", "--save-codes", "-"], "--save-codes cannot go to standard output"),
        (["hi", "-o", "x" * 300], "cannot be written: File name too long"),
        (["--file", "lines.txt", "-o", "speech.wav"], "with --file, --output is a folder; 'speech.wav' looks like"),
        (["--file", "lines.txt", "-o", "-"], "with --file, --output is a folder; '-' looks like a file"),
        (["--file", "lines.txt", "-o", "taken"], "with --file, --output is a folder;"),
        (["--file", "lines.txt", "-o", "taken/deep"], "taken' is a file"),
        (["--file", "lines.txt", "--save-codes", "a.npy"], "with --file, --save-codes is a folder; 'a.npy' looks"),
        (["--file", "lines.txt", "--save-codes", "taken"], "with --file, --save-codes is a folder;"),
        ([""], "text is empty; give at least one word to speak"),
        ([], "text is empty; give at least one word to speak"),
        (["a\0b"], "NUL character at index 1"),
    ],
)
def test_what_has_no_place_to_go_is_refused_before_the_model_is_loaded(
    shell: Shell, words: list[str], said: str
) -> None:
    Path("lines.txt").write_text("hello\n")
    Path("taken").write_text("")
    Path("link").symlink_to("h.wav")
    before = sorted(shell.folder.iterdir())
    check_refusal(refused(shell, *words), 2, said)
    assert sorted(shell.folder.iterdir()) == before


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to")
@pytest.mark.parametrize(
    "words",
    [
        ["hi", "-o", "/proc/x.wav"],
        ["hi", "--save-codes", "/proc/x.npy"],
        ["hi", "--ref-audio", "c.wav", "--save-voice", "/proc/x.safetensors"],
        ["--file", "lines.txt", "-o", "/proc/x"],
        ["--file", "lines.txt", "--save-codes", "/proc/x/y"],
    ],
)
def test_a_folder_that_cannot_be_written_to_is_found_before_the_model_is_loaded(shell: Shell, words: list[str]) -> None:
    Path("lines.txt").write_text("hello\n")
    check_refusal(refused(shell, *words), 2, "cannot be written: ")


def test_a_terminal_is_not_filled_with_sound(
    shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    check_refusal(refused(shell, "hi", "-o", "-"), 2, "not for a terminal")


def test_a_refused_file_of_lines_leaves_no_folder(shell: Shell, mouth: Mouth) -> None:
    Path("lines.txt").write_text("hello\n")
    ran = shell("say", "--file", "lines.txt", "--voice", "nobody", "-o", "leftover", "--save-codes", "codes")
    check_refusal(ran, 2, "unknown voice 'nobody'")
    assert mouth.batches == []
    assert [path.name for path in shell.folder.iterdir()] == ["lines.txt"]


def test_what_is_there_is_replaced_and_devices_take_everything(shell: Shell, mouth: Mouth) -> None:
    Path("old.wav").write_text("old")
    Path("old.npy").write_text("old")
    assert shell("say", "hello", "-o", "old.wav", "--save-codes", "old.npy").code == 0
    assert soundfile.info("old.wav").frames == FRAME_SAMPLES
    assert np.load("old.npy").shape == (1, 16)
    assert shell("say", "hello", "-o", "/dev/null", "--save-codes", "/dev/null").code == 0


# Voices and help


def test_a_voice_file_may_have_any_name(shell: Shell, mouth: Mouth) -> None:
    voice = Voice.from_embedding([1.0, 2.0])
    for name in ("ann", "ann.voice", "ryan"):
        voice.save(name)
    for name in ("ann", "ann.voice", "ryan"):
        assert shell("say", "hello", "--voice", name).code == 0
    assert [batch[0].voice for batch in mouth.batches] == [voice, voice, "ryan"]  # a preset's name is that preset's
    check_refusal(shell("say", "hello", "--voice", __file__), 2, "is not a readable voice file")


@pytest.mark.parametrize("words", [[], ["--voice", "ryam"]])
def test_a_base_checkpoint_asks_for_a_clip_by_its_option(shell: Shell, mouth: Mouth, words: list[str]) -> None:
    mouth.config.kind = "base"
    mouth.voices = ()  # type: ignore[assignment]
    check_refusal(shell("say", "hello", *words), 2, "give a clip with --ref-audio, or a saved voice's file")


@pytest.mark.parametrize("command", ["say", "serve"])
def test_help_shows_every_bracket(shell: Shell, command: str) -> None:
    shown = " ".join(shell(command, "--help").out.split())
    helps = [param.help for param in typer.main.get_command(cli.app).commands[command].params]  # type: ignore[attr-defined]
    assert len(helps) > 10
    for text in filter(None, helps):
        assert text.replace("\\[", "[") in shown
    if command == "say":
        assert "int [frames, 16], as .npy" in shown
