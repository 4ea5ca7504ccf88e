"""How long other programs take an audio file to be."""

import io

import av
import soundfile

# libav counts the pre-skip of an opus file too, 6.5 ms, which it does not decode.
_MAX_ERROR_S = 0.007


def assert_length(file: bytes, samples: int, rate_hz: int) -> None:
    """libsndfile and libav state this length, and libsndfile decodes this many samples."""
    assert soundfile.info(io.BytesIO(file)).frames == samples
    assert len(soundfile.read(io.BytesIO(file))[0]) == samples
    with av.open(io.BytesIO(file)) as container:
        stream = container.streams.audio[0]
        assert stream.duration is not None and stream.time_base is not None
        error_s = float(stream.duration * stream.time_base) - samples / rate_hz
        assert -0.0001 < error_s < _MAX_ERROR_S
