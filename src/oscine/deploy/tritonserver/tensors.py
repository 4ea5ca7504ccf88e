"""The inputs and outputs of the models: names, types and shapes. config.pbtxt, the models and the docs follow them."""

from __future__ import annotations

from dataclasses import dataclass

from oscine.audio.pcm import CODEBOOKS

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


# Names and meanings are those of POST /v1/audio/speech. Factors are FP64, so that they are the same numbers as in JSON.
SPEECH_INPUTS = (
    TensorSpec("text", "STRING", "The text to speak, of any length; UTF-8."),
    _option("voice", "STRING", "A preset, a voice of the voices folder, or one of OpenAI's names."),
    _option("language", "STRING", "`auto`, or a language of the checkpoint."),
    _option("instructions", "STRING", "How to speak; with VoiceDesign, a description of the voice."),
    _option("ref_audio", "STRING", "A clip to clone: the content of an audio file, or as text a data: URL or base64."),
    _option("ref_text", "STRING", "The transcript of the clip; without it only the timbre is cloned."),
    _option("x_vector_only_mode", "BOOL", "Clone only the timbre, even with a transcript."),
    _option("speaker_embedding", "FP32", "A speaker vector instead of a clip.", (-1,)),
    _option("seed", "UINT64", "The same seed gives the same speech. Default: random; `seed` of the response has it."),
    _option("temperature", "FP64", "Of the first codebook; 0: no randomness in any codebook."),
    _option("top_k", "INT32", "0: off."),
    _option("top_p", "FP64", "1: off."),
    _option("repetition_penalty", "FP64", "1: off."),
    _option("subtalker_temperature", "FP64", "Of the other 15 codebooks."),
    _option("subtalker_top_k", "INT32", "0: off."),
    _option("subtalker_top_p", "FP64", "1: off."),
    _option("max_new_tokens", "INT64", "The maximum number of frames (80 ms each), plus one."),
    _option("non_streaming_mode", "BOOL", "true: the prompt holds the whole text before the first frame."),
    _option("trim_silence", "BOOL", "Remove the silence at the start. Default: true."),
    _option("text_level", "STRING", "`raw`, `clean` or `spoken`: how far the text is rewritten."),
    _option("normalize", "BOOL", "true: `text_level` is `spoken`; false: at most `clean`."),
    _option("pronunciations", "STRING", "A JSON object: what is spoken instead of whole words."),
    _option("markup", "BOOL", 'false: `<break time="500ms"/>` is spoken, not a pause.'),
    _option("paragraph_pause_s", "FP64", "Silence between paragraphs, in seconds."),
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
