"""The inputs and outputs of the models: names, types and shapes. config.pbtxt, the models and the docs follow them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from oscine.audio.pcm import CODEBOOKS
from oscine.fields import RequestField
from oscine.request import SpeechRequest

ENGINE, TALKER, CODEC, SPEECH = "oscine", "oscine_talker", "oscine_codec", "oscine_speech"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    datatype: str  # as in config.pbtxt, without TYPE_
    about: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False


def _option(name: str, datatype: str, about: str, dims: tuple[int, ...] = (1,)) -> TensorSpec:
    return TensorSpec(name, datatype, about, dims, optional=True)


def _datatype(field: RequestField) -> str:
    """Returns Triton's type of a field. Factors are FP64, so that they are the same numbers as in JSON."""
    if field.kind is int:
        most = field.spec.most or 0
        return "UINT64" if most >= 2**63 else "INT64" if most >= 2**31 else "INT32"
    return {bool: "BOOL", float: "FP64"}.get(field.kind, "STRING")


def _request_inputs() -> Iterator[TensorSpec]:
    for name, field in SpeechRequest.fields().items():
        if name not in _OF_AUDIO:
            is_json = field.kind == Mapping[str, str]
            yield _option(name, _datatype(field), f"{'A JSON object. ' if is_json else ''}{field.spec.about}")


_OF_AUDIO = ("speed", "volume", "sample_rate")  # the samples are the engine's own
# Names and meanings are those of POST /v1/audio/speech.
SPEECH_INPUTS = (
    TensorSpec("text", "STRING", "The text to speak, of any length; UTF-8."),
    *_request_inputs(),
    _option("ref_audio", "STRING", "A clip to clone: the content of an audio file, or as text a data: URL or base64."),
    _option("ref_text", "STRING", "The transcript of the clip; without it only the timbre is cloned."),
    _option("x_vector_only_mode", "BOOL", "Clone only the timbre, even with a transcript."),
    _option("speaker_embedding", "FP32", "A speaker vector instead of a clip.", (-1,)),
    _option("non_streaming_mode", "BOOL", "true: `text_mode` is `whole`; false: `streaming`."),
)
_END_OUTPUTS = (
    TensorSpec("final", "BOOL", "This response is the last one."),
    TensorSpec("finish_reason", "STRING", "On the last response: stop, length or runaway; before it, empty."),
    TensorSpec("seed", "UINT64", "The seed of this speech."),
)
SPEECH_OUTPUTS = (
    TensorSpec("audio", "INT16", "The next samples, mono; may be empty on the last response.", (-1,)),
    TensorSpec("sample_rate", "INT32", "In Hz."),
    *_END_OUTPUTS,
)
TALKER_INPUTS = (
    _option("text", "STRING", "The text to speak, of any length; UTF-8."),
    *SPEECH_INPUTS[1:],
    _option("pull", "STRING", "An id of a stream: answers once, with its next codes. With a text, it is a new stream."),
    _option("max_frames", "INT32", "With `pull`: of the response."),
    _option("cancel", "STRING", "Instead of a text: the id of the request or stream to cancel."),
)
TALKER_OUTPUTS = (
    TensorSpec("codes", "INT64", "The codes of the next frames.", (-1, CODEBOOKS)),
    TensorSpec("context_codes", "INT64", "Frames of the reference clip that precede these.", (-1, CODEBOOKS)),
    TensorSpec("segments", "INT32", "Segments of the speech; a long text has several."),
    TensorSpec("segment_end", "BOOL", "A segment ends with these frames; the codec starts anew after them."),
    TensorSpec("trim_silence", "BOOL", "Remove the silence at the start of the speech."),
    *_END_OUTPUTS,
)


def codec_inputs(window_frames: int) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("codes", "INT64", "Context frames, new frames, padding.", (window_frames, CODEBOOKS)),
        TensorSpec("context_frames", "INT64", "How many of the leading frames are context."),
    )


def codec_outputs(window_samples: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec("samples", "FP32", "The samples of the new frames, then of the padding.", (window_samples,)),)
