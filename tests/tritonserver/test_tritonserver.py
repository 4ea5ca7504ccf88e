"""Both ways in the real server, on the demo voice. One server for all tests of this file: it takes a while to start."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conftest import ROOT, require_environment
from tests.docs.live_server import demo_server
from tests.tritonserver.running import WAIT_S, TritonServer, environment, eventually, python, triton_server

pytestmark = pytest.mark.slow

FAST, TALKER, CODEC, SPLIT = "oscine", "oscine_talker", "oscine_codec", "oscine_speech"
STREAMS = 8
# Nothing is refused, and no first chunk is held back, because this machine is slow.
OPTIONS = (
    f"--slots={STREAMS}",
    "--set=engine.queue_wait_s=3600",
    "--set=engine.pacing.real_time_share=1",
    "--set=engine.chunks.first_chunk_ticks=0",
)
# Longer than the first segment.
STORY = (
    "We watched the stars from the roof of the barn. A gentle wind pushed the boat toward the shore. "
    "The old sailor pointed to a dark line on the horizon. Snow fell all night and covered every sign of the road."
)
LONG = 50 * STORY  # ten minutes of speech: it does not end while a test runs
REQUESTS: dict[str, dict[str, Any]] = {
    "a preset and a seed": {"text": "Hello there.", "voice": "finch", "seed": 7},
    "no randomness": {"text": "Good morning.", "temperature": 0.0, "language": "english"},
    "sampling": {"text": "One, two.", "seed": 3, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "subtalker_top_k": 10},
    "silence kept": {"text": "Hello there.", "seed": 7, "trim_silence": False},
    "a limit": {"text": STORY, "seed": 1, "max_new_tokens": 10},
    "segments": {"text": STORY, "seed": 5, "voice": "wren"},
}
# The codec runs in another library and in windows: samples of 16 bits may differ in their last step.
SPLIT_TOLERANCE = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with triton_server(tmp_path_factory.mktemp("triton"), *OPTIONS) as server:
        yield server


@pytest.fixture(scope="module")
def over_http(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The samples of our own server for REQUESTS, in the same environment: another NumPy rounds differently."""
    folder = tmp_path_factory.mktemp("serve")
    with (
        demo_server(folder, *OPTIONS, python=str(python())) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=600) as client,
    ):
        return {name: post(client, fields) for name, fields in REQUESTS.items()}


def post(client: httpx.Client, fields: dict[str, Any]) -> np.ndarray:
    fields = {**fields, "input": fields["text"], "response_format": "pcm"}
    del fields["text"]
    if "subtalker_top_k" in fields:
        fields["extra_params"] = {"subtalker_top_k": fields.pop("subtalker_top_k")}
    answer = client.post("/v1/audio/speech", json=fields, timeout=600)
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, "<i2").astype(int)


def test_the_fast_way_gives_the_samples_of_our_own_server(
    server: TritonServer, over_http: dict[str, np.ndarray]
) -> None:
    for name, fields in REQUESTS.items():
        (spoken,) = server.speak(FAST, fields)
        assert np.array_equal(spoken.samples, over_http[name]), name
        assert spoken.finish_reason == ("length" if "max_new_tokens" in fields else "stop"), name
        assert spoken.seed == fields.get("seed", spoken.seed) and spoken.chunks > 1, name


def test_the_split_way_gives_the_same_codes_and_samples(
    server: TritonServer, over_http: dict[str, np.ndarray], tmp_path: Path
) -> None:
    say = [python(), "-m", "oscine", "say", "Hello there.", "--voice", "finch", "--seed", "7"]
    files = ["-o", tmp_path / "hello.wav", "--save-codes", tmp_path / "codes.npy"]
    subprocess.run([*say, *files], env=environment(), check=True, capture_output=True)
    (answer,) = server.ask({"model": TALKER, "inputs": REQUESTS["a preset and a seed"]})
    assert answer["codes"] == np.load(tmp_path / "codes.npy").tolist() and answer["chunks"] > 1
    for name, fields in REQUESTS.items():
        (spoken,) = server.speak(SPLIT, fields)
        assert len(spoken.samples) == len(over_http[name]), name
        assert np.abs(spoken.samples - over_http[name]).max() <= SPLIT_TOLERANCE, name


@pytest.mark.parametrize("model", [FAST, SPLIT])
def test_streams_side_by_side_give_what_each_gives_alone(server: TritonServer, model: str) -> None:
    fields = [{"text": f"Number {index}, hello.", "seed": index} for index in range(STREAMS)]
    together = server.speak(model, *fields)
    for index in (0, STREAMS - 1):
        (alone,) = server.speak(model, fields[index])
        assert len(alone.samples) == len(together[index].samples)
        assert np.abs(alone.samples - together[index].samples).max() <= SPLIT_TOLERANCE


def test_windows_that_share_a_batch_are_decoded_as_alone(server: TritonServer) -> None:
    """Each stream has one frame, hence one window; the codec waits for the windows of all streams."""
    one_frame = {"text": "Hello.", "trim_silence": False, "max_new_tokens": 2}  # the end counts as one
    fields = [{**one_frame, "seed": index, "temperature": 2.0} for index in range(STREAMS)]
    alone = [spoken for one in fields for spoken in server.speak(SPLIT, one)]
    assert len({spoken.samples.tobytes() for spoken in alone}) > 1, "a mix-up of rows would be noticed"

    def load_codec(config: dict[str, Any]) -> None:
        body = {"parameters": {"config": json.dumps(config)}}
        assert server.post(f"/v2/repository/models/{CODEC}/load", body)[0] == 200

    _, config = server.get(f"/v2/models/{CODEC}/config")
    patient = {"preferred_batch_size": [STREAMS], "max_queue_delay_microseconds": int(WAIT_S * 1e6)}
    load_codec({**config, "dynamic_batching": patient})
    try:
        together = server.speak(SPLIT, *fields)
        eventually(lambda: bool(server.batch_sizes(CODEC)))  # Triton counts a batch after it has answered
        assert server.batch_sizes(CODEC) == {STREAMS: 1}
    finally:
        load_codec(config)  # loading it without a configuration would change nothing
    for one, other in zip(alone, together, strict=True):
        assert np.abs(one.samples - other.samples).max() <= SPLIT_TOLERANCE


@pytest.mark.parametrize("model", [FAST, SPLIT])
def test_far_more_streams_than_slots_are_served(server: TritonServer, model: str) -> None:
    """More than the 32 threads that Triton gives to a model by default, too."""
    fields = [{"text": "Hello.", "seed": index % 3, "max_new_tokens": 4} for index in range(6 * STREAMS)]
    for spoken in server.speak(model, *fields):
        assert spoken.finish_reason == "length" and len(spoken.samples) > 0


@pytest.mark.parametrize(("model", "holds_slots"), [(FAST, FAST), (SPLIT, TALKER)])
def test_clients_that_leave_free_their_slots(server: TritonServer, model: str, holds_slots: str) -> None:
    left = server.ask(*({"model": model, "inputs": {"text": LONG}, "stop_after": 1} for _ in range(STREAMS)))
    assert left == [{"left": True}] * STREAMS
    eventually(lambda: server.gauge("oscine_slots_active", holds_slots) == 0)
    assert server.gauge("oscine_slots", holds_slots) == STREAMS
    (spoken,) = server.speak(model, {"text": "Hello."})
    assert len(spoken.samples) > 0


@pytest.mark.parametrize("model", [FAST, SPLIT])
def test_bad_input_is_a_clear_error_and_the_server_lives(server: TritonServer, model: str) -> None:
    def refused(**inputs: Any) -> str:
        (answer,) = server.ask({"model": model, "inputs": inputs})
        return str(answer["error"])

    assert refused(text="Hello.", voice="rwen").startswith("bad_request: unknown voice 'rwen'; did you mean 'wren'?")
    assert refused(text=" ").startswith("bad_request: text is only white space")
    assert refused(text={"base64": "/w=="}).startswith("invalid_field: text is not UTF-8 text")
    assert refused(text="Hello.", top_p=7.0).startswith("invalid_field: top_p")
    assert refused(text="Hello.", ref_audio="AAAA").startswith("bad_request: this CustomVoice checkpoint cannot clone")
    assert refused(seed=1) == "invalid_field: text is missing; it is required"
    first, second = server.speak(model, {"text": "Hello.", "seed": 1}, {"text": "Hello.", "seed": 1})
    assert np.abs(first.samples - second.samples).max() <= SPLIT_TOLERANCE


def test_generate_stream_speaks_json(server: TritonServer, over_http: dict[str, np.ndarray]) -> None:
    name = "sampling"
    status, body = server.post(f"/v2/models/{FAST}/generate_stream", REQUESTS[name])
    events = [json.loads(line[5:]) for line in body.splitlines() if line.startswith(b"data:")]
    assert status == 200 and np.array_equal(np.concatenate([event["audio"] for event in events]), over_http[name])
    assert (events[-1]["final"], events[-1]["finish_reason"], events[0]["sample_rate"]) == (True, "stop", 24000)
    status, body = server.post(f"/v2/models/{SPLIT}/generate_stream", {"text": "Hello.", "temprature": 1.0})
    assert status == 400 and b"unknown input 'temprature'; did you mean 'temperature'?" in body


@pytest.mark.parametrize("model", [FAST, SPLIT])
def test_the_benchmark_measures_it(server: TritonServer, model: str, tmp_path: Path) -> None:
    options = ["--concurrency", "1,4", "--requests", "4", "--warmup", "0", "--lengths", "short", "--timeout", "300"]
    oscine("bench", "run", f"triton://{server.grpc}", "-m", model, *options, "--out", str(tmp_path / "result.json"))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["figures"]["target"]["served"] == [model]
    for row in result["figures"]["loads"]:
        assert row["succeeded"] == row["requests"] == 4 and row["first_audio_ms"]["p95"] > 0 and row["x_real_time"] > 0


def test_speech_under_load_is_recognized_as_well_as_alone(server: TritonServer, tmp_path: Path) -> None:
    recognizer = require_environment("asr", "the recognizer is") / "bin" / "python"
    texts = (ROOT / "training" / "texts" / "heldout.txt").read_text(encoding="utf-8").splitlines()
    sentences = sorted((text for text in texts if text), key=len)[:20]
    (tmp_path / "texts.txt").write_text("\n".join(sentences), encoding="utf-8")
    options = ["-m", SPLIT, "--texts", str(tmp_path / "texts.txt"), "-c", str(STREAMS), "--timeout", "300"]
    options += ["--no-dnsmos", "--transcriber-python", str(recognizer), "--out", str(tmp_path / "result")]
    oscine("eval", "run", f"triton://{server.grpc}", *options)
    figures = json.loads((tmp_path / "result" / "result.json").read_text())["figures"]
    assert figures["totals"]["wer"]["value"] < 0.15 and len(figures["recordings"]) == len(sentences)
    assert {one["finish_reason"] for one in figures["recordings"]} == {"stop"}
    for one in figures["recordings"][::4]:
        (alone,) = server.speak(SPLIT, {"text": one["text"], "seed": one["seed"]})
        recorded = np.frombuffer((tmp_path / "result" / one["file"]).read_bytes()[44:], "<i2").astype(int)
        assert len(recorded) == len(alone.samples), "alone it is the same speech"
        assert np.abs(recorded - alone.samples).max() <= SPLIT_TOLERANCE


def oscine(*arguments: str) -> None:
    done = subprocess.run([python(), "-m", "oscine", *arguments], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_model_can_be_unloaded_and_loaded_again(server: TritonServer) -> None:
    fields = REQUESTS["a preset and a seed"]
    (before,) = server.speak(FAST, fields)
    eventually(lambda: server.gauge("oscine_slots_active", FAST) == 0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.speak, FAST, {"text": STORY, "seed": 5})
        eventually(lambda: server.gauge("oscine_slots_active", FAST) == 1 or running.done())
        assert server.post(f"/v2/repository/models/{FAST}/unload")[0] == 200
        (finished,) = running.result()
    assert finished.finish_reason == "stop", "a running stream is not cut off"
    eventually(lambda: server.get(f"/v2/models/{FAST}/ready")[0] == 400)
    (answer,) = server.ask({"model": FAST, "inputs": fields})
    assert "has no available versions" in answer["error"]
    assert server.speak(SPLIT, fields), "the others go on"
    assert server.post(f"/v2/repository/models/{FAST}/load")[0] == 200
    (after,) = server.speak(FAST, fields)
    assert np.array_equal(after.samples, before.samples)
