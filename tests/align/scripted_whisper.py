"""A Whisper folder and a library `ctranslate2` for it that follow a script: tokens last equally long, and the file
`behavior` in the folder says what happens instead ("crash", "hang", "fail")."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from oscine.align.timing import reference_recordings

HEARD = "good morning"
CALIBRATIONS = len(reference_recordings())  # the first encodings are those of the calibration

_LIBRARY = f"""
import os, signal, time
from pathlib import Path
from types import SimpleNamespace

StorageView = SimpleNamespace(from_array=lambda array: array)


class Whisper:
    n_mels = 80

    def __init__(self, folder, compute_type, intra_threads):
        self._folder = Path(folder)
        if self._behavior == "broken":
            raise RuntimeError("unsupported model binary version")
        self._encoded = 0
        self.is_multilingual = (self._folder / "multilingual").exists()

    @property
    def _behavior(self):
        return (self._folder / "behavior").read_text()

    def encode(self, features):
        self._encoded += 1
        if self._encoded <= {CALIBRATIONS}:
            return features
        print("a library may print anything")
        match self._behavior:
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
            case "fail":
                raise RuntimeError("no memory")
        return features

    def align(self, encoded, prompt, texts, frames):
        count = len(texts[0])
        path = [(frame * (count + 1) // (frames // 2), frame) for frame in range(frames // 2)]
        return [SimpleNamespace(alignments=path)]

    def generate(self, encoded, prompts, beam_size):
        return [SimpleNamespace(sequences_ids=[list({HEARD!r}.encode())])]

    def detect_language(self, encoded):
        return [[("<|de|>", 1.0)]]


models = SimpleNamespace(Whisper=Whisper)
"""


def scripted_whisper(folder: Path, *, behavior: str = "", multilingual: bool = False) -> Path:
    """The folder of the model; `folder / "library"` belongs into sys.path."""
    library, model = folder / "library", folder / "whisper"
    library.mkdir(parents=True)
    (library / "ctranslate2.py").write_text(_LIBRARY)
    model.mkdir()
    (model / "model.bin").touch()
    (model / "behavior").write_text(behavior)
    if multilingual:
        (model / "multilingual").touch()
    _tokenizer().save(str(model / "tokenizer.json"))
    return model


def _tokenizer() -> Tokenizer:
    """Every byte is a token, and its own id."""
    shown = {
        byte: pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(byte))[0][0] for byte in range(128)
    }
    others = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(shown.values()))
    vocabulary = {char: number for number, char in enumerate([*shown.values(), *others])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        ["<|startoftranscript|>", "<|en|>", "<|de|>", "<|zh|>", "<|transcribe|>", "<|notimestamps|>", "<|endoftext|>"]
    )
    return tokenizer
