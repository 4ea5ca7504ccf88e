"""`oscine say` with long texts, and where its results go. Most tests give it an engine that speaks at once."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import typer

import oscine.api
from oscine import SpeechRequest, Voice
from oscine.audio.clips import pcm16
from oscine.commands import main as cli
from oscine.errors import VoiceError
from oscine.speech.events import Audio, Ended
from oscine.speech.run import Speaker
from oscine.speech.script import Script
from oscine.text.segmenter import segment_text
from oscine.text.spoken_text import SpokenText
from oscine.types import AudioChunk, Deliver, ModelCard, Usage
from oscine.voice import blended
from tests.align.scripted_whisper import scripted_whisper
from tests.commands.test_main import OSCINE, Ran, Shell, check_refusal, wav_samples
from tests.file_length import assert_length
from tests.manual_engine import ManualEngine
from tests.server.scripted_engine import BASE_CARD
from tests.speakers import RATE
from tests.speech_like import speech_like

pytestmark = pytest.mark.slow

FRAME_SAMPLES = 1920
LONG = " ".join(f"This is the sentence with the number {number}, and it is not short." for number in range(40))
SEGMENTS = segment_text(LONG)
ENDLESS = "endless"  # a text with this word becomes a runaway


class InstantEngine(ManualEngine):
    """Generates noise, which depends on text and seed, at once."""

    sample_rate_hz = RATE

    def __init__(self) -> None:
        super().__init__()
        self.model_config = SimpleNamespace(
            kind="custom_voice",
            talker=SimpleNamespace(speakers={"ryan": 1}),
            selectable_languages=(),
            card=lambda name: ModelCard(name, "custom_voice", ("ryan",), ("english",), (), False, RATE, 1920, 8),
        )
        self.max_frames = 10_000

    def check(self, request: SpeechRequest) -> None:
        if request.voice == "nobody":
            raise VoiceError("unknown voice 'nobody'", "voice")

    def speech(self, request: SpeechRequest) -> tuple[bytes, np.ndarray, str]:
        assert request.seed is not None
        wanted = 1 + len(request.text) // 100
        most = self.max_frames if request.max_new_tokens is None else request.max_new_tokens - 1
        frames = min(wanted, most)
        random = np.random.default_rng([request.seed, *request.text.encode()])
        pcm = pcm16(random.uniform(-1, 1, frames * FRAME_SAMPLES).astype(np.float32)).tobytes()
        reason = "length" if frames < wanted else "runaway" if ENDLESS in request.text else "stop"
        return pcm, random.integers(0, 2048, (frames, 16)), reason

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        await super().submit(utterance_id, request, deliver)
        pcm, codes, reason = self.speech(request)
        deliver(AudioChunk(pcm[:1000], 0, seed=request.seed or 0))
        usage = Usage(0, len(codes))
        deliver(AudioChunk(pcm[1000:], 500, reason, seed=request.seed or 0, usage=usage, codes=codes))  # type: ignore[arg-type]


def narrated(engine: InstantEngine, request: SpeechRequest) -> tuple[bytes, str | None]:
    """The audio that a server would send."""

    async def collect() -> tuple[bytes, str | None]:
        segments = [SpokenText.unchanged(text) for text in segment_text(request.text)]
        speaker = Speaker(engine, request, RATE)
        events = [event async for event in speaker.speak(Script(segments))]
        assert isinstance(events[-1], Ended)
        return b"".join(event.pcm for event in events if isinstance(event, Audio)), events[-1].finish_reason

    return asyncio.run(collect())


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path, capsys, monkeypatch)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> InstantEngine:
    engine = InstantEngine()
    monkeypatch.setattr(oscine.api, "build_engine", lambda *args, **kwargs: engine)
    return engine


# Long texts


@pytest.mark.parametrize("tokens", [None, 5, 12, 20, 1000])
@pytest.mark.parametrize("text", [LONG, LONG.replace("13", ENDLESS)], ids=["stops", "runs away"])
def test_a_long_text_is_spoken_as_the_server_speaks_it(
    shell: Shell, engine: InstantEngine, text: str, tokens: int | None
) -> None:
    limit = [] if tokens is None else ["--max-new-tokens", tokens]
    ran = shell("say", text, "--seed", 7, "-o", "long.wav", "--json", *limit)
    assert ran.code == 0, ran.err
    pcm, reason = narrated(engine, SpeechRequest(text=text, seed=7, max_new_tokens=tokens))
    assert wav_samples(Path("long.wav")).astype("<i2").tobytes() == pcm
    assert ran.results[0]["finish_reason"] == reason
    assert ran.results[0]["duration_s"] == round(len(pcm) / 2 / RATE, 3)


def test_no_segment_of_a_long_text_is_lost(shell: Shell, engine: InstantEngine) -> None:
    assert len(SEGMENTS) > 3
    ran = shell("say", LONG, "--seed", 7, "--save-codes", "codes.npy", "--json")
    assert [request.text for request in engine.requests] == SEGMENTS
    assert {request.seed for request in engine.requests} == {7}
    codes = np.concatenate([engine.speech(request)[1] for request in engine.requests])
    np.testing.assert_array_equal(np.load("codes.npy"), codes)
    assert ran.results[0]["frames"] == len(codes)
    assert len(wav_samples(Path("speech.wav"))) == len(codes) * FRAME_SAMPLES


def test_without_a_seed_all_segments_have_the_reported_one(shell: Shell, engine: InstantEngine) -> None:
    Path("two.txt").write_text(f"{LONG}\nhello\n")
    long, short = shell("say", "--file", "two.txt", "--json").results
    assert {one.seed for one in engine.requests if one.text != "hello"} == {long["seed"]}
    assert {one.seed for one in engine.requests if one.text == "hello"} == {short["seed"]}
    assert long["seed"] != short["seed"]


@pytest.mark.parametrize("name", ["fast.wav", "fast.flac"])
def test_speed_and_sample_rate_change_the_file(shell: Shell, engine: InstantEngine, name: str) -> None:
    assert shell("say", LONG, "--seed", 7, "-o", "plain.wav").code == 0
    ran = shell("say", LONG, "--seed", 7, "-o", name, "--speed", 2, "--sample-rate", 8000, "--json")
    assert ran.code == 0, ran.err
    samples, rate = soundfile.read(name)
    plain_s = len(wav_samples(Path("plain.wav"))) / RATE
    assert rate == 8000 and len(samples) / rate == pytest.approx(plain_s / 2, abs=0.01)
    assert ran.results[0]["duration_s"] == pytest.approx(len(samples) / rate, abs=1e-3)
    assert all(request.speed == 1.0 and request.sample_rate is None for request in engine.requests)


@pytest.mark.parametrize(
    ("words", "reason"), [([LONG, "--max-new-tokens", 9], "length"), ([LONG.replace("31", ENDLESS)], "runaway")]
)
def test_the_report_says_how_the_speech_ended(
    shell: Shell, engine: InstantEngine, words: list[object], reason: str
) -> None:
    assert shell("say", *words).out.endswith(f", ended by {reason}\n")


def test_nothing_follows_a_segment_that_used_up_the_length(shell: Shell, engine: InstantEngine) -> None:
    engine.max_frames = 1
    ran = shell("say", LONG, "--json")
    assert (ran.results[0]["frames"], ran.results[0]["finish_reason"]) == (1, "length")


def test_text_options_decide_what_the_engine_reads(shell: Shell, engine: InstantEngine) -> None:
    text = 'Oscine costs $5.\n\nReally? <break time="1s"/> Yes.'
    options = ["--normalize", "--pronounce", "Oscine=OSS-een", "--paragraph-pause", 0.5, "--language", "english"]
    assert shell("say", text, "--seed", 7, *options).code == 0
    assert [request.text for request in engine.requests] == ["OSS-een costs five dollars.", "Really?", "Yes."]
    assert len(wav_samples(Path("speech.wav"))) == 3 * FRAME_SAMPLES + int(1.5 * RATE)
    assert shell("say", "a <break/>", "--no-markup").code == 0
    assert engine.requests[-1].text == "a <break/>"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "--pronounce", "b"], "--pronounce takes WORD=SPOKEN"),
        (["a", "--paragraph-pause", "11"], "a number of seconds from 0 to 10"),
        (["a", "--normalize", "--language", "klingon"], "no rules for the language 'klingon'"),
        (["a <break time=1/>"], "cannot be read"),
    ],
)
def test_bad_text_options_are_refused_before_the_model_is_loaded(shell: Shell, words: list[str], said: str) -> None:
    check_refusal(shell("say", *words, "-m", "/no/such/model"), 2, said)


def test_every_line_of_a_file_becomes_a_file(shell: Shell, engine: InstantEngine) -> None:
    Path("lines.txt").write_text(f"one\n{LONG}\n{LONG}\n" + "two\n" * 9)
    ran = shell("say", "--file", "lines.txt", "--seed", 7)
    assert ran.code == 0, ran.err
    assert " 12/12 texts, " in ran.err
    samples = [wav_samples(Path(f"speech/{number:03}.wav")) for number in range(1, 13)]
    np.testing.assert_array_equal(samples[1], samples[2])
    assert len(samples[4]) == FRAME_SAMPLES


@pytest.mark.parametrize("name", ["a.mp3", "a.flac", "a.opus", "a.aac", "a.wav"])
def test_the_suffix_chooses_the_format(shell: Shell, engine: InstantEngine, name: str) -> None:
    assert shell("say", "hello there", "-o", name).code == 0
    from oscine.audio.clips import read_clip

    if name == "a.aac":  # has no header that states a length
        assert read_clip(Path(name)).duration_s > 0.07
    else:
        assert_length(Path(name).read_bytes(), FRAME_SAMPLES, RATE)
    assert shell("say", "--file", "-", "-o", name).code == 2


def test_a_text_in_an_unlisted_script_gets_a_warning(shell: Shell, engine: InstantEngine) -> None:
    assert "warning: the text contains many Chinese characters" in shell("say", "你好，世界").err
    assert "warning" not in shell("say", "hello").err


def test_a_text_with_unknown_tags_gets_a_warning(shell: Shell, engine: InstantEngine) -> None:
    assert "warning: unknown tags: <foo>" in shell("say", "<foo>hello</foo>").err
    assert "warning" not in shell("say", "<foo>hello</foo>", "--no-markup").err


def test_lines_are_written_in_the_requested_format(shell: Shell, engine: InstantEngine) -> None:
    Path("lines.txt").write_text("one\ntwo\n")
    assert shell("say", "--file", "lines.txt", "--format", "flac").code == 0
    assert sorted(path.name for path in Path("speech").iterdir()) == ["001.flac", "002.flac"]
    for path in Path("speech").iterdir():
        assert_length(path.read_bytes(), FRAME_SAMPLES, RATE)


# Where results go


def test_without_a_name_the_wav_goes_to_standard_output(tmp_path: Path) -> None:
    words = [str(OSCINE), "say", "hi", "-o", "-", "--seed", "1", "--max-new-tokens", "4", "--json"]
    done = subprocess.run(words, capture_output=True, cwd=tmp_path, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "played.wav").write_bytes(done.stdout)
    assert wav_samples(tmp_path / "played.wav").shape == (3 * FRAME_SAMPLES,)
    assert json.loads(done.stderr.splitlines()[-1])["results"][0]["output"] == "-"
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("form", ["wav", "flac", "mp3"])
def test_a_redirection_into_a_file_states_its_true_length(
    shell: Shell, engine: InstantEngine, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    said = shell.folder / "said"
    with said.open("w", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert shell("say", "hi", "-o", "-", "--format", form, "--seed", 1).code == 0
    assert_length(said.read_bytes(), FRAME_SAMPLES, RATE)


def test_standard_output_is_streamed_while_the_text_is_spoken(tmp_path: Path) -> None:
    """The header and the first segment arrive long before the last segment is spoken."""
    text = " ".join(f"This is sentence number {number} of a long text." for number in range(30))
    words = [str(OSCINE), "say", text, "-o", "-", "--seed", "1", "--device", "cpu"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        head = process.stdout.read(44 + 2 * FRAME_SAMPLES)
        assert head[:4] == b"RIFF" and len(head) == 44 + 2 * FRAME_SAMPLES
        assert process.poll() is None  # still speaking
        process.kill()


def test_a_full_standard_output_is_reported_in_one_line(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    for output in ("out.wav", "-"):
        words = [str(OSCINE), "say", "hi", "-o", output, "--max-new-tokens", "3"]
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=600, check=False
            )
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "standard output" in done.stderr and "No space left on device" in done.stderr
    assert (tmp_path / "out.wav").is_file()


def refused(shell: Shell, *words: object) -> Ran:
    """Refused before the model is loaded."""
    return shell("say", *words, "-m", "/no/such/model")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hi", "-o", "x.mp5"], "'x.mp5': unknown audio format 'mp5'; did you mean 'mp3'?"),
        (["hi", "-o", "x.mp3", "--format", "wav"], "--format wav contradicts the suffix of 'x.mp3'"),
        (["hi", "--format", "mp4"], "error: --format: unknown audio format 'mp4'; did you mean 'mp3'?"),
        (["hi", "--format", "mp4", "--play"], "error: --format: unknown audio format 'mp4'"),
        (["hi", "--format", "mp4", "-o", "-"], "error: --format: unknown audio format 'mp4'"),
        (["--file", "lines.txt", "--format", "mp4"], "error: --format: unknown audio format 'mp4'"),
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
def test_outputs_that_cannot_be_written_are_refused_before_the_model_is_loaded(
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


def test_audio_is_not_written_to_a_terminal(
    shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    check_refusal(refused(shell, "hi", "-o", "-"), 2, "not for a terminal")


def test_a_refused_file_of_lines_leaves_no_folder(shell: Shell, engine: InstantEngine) -> None:
    Path("lines.txt").write_text("hello\n")
    ran = shell("say", "--file", "lines.txt", "--voice", "nobody", "-o", "leftover", "--save-codes", "codes")
    check_refusal(ran, 2, "unknown voice 'nobody'")
    assert engine.requests == []
    assert [path.name for path in shell.folder.iterdir()] == ["lines.txt"]


def test_existing_files_are_replaced_and_devices_are_written_to(shell: Shell, engine: InstantEngine) -> None:
    Path("old.wav").write_text("old")
    Path("old.npy").write_text("old")
    assert shell("say", "hello", "-o", "old.wav", "--save-codes", "old.npy").code == 0
    assert soundfile.info("old.wav").frames == FRAME_SAMPLES
    assert np.load("old.npy").shape == (1, 16)
    assert shell("say", "hello", "-o", "/dev/null", "--save-codes", "/dev/null").code == 0


# Voices and help


def test_a_voice_file_may_have_any_name(shell: Shell, engine: InstantEngine) -> None:
    voice = Voice.from_embedding([1.0, 2.0])
    for name in ("ann", "ann.voice", "ryan"):
        voice.save(name)
    for name in ("ann", "ann.voice", "ryan"):
        assert shell("say", "hello", "--voice", name).code == 0
    assert [request.voice for request in engine.requests] == [voice, voice, "ryan"]  # a preset's name means that preset
    check_refusal(shell("say", "hello", "--voice", __file__), 2, "is not a readable voice file")


def test_what_is_wrong_with_a_clip_is_said_and_it_is_cloned(shell: Shell, engine: InstantEngine) -> None:
    clip = speech_like(1)
    soundfile.write("clip.wav", clip.samples, clip.rate_hz)
    engine.model_config.card = lambda name: BASE_CARD
    engine.clone = lambda clip, transcript: Voice.from_embedding([1.0, 2.0])  # type: ignore[attr-defined]
    ran = shell("say", "hello", "-o", "hello.wav", "--ref-audio", "clip.wav", "--ref-text", "ba " * 200)
    assert ran.code == 0 and engine.requests[0].voice == Voice.from_embedding([1.0, 2.0])
    assert "warning: the clip has only" in ran.err and "the transcript does not seem to fit" in ran.err


@pytest.mark.parametrize("words", [[], ["--voice", "ryam"]])
def test_a_base_checkpoint_asks_for_a_clip_by_its_option(shell: Shell, engine: InstantEngine, words: list[str]) -> None:
    engine.model_config.kind = "base"
    engine.model_config.talker.speakers = {}
    check_refusal(shell("say", "hello", *words), 2, "give a clip with --ref-audio, or a saved voice with --voice")


@pytest.mark.parametrize("command", ["say", "serve"])
def test_help_shows_every_bracket(shell: Shell, command: str) -> None:
    shown = " ".join(shell(command, "--help").out.split())
    helps = [param.help for param in typer.main.get_command(cli.app).commands[command].params]  # type: ignore[attr-defined]
    assert len(helps) > 10
    for text in filter(None, helps):
        assert text.replace("\\[", "[") in shown
    if command == "say":
        assert "int [frames, 16], as .npy" in shown


# Subtitles, with a scripted aligner


@pytest.fixture
def whisper(tmp_path: Path, engine: InstantEngine, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path / "library")
    return scripted_whisper(tmp_path)


def words_of(subtitles: str) -> list[str]:
    blocks = subtitles.removeprefix("WEBVTT\n\n").split("\n\n")
    return [word for block in blocks for line in block.strip().split("\n")[2:] for word in line.split()]


@pytest.mark.parametrize("name", ["out.srt", "out.vtt"])
def test_subtitles_hold_every_word_of_a_long_text(shell: Shell, whisper: Path, name: str) -> None:
    ran = shell("say", LONG, "-o", "out.wav", "--subtitles", name, "--aligner", whisper)
    assert ran.code == 0, ran.err
    text = Path(name).read_text(encoding="utf-8")
    assert words_of(text) == LONG.split()
    assert text.startswith("WEBVTT") == name.endswith("vtt")
    assert Path("out.wav").exists()


def test_every_line_of_a_file_has_its_subtitles(shell: Shell, whisper: Path) -> None:
    Path("lines.txt").write_text("Hello there.\nGood bye.\n", encoding="utf-8")
    ran = shell("say", "--file", "lines.txt", "-o", "sounds", "--subtitles", "subtitles", "--aligner", whisper)
    assert ran.code == 0, ran.err
    assert [words_of(Path(f"subtitles/00{number}.srt").read_text()) for number in (1, 2)] == [
        ["Hello", "there."],
        ["Good", "bye."],
    ]


def test_subtitles_of_a_dialogue_name_the_speakers(shell: Shell, whisper: Path, engine: InstantEngine) -> None:
    turns = [{"voice": "Ryan", "text": "Hello there."}, {"text": "Good bye.", "pause_s": 0.5}]
    Path("dialogue.json").write_text(json.dumps(turns), encoding="utf-8")
    ran = shell("say", "--script", "dialogue.json", "-o", "out.wav", "--subtitles", "out.vtt", "--aligner", whisper)
    assert ran.code == 0, ran.err
    assert Path("out.vtt").read_text().count("<v Ryan>Hello there.\n") == 1
    assert "<v ryan>Good bye." in Path("out.vtt").read_text()
    assert [request.text for request in engine.requests] == ["Hello there.", "Good bye."]
    assert len(wav_samples(Path("out.wav"))) == 2 * FRAME_SAMPLES + RATE // 2


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_script_may_be_the_body_of_a_request(shell: Shell, engine: InstantEngine, words: list[str]) -> None:
    body = {"input": [{"speaker": "ryan", "input": "Hello."}]}
    Path("dialogue.json").write_text(json.dumps(body), encoding="utf-8")
    assert shell("say", "--script", "dialogue.json", "-o", "out.wav", *words).code == 0
    (request,) = engine.requests
    assert (request.text, request.voice) == ("Hello.", "ryan")


@pytest.mark.parametrize(
    ("script", "words", "message"),
    [
        ("[]", [], "a dialogue must be a list of turns, got an empty list"),
        ("{}", [], "a dialogue must be a list of turns, got NoneType"),
        ('{"input": [{"text": "a"}], "seed": 1}', [], "'dialogue.json' has the field 'seed' beside the turns"),
        ('[{"text": "a", "input": "b"}]', [], "input[0]: a field has two names here, of text, input"),
        ("[", [], "cannot read 'dialogue.json' as JSON"),
        ('["a"]', [], "input[0]: a turn must be an object with a text, got str"),
        ('[{"text": "a"}, {"voice": "ryan"}]', [], "input[1].text: text is missing"),
        ('[{"text": "a", "pause": 1}]', [], "input[0].pause: unknown field 'pause'; did you mean 'pause_s'?"),
        ('[{"text": "a", "pause_s": 11}]', [], "input[0].pause_s must be a number of seconds from 0 to 10, got 11"),
        ('[{"text": "a"}, {"text": " "}]', [], "input[1].text: text is only white space"),
        ('[{"text": "a"}, {"text": "<break/>"}]', [], "input[1].text: the text holds pauses only"),
        ('[{"text": "a"}, {"text": "b", "voice": "nobody"}]', [], "input[1].voice: unknown voice 'nobody'"),
        ('[{"text": "a"}]', ["Hello."], "give either a text, --file or --script"),
        ('[{"text": "a", "voice": 7}]', [], "input[0].voice: voice must be the name of a voice, got 7"),
        ('[{"text": "a", "voice": {"id": "nobody"}}]', [], "nobody"),
    ],
)
def test_a_script_that_cannot_be_spoken_is_refused(
    shell: Shell, engine: InstantEngine, script: str, words: list[str], message: str
) -> None:
    Path("dialogue.json").write_text(script, encoding="utf-8")
    check_refusal(shell("say", *words, "--script", "dialogue.json"), 2, message)
    assert not engine.requests


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--subtitles", "out.srt"], "--subtitles needs --aligner"),
        (["--subtitles", "out.txt", "--aligner", "whisper"], "unknown subtitle format 'txt'"),
        (["--subtitles", "missing/out.srt", "--aligner", "whisper"], "there is no folder 'missing'"),
        (["--aligner", "whisper"], "--aligner is for --subtitles"),
    ],
)
def test_subtitles_that_cannot_work_are_refused_before_anything_is_spoken(
    shell: Shell, whisper: Path, options: list[str], message: str
) -> None:
    check_refusal(shell("say", "Hello.", "-o", "out.wav", *options), 2, message)
    assert not Path("out.wav").exists()


def test_an_aligner_without_a_model_is_refused(shell: Shell, engine: InstantEngine) -> None:
    ran = shell("say", "Hello.", "--subtitles", "out.srt", "--aligner", ".")
    assert ran.code == 1 and "has no model.bin" in ran.err


def test_an_aligner_that_fails_costs_only_the_subtitles(shell: Shell, whisper: Path) -> None:
    (whisper / "behavior").write_text("fail")
    ran = shell("say", "Hello.", "-o", "out.wav", "--subtitles", "out.srt", "--aligner", whisper)
    assert ran.code == 1 and "no memory" in ran.err
    assert Path("out.wav").exists() and not Path("out.srt").exists()


def test_a_mix_may_have_presets_and_voice_files(shell: Shell, engine: InstantEngine) -> None:
    mine, preset = Voice(np.arange(8, dtype=np.float32)), engine.preset("ryan")
    mine.save("me.safetensors")
    mixed = blended([(mine, 3), (preset, 1)])
    assert shell("say", "hello", "--voice", "me.safetensors(3)+ryan").code == 0
    mix = {"mix": {"ryan": 1, "me.safetensors": 3}}
    Path("dialogue.json").write_text(json.dumps([{"text": "Hi.", "voice": mix}]))
    assert shell("say", "--script", "dialogue.json").code == 0
    assert [request.voice for request in engine.requests] == [mixed, mixed]
    check_refusal(shell("say", "hello", "--voice", "ryan(0)+me.safetensors"), 2, "the weight of 'ryan' in voice.mix")
