"""The SDK of Qwen's cloud, whose realtime class gets our URL. `how` names the kind of session: one of the functions
below."""

import base64
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dashscope
from cases import Answer, Case, cases, raised, report
from dashscope.audio.qwen_tts_realtime import QwenTtsRealtime, QwenTtsRealtimeCallback

WAIT_S = 600


class Listener(QwenTtsRealtimeCallback):
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.closed = False
        self.close_code: int | None = None  # some connections are closed without one
        self._changed = threading.Condition()

    def on_event(self, message: Any) -> None:
        with self._changed:
            self.events.append(message)
            self._changed.notify_all()

    def on_close(self, close_status_code: int | None, close_msg: str | None) -> None:
        with self._changed:
            self.closed, self.close_code = True, close_status_code
            self._changed.notify_all()

    def wait_for(self, kind: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.closed or self._count(kind) >= times, WAIT_S), f"no {kind}"
            assert self._count(kind) >= times, f"closed before {kind}: {self.events} {self.errors}"

    def wait_for_close(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.closed, WAIT_S), "not closed"

    def _count(self, kind: str) -> int:
        return sum(event["type"] == kind for event in self.events)

    def answer(self, session: QwenTtsRealtime) -> Answer:
        deltas = [event["delta"] for event in self.events if event["type"] == "response.audio.delta"]
        return {
            "audio": b"".join(map(base64.b64decode, deltas)),
            "events": [event for event in self.events if "delta" not in event],
            "close_code": self.close_code,
            "errors": self.errors,
            "session_id": session.get_session_id(),
            "response_id": session.get_last_response_id(),
        }


def _session(case: Case, listener: Listener) -> QwenTtsRealtime:
    url = case["url"].replace("http", "ws") + "/api-ws/v1/realtime"
    session = QwenTtsRealtime(model="qwen3-tts-flash-realtime", callback=listener, url=url)
    session.on_error = lambda _, error: listener.errors.append(repr(error))  # the SDK only logs them
    session.apikey = case.get("key", "any")  # `dashscope.api_key` is the same for all sessions
    return session


def patient(connect: Callable[[QwenTtsRealtime], None]) -> Callable[[QwenTtsRealtime], None]:
    """`connect` gives up after 5 s, too early on a busy machine. Its thread goes on until the connection is closed."""

    def connect_or_wait(session: QwenTtsRealtime) -> None:
        with contextlib.suppress(TimeoutError, AttributeError):  # AttributeError: it was closed while `connect` looked
            connect(session)
        while session.thread.is_alive() and not ((socket := session.ws.sock) and socket.connected):
            time.sleep(0.1)

    return connect_or_wait


@contextlib.contextmanager
def connected(case: Case) -> Iterator[tuple[QwenTtsRealtime, Listener]]:
    listener = Listener()
    session = _session(case, listener)
    session.connect()
    try:
        yield session, listener
    finally:
        session.close()


def server_commit(case: Case) -> Answer:
    """Text in pieces, as from a language model, and no commit."""
    with connected(case) as (session, listener):
        session.update_session(mode="server_commit", **case["fields"])
        for start in range(0, len(case["text"]), 4):
            session.append_text(case["text"][start : start + 4])
        session.finish()
        listener.wait_for("session.finished")
        listener.wait_for_close()
        return listener.answer(session)


def commit(case: Case) -> Answer:
    """Several commits on one connection; each is waited for."""
    with connected(case) as (session, listener):
        session.update_session(mode="commit", **case["fields"])
        for number, text in enumerate(case["texts"], 1):
            session.append_text("This is dropped.")
            session.clear_appended_text()
            session.append_text(text)
            session.commit()
            listener.wait_for("response.done", number)
        session.finish()
        listener.wait_for_close()
        return listener.answer(session)


def cancel(case: Case) -> Answer:
    with connected(case) as (session, listener):
        session.update_session(**case["fields"])
        session.append_text(case["text"])
        listener.wait_for("response.audio.delta")
        session.cancel_response()
        listener.wait_for("response.done")
        return listener.answer(session)


def http(case: Case) -> Answer:
    """The call without a WebSocket. With `stream` it returns chunks of PCM."""
    dashscope.base_http_api_url = case["url"] + "/api/v1"
    got = dashscope.MultiModalConversation.call(api_key="any", **case["fields"])
    answers = list(got) if case["fields"].get("stream") else [got]
    if answers[-1].status_code != 200:
        return {"status": answers[-1].status_code, "code": answers[-1].code, "message": answers[-1].message}
    audio = [answer.output.audio for answer in answers]
    last = answers[-1]
    return {
        "audio": b"".join(base64.b64decode(one.data) for one in audio),
        "url": audio[-1].url,
        "finish_reason": last.output.finish_reason,
        "usage": {"characters": last.usage.characters, "output_tokens": last.usage.output_tokens},
        "request_id": last.request_id,
    }


def synthesizer(case: Case) -> Answer:
    """The older name of the call."""
    dashscope.base_http_api_url = case["url"] + "/api/v1"
    got = dashscope.audio.qwen_tts.SpeechSynthesizer.call(api_key="any", **case["fields"])
    return {"url": got.output.audio["url"]}


def http_client(case: Case) -> Answer:
    """The client of SDK version 2: the whole file, and a stream."""
    speech = dashscope.Client(api_key="any", base_url=case["url"] + "/api/v1", max_retries=0).audio.tts.http
    url = speech.synthesize(**case["fields"], format="flac").audio_url
    chunks = list(speech.stream(**case["fields"]))
    return {"url": url, "audio": b"".join(chunk.audio or b"" for chunk in chunks), "final": chunks[-1].is_final}


def refused_settings(case: Case) -> Answer:
    with connected(case) as (session, listener):
        session.update_session(**case["fields"])
        listener.wait_for("error")
        return listener.answer(session)


def refused_connection(case: Case) -> Answer:
    """The server closes the connection at once."""
    listener = Listener()
    session = _session(case, listener)
    session.connect()
    listener.wait_for_close()
    return listener.answer(session)


def pasted(case: Case) -> Answer:
    """A program of the documentation, which writes one file."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(case["code"], {})
        (file,) = Path(folder).iterdir()
        return {"audio": file.read_bytes()}


def speak(case: Case) -> Answer:
    try:
        answer: Answer = globals()[case["how"]](case)
        return answer
    except Exception as error:
        return raised(error)


def main() -> None:
    dashscope.api_key = "any"
    QwenTtsRealtime.connect = patient(QwenTtsRealtime.connect)
    asked = cases()
    with ThreadPoolExecutor(8) as pool:
        report(dict(zip(asked, pool.map(speak, asked.values()), strict=True)))


if __name__ == "__main__":
    main()
