"""Lines that begin with the name of a voice are a dialogue on the playground."""

from tests.server.browsing import Visit
from tests.server.scripted_engine import FRAME_SAMPLES, RATE_HZ

LINES = "Wren: Hello.\n\n finch : What time is it? 5:30?"


def test_lines_of_voices_are_spoken_as_turns(one: Visit) -> None:
    one.page.fill("#seed", "3")
    one.speak(LINES)
    one.wait_for("done")
    asked = [(request.voice, request.text) for request in one.engine.requests]
    assert asked == [("wren", "Hello."), ("finch", "What time is it? 5:30?")]
    assert one.stats()["samplesPlayed"] == sum(len(text) for _, text in asked) * FRAME_SAMPLES
    assert (one.page.text_content("#count") or "").startswith("2 turns, ")


def test_a_pause_and_instructions_stand_in_brackets(one: Visit) -> None:
    one.engine.requests.clear()
    one.page.fill("#seed", "3")
    one.speak("Wren: Hello.\nFinch (0.5 s, Whisper softly.): Hi.\nwren (Calmly.): Yes.\nfinch(0.25s): No.")
    one.wait_for("done")
    asked = [(request.voice, request.text, request.instructions) for request in one.engine.requests]
    assert asked == [
        ("wren", "Hello.", None),
        ("finch", "Hi.", "Whisper softly."),
        ("wren", "Yes.", "Calmly."),
        ("finch", "No.", None),
    ]
    spoken = sum(len(text) for _, text, _ in asked) * FRAME_SAMPLES
    assert one.stats()["samplesPlayed"] == spoken + round(0.75 * RATE_HZ)


def test_a_text_with_colons_is_no_dialogue(one: Visit) -> None:
    for text in ("Wren: Hello.", "Wren: Hello.\nNobody: Hi.", "Wren: Hello.\nfinch says hi."):
        one.engine.requests.clear()
        one.speak(text)
        one.wait_for("done")
        assert {request.voice for request in one.engine.requests} == {"wren"}
        assert "turns" not in (one.page.text_content("#count") or "")
