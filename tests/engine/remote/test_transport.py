import queue
import socket
import threading

import pytest

from oscine.engine.remote.transport import Transport
from tests.engine.recorder import WAIT_S, wait_until


@pytest.fixture
def sockets():
    pair = socket.socketpair()
    yield pair
    for one in pair:
        one.close()


def connect(sockets) -> tuple[Transport, Transport, queue.SimpleQueue]:
    """Two transports and the inbox of the second: its messages, then None when the first is gone."""
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    first = Transport(sockets[0], lambda message: None, lambda: None)
    second = Transport(sockets[1], inbox.put, lambda: inbox.put(None))
    return first, second, inbox


def test_messages_of_several_threads_arrive_whole(sockets):
    first, second, inbox = connect(sockets)
    sent = [[bytes([number]) * (1 << size) for size in range(0, 20, 2)] for number in range(4)]
    threads = [threading.Thread(target=lambda batch=batch: [first.post(one) for one in batch]) for batch in sent]
    for thread in threads:
        thread.start()
    received = [inbox.get(timeout=WAIT_S) for _ in range(40)]
    for number, batch in enumerate(sent):
        assert [message for message in received if message[0] == number] == batch
    for transport in (first, second):
        transport.close()


def test_everything_sent_arrives_before_the_disconnect(sockets):
    first, second, inbox = connect(sockets)
    messages = [b"", *(b"x" * 100_000 for _ in range(50))]
    for message in messages:
        first.post(message)
    first.close(linger_s=WAIT_S)
    assert [inbox.get(timeout=WAIT_S) for _ in messages] == messages
    assert inbox.get(timeout=WAIT_S) is None
    second.wait_disconnected(WAIT_S)
    second.close()


def test_a_message_cut_short_by_the_disconnect_is_dropped(sockets):
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    transport = Transport(sockets[1], inbox.put, lambda: inbox.put(None))
    sockets[0].sendall((5).to_bytes(8, "little") + b"whole" + (5).to_bytes(8, "little") + b"cut")
    sockets[0].close()
    assert inbox.get(timeout=WAIT_S) == b"whole" and inbox.get(timeout=WAIT_S) is None
    transport.close()


def test_posting_never_blocks_and_counts_unsent_bytes(sockets):
    """The peer does not read. Closing does not wait for it."""
    transport = Transport(sockets[0], lambda message: None, lambda: None)
    for _ in range(100):
        transport.post(bytes(100_000))
    assert transport.unsent_bytes > 5_000_000
    transport.close()


def test_sending_never_blocks_and_keeps_the_order(sockets):
    """The peer does not read at first; the writing thread sends what its socket did not take."""
    first = Transport(sockets[0], lambda message: None, lambda: None)
    messages = [bytes([number]) * 100_000 for number in range(20)]
    for message in messages:
        first.send(message)
    assert first.unsent_bytes > 1_000_000
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    second = Transport(sockets[1], inbox.put, lambda: None)
    assert [inbox.get(timeout=WAIT_S) for _ in messages] == messages
    wait_until(lambda: first.unsent_bytes == 0)
    for transport in (first, second):
        transport.close()


class WatchedSocket:
    """Calls `on_send` instead of the first `send`, and `on_sendall`, which the writing thread calls, before each."""

    def __init__(self, connection, on_send=None, on_sendall=lambda: None):
        self.connection, self.on_send, self.on_sendall = connection, on_send, on_sendall

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def send(self, data, flags):
        call, self.on_send = self.on_send, None
        if call is not None:
            call()
            raise BlockingIOError
        return self.connection.send(data, flags)

    def sendall(self, data):
        self.on_sendall()
        self.connection.sendall(data)


def test_a_message_leaves_without_the_writing_thread(sockets):
    written = []
    transport = Transport(
        WatchedSocket(sockets[0], on_sendall=lambda: written.append(True)), lambda message: None, lambda: None
    )
    transport.send(b"at once")
    sockets[1].settimeout(WAIT_S)
    assert sockets[1].recv(100) == (7).to_bytes(8, "little") + b"at once"
    transport.close()
    assert not written


def test_an_urgent_message_overtakes_those_that_wait(sockets):
    def meanwhile():  # the writing thread cannot take a message
        first.post(b"waits")
        first.send(b"in order")
        first.send(b"urgent", overtake=True)

    first, second, inbox = connect((WatchedSocket(sockets[0], on_send=meanwhile), sockets[1]))
    first.send(b"last")
    assert [inbox.get(timeout=WAIT_S) for _ in range(4)] == [b"urgent", b"waits", b"in order", b"last"]
    for transport in (first, second):
        transport.close()


def test_an_urgent_message_cuts_none(sockets):
    begun, release = threading.Event(), threading.Event()

    def hold():
        begun.set()
        assert release.wait(WAIT_S)

    first, second, inbox = connect((WatchedSocket(sockets[0], on_sendall=hold), sockets[1]))
    first.post(b"being written")
    assert begun.wait(WAIT_S)
    first.send(b"urgent", overtake=True)
    assert first.unsent_bytes > 0
    release.set()
    assert [inbox.get(timeout=WAIT_S) for _ in range(2)] == [b"being written", b"urgent"]
    for transport in (first, second):
        transport.close()


def test_sending_to_a_peer_that_is_gone_is_no_error(sockets):
    transport = Transport(sockets[0], lambda message: None, lambda: None)
    sockets[1].close()
    for _ in range(3):
        transport.send(b"lost")
    transport.close()


def test_closing_is_no_disconnect_of_the_peer(sockets):
    first, second, inbox = connect(sockets)
    second.close()
    first.wait_disconnected(WAIT_S)
    first.close()
    assert inbox.empty()
