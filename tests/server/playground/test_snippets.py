"""The code that the page offers: it runs, streams where it says so, and leaves a file that other tools read."""

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import av
import pytest
import soundfile

from oscine.config import EngineConfig, ServerConfig
from oscine.engine.build import build_engine
from oscine.model.checkpoint import DEMO
from oscine.request import SpeechRequest
from oscine.types import AudioChunk, ClipData, Command, Deliver, EngineStatus, SpeechEngine
from oscine.voice import Voice
from tests.server.browsing import Visit, clip_file
from tests.server.playground.conftest import Opener
from tests.server.playground.snippets import FORMATS, FORMS, run, start
from tests.server.scripted_engine import BASE_CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import eventually

TEXT = """It's "quoted", $HOME, `whoami` \\ 100 %\nand 你好 🙂 </script>."""
SEED = 2**64 - 1  # more digits than a JavaScript number keeps
LONG_TEXT = "A sentence that is long enough for several chunks of sound. " * 2
PADDING_S = {"wav": 0.0, "flac": 0.0, "mp3": 0.15, "opus": 0.05, "aac": 0.15}  # that an encoder may add at both ends


def samples(file: Path) -> bytes:
    return file.read_bytes()[44:]


def duration_s(file: Path) -> float:
    """libsndfile reads no AAC."""
    if file.suffix == ".aac":
        with av.open(file) as opened:
            return sum(frame.samples / frame.sample_rate for frame in opened.decode(audio=0))
    sound, rate_hz = soundfile.read(file)
    return len(sound) / rate_hz


@pytest.mark.parametrize("form", FORMS)
def test_copied_code_runs_and_speaks_as_the_page_is_set(opened: Opener, tmp_path: Path, form: str) -> None:
    # The text arrives as it was typed.
    one = opened(config=ServerConfig(text_level="raw"), permissions=["clipboard-read", "clipboard-write"])
    one.page.fill("#text", TEXT)
    one.page.fill("#seed", str(SEED))
    one.page.fill("#instructions", "whisper, it's late")
    one.choose_voice("finch")
    one.snippet(form)
    one.page.click("#share-copy")
    one.page.wait_for_selector("#share-copy:text('Copied')")
    code = one.page.evaluate("() => navigator.clipboard.readText()")
    run(form, code, tmp_path)
    (request,) = one.engine.requests
    assert (request.text, request.instructions, request.voice) == (TEXT, "whisper, it's late", "finch")
    assert request.seed == SEED
    assert samples(tmp_path / "speech.wav") == spoken(TEXT, SEED, "finch")


@pytest.mark.parametrize("form", FORMS)
def test_copied_code_takes_the_key_from_the_environment(opened: Opener, tmp_path: Path, form: str) -> None:
    one = opened(config=ServerConfig(api_keys=("sesame",)), ready=False)
    one.page.wait_for_selector("#key:focus")
    one.expect("401")
    one.page.keyboard.type("sesame")
    one.page.keyboard.press("Enter")
    one.wait_until_loaded()
    one.page.fill("#seed", "3")
    one.page.fill("#text", "Hello.")
    code = one.snippet(form)
    assert "sesame" not in code
    run(form, code, tmp_path, key="sesame")
    assert samples(tmp_path / "speech.wav") == spoken("Hello.", 3, "wren")


@pytest.mark.parametrize("form", FORMS)
def test_copied_code_sends_the_clip_that_lies_beside_it(opened: Opener, tmp_path: Path, form: str) -> None:
    one = opened(card=BASE_CARD)
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    one.page.fill("#clip-words", "words of the clip")
    one.page.fill("#text", "Hello.")
    run(form, one.snippet(form), tmp_path)
    voice = one.engine.requests[0].voice
    assert isinstance(voice, Voice) and voice.transcript == "words of the clip"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("format", FORMATS)
def test_the_file_has_the_whole_speech_and_grows_while_it_is_generated_where_the_code_says_so(
    one: Visit, tmp_path: Path, form: str, format: str
) -> None:
    one.page.fill("#text", LONG_TEXT)
    one.page.select_option("#format", format)
    code = one.snippet(form)
    streams = "while the speech is generated" in (one.page.text_content("#share-hint") or "")
    assert streams == (format in ("mp3", "opus", "aac") or (format == "wav" and form != "curl"))
    assert ("while it is generated" in code) == (streams and form != "curl")
    file = tmp_path / f"speech.{format}"
    if streams:
        one.engine.max_frames = one.engine.status().frames + len(LONG_TEXT) - 10
        program = start(form, code, tmp_path)
        eventually(lambda: program.poll() is not None or (file.exists() and file.stat().st_size > 1000))
        assert program.poll() is None  # the speech is not complete, and the program waits for the rest
        one.engine.max_frames = math.inf
        assert program.wait(600) == 0
    else:
        run(form, code, tmp_path)
    assert 0 <= duration_s(file) - len(LONG_TEXT) * FRAME_SAMPLES / RATE_HZ <= PADDING_S[format]


class HeldDemo:
    """The demo voice. It holds the chunks after the third one back until `release`."""

    def __init__(self) -> None:
        self._engine = build_engine(DEMO, EngineConfig(slots=1, queue_wait_s=600.0), device="cpu")
        self.card = self._engine.model_config.card("demo")
        self._lock = threading.Lock()
        self._held: list[Callable[[], None]] = []
        self._released = False
        self.samples = 0

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        delivered = 0

        def hold(chunk: AudioChunk) -> None:
            nonlocal delivered
            with self._lock:
                delivered += 1
                self.samples += len(chunk.pcm) // 2
                if delivered > 3 and not self._released:
                    self._held.append(lambda: deliver(chunk))
                else:
                    deliver(chunk)

        await self._engine.submit(utterance_id, request, hold, streaming_text=streaming_text)

    def release(self) -> None:
        with self._lock:
            self._released = True
            for give in self._held:
                give()

    def send(self, utterance_id: str, command: Command) -> None:
        self._engine.send(utterance_id, command)

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        return self._engine.clone(clip, transcript)

    def status(self) -> EngineStatus:
        return self._engine.status()

    def stop(self, drain_s: float = 0.0) -> None:
        self._engine.stop(drain_s)


@pytest.fixture
def demo() -> Iterator[HeldDemo]:
    engine = HeldDemo()
    yield engine
    engine.stop()


@pytest.mark.parametrize(("form", "format"), [("curl", "mp3"), ("python", "wav"), ("javascript", "wav")])
def test_the_first_sound_of_the_demo_voice_is_written_before_its_last(
    demo: HeldDemo, opened: Opener, tmp_path: Path, form: str, format: str
) -> None:
    engine: SpeechEngine = demo
    one = opened(engine=cast(ScriptedEngine, engine), card=demo.card)
    one.page.select_option("#format", format)
    program = start(form, one.snippet(form), tmp_path)
    file = tmp_path / f"speech.{format}"
    eventually(lambda: program.poll() is not None or (file.exists() and file.stat().st_size > 1000))
    assert program.poll() is None
    demo.release()
    assert program.wait(600) == 0
    assert demo.samples > 2 * RATE_HZ
    assert 0 <= duration_s(file) - demo.samples / RATE_HZ <= PADDING_S[format]
