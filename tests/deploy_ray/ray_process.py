"""Runs in Ray's environment: starts Ray and `serve run FILE`, then deploys and describes applications on request.

Each line of standard input is a JSON object, each line of standard output its answer. The dashboard of Ray would be ten
more processes.
"""

import json
import sys
from typing import Any

import ray
from ray.serve._private import api
from ray.serve._private.api import _get_global_client
from ray.serve.schema import ServeDeploySchema
from ray.serve.scripts import cli

# Ray gives up if one of its processes needs more than 15 s to start, or its HTTP proxy more than a minute. A busy
# machine may take longer.
_STARTS = 5
_PROXY_START_S = 600


def start_ray() -> None:
    api.HTTP_PROXY_TIMEOUT = _PROXY_START_S
    for left in reversed(range(_STARTS)):
        try:
            ray.init(include_dashboard=False, namespace="serve")
            return
        except Exception:
            ray.shutdown()
            if not left:
                raise


def answer(request: dict[str, Any]) -> dict[str, Any]:
    client = _get_global_client()
    if "deploy" in request:
        client.deploy_apps(ServeDeploySchema.model_validate(request["deploy"]), _blocking=False)
    return client.get_serve_details()["applications"]


def main(file: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # Ray prints to it
    start_ray()
    cli.main(["run", file, "--non-blocking"], standalone_mode=False)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line)), default=str), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
