"""The official qwen_tts package as a server: one JSON request a line on stdin, one answer a line on stdout.

Run by the oracle environment's python, never imported by ours: official.py ARRAY_FOLDER
"""

import os
import sys

# Libraries print to stdout at import: answers use a duplicate of it, and fd 1 is redirected to stderr.
ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

import traceback  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from client import pack, unpack  # noqa: E402
from qwen_tts import Qwen3TTSModel  # noqa: E402
from qwen_tts.core.models import Qwen3TTSForConditionalGeneration  # noqa: E402
from transformers import AutoModel, GenerationConfig, PreTrainedModel  # noqa: E402
from transformers.generation import GenerationMixin  # noqa: E402

Answer = dict[str, Any]
SAMPLING = (
    "do_sample", "top_k", "top_p", "temperature", "repetition_penalty", "subtalker_dosample", "subtalker_top_k",
    "subtalker_top_p", "subtalker_temperature", "max_new_tokens",
)  # fmt: skip


@cache
def load(folder: str, dtype: str, attention: str) -> Any:
    return Qwen3TTSModel.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation=attention)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


class Recorder:
    """Wraps one model's two generate methods during a call and records their inputs and results."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.prompt: dict[str, Any] = {}
        self.ids: torch.Tensor | None = None  # [rows, steps] every chosen code-0 id, including end-of-speech
        self.codes: list[torch.Tensor] = []  # [frames, 16] each
        self.hidden: list[torch.Tensor] = []  # [frames, width] each

    def __enter__(self) -> "Recorder":
        talker_generate, model_generate = self._model.talker.generate, self._model.generate

        def talker(**kwargs: Any) -> Any:
            self.prompt = kwargs
            result = talker_generate(**kwargs)
            self.ids = result.sequences
            return result

        def model(**kwargs: Any) -> Any:
            self.codes, self.hidden = model_generate(**kwargs)
            return self.codes, self.hidden

        self._model.talker.generate, self._model.generate = talker, model
        return self

    def __exit__(self, *error: object) -> None:
        del self._model.talker.generate, self._model.generate  # uncovers the class's methods

    def item(self, row: int) -> Answer:
        assert self.ids is not None
        real = self.prompt["attention_mask"][row].bool()  # the others are left padding
        stopped = bool((self.ids[row] == self.prompt["eos_token_id"]).any())
        return {
            "codes": as_array(self.codes[row]),
            "hidden": as_array(self.hidden[row]),
            "prompt": as_array(self.prompt["inputs_embeds"][row][real]),
            # In a batch, shorter rows are padded with pad_row.
            "trailing": as_array(self.prompt["trailing_text_hidden"][row]),
            "pad_row": as_array(self.prompt["tts_pad_embed"].reshape(-1)),
            "ids": as_array(self.ids[row]),
            "finish": "stop" if stopped else "length",
        }


def as_clip(audio: Any, rate: Any) -> Any:
    """A path, an array with its rate, or lists of either for a batch."""
    if isinstance(audio, list):
        rates = rate if isinstance(rate, list) else [rate] * len(audio)
        return [as_clip(one, one_rate) for one, one_rate in zip(audio, rates, strict=True)]
    return audio if isinstance(audio, str) else (audio, rate)


def generate(
    folder: str,
    mode: str,
    text: str | list[str],
    *,
    speaker: Any = None,
    language: Any = None,
    instruct: Any = None,
    ref_audio: Any = None,
    ref_rate: Any = None,
    ref_text: Any = None,
    x_vector_only: Any = False,
    non_streaming_mode: bool | None = None,
    dtype: str = "float32",
    attention: str = "sdpa",
    seed: int | None = None,
    do_sample: bool = False,
    subtalker_dosample: bool = False,
    **sampling: Any,
) -> Answer:
    """Speech by the package's own public methods, greedy by default. Other settings come from the checkpoint."""
    if unknown := set(sampling) - set(SAMPLING):
        raise ValueError(f"unknown sampling settings {sorted(unknown)}; known are {SAMPLING}")
    official = load(folder, dtype, attention)
    settings: dict[str, Any] = sampling | {"do_sample": do_sample, "subtalker_dosample": subtalker_dosample}
    if non_streaming_mode is not None:
        settings["non_streaming_mode"] = non_streaming_mode
    if mode == "custom_voice":
        speak = official.generate_custom_voice
        settings |= {"speaker": speaker, "instruct": instruct}
    elif mode == "voice_design":
        speak = official.generate_voice_design
        settings |= {"instruct": instruct}
    elif mode == "clone":
        speak = official.generate_voice_clone
        settings |= {"ref_audio": as_clip(ref_audio, ref_rate), "ref_text": ref_text}
        settings |= {"x_vector_only_mode": x_vector_only}
    else:
        raise ValueError(f"unknown mode '{mode}'; modes are custom_voice, voice_design, clone")
    if seed is not None:
        torch.manual_seed(seed)
    with Recorder(official.model) as recorder:
        waveforms, rate = speak(text=text, language=language, **settings)
    items = [recorder.item(row) | {"waveform": waveform} for row, waveform in enumerate(waveforms)]
    return {"rate": rate, "items": items}


def tokenize(folder: str, texts: list[str]) -> Answer:
    """Ids of whole strings, including role markup, from the package's processor."""
    processor = load(folder, "float32", "sdpa").processor
    return {"ids": [processor(text=text, return_tensors="pt")["input_ids"][0].tolist() for text in texts]}


def speaker_vector(folder: str, audio: Any, rate: int | None = None, dtype: str = "float32") -> Answer:
    official = load(folder, dtype, "sdpa")
    (voice,) = official.create_voice_clone_prompt(as_clip(audio, rate), x_vector_only_mode=True)
    return {"vector": as_array(voice.ref_spk_embedding)}


def reference_codes(folder: str, audio: Any, rate: int | None = None, dtype: str = "float32") -> Answer:
    encoded = load(folder, dtype, "sdpa").model.speech_tokenizer.encode(audio, sr=rate)
    return {"codes": as_array(encoded.audio_codes[0])}  # [frames, 16]


def decode(folder: str, codes: np.ndarray, whole: bool = False, dtype: str = "float32") -> Answer:
    """Frames [T, 16] to audio: in the package's chunks of 300, or with `whole` in one pass of its decoder."""
    tokenizer = load(folder, dtype, "sdpa").model.speech_tokenizer
    if whole:
        with torch.inference_mode():
            waveform = tokenizer.model.decoder(torch.from_numpy(codes).long().T[None])[0, 0]
        return {"waveform": as_array(waveform), "rate": tokenizer.get_output_sample_rate()}
    (waveform,), rate = tokenizer.decode([{"audio_codes": codes}])
    return {"waveform": waveform, "rate": rate}


def warp(
    logits: np.ndarray,
    history: list[list[int]],
    *,
    temperature: float | list[float] = 1.0,
    top_k: int | list[int] = 0,
    top_p: float | list[float] = 1.0,
    repetition_penalty: float | list[float] = 1.0,
    min_new_tokens: int = 2,
    eos: int = 2150,
    talker: bool = True,
) -> Answer:
    """Probabilities [B, V] after the processors that generate() would build, row by row.

    With talker=False only temperature, top-k and top-p apply, as in the code predictor.
    """
    rows = []
    for row, past in enumerate(history):
        chosen = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty}
        settings: dict[str, Any] = {name: one[row] if isinstance(one, list) else one for name, one in chosen.items()}
        if talker:
            vocabulary = logits.shape[1]
            settings["suppress_tokens"] = [code for code in range(vocabulary - 1024, vocabulary) if code != eos]
            settings["min_new_tokens"] = min_new_tokens
        else:
            del settings["repetition_penalty"]
        config = GenerationConfig(do_sample=True, eos_token_id=eos, **settings)
        config._eos_token_tensor = torch.tensor([eos]) if talker else None
        processors = GenerationMixin()._get_logits_processor(config, input_ids_seq_length=0, device="cpu")
        # A copy: processors such as the repetition penalty may write to their input.
        scores = torch.from_numpy(logits[row : row + 1].astype(np.float32, copy=True))
        rows.append(processors(torch.tensor([past], dtype=torch.long), scores).softmax(-1)[0])
    return {"probabilities": as_array(torch.stack(rows))}


def loading_report(folder: str) -> Answer:
    """The loader's report on keys, for the main model and for the speech tokenizer."""
    load(folder, "float32", "sdpa")  # registers the model types
    # The package's from_pretrained cannot pass output_loading_info on, so this calls its parent's for the class.
    parent = PreTrainedModel.from_pretrained.__func__
    _, main = parent(Qwen3TTSForConditionalGeneration, folder, output_loading_info=True)
    _, codec = AutoModel.from_pretrained(Path(folder) / "speech_tokenizer", output_loading_info=True)
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    return {
        part: {kind: sorted(map(str, report[kind])) for kind in kinds}
        for part, report in (("model", main), ("speech_tokenizer", codec))
    }


CALLS: dict[str, Callable[..., Answer]] = {
    call.__name__: call for call in (generate, tokenize, speaker_vector, reference_codes, decode, warp, loading_report)
}


def answer(line: str, folder: Path) -> Answer:
    try:
        request = unpack(line, folder)
        name, arguments = request["call"], request["arguments"]
        if name not in CALLS:
            raise ValueError(f"unknown call '{name}'; calls are {sorted(CALLS)}")
        return CALLS[name](**arguments)
    except Exception as error:  # reported to the caller; the trace goes to stderr, whose tail the caller shows
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def serve(folder: Path) -> None:
    for number, line in enumerate(sys.stdin):
        ANSWERS.write(pack(answer(line, folder), folder / f"answer-{number}.npz") + "\n")
        ANSWERS.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
