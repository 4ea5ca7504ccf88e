"""The worker's server, in this process, with a front end that stops reading."""

import contextlib
import queue
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

from oscine.engine.remote import messages as wire
from oscine.engine.remote.transport import Transport
from oscine.engine.remote.worker import EngineServer
from oscine.errors import OverloadedError
from oscine.request import SpeechRequest
from oscine.types import AudioChunk
from tests.engine.recorder import WAIT_S, wait_until
from tests.engine.remote.fake_engine import CHUNK_SAMPLES, FakeConfig, FakeEngine
from tests.engine.remote.helpers import LONG
from tests.garbage import garbage_of


@contextlib.contextmanager
def serving(engine: FakeEngine, max_unsent_bytes: int) -> Iterator[socket.socket]:
    """Yields the front end's socket."""
    ours, theirs = socket.socketpair()
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    transport = Transport(theirs, inbox.put, lambda: inbox.put(None))
    server = EngineServer(transport, inbox, max_unsent_bytes=max_unsent_bytes)
    thread = threading.Thread(target=server.serve, args=(lambda progress: engine,), daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join(WAIT_S)
        transport.close()
        engine.stop()
        assert not thread.is_alive()


def frame(message: wire.ToWorker) -> bytes:
    packed = wire.encode(message)
    return len(packed).to_bytes(8, "little") + packed


def submit(utterance_id: str, text: str) -> bytes:
    return frame(wire.Submit.of(utterance_id, SpeechRequest(text=text), streaming_text=False))


def test_a_front_end_that_does_not_read_never_blocks_the_engine() -> None:
    """Unsent audio is bounded; beyond the bound every utterance ends. Each arrives without a gap and with an end."""
    engine = FakeEngine(FakeConfig(tick_s=0.0))
    chunks: dict[str, list[AudioChunk]] = defaultdict(list)

    with serving(engine, max_unsent_bytes=9999) as front_end:
        stream = front_end.makefile("rb")

        def read_until_ended(*utterance_ids: str) -> None:
            while not all(one in chunks and chunks[one][-1].finish_reason for one in utterance_ids):
                message = wire.decode_from_worker(stream.read(int.from_bytes(stream.read(8), "little")))
                if isinstance(message, wire.Chunk):
                    chunks[message.utterance_id].append(message.chunk)

        front_end.settimeout(WAIT_S)
        slow = [str(number) for number in range(4)]
        front_end.sendall(b"".join(submit(utterance_id, LONG) for utterance_id in slow))
        wait_until(lambda: len(engine.commands) == 4 and engine.status().slots_active == 0)  # cancelled, not blocked
        read_until_ended(*slow)
        front_end.sendall(submit("later", "say 1"))
        read_until_ended("later")
        stream.close()
    assert [chunks[one][-1].finish_reason for one in slow] == ["error"] * 4
    assert [chunk.finish_reason for chunk in chunks["later"]] == [None, "stop"]
    for one in chunks.values():
        assert [chunk.first_sample for chunk in one] == [CHUNK_SAMPLES * index for index in range(len(one))]
        assert [chunk.finish_reason is None for chunk in one] == [True] * (len(one) - 1) + [False]


class RecordingTransport:
    """Notes what is sent at once and what is left to the writing thread."""

    unsent_bytes = 0

    def __init__(self) -> None:
        self.on_message: Callable[[bytes], None] = lambda packed: None
        self.sent: list[tuple[str, wire.FromWorker]] = []

    def send(self, packed: bytes, *, overtake: bool = False) -> None:
        self.sent.append(("overtakes" if overtake else "at once", wire.decode_from_worker(packed)))

    def post(self, packed: bytes) -> None:
        self.sent.append(("waits", wire.decode_from_worker(packed)))


def test_only_the_first_chunk_of_an_utterance_overtakes_others() -> None:
    engine, transport = FakeEngine(FakeConfig(tick_s=0.0)), RecordingTransport()
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    server = EngineServer(transport, inbox)  # type: ignore[arg-type]
    serving = threading.Thread(target=server.serve, args=(lambda progress: engine,))
    serving.start()
    wait_until(lambda: any(isinstance(message, wire.Ready) for _, message in transport.sent))
    transport.on_message(wire.encode(wire.Submit.of("1", SpeechRequest(text="say 3"), streaming_text=False)))

    def chunks() -> list[tuple[str, AudioChunk]]:
        return [(how, message.chunk) for how, message in transport.sent if isinstance(message, wire.Chunk)]

    wait_until(lambda: any(chunk.finish_reason for _, chunk in chunks()))
    assert [how for how, _ in chunks()] == ["overtakes", "waits", "waits", "waits"]
    wait_until(lambda: ("at once", wire.SubmitResult("1")) in transport.sent)
    inbox.put(None)
    serving.join(WAIT_S)
    engine.stop()


def test_a_message_that_is_none_ends_the_worker_with_an_error() -> None:
    engine, statuses = FakeEngine(FakeConfig()), list[int]()
    ours, theirs = socket.socketpair()
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    transport = Transport(theirs, inbox.put, lambda: None)
    server = EngineServer(transport, inbox)
    thread = threading.Thread(target=lambda: statuses.append(server.serve(lambda progress: engine)))
    thread.start()
    with ours:
        ours.sendall((3).to_bytes(8, "little") + b"???")
        thread.join(WAIT_S)
        assert statuses == [1]
        transport.close()
    engine.stop()


class FullEngine(FakeEngine):
    def enqueue(self, *arguments: object, **options: object) -> None:
        refused = OverloadedError("The server is full. Retry in 1.0 s.", 1.0)  # in a variable: its frame is a cycle
        raise refused


def test_a_refusal_leaves_nothing_for_the_garbage_collector() -> None:
    engine, transport, inbox = FullEngine(FakeConfig()), RecordingTransport(), queue.SimpleQueue[bytes | None]()
    server = EngineServer(transport, inbox)  # type: ignore[arg-type]
    inbox.put(None)
    server.serve(lambda report: engine)  # from now on, the transport's reading thread passes on what it receives
    del transport.sent[:]
    request = wire.encode(wire.Submit.of("1", SpeechRequest(text="Hello."), streaming_text=False))
    assert garbage_of(lambda: transport.on_message(request)) < 20
    engine.stop()
    assert len(transport.sent) >= 23  # each was answered
    for _, message in transport.sent:
        assert isinstance(message, wire.SubmitResult) and isinstance(message.error, OverloadedError)
