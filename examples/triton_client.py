"""A typed client of Oscine in Triton Inference Server: streams speech over gRPC, writes hello.wav.
pip install 'tritonclient[grpc]'
python triton_client.py [127.0.0.1:8001] [oscine]     (the address of gRPC; oscine_speech is the split way)
"""

import asyncio
import sys
import wave
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import triton_to_np_dtype

Value = str | bytes | bool | int | float | list[float]


@dataclass(frozen=True)
class Chunk:
    samples: np.ndarray  # int16, mono
    sample_rate: int
    finish_reason: str  # empty before the last chunk
    seed: int


def tensor(name: str, value: Value) -> triton.InferInput:
    """An input; only `text` is required. docs/deploy/triton.md lists them."""
    integer = {"seed": "UINT64", "max_new_tokens": "INT64"}.get(name, "INT32")
    datatypes = {str: "BYTES", bytes: "BYTES", bool: "BOOL", int: integer, float: "FP64", list: "FP32"}
    datatype = datatypes[type(value)]
    value = value.encode() if isinstance(value, str) else value
    array = np.array(value, triton_to_np_dtype(datatype)).reshape(-1)
    made = triton.InferInput(name, array.shape, datatype)
    made.set_data_from_numpy(array)
    return made


async def speak(
    client: triton.InferenceServerClient, inputs: Mapping[str, Value], model: str = "oscine"
) -> AsyncIterator[Chunk]:
    """Chunks as they are generated. Closing the iterator (`aclosing`) cancels the speech."""

    async def requests() -> AsyncIterator[dict]:
        yield {"model_name": model, "inputs": [tensor(name, value) for name, value in inputs.items()]}

    responses, ended, failure = client.stream_infer(requests()), False, None
    try:
        async for result, failure in responses:
            ended = failure is not None or bool(result.as_numpy("final")[0])
            if failure is None:
                yield Chunk(
                    samples=result.as_numpy("audio"),
                    sample_rate=int(result.as_numpy("sample_rate")[0]),
                    finish_reason=result.as_numpy("finish_reason")[0].decode(),
                    seed=int(result.as_numpy("seed")[0]),
                )
        if failure is not None:
            raise failure
    finally:
        if not ended:  # Triton 2.51 never unloads a model of which an ended stream was cancelled: it is read to its end
            responses.cancel()


async def main(address: str, model: str) -> None:
    client = triton.InferenceServerClient(address)
    try:
        inputs = {"text": "Hello there. This is Triton speaking.", "seed": 7}
        chunks = [chunk async for chunk in speak(client, inputs, model)]
    finally:
        await client.close()
    with wave.open("hello.wav", "wb") as file:
        file.setparams((1, 2, chunks[0].sample_rate, 0, "NONE", ""))
        file.writeframes(b"".join(chunk.samples.tobytes() for chunk in chunks))


if __name__ == "__main__":
    address, model = [*sys.argv[1:], *("127.0.0.1:8001", "oscine")[len(sys.argv) - 1 :]]
    asyncio.run(main(address, model))
