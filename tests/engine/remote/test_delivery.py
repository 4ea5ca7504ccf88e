import threading

import pytest

from oscine.engine.remote.delivery import Delivery, DeliveryQueue
from oscine.types import AudioChunk
from tests.engine.recorder import WAIT_S, ChunkRecorder


def no_failure() -> None:
    raise AssertionError("no callback fails in this test")


def chunks(count: int) -> list[AudioChunk]:
    return [AudioChunk(b"ab", index) for index in range(count - 1)] + [AudioChunk(b"", count - 1, "stop")]


def test_utterances_take_turns_one_chunk_each():
    """With one thread, each utterance waits for one callback of every other, however slow it is."""
    delivery, go_on, calls = Delivery(1), threading.Event(), []

    def recorder(name: str) -> ChunkRecorder:
        return ChunkRecorder(lambda: (go_on.wait(WAIT_S), calls.append(name)))

    lengths = {"a": 4, "b": 2, "c": 3}
    recorders = {name: recorder(name) for name in lengths}
    queues = {name: DeliveryQueue(one, no_failure) for name, one in recorders.items()}
    for name, count in lengths.items():
        for chunk in chunks(count):
            delivery.put(queues[name], chunk)
    go_on.set()
    delivery.close(WAIT_S)
    assert "".join(calls) == "abcabcaca"
    assert [one.ends for one in recorders.values()] == [["stop"]] * 3


def test_a_slow_callback_occupies_one_thread():
    delivery, go_on = Delivery(2), threading.Event()
    slow, quick = ChunkRecorder(lambda: go_on.wait(WAIT_S)), ChunkRecorder()
    queues = [DeliveryQueue(slow, no_failure), DeliveryQueue(quick, no_failure)]
    for chunk in chunks(20):
        for queue in queues:
            delivery.put(queue, chunk)
    assert quick.wait() == ["stop"] and not slow.chunks
    go_on.set()
    assert slow.wait() == ["stop"]
    delivery.close(WAIT_S)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failing_callback_is_not_called_again(threads, caplog):
    delivery, calls, failures = Delivery(threads), [], []

    def fail(chunk: AudioChunk) -> None:
        calls.append(chunk)
        raise RuntimeError("the client has left")

    queue = DeliveryQueue(fail, lambda: failures.append(1))
    for chunk in chunks(5):
        delivery.put(queue, chunk)
    delivery.close(WAIT_S)
    assert len(calls) == len(failures) == 1 and len(caplog.records) == 1


def test_a_callback_that_never_blocks_is_called_at_once():
    delivery, threads = Delivery(1), []
    queue = DeliveryQueue(lambda chunk: threads.append(threading.current_thread()), no_failure, never_blocks=True)
    for chunk in chunks(3):
        delivery.put(queue, chunk)
    assert threads == [threading.current_thread()] * 3
    delivery.close(WAIT_S)


def test_a_callback_that_never_blocks_and_fails_is_reported_once_on_another_thread(caplog):
    delivery, failures = Delivery(1), []

    def fail(chunk: AudioChunk) -> None:
        raise RuntimeError("the client has left")

    queue = DeliveryQueue(fail, lambda: failures.append(threading.current_thread()), never_blocks=True)
    for chunk in chunks(3):
        delivery.put(queue, chunk)
    delivery.close(WAIT_S)
    assert len(failures) == 1 and failures[0] is not threading.current_thread()
    assert "the client has left" in caplog.text
