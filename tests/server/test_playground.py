"""The page at `/` in a real browser: what the server makes is what is heard, and everybody can use it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.server.browsing import PLAIN_HOST, Visit, chromium, clip_file, visit
from tests.server.scripted_engine import BASE_CARD, CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import eventually

from oscine.audio import read_clip, wav_header
from oscine.config import ServerConfig
from oscine.types import ClipData, OverloadedError, VoiceError
from oscine.voice import Voice

Opener = Callable[..., Visit]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def shared(browser: Any) -> Iterator[Visit]:
    with visit(browser) as shared:
        yield shared


@pytest.fixture
def one(shared: Visit) -> Iterator[Visit]:
    """A page on a server with preset voices; loaded anew for each test, as it takes half the time of a new one."""
    engine = shared.engine
    engine.frame_s, engine.slots, engine.queue, engine.ready, engine.cancelled = 0.005, 8, 8, True, 0
    shared.page.reload()
    shared.wait_until_loaded()
    engine.submitted.clear()
    yield shared
    shared.check()


@pytest.fixture
def opened(browser: Any) -> Iterator[Opener]:
    """opened(card=..., config=...): a page on a server of its own."""
    with ExitStack() as stack:

        def opener(**options: Any) -> Visit:
            entered: AbstractContextManager[Visit] = visit(browser, **options)
            one = stack.enter_context(entered)
            stack.callback(one.check)
            return one

        yield opener


# --- text to sound --------------------------------------------------------------------------------------------------


def test_every_sample_that_is_made_is_heard_once_and_can_be_saved(one: Visit) -> None:
    one.page.fill("#seed", "3")
    one.page.select_option("#voice", "finch")
    one.speak("Hello.")
    one.wait_for("done")
    expected = spoken("Hello.", 3, "finch")
    stats = one.stats()
    assert stats["samplesReceived"] == stats["samplesPlayed"] == len(expected) // 2 == 6 * FRAME_SAMPLES
    with one.page.expect_download() as download:
        one.page.click("#download")
    assert download.value.suggested_filename == "oscine-hello.wav"
    assert download.value.path().read_bytes() == wav_header(RATE_HZ, len(expected) // 2) + expected
    assert one.page.text_content("#figure-received") == one.page.text_content("#figure-played") == "0.48"
    first_byte, first_sound = (int(one.page.text_content(f"#figure-{name}") or "") for name in ("byte", "sound"))
    assert 0 < first_byte <= first_sound


def test_sound_is_played_while_it_is_made_and_stop_stops_it_here_and_there(one: Visit) -> None:
    one.engine.frame_s = 0.02
    one.speak("word " * 100)
    one.until("window.oscineStats.samplesPlayed > 0")
    assert one.stats()["state"] == "speaking" and one.engine.status().slots_active == 1
    one.page.keyboard.press("Escape")
    one.wait_for("stopped")
    eventually(lambda: one.engine.cancelled == 1)
    one.page.wait_for_selector("#stop:disabled")  # the queue has answered that it is empty
    assert one.stats()["samplesPlayed"] < one.stats()["samplesReceived"]
    # Nothing of it is left in the queue: it would be heard before the next one.
    one.speak("Hi.")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 3 * FRAME_SAMPLES
    assert "stopped" in (one.page.locator("#history li").nth(1).text_content() or "")


def test_a_second_press_replaces_the_first_speech(one: Visit) -> None:
    one.engine.frame_s = 0.02
    one.speak("word " * 100)
    one.until("window.oscineStats.samplesPlayed > 0")
    one.speak("Hi.")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 3 * FRAME_SAMPLES
    eventually(lambda: one.engine.cancelled == 1)


def test_history_plays_again_what_was_heard(one: Visit) -> None:
    for text in ("One.", "Seven."):
        one.speak(text)
        one.wait_for("done")
    assert one.page.locator("#history .said").all_text_contents() == ["Seven.", "One."]
    one.page.click("text=Replay >> nth=-1")
    one.until("window.oscineStats.samplesReceived === 7680")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 4 * FRAME_SAMPLES
    assert len(one.engine.submitted) == 2


def test_another_format_is_the_same_sound(one: Visit) -> None:
    one.speak("Hello.")
    one.wait_for("done")
    one.page.select_option("#format", "flac")
    with one.page.expect_download() as download:
        one.page.click("#download")
    first, second = one.engine.submitted
    assert first.seed == second.seed
    assert first.seed is not None and first.seed > 2**53  # more than a JavaScript number holds
    samples = read_clip(download.value.path().read_bytes()).samples
    assert np.rint(samples * 32768).astype("<i2").tobytes() == spoken("Hello.", first.seed, "wren")


def test_fields_reach_the_engine_as_they_were_set(one: Visit) -> None:
    one.page.fill("#seed", str(2**64 - 1))
    one.page.fill("#instructions", "whisper")
    one.page.select_option("#language", "chinese")
    one.page.focus("#speed")
    one.page.keyboard.press("End")
    one.speak("你好")
    one.wait_for("done")
    (request,) = one.engine.submitted
    assert (request.seed, request.instruct, request.language) == (2**64 - 1, "whisper", "chinese")
    assert one.page.text_content("#speed-value") == "4×"
    assert one.stats()["samplesPlayed"] == pytest.approx(2 * FRAME_SAMPLES / 4, abs=FRAME_SAMPLES / 4)


def test_without_a_worklet_the_page_plays_the_same_samples(opened: Opener) -> None:
    one = opened(host=PLAIN_HOST, card=BASE_CARD)
    assert one.page.evaluate("window.isSecureContext") is False
    assert one.page.is_disabled("#record")
    one.page.set_input_files("#clip-file", files=[{"name": "a.wav", "mimeType": "audio/wav", "buffer": b"RIFF"}])
    one.speak("Hello.")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 6 * FRAME_SAMPLES
    one.complaints[:] = [text for text in one.complaints if "ScriptProcessorNode is deprecated" not in text]


QUEUE_PLAYS = """async ([blocks, quantum]) => {
  const { SampleQueue } = await import("./playground/worklet.js");
  const events = [], heard = [];
  const queue = new SampleQueue(1000, (event) => events.push(event));
  const output = new Float32Array(quantum);
  const turn = () => { queue.fill(output); heard.push(...output.map((sample) => sample * 32768)); };
  queue.obey({ type: "begin", id: 1 });
  queue.obey({ type: "begin", id: 2 });
  for (const [id, first, count, turns] of blocks) {
    const samples = Int16Array.from({ length: count }, (_, i) => first + i);
    if (count) queue.obey({ type: "push", id, samples });
    else queue.obey({ type: "end", id });
    for (let i = 0; i < turns; i++) turn();
  }
  for (let i = 0; i < 1e5 && events.filter((event) => event.type === "end").length < 2; i++) turn();
  return [heard.filter((sample) => sample !== 0), events.filter((event) => event.type !== "progress")];
}"""


def test_the_queue_plays_any_pieces_once_and_in_order(one: Visit) -> None:
    page = one.page
    draw = np.random.default_rng(0)
    for _ in range(20):
        blocks, first = [], 1
        for track in (1, 2):
            for _ in range(draw.integers(1, 8)):
                count = int(draw.integers(1, 400))
                blocks.append([track, first, count, int(draw.integers(0, 6))])
                first += count
            blocks.append([track, 0, 0, 0])
        heard, events = page.evaluate(QUEUE_PLAYS, [blocks, int(draw.integers(1, 256))])
        assert heard == list(range(1, first))
        assert [event["id"] for event in events if event["type"] == "end"] == [1, 2]


def test_a_gap_is_counted_where_sound_was_torn_and_not_before_the_end(one: Visit) -> None:
    page = one.page
    torn = [[1, 1, 300, 20], [1, 301, 300, 20], [1, 0, 0, 0], [2, 0, 0, 0]]
    _, events = page.evaluate(QUEUE_PLAYS, [torn, 100])
    kinds = [(event["type"], event["id"]) for event in events]
    assert kinds == [("start", 1), ("dry", 1), ("gap", 1), ("dry", 1), ("end", 1), ("end", 2)]
    assert events[2]["at"] == 300 and events[2]["silentSamples"] == 17 * 100


# --- voices ---------------------------------------------------------------------------------------------------------


def test_a_clip_is_spoken_with_then_saved_then_deleted(opened: Opener, tmp_path: Path) -> None:
    one = opened(card=BASE_CARD)
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    one.page.fill("#clip-words", "words of the clip")
    one.speak("Hi.")
    one.wait_for("done")
    voice = one.engine.submitted[-1].voice
    assert isinstance(voice, Voice) and voice.transcript == "words of the clip"

    one.page.click("summary")
    one.page.fill("#voice-name", "Anna")
    one.page.fill("#consent", "Anna herself, on paper")
    one.page.press("#consent", "Enter")
    one.page.wait_for_selector("#voice-delete:visible")
    assert one.page.input_value("#voice") == "anna"
    assert one.page.is_hidden("#clip-card")
    one.speak("Hello.")
    one.until("window.oscineStats.samplesPlayed === 11520")
    assert one.engine.submitted[-1].voice == voice and one.engine.clones == 1

    one.page.click("#voice-delete")
    one.page.click("text=Really delete?")
    one.page.wait_for_selector("#clip-card:visible")
    assert one.page.locator("#voice option").all_text_contents() == ["From a clip"]


def test_a_recorded_clip_is_audio_that_we_can_read(opened: Opener) -> None:
    engine, clips = ScriptedEngine(), []

    def clone(clip: ClipData, transcript: str | None = None) -> Voice:
        clips.append(clip)
        return Voice(np.ones(8, np.float32))

    engine.clone = clone  # type: ignore[method-assign]
    one = opened(card=BASE_CARD, engine=engine)
    one.page.click("#record")
    one.page.wait_for_selector("#record[aria-pressed=true]")
    one.until("document.getElementById('record').textContent.includes('(1 s)')")
    one.page.click("#record")
    one.page.wait_for_selector("#clip-chosen:visible")
    one.speak("Hi.")
    one.wait_for("done")
    (clip,) = clips
    assert read_clip(clip).duration_s > 0.3


def test_fields_follow_what_the_model_can_do(one: Visit, opened: Opener) -> None:
    assert one.page.is_visible("#instructions") and one.page.is_hidden("#clip-card")
    assert one.page.locator("#voice option").all_text_contents() == ["Wren", "Finch"]
    assert one.page.locator("#language option").all_text_contents() == ["Detect", "English", "Chinese"]
    designed = opened(card=replace(CARD, kind="voice_design", speakers=()))
    assert designed.page.is_hidden("#voice") and designed.page.is_hidden("#clip-card")
    designed.page.fill("#instructions", "an old man")
    designed.speak("Hi.")
    designed.wait_for("done")
    assert designed.engine.submitted[0].instruct == "an old man"


# --- typing ---------------------------------------------------------------------------------------------------------


def test_words_are_spoken_while_they_are_typed(one: Visit) -> None:
    one.page.check("[name=mode][value=live]")
    one.page.focus("#live-line")
    one.page.keyboard.type("Hi yo")
    one.page.wait_for_selector("text=Waiting for more text")
    assert one.stats()["samplesPlayed"] >= 2 * FRAME_SAMPLES  # "Hi", before the rest is typed
    assert one.page.input_value("#live-line") == "yo"
    one.page.keyboard.type("u")
    one.page.keyboard.press("Enter")
    one.wait_for("done")
    seed = one.engine.submitted[0].seed or 0
    expected = spoken("Hi you", seed, "wren")
    stats = one.stats()
    assert stats["samplesPlayed"] == stats["samplesReceived"] == len(expected) // 2
    assert stats["pauses"] >= 1  # it waited for the typist, not for the server
    with one.page.expect_download() as download:
        one.page.click("#download")
    assert download.value.path().read_bytes()[44:] == expected


def test_escape_interrupts_and_the_next_words_begin_anew(one: Visit) -> None:
    one.engine.frame_s = 0.04
    one.page.check("[name=mode][value=live]")
    one.page.focus("#live-line")
    one.page.keyboard.insert_text("this will be interrupted soon after its beginning and long before its end is heard ")
    one.until("window.oscineStats.samplesPlayed > 0")
    one.page.keyboard.press("Escape")
    one.wait_for("stopped")
    eventually(lambda: one.engine.cancelled == 1)
    one.page.wait_for_selector(".typed[data-state=cancelled] s")  # what was not heard is struck out
    one.page.keyboard.type("Next")
    one.page.keyboard.press("Enter")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 4 * FRAME_SAMPLES


def test_a_refused_utterance_is_told_and_the_next_one_is_spoken(one: Visit) -> None:
    one.page.check("[name=mode][value=live]")
    one.page.fill("#live-line", "!refuse this ")
    one.page.wait_for_selector("#notice:visible")
    assert one.page.text_content("#notice-text") == "this text is refused"
    one.page.wait_for_selector(".typed[data-state=failed]")
    one.page.fill("#live-line", "Hi")
    one.page.press("#live-line", "Enter")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 2 * FRAME_SAMPLES


def test_a_clip_that_cannot_be_used_is_told_before_another_voice_speaks(opened: Opener, tmp_path: Path) -> None:
    engine = ScriptedEngine(frame_s=0.04)

    def clone(clip: ClipData, transcript: str | None = None) -> Voice:
        raise VoiceError("the clip holds no voice", "ref_audio")

    engine.clone = clone  # type: ignore[method-assign]
    one = opened(card=BASE_CARD, engine=engine)
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    one.page.check("[name=mode][value=live]")
    one.page.fill("#live-line", "Hello there ")
    one.page.wait_for_selector("#notice:visible")
    assert one.page.text_content("#notice-text") == "the clip holds no voice"
    assert one.page.get_attribute("#clip-file", "aria-invalid") == "true"
    one.wait_for("failed")


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_refusal_is_shown_in_the_servers_words_beside_its_field(one: Visit) -> None:
    one.speak("!refuse")
    one.page.wait_for_selector("#notice:visible")
    assert one.page.text_content("#notice-text") == "this text is refused"
    assert "Request " in (one.page.text_content("#notice-detail") or "")
    assert one.page.get_attribute("#text", "aria-invalid") == "true"
    one.wait_for("failed")
    one.expect("400")
    one.speak("Hi.")
    one.wait_for("done")
    assert one.page.is_hidden("#notice") and one.page.get_attribute("#text", "aria-invalid") is None


def test_a_full_server_says_when_to_come_back(one: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise OverloadedError("all slots are taken", retry_after_s=0.9)

    monkeypatch.setattr(one.engine, "submit", refuse)
    one.speak("Hi.")
    button = one.page.locator("#notice-retry")
    button.wait_for()
    assert button.text_content() == "Try again in 1 s" and button.is_disabled()
    one.expect("429")
    monkeypatch.undo()
    button.and_(one.page.locator(":enabled")).click()
    one.wait_for("done")


def test_a_stream_that_breaks_is_told_and_what_came_is_heard(one: Visit) -> None:
    one.engine.frame_s = 0.04  # the browser forgets what comes together with the break
    one.speak("Hello!break")
    one.wait_for("failed")
    assert "broke off" in (one.page.text_content("#notice-text") or "")
    one.until("window.oscineStats.samplesPlayed === window.oscineStats.samplesReceived")
    assert 0 < one.stats()["samplesPlayed"] <= 5 * FRAME_SAMPLES
    one.expect("ERR_INCOMPLETE_CHUNKED_ENCODING")


def test_a_key_is_asked_for_and_kept_in_the_tab_only(opened: Opener) -> None:
    one = opened(config=ServerConfig(api_keys=("sesame",)), ready=False)
    one.page.wait_for_selector("#key:focus")
    one.expect("401")
    one.page.keyboard.type("sesame")
    one.page.keyboard.press("Enter")
    one.wait_until_loaded()
    one.speak("Hi.")
    one.wait_for("done")
    one.page.check("[name=mode][value=live]")
    one.page.fill("#live-line", "Hello ")
    one.page.press("#live-line", "Enter")
    one.until("window.oscineStats.samplesPlayed === 6 * 1920")
    kept = one.page.evaluate(
        "[JSON.stringify({...localStorage}), JSON.stringify({...sessionStorage}), document.cookie]"
    )
    assert ["sesame" in store for store in kept] == [False, True, False]


def test_the_page_waits_for_a_server_that_starts(one: Visit) -> None:
    one.engine.ready = False
    one.page.reload()
    one.page.wait_for_selector("#server-state[data-state=starting]")
    one.engine.ready = True
    one.page.wait_for_selector("#server-state[data-state=ready]")
    one.wait_until_loaded()
    one.complaints[:] = [text for text in one.complaints if "503" not in text]
