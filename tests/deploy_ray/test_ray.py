"""Oscine on Ray Serve, as `serve run` starts it: the answers of `oscine serve`, from replicas that come and go."""

import base64
import contextlib
import io
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import soundfile
from anyio.from_thread import BlockingPortal, start_blocking_portal

from benchmarks.server_process import ServerProcess
from tests.conftest import CheckpointMaker, require_environment
from tests.deploy_ray.ray_serve import METRICS_PORTS, RayServe, ReplicaDetails, eventually, status_url
from tests.event_stream import read_events
from tests.server.live.live_client import Client
from tests.websocket import connect

pytestmark = pytest.mark.slow

KEY = "sesame"
HEADERS = {"authorization": f"Bearer {KEY}", "x-request-id": "of-this-test"}
SLOTS = 2
SPEECH = "/v1/audio/speech"
TEXT = "The first words are here. And these are the last ones."
LONG = "This sentence is one of many, and nobody waits for the last one. " * 2000
# Nobody is sent away, no text ends and no engine counts as dead because this machine is slow.
SETTINGS = f"""
[server]
api_keys = ["{KEY}"]
live_idle_s = 3600.0
drain_s = 600.0
[engine]
queue_wait_s = 600.0
text_wait_s = 3600.0
stuck_s = 600.0
memory.positions_per_slot = 1024
[worker]
heartbeat_s = 600.0
"""


# Scales at once. A change of the policy would replace the replicas; a change of the bounds does not.
SCALING = {
    "policy": {"policy_function": "oscine.deploy.ray:LoadPolicy", "policy_kwargs": {"target_load": 0.5}},
    "metrics_interval_s": 0.5,
    "look_back_period_s": 1,
    "upscale_delay_s": 0,
    "downscale_delay_s": 0,
}


def application(folder: Path, min_replicas: int, max_replicas: int, **arguments: Any) -> dict[str, Any]:
    """The demo voice, with settings from a file, the environment and arguments."""
    bounds = {"min_replicas": min_replicas, "max_replicas": max_replicas}
    settings = {"config": str(folder / "oscine.toml"), "server.voices_dir": str(folder / "voices")}
    return {
        "name": "oscine",
        "route_prefix": "/",
        "import_path": "oscine.deploy.ray:app",
        "runtime_env": {"env_vars": {"OSCINE_SERVE_ENGINE__SLOTS": str(SLOTS)}},
        "args": {**settings, "metrics_port": METRICS_PORTS[0], **arguments},
        "deployments": [
            {"name": "Oscine", "ray_actor_options": {"num_cpus": 0}, "autoscaling_config": {**bounds, **SCALING}}
        ],
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "oscine.toml").write_text(SETTINGS, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def ray(folder: Path) -> Iterator[RayServe]:
    python = require_environment("ray", "Ray is") / "bin" / "python"
    with contextlib.closing(RayServe(python, folder, application(folder, 2, 2), KEY)) as run:
        yield run


@pytest.fixture
def pair(ray: RayServe, folder: Path) -> list[ReplicaDetails]:
    ray.deploy(application(folder, 2, 2))
    return ray.wait_running(2)


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[str]:
    """The address of `oscine serve` with the same settings."""
    server = ServerProcess(None, folder / "serve", "--slots", str(SLOTS), settings=SETTINGS)
    try:
        yield server.wait_ready()
    finally:
        server.close()


# --- the same answers ---

SPEECHES: list[dict[str, Any]] = [
    {"input": TEXT, "seed": 3},
    {"input": TEXT, "seed": 3, "response_format": "wav", "voice": "wren", "speed": 1.2},
    {"input": TEXT, "seed": 4, "stream": False, "response_format": "flac"},
    {"input": TEXT, "voice": "nobody"},
    {"input": TEXT, "sed": 3, "seed": 3},
    {"input": ""},
]
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    *(("POST", SPEECH, {"json": body}) for body in SPEECHES),
    ("POST", SPEECH, {"content": "not JSON", "headers": {"content-type": "application/json"}}),
    ("POST", SPEECH, {"json": {"input": TEXT}, "headers": {"authorization": "Bearer wrong"}}),
    ("GET", SPEECH, {}),
    ("GET", "/nowhere", {}),
    ("DELETE", "/v1/audio/voices/nobody", {}),
    ("GET", "/v1/audio/voices", {}),
    ("HEAD", "/version", {}),
    ("GET", "/ready", {}),
    ("GET", "/", {}),
]
OF_THE_CONNECTION = {"date", "server"}
_LOADED_AT = re.compile(rb'"created_at":\d+')  # of a preset: when the model was loaded


def test_answers_equal_those_of_oscine_serve(ray: RayServe, pair: list[ReplicaDetails], served: str) -> None:
    with client_of(ray.url) as through_ray, client_of(served) as direct:
        for method, path, options in REQUESTS:
            answers = [client.request(method, path, **options) for client in (through_ray, direct)]
            heads = [
                {name: value for name, value in answer.headers.multi_items() if name not in OF_THE_CONNECTION}
                for answer in answers
            ]
            ids = [head.pop("x-request-id") for head in heads]
            assert answers[0].status_code == answers[1].status_code, (method, path, options)
            assert heads[0] == heads[1], (method, path, options)
            contents = [_LOADED_AT.sub(b"", answer.content) for answer in answers]
            assert contents[0] == contents[1], (method, path, options)
            assert ids == ["of-this-test"] * 2 and len(answers[0].headers.get_list("x-request-id")) == 1


def test_events_equal_those_of_oscine_serve(ray: RayServe, pair: list[ReplicaDetails], served: str) -> None:
    heard = []
    for url in (ray.url, served):
        with client_of(url) as client:
            events = read_events(client.post(SPEECH, json={"input": TEXT, "seed": 3, "stream_format": "sse"}).text)
        sound = b"".join(base64.b64decode(event.pop("audio", "")) for event in events)
        heard.append((sound, [event for event in events if event["type"] != "speech.audio.delta"]))
    assert heard[0] == heard[1] and heard[0][0]


def test_a_websocket_conversation_equals_that_of_oscine_serve(
    ray: RayServe, pair: list[ReplicaDetails], served: str
) -> None:
    assert converse(ray.url) == converse(served)


def converse(url: str) -> list[Any]:
    with live(url) as client:
        ready = client.configure(seed=3)
        first = client.say("Hello", " there.")
        client.write(LONG[:1000])
        client.until("audio.start")
        cancelled = client.cancel()
        second = client.say("Good", "bye.")
        client.send("session.close")
        code, _ = client.closed()
    ready.pop("request_id")
    return [ready, first.sound, first.kinds[0], first.one("audio.done"), cancelled.kinds[-1], second.sound, code]


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers=HEADERS, timeout=600, trust_env=False)


@contextlib.contextmanager
def live(url: str) -> Iterator[Client]:
    address = url.replace("http", "ws") + "/v1/audio/speech/stream"
    key = {"authorization": f"Bearer {KEY}"}
    # No pings and no limit of the queue: a client that does not read answers no pings.
    options: dict[str, Any] = {"max_size": None, "max_queue": None, "ping_interval": None}
    with connect(address, proxy=None, additional_headers=key, **options) as socket:
        yield Client(socket)


def test_each_replica_has_a_port_for_its_own_metrics(ray: RayServe, pair: list[ReplicaDetails]) -> None:
    assert [ray.figures(replica)["oscine_slots"] for replica in pair] == [SLOTS, SLOTS]
    urls = [status_url(replica) for replica in pair]
    assert len(set(urls)) == 2
    assert httpx.get(f"{urls[0]}/metrics", trust_env=False, timeout=600).status_code == 401
    assert httpx.get(f"{urls[0]}/ready", trust_env=False, timeout=600).json()["ready"]
    with client_of(urls[0]) as client:
        assert client.post(SPEECH, json={"input": TEXT}).status_code == 404  # Ray would not know of the stream


# --- replicas that come and go ---


class Listener:
    """Listens to a speech of hours, until it breaks or the listener leaves."""

    def __init__(self, url: str, body: dict[str, Any], portal: BlockingPortal) -> None:
        self._url, self._body = url, body
        self.received, self.outcome = b"", ""
        self._listening = portal.start_task_soon(self._listen)

    async def _listen(self) -> None:
        async with (
            httpx.AsyncClient(base_url=self._url, headers=HEADERS, timeout=None, trust_env=False) as client,
            client.stream("POST", SPEECH, json=self._body) as response,
        ):
            self.outcome = "" if response.status_code == 200 else f"status {response.status_code}"
            try:
                async for piece in response.aiter_raw():
                    self.received += piece
            except httpx.RemoteProtocolError:
                self.outcome = "broken"

    def leave(self) -> None:
        self._listening.cancel()


class Audience:
    def __init__(self, ray: RayServe, portal: BlockingPortal) -> None:
        self._ray, self._portal = ray, portal
        self.listeners: list[Listener] = []

    def join(self, **fields: Any) -> None:
        body = {"input": LONG, "response_format": "pcm", **fields}
        self.listeners.append(Listener(self._ray.url, body, self._portal))

    def join_each(self, *replicas: ReplicaDetails, **fields: Any) -> None:
        """New streams, one after the other, until each of these replicas runs one."""
        while not all(map(self.running_on, replicas)):
            self.join(**fields)
            eventually(lambda: sum(map(self.on, self._ray.replicas("RUNNING"))) == len(self.ongoing))

    def on(self, replica: ReplicaDetails) -> int:
        """Streams that run on a replica or wait there: a slow machine keeps fewer of them in real time."""
        return self.running_on(replica) + int(self._ray.figures(replica)["oscine_queue_depth"])

    def running_on(self, replica: ReplicaDetails) -> int:
        return int(self._ray.figures(replica)["oscine_slots_active"])

    def wait_heard(self, *replicas: ReplicaDetails) -> None:
        """Waits until each stream that runs there has been heard."""
        eventually(lambda: sum(bool(one.received) for one in self.listeners) >= sum(map(self.running_on, replicas)))

    @property
    def ongoing(self) -> list[Listener]:
        return [listener for listener in self.listeners if not listener.outcome]

    @property
    def outcomes(self) -> list[str]:
        return [listener.outcome for listener in self.listeners if listener.outcome]

    def leave(self) -> None:
        for listener in self.listeners:
            listener.leave()


@pytest.fixture
def audience(ray: RayServe) -> Iterator[Audience]:
    with start_blocking_portal() as portal:
        audience = Audience(ray, portal)
        yield audience
        audience.leave()


def test_a_killed_replica_breaks_only_its_own_streams(
    ray: RayServe, pair: list[ReplicaDetails], audience: Audience
) -> None:
    killed, other = pair
    audience.join_each(killed, other)
    audience.wait_heard(killed, other)
    lost = audience.on(killed)
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    eventually(lambda: len(audience.outcomes) == lost)
    assert "broken" in audience.outcomes and set(audience.outcomes) <= {"broken", "status 500"}  # 500: it had to wait
    speaking = [listener for listener in audience.ongoing if listener.received]
    before = {listener: len(listener.received) for listener in speaking}
    new = replacement(ray, killed, other)
    eventually(lambda: speaking and all(len(listener.received) > before[listener] for listener in speaking))
    audience.join_each(new)
    assert len(audience.outcomes) == lost
    audience.leave()
    eventually(lambda: audience.on(new) + audience.on(other) == 0)


def replacement(ray: RayServe, lost: ReplicaDetails, other: ReplicaDetails) -> ReplicaDetails:
    eventually(lambda: lost.replica_id not in [replica.replica_id for replica in ray.replicas()])
    replicas = ray.wait_running(2)
    assert other in replicas
    (new,) = [replica for replica in replicas if replica != other]
    return new


def test_a_replica_whose_engine_dies_says_so_and_is_replaced(
    ray: RayServe, pair: list[ReplicaDetails], audience: Audience
) -> None:
    failed, other = pair
    audience.join_each(failed, other, stream_format="sse")
    audience.wait_heard(failed, other)
    lost = audience.on(failed)
    os.kill(worker_of(failed), signal.SIGKILL)
    eventually(lambda: len(audience.outcomes) == lost)
    broken = [listener for listener in audience.listeners if listener.outcome == "broken"]
    assert broken and set(audience.outcomes) <= {"broken", "status 503"}  # 503: it had to wait
    assert all(b"speech.audio.error" in one.received and b"engine_failed" in one.received for one in broken)
    replacement(ray, failed, other)
    assert len(audience.outcomes) == lost


def test_a_replica_and_its_engine_have_ordinary_priority(pair: list[ReplicaDetails]) -> None:
    for replica in pair:
        for pid in (replica.pid, worker_of(replica)):
            assert psutil.Process(pid).nice() <= psutil.Process().nice()


def worker_of(replica: ReplicaDetails) -> int:
    children = psutil.Process(replica.pid).children()
    (pid,) = [child.pid for child in children if "oscine.engine.remote.worker" in " ".join(child.cmdline())]
    return int(pid)


def test_a_replica_drains_before_it_goes(ray: RayServe, pair: list[ReplicaDetails], folder: Path) -> None:
    with contextlib.ExitStack() as sessions:
        of_replica: dict[str, list[Client]] = {replica.replica_id: [] for replica in pair}
        while any(len(clients) < 2 for clients in of_replica.values()):
            before = {replica: spoken(ray, replica) for replica in pair}
            client = sessions.enter_context(live(ray.url))
            client.say("Yes.")
            (own,) = [replica for replica in pair if spoken(ray, replica) > before[replica]]
            of_replica[own.replica_id].append(client)
        for speaking, *_ in of_replica.values():
            speaking.write("These words are spoken before the replica goes, ")
            speaking.until("audio.start")
        ray.deploy(application(folder, 1, 1))
        (leaving,) = eventually(lambda: ray.replicas("STOPPING"))
        (staying,) = [replica for replica in pair if replica.replica_id != leaving.replica_id]
        worker = worker_of(leaving)
        speaking, *silent = of_replica[leaving.replica_id]
        for client in silent:
            code, received = client.closed()
            assert code == 1013 and "shutting down" in received.one("error")["message"]
        assert leaving in ray.replicas("STOPPING")
        rest = speaking.say("and these ones ", "after that.")
        assert rest.one("audio.done")["finish_reason"] == "stop" and rest.sound
        assert speaking.closed()[0] == 1013
        assert ray.wait_running(1) == [staying]
        eventually(lambda: not psutil.pid_exists(worker))
        for client in of_replica[staying.replica_id]:
            assert client.say("Still here.").one("audio.done")["finish_reason"] == "stop"


def spoken(ray: RayServe, replica: ReplicaDetails) -> int:
    return ray.figures(replica).by("mode", "oscine_requests_total").get("websocket", 0)


def test_running_streams_add_a_replica_and_their_end_removes_it(
    ray: RayServe, folder: Path, audience: Audience
) -> None:
    ray.deploy(application(folder, 1, 2))
    (first,) = ray.wait_running(1)
    for _ in range(SLOTS):
        audience.join()
    (second,) = [replica for replica in ray.wait_running(2) if replica != first]
    audience.join_each(second)
    assert not audience.outcomes
    audience.leave()
    ray.wait_running(1)


def test_a_new_model_comes_without_a_broken_stream_and_replicas_share_voices(
    ray: RayServe, pair: list[ReplicaDetails], folder: Path, small_checkpoints: CheckpointMaker
) -> None:
    base = application(folder, 2, 2, model=str(small_checkpoints("0b6", "base")), name="base")
    with live(ray.url) as client:
        before = {replica: spoken(ray, replica) for replica in pair}
        client.say("Yes.")
        (old,) = [replica for replica in pair if spoken(ray, replica) > before[replica]]
        client.write("These words began with the old model, ")
        client.until("audio.start")
        ray.deploy(base)
        eventually(lambda: old.replica_id in [replica.replica_id for replica in ray.replicas("STOPPING")])
        assert client.say("and end with it.").one("audio.done")["finish_reason"] == "stop"
    eventually(lambda: not {one.pid for one in pair} & {one.pid for one in ray.replicas()})
    new = ray.wait_running(2)
    with client_of(ray.url) as http:
        assert http.get("/version").json()["model"] == "base"
        clip = wav(np.random.default_rng(0).normal(0, 0.1, 3 * 24_000))
        form = {"name": "anna", "consent": "recorded for this test"}
        http.post("/v1/audio/voices", data=form, files={"audio_sample": ("clip.wav", clip)}).raise_for_status()

        def both_have_spoken() -> bool:
            body = {"input": TEXT, "voice": "anna", "max_new_tokens": 4}
            http.post(SPEECH, json=body).raise_for_status()
            return all(ray.figures(replica).by("mode", "oscine_requests_total").get("http") for replica in new)

        eventually(both_have_spoken)
        assert {one["name"] for one in http.get("/v1/audio/voices").json()["uploaded_voices"]} == {"anna"}


def wav(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 24_000, format="WAV")
    return file.getvalue()
