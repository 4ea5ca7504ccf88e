"""OpenAI's SDK, unchanged: only the address differs. Writes hello.mp3, then streams stream.mp3.

pip install openai
python openai_sdk.py [http://127.0.0.1:8000]
"""

import sys

from openai import OpenAI

server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{server}/v1", api_key="none")  # or a key of the server

# The whole file at once. OpenAI's voice names are aliases of the checkpoint's voices.
client.audio.speech.create(model="tts-1", voice="alloy", input="Hello there.").write_to_file("hello.mp3")

# Streaming: the first bytes arrive while the rest is still being generated. `extra_body` holds Oscine's own fields.
with client.audio.speech.with_streaming_response.create(
    model="tts-1",
    voice="wren",
    input="This sentence is written to disk while it is spoken.",
    response_format="mp3",  # a WAV that is sent while it is generated cannot state its length
    extra_body={"seed": 7},
) as response:
    response.stream_to_file("stream.mp3")
    print("seed", response.headers["x-seed"], "request", response.headers["x-request-id"])

# Errors are OpenAI's errors, with a message that says what to do.
try:
    client.audio.speech.create(model="tts-1", voice="rwen", input="Hello.")
except Exception as error:
    print(type(error).__name__, error)
