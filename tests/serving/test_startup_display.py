"""What `oscine serve` prints while it starts, and when it is ready."""

import io

import pytest
from rich.console import Console

from oscine.config import CheckpointConfig, ServerConfig
from oscine.server.http.listener import bind
from oscine.serving.settings import Settings
from oscine.serving.startup_display import StartupDisplay, describe_capacity
from oscine.types import EngineStatus, ModelCard


def status(*, slots: int, real_time: int, device: str) -> EngineStatus:
    return EngineStatus(True, slots, 0, 0, 0, 0.0, device=device, real_time_streams=real_time)


def shown(settings: Settings, *, terminal: bool, host: str = "127.0.0.1") -> str:
    """The output of a start."""
    screen = io.StringIO()
    (checkpoint,) = settings.checkpoints
    card = ModelCard(checkpoint.served_name, "custom_voice", (), (), (), False, 24_000, 1920, 1024)
    display = StartupDisplay(settings, Console(file=screen, force_terminal=terminal, width=200, color_system=None))
    with display, bind(host, 0) as listener:
        report = display.reporter(card.name, "cpu")
        report("[/weights]", 1, 2)
        report("memory: [/all] of it", 1, 2)
        report("warning: a CPU build", 1, 2)
        display.ready(listener, [(card, status(slots=8, real_time=8, device="NVIDIA H200, bfloat16"))])
    return screen.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("name", ["[/x]", "[red]", ":smile:"])
def test_a_name_is_printed_verbatim(name: str, terminal: bool) -> None:
    told = shown(Settings(name=name), terminal=terminal)
    assert f"model   {name} (custom_voice)\n" in told and "memory  [/all] of it" in told
    assert "device  NVIDIA H200, bfloat16, 8 slots\n" in told and "warning a CPU build" in told
    assert not terminal or f"{name} on cpu: [/weights]" in told


def test_kernels_that_are_compiled_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    display = StartupDisplay(Settings(), Console(file=io.StringIO()))
    report = display.reporter("demo", "cuda")
    with caplog.at_level("INFO", "oscine.serving.startup_display"):
        for done in range(64):
            report("compiling 63 CUDA kernels", done, 63)
    assert caplog.messages == ["compiling 63 CUDA kernels"]


def test_the_banner_never_promises_more_streams_than_stay_in_real_time() -> None:
    slow = describe_capacity(status(slots=32, real_time=6, device="CPU, 2 threads, float32"))
    assert slow == "CPU, 2 threads, float32, about 6 streams in real time (measured at the start)"
    one = describe_capacity(status(slots=32, real_time=1, device="CPU, 1 thread, float32"))
    assert one == "CPU, 1 thread, float32, about 1 stream in real time (measured at the start)"
    fast = describe_capacity(status(slots=128, real_time=128, device="NVIDIA H200, bfloat16"))
    assert fast == "NVIDIA H200, bfloat16, 128 slots"


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_the_url_of_the_banner_can_be_opened(host: str) -> None:
    printed = shown(Settings(server=ServerConfig(host=host)), terminal=False, host=host)
    assert "http://127.0.0.1:" in printed and "http://0.0.0.0" not in printed
    assert ("--api-key requires a key" in printed) == (host == "0.0.0.0")


def test_with_a_certificate_the_banner_says_https() -> None:
    printed = shown(Settings(server=ServerConfig(tls_cert="server.pem")), terminal=False)
    assert "https://127.0.0.1:" in printed and "http://" not in printed


def test_the_banner_names_the_playground_if_it_is_served() -> None:
    without = Settings(server=ServerConfig(playground=False))
    assert "playground; API under http://127.0.0.1:" in shown(Settings(), terminal=False)
    assert "playground" not in shown(without, terminal=False) and "API under" in shown(without, terminal=False)


def test_the_banner_shows_every_model_and_the_plan() -> None:
    settings = Settings(models=(CheckpointConfig(path="a"), CheckpointConfig(path="b")))
    screen = io.StringIO()
    display = StartupDisplay(settings, Console(file=screen, width=200, color_system=None))
    models = []
    with display, bind("127.0.0.1", 0) as listener:
        display.planned("cpu: 3 of 24 GiB (a 2 GiB, 8 slots; b 1 GiB, 4 slots)")
        for name, slots in (("a", 8), ("b", 4)):
            display.reporter(name, "auto")("memory: of one worker", 1, 1)
            status = EngineStatus(True, slots, 0, 0, 0, 0.0, device="CPU, 1 thread, float32")
            models.append((ModelCard(name, "base", (), (), (), False, 24_000, 1920, 1024), status))
        display.ready(listener, models)
    shown = [line.strip() for line in screen.getvalue().splitlines()]
    for name, slots in (("a", 8), ("b", 4)):
        at = shown.index(f"model   {name} (base)")
        assert shown[at + 1] == f"device  CPU, 1 thread, float32, {slots} slots"
    assert "memory  cpu: 3 of 24 GiB (a 2 GiB, 8 slots; b 1 GiB, 4 slots)" in shown
