"""The player of the playground: its queue, and seeking in the waveform."""

import numpy as np

from tests.server.browsing import Visit
from tests.server.scripted_engine import FRAME_SAMPLES, RATE_HZ

QUEUE_PLAYS = """async ([blocks, quantum]) => {
  const { SampleQueue } = await import("./playground/worklet.js");
  const events = [], played = [];
  const queue = new SampleQueue(1000, (event) => events.push(event));
  const output = new Float32Array(quantum);
  const turn = () => { queue.fill(output); played.push(...output.map((sample) => sample * 32768)); };
  queue.handle({ type: "begin", id: 1 });
  queue.handle({ type: "begin", id: 2 });
  for (const [id, first, count, turns] of blocks) {
    const samples = Int16Array.from({ length: count }, (_, i) => first + i);
    if (count) queue.handle({ type: "push", id, samples });
    else queue.handle({ type: "end", id });
    for (let i = 0; i < turns; i++) turn();
  }
  for (let i = 0; i < 1e5 && events.filter((event) => event.type === "end").length < 2; i++) turn();
  return [played.filter((sample) => sample !== 0), events.filter((event) => event.type !== "progress")];
}"""


def test_the_queue_plays_all_blocks_once_and_in_order(one: Visit) -> None:
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
        played, events = page.evaluate(QUEUE_PLAYS, [blocks, int(draw.integers(1, 256))])
        assert played == list(range(1, first))
        assert [event["id"] for event in events if event["type"] == "end"] == [1, 2]


def test_a_gap_is_counted_within_the_audio_but_not_before_its_end(one: Visit) -> None:
    page = one.page
    torn = [[1, 1, 300, 20], [1, 301, 300, 20], [1, 0, 0, 0], [2, 0, 0, 0]]
    _, events = page.evaluate(QUEUE_PLAYS, [torn, 100])
    kinds = [(event["type"], event["id"]) for event in events]
    assert kinds == [("start", 1), ("dry", 1), ("gap", 1), ("dry", 1), ("end", 1), ("end", 2)]
    assert events[2]["at"] == 300 and events[2]["silentSamples"] == 17 * 100


def test_a_click_in_the_waveform_plays_from_there(one: Visit) -> None:
    one.speak("A sentence of thirty letters.")
    one.wait_for("done")
    received = one.stats()["samplesReceived"]
    wave = one.page.locator("#wave")
    box = wave.bounding_box()
    assert box
    place_s = 1.2  # the waveform shows 6 s, as the sound is shorter
    one.page.mouse.click(box["x"] + box["width"] * place_s / 6, box["y"] + box["height"] / 2)
    one.until("window.oscineStats.state === 'playing'")
    assert one.stats()["samplesPlayed"] >= 0.99 * place_s * RATE_HZ
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == received == one.stats()["samplesReceived"]
    assert len(one.engine.requests) == 1
    assert one.page.locator("#history li").count() == 1
    one.page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 5)  # behind the end
    assert one.stats()["state"] == "done"


def test_the_keyboard_seeks_too_and_the_position_is_announced(one: Visit) -> None:
    one.speak("A sentence of thirty letters.")
    one.wait_for("done")
    assert one.page.get_attribute("#wave", "aria-valuetext") == "2.3 of 2.3 seconds"
    one.page.focus("#wave")
    one.page.keyboard.press("ArrowLeft")
    one.wait_for("playing")
    assert one.stats()["samplesPlayed"] >= 29 * FRAME_SAMPLES - RATE_HZ
    one.wait_for("done")
    one.page.keyboard.press("Home")
    one.wait_for("playing")
    assert one.stats()["samplesPlayed"] < RATE_HZ
    one.page.keyboard.press("Escape")
    one.wait_for("stopped")


def test_seeking_while_audio_still_arrives_loses_nothing(one: Visit) -> None:
    one.engine.frame_s = 0.03
    one.speak("A sentence of thirty letters, " * 2)
    one.until("window.oscineStats.samplesPlayed > 24000")
    one.page.focus("#wave")
    one.page.keyboard.press("Home")
    one.until("window.oscineStats.samplesPlayed < 20000")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == one.stats()["samplesReceived"] == 60 * FRAME_SAMPLES
