"""Plays a streamed response on the loudspeaker while it is generated.

pip install httpx sounddevice           (on Linux also the system's libportaudio2)
python loudspeaker.py "Hello there." [http://127.0.0.1:8000]
"""

import sys

import httpx
import sounddevice

text = sys.argv[1] if len(sys.argv) > 1 else "Hello there."
server = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8000"

request = {"input": text, "response_format": "pcm"}
with httpx.stream("POST", f"{server}/v1/audio/speech", json=request, timeout=60) as response:
    if response.is_error:
        sys.exit(response.read().decode())
    rate = int(response.headers["x-sample-rate"])
    with sounddevice.RawOutputStream(samplerate=rate, channels=1, dtype="int16") as out:
        odd = b""
        for piece in response.iter_bytes():
            pcm = odd + piece
            odd = pcm[len(pcm) & ~1 :]  # a sample has two bytes; the network may cut between them
            out.write(pcm[: len(pcm) & ~1])
