"""ElevenLabs' SDK, unchanged: only the address differs. Writes hello.mp3, then streams stream.mp3.

pip install elevenlabs
python elevenlabs_sdk.py [http://127.0.0.1:8000]
"""

import sys

from elevenlabs import VoiceSettings
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError

server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = ElevenLabs(base_url=server, api_key="none")  # or a key of the server

print("voices:", ", ".join(voice.voice_id for voice in client.voices.get_all().voices))

# The whole file at once. A voice's id is its name.
with open("hello.mp3", "wb") as file:
    file.writelines(client.text_to_speech.convert("wren", text="Hello there.", seed=7))

# Streaming: the first bytes arrive while the rest is still being generated. Of the settings, `speed` has an effect.
faster = VoiceSettings(speed=1.2)
with open("stream.mp3", "wb") as file:
    text = "This sentence is written to disk while it is spoken."
    file.writelines(client.text_to_speech.stream("finch", text=text, voice_settings=faster))

# Errors are ElevenLabs' errors, with a message that says what to do.
try:
    b"".join(client.text_to_speech.convert("rwen", text="Hello."))
except ApiError as error:
    print(type(error).__name__, error.status_code, error.body["detail"]["message"])
