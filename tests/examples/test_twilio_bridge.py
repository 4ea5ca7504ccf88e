"""The bridge to Twilio, called by a scripted caller: plays what arrives at the pace of a phone, and interrupts."""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.docs.live_server import ROOT, demo_server, environment

pytestmark = pytest.mark.slow

SILENCE, SHOUT = b"\xff" * 160, b"\x80\x00" * 80  # 20 ms of mu-law
SID = "MZ1"


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    with demo_server(tmp_path_factory.mktemp("server")) as url:
        command = [sys.executable, str(ROOT / "examples" / "twilio_bridge.py"), url, "0"]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            port = re.search(r"\d+$", process.stdout.readline().strip())
            assert port
            yield f"ws://127.0.0.1:{port[0]}", process
            process.terminate()


class Phone:
    """Twilio's side of a call. Plays nothing by itself: a test decides how far the caller has heard."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.queue: list[dict[str, Any]] = []  # media and marks that are not played yet
        self.heard = b""
        self.packets: list[int] = []  # bytes of each that was played
        socket.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
        about = {"streamSid": SID, "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}}
        socket.send(json.dumps({"event": "start", "start": about, "streamSid": SID}))

    def say(self, mulaw: bytes, packets: int) -> None:
        for _ in range(packets):
            media = {"track": "inbound", "payload": base64.b64encode(mulaw).decode()}
            self._socket.send(json.dumps({"event": "media", "streamSid": SID, "media": media}))

    def receive(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self._socket.recv(timeout=600))
        assert event["streamSid"] == SID
        if event["event"] != "clear":
            self.queue.append(event)
        return event

    def play(self, milliseconds: int | None = None) -> None:
        """Plays this much, or to the mark of the end; each mark that is reached is sent back."""
        end = None if milliseconds is None else len(self.heard) + 8 * milliseconds
        while end is None or len(self.heard) < end:
            if not self.queue:
                self.receive()
            event = self.queue.pop(0)
            if event["event"] == "media":
                packet = base64.b64decode(event["media"]["payload"])
                self.heard += packet
                self.packets.append(len(packet))
            else:
                self._return(event)
                if event["mark"]["name"].endswith(":end"):
                    return

    def drop_all(self) -> None:
        """Audio that was cleared is never played, and its marks come back at once."""
        while self.receive()["event"] != "clear":
            pass
        for event in self.queue:
            if event["event"] == "mark":
                self._return(event)
        self.queue.clear()

    def _return(self, event: dict[str, Any]) -> None:
        self._socket.send(json.dumps({"event": "mark", "streamSid": SID, "mark": event["mark"]}))


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def test_a_caller_hears_everything_in_packets_of_20_ms(bridge: tuple[str, "subprocess.Popen[str]"]) -> None:
    url, process = bridge
    with connect(url) as socket:
        phone = Phone(socket)
        phone.play()
        assert line(process) == "the caller heard everything"
        assert 1 < len(phone.heard) / 8000 < 10 and len(set(phone.heard)) > 50  # seconds; no silence
        assert set(phone.packets[:-1]) == {160}
        phone.say(SILENCE, 25)  # the caller has nothing to say: the bridge takes the next turn
        assert phone.receive()["event"] == "media"


def test_an_interruption_stops_the_voice_and_tells_the_words_that_were_heard(
    bridge: tuple[str, "subprocess.Popen[str]"],
) -> None:
    url, process = bridge
    with connect(url) as socket:
        phone = Phone(socket)
        phone.play(1200)
        phone.say(SHOUT, 5)
        phone.drop_all()
        heard = re.fullmatch(r"interrupted; the caller heard: '(.*)'", line(process))
        assert heard and "Welcome" in heard[1] and "two" not in heard[1]
        phone.say(SILENCE, 25)
        phone.play()
        assert line(process) == "the caller heard everything"
