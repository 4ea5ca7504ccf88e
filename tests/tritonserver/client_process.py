"""NVIDIA's gRPC client, driven by JSON lines: each line is a list of requests that run side by side, and its answer a
list of what they got. It speaks through examples/triton_client.py and runs in .venv-tritonserver.

A request: model, inputs, and `stop_after`, the number of chunks after which the client leaves.
"""

import asyncio
import base64
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from triton_client import speak, tensor

Answer = dict[str, Any]


def inputs_of(request: Answer) -> dict[str, Any]:
    return {
        name: base64.b64decode(value["base64"]) if isinstance(value, dict) else value
        for name, value in request["inputs"].items()
    }


async def speech(client: triton.InferenceServerClient, request: Answer) -> Answer:
    pieces: list[bytes] = []
    try:
        async with aclosing(speak(client, inputs_of(request), request["model"])) as chunks:
            async for chunk in chunks:
                pieces.append(chunk.samples.tobytes())
                if len(pieces) == request.get("stop_after"):
                    return {"left": True}
    except triton.InferenceServerException as error:
        return {"error": error.message()}
    audio = base64.b64encode(b"".join(pieces)).decode()
    return {"audio": audio, "chunks": len(pieces), "finish_reason": chunk.finish_reason, "seed": chunk.seed}


async def codes(client: triton.InferenceServerClient, request: Answer) -> Answer:
    """The codes of `oscine_talker`, which the example does not know."""

    async def requests() -> Any:
        inputs = [tensor(name, value) for name, value in inputs_of(request).items()]
        yield {"model_name": request["model"], "inputs": inputs}

    pieces: list[np.ndarray] = []
    async for result, error in client.stream_infer(requests()):
        if error is not None:
            return {"error": error.message()}
        pieces.append(result.as_numpy("codes"))
    return {"codes": np.concatenate(pieces).tolist(), "chunks": len(pieces)}


async def main(address: str) -> None:
    client = triton.InferenceServerClient(address)
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = [(codes if one["model"] == "oscine_talker" else speech)(client, one) for one in json.loads(line)]
        print(json.dumps(await asyncio.gather(*asked)), flush=True)
    await client.close()


asyncio.run(main(sys.argv[1]))
