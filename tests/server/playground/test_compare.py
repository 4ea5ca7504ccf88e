"""Comparing two voices or two seeds side by side."""

import pytest

from oscine.config import ServerConfig
from tests.server.browsing import Visit
from tests.server.playground.conftest import Opener
from tests.server.scripted_engine import FRAME_SAMPLES, ScriptedEngine, spoken
from tests.server.serving import eventually


def compared_done(one: Visit) -> None:
    one.until("window.oscineStats.compared.every(({ state }) => state === 'done')")


def test_two_voices_speak_the_same_text_one_after_the_other(one: Visit) -> None:
    one.choose_mode("compare")
    assert one.page.input_value("#compare-voice-a") == "wren" and one.page.input_value("#compare-voice-b") == "finch"
    for side, seed in (("a", "3"), ("b", "4")):
        one.page.fill(f"#compare-seed-{side}", seed)
    one.page.fill("#text", "Hello.")
    one.page.click("#speak")
    compared_done(one)
    sides = one.stats()["compared"]
    assert [side["samplesPlayed"] for side in sides] == [6 * FRAME_SAMPLES] * 2
    assert {(request.voice, request.seed) for request in one.engine.requests} == {("wren", 3), ("finch", 4)}
    assert "seed 3" in (one.page.text_content("#compare-state-a") or "")
    assert one.page.locator("#history li").count() == 2
    with one.page.expect_download() as download:
        one.page.click("#history li >> nth=0 >> text=WAV")
    assert download.value.path().read_bytes()[44:] == spoken("Hello.", 4, "finch")


def test_one_voice_with_random_seeds_gives_two_versions(one: Visit) -> None:
    one.choose_mode("compare")
    one.page.select_option("#compare-voice-b", "wren")
    one.page.fill("#text", "Hello.")
    one.page.keyboard.press("Control+Enter")
    compared_done(one)
    first, second = one.engine.requests
    assert first.voice == second.voice == "wren" and first.seed != second.seed


def test_each_side_is_played_again_alone(one: Visit) -> None:
    one.choose_mode("compare")
    one.page.fill("#text", "A sentence of thirty letters.")
    one.page.click("#speak")
    one.until("window.oscineStats.compared[0].samplesPlayed > 0")
    one.page.click("#compare-play-b")  # while A plays, and B may still be arriving
    one.until("window.oscineStats.compared[1].samplesPlayed > 0")
    compared_done(one)
    sides = one.stats()["compared"]
    assert sides[1]["samplesPlayed"] == sides[0]["samplesReceived"] == 29 * FRAME_SAMPLES
    one.page.focus("#compare-wave-a")
    one.page.keyboard.press("Home")
    one.until("window.oscineStats.compared[0].state === 'playing'")
    compared_done(one)
    assert one.stats()["compared"][0]["samplesPlayed"] == 29 * FRAME_SAMPLES
    assert len(one.engine.requests) == 2


@pytest.mark.parametrize("config", [ServerConfig(streams_per_key=1), ServerConfig()])
def test_a_server_that_runs_one_stream_at_a_time_speaks_both_sides(opened: Opener, config: ServerConfig) -> None:
    engine = ScriptedEngine(frame_s=0.005)
    if config.streams_per_key is None:
        engine.slots, engine.queue = 1, 0
    one = opened(engine=engine, config=config)
    one.choose_mode("compare")
    one.page.fill("#text", "Hello.")
    one.page.click("#speak")
    compared_done(one)
    assert [side["samplesPlayed"] for side in one.stats()["compared"]] == [6 * FRAME_SAMPLES] * 2
    assert [request.voice for request in engine.requests] == ["wren", "finch"] and one.page.is_hidden("#notice")


def test_a_failure_of_one_side_does_not_stop_the_other(one: Visit) -> None:
    refusal = {"error": {"message": "the server is full", "type": "rate_limit", "param": None, "code": "overloaded"}}
    one.page.route("**/v1/audio/speech", lambda route: route.fulfill(status=429, json=refusal), times=1)
    one.choose_mode("compare")
    one.page.fill("#text", "Hello.")
    one.page.click("#speak")
    one.page.wait_for_selector("#notice:visible")
    one.until("window.oscineStats.compared.map(({ state }) => state).join() === 'failed,done'")
    one.expect("429")


def test_stop_during_one_side_leaves_the_other_unspoken(one: Visit) -> None:
    one.engine.frame_s = 0.02
    one.choose_mode("compare")
    one.page.fill("#text", "word " * 60)
    one.page.click("#speak")
    one.until("window.oscineStats.compared[0].samplesPlayed > 0")
    one.page.keyboard.press("Escape")
    one.until("window.oscineStats.compared[0].state === 'stopped'")
    eventually(lambda: one.engine.cancelled == 1)
    assert len(one.engine.requests) == 1 and one.page.is_hidden("#notice")
