"""A typed client of Oscine in Triton Inference Server: streams speech over gRPC, writes hello.wav.

pip install 'tritonclient[grpc]'
python triton_client.py [127.0.0.1:8001] [oscine]     (the address of gRPC; oscine_speech is the split way)
"""

import asyncio
import sys
import wave
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import triton_to_np_dtype

# The inputs of the models; only `text` is required. docs/deploy/triton.md says what each means.
DATATYPES = {
    **dict.fromkeys(("text", "voice", "language", "instructions", "ref_audio", "ref_text"), "BYTES"),
    **dict.fromkeys(("x_vector_only_mode", "non_streaming_mode", "trim_silence"), "BOOL"),
    **dict.fromkeys(("temperature", "top_p", "repetition_penalty"), "FP64"),
    **dict.fromkeys(("subtalker_temperature", "subtalker_top_p"), "FP64"),
    **dict.fromkeys(("top_k", "subtalker_top_k"), "INT32"),
    "max_new_tokens": "INT64",
    "seed": "UINT64",
    "speaker_embedding": "FP32",
}
NUMPY = {
    "BOOL": bool,
    "FP64": np.float64,
    "FP32": np.float32,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
}

Value = str | bytes | bool | int | float | list[float]


@dataclass(frozen=True)
class Chunk:
    samples: np.ndarray  # int16, mono
    sample_rate: int
    finish_reason: str  # empty before the last chunk
    seed: int


def tensor(name: str, value: Value) -> triton.InferInput:
    if name not in DATATYPES:
        raise TypeError(f"there is no input {name!r}; inputs are {', '.join(DATATYPES)}")
    datatype = DATATYPES[name]
    if datatype == "BYTES":
        array = np.array([value.encode() if isinstance(value, str) else value], object)
    else:
        array = np.array(value, triton_to_np_dtype(datatype)).reshape(-1)
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


async def speak(
    client: triton.InferenceServerClient, inputs: Mapping[str, Value], model: str = "oscine"
) -> AsyncIterator[Chunk]:
    """Chunks as they are generated. Errors raise InferenceServerException; its message begins with a code such as
    bad_request or overloaded. Closing the iterator cancels the speech."""

    async def requests() -> AsyncIterator[dict]:
        yield {"model_name": model, "inputs": [tensor(name, value) for name, value in inputs.items()]}

    responses, ended = client.stream_infer(requests()), False
    try:
        async for result, error in responses:
            ended = error is not None or bool(result.as_numpy("final")[0])
            if error is not None:
                raise error
            yield Chunk(
                samples=result.as_numpy("audio"),
                sample_rate=int(result.as_numpy("sample_rate")[0]),
                finish_reason=result.as_numpy("finish_reason")[0].decode(),
                seed=int(result.as_numpy("seed")[0]),
            )
            if ended:
                return
    finally:
        if not ended:  # Triton 2.51 never unloads a model of which an ended stream was cancelled
            responses.cancel()


async def main(address: str, model: str) -> None:
    client = triton.InferenceServerClient(address)
    try:
        inputs: dict[str, Value] = {"text": "Hello there. This is Triton speaking.", "seed": 7}
        with wave.open("hello.wav", "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            async with aclosing(speak(client, inputs, model)) as chunks:
                async for chunk in chunks:
                    if not file.getnframes():
                        file.setframerate(chunk.sample_rate)
                    file.writeframes(chunk.samples.tobytes())
                    print(f"{len(chunk.samples) / chunk.sample_rate:.2f} s of audio {chunk.finish_reason}")
    finally:
        await client.close()


if __name__ == "__main__":
    address, model = [*sys.argv[1:], *("127.0.0.1:8001", "oscine")[len(sys.argv) - 1 :]]
    asyncio.run(main(address, model))
