"""A whole front end over a scripted engine, as a process of its own: `python -m tests.faults.scripted_server PORT
[MAX_OPEN_FILES]`. The faults come from outside; nothing here or in the product knows about them."""

import resource
import sys
from pathlib import Path

from oscine.commands.main import open_standard_streams
from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.http.listener import bind
from oscine.server.http.logs import log_to_stderr
from oscine.server.web_server import WebServer
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine


def main(port: str, folder: str, max_files: str = "0") -> None:
    open_standard_streams()
    log_to_stderr("json", "debug")
    if int(max_files):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(max_files), int(max_files)))
    engine = ScriptedEngine(frame_s=0.005)
    config = ServerConfig(voices_dir=str(Path(folder) / "voices"), drain_s=1.0)
    try:
        WebServer(build_app(engine, BASE_CARD, config)).run_until_stopped(bind("127.0.0.1", int(port)))
    finally:
        engine.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
