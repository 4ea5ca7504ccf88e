"""The teacher: Festival with the voice cmu_us_slt_arctic_hts, and a second, deeper voice made from the same file.

Both voices, and the styles that instructions ask for, are copies of the voice file in which two things are changed: the
warping of the frequency axis (the length of the throat) and the mean of the log pitch. Speed is Festival's own option.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sizes import FRAME_SAMPLES, RATE_HZ

Samples = npt.NDArray[np.int16]

_VOICE = "voices/us/cmu_us_slt_arctic_hts/hts/cmu_us_slt_arctic_hts.htsvoice"
_SYSTEM_DATA = Path("/usr/share/festival")
_OWN_ALPHA = b"ALPHA=0.45"
_TEACHER_RATE_HZ = 32000
_LF0_FLOATS = 7  # of an entry: mean, its two slopes, their variances, the weight of "voiced"

PHONES = [
    "pau", "aa", "ae", "ah", "ao", "aw", "ax", "axr", "ay", "b", "ch", "d", "dh", "dx", "eh", "el", "em", "en", "er",
    "ey", "f", "g", "hh", "hv", "ih", "iy", "jh", "k", "l", "m", "n", "nx", "ng", "ow", "oy", "p", "r", "s", "sh", "t",
    "th", "uh", "uw", "v", "w", "y", "z", "zh", "h#", "brth",
]  # fmt: skip
_PHONE_IDS = {phone: index for index, phone in enumerate(PHONES)}
SILENT = ("pau", "h#", "brth")
LABEL_SAMPLES = 480  # a phone label every 20 ms

# Fixed silences, so that a student can learn where speech ends.
_LEAD_S, _TAIL_S = 0.04, 0.12
_FADE_S = 0.01
_LOUDNESS = 0.09  # root mean square between the first and the last phone
_PEAK = 0.95


@dataclass(frozen=True, slots=True)
class VoiceShape:
    alpha: float  # higher: lower formants
    pitch: float  # factor on the mean


@dataclass(frozen=True, slots=True)
class Style:
    pitch: float = 1.0
    speed: float = 1.0


VOICES = {"wren": VoiceShape(alpha=0.45, pitch=1.0), "finch": VoiceShape(alpha=0.50, pitch=0.6)}
STYLES = {
    "plain": Style(), "slow": Style(speed=0.7), "fast": Style(speed=1.4), "high": Style(pitch=1.28),
    "low": Style(pitch=0.78),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Utterance:
    key: str
    text: str
    samples: Samples  # 24 kHz, whole frames
    labels: npt.NDArray[np.uint8]  # an index into PHONES every 20 ms


@dataclass(frozen=True, slots=True)
class Reading:
    phones: npt.NDArray[np.uint8]  # of each segment, an index into PHONES
    tokens: npt.NDArray[np.int64]  # of each segment, an index into token_names; -1: a pause
    token_names: list[str]  # as they stand in the text, without punctuation


# What utt.synth does with a Text before durations. The items of Token are tokens and, below them, words. Places count
# from 1: a pause's missing feature reads as 0.
_READING = """(voice_cmu_us_slt_arctic_hts)
(define (treat key text)
 (unwind-protect (begin
  (set! heard (eval (list 'Utterance 'Text text)))
  (mapcar (lambda (module) (module heard))
   (list Initialize Text Token_POS Token POS Phrasify Word Pauses Intonation PostLex))
  (set! place 0)
  (format t "read %s |" key)
  (mapcar (lambda (token) (if (not (item.parent token)) (begin
    (set! place (+ 1 place))
    (item.set_feat token 'place place)
    (format t "%s " (item.name token)))))
   (utt.relation.items heard 'Token))
  (format t "|")
  (mapcar (lambda (s)
    (format t "%s:%d " (item.name s) (item.feat s "R:SylStructure.parent.parent.R:Token.parent.place")))
   (utt.relation.items heard 'Segment))
  (format t "\\n"))
 (format t "failed %s\\n" key)))"""


class Teacher:
    """`bundle`: what carry.sh packs (a folder or its .tar.xz), for a machine without Festival. `work` is for voice
    files and waves on their way."""

    def __init__(self, work: Path, bundle: Path | None = None) -> None:
        self._work = work
        work.mkdir(parents=True, exist_ok=True)
        if bundle is not None and bundle.is_file():
            bundle = _unpacked(bundle, work / "teachers")
        self._data = bundle / "share/festival" if bundle else _SYSTEM_DATA
        # Its own loader and libc: the bundle runs whatever the machine's are.
        loader = [str(bundle / "lib/ld-linux-x86-64.so.2"), "--library-path", str(bundle / "lib")] if bundle else []
        self._command = [*loader, str(bundle / "festival") if bundle else "festival", "--datadir", str(self._data)]

    def prepare(self) -> None:
        """Writes all voice files. Once, before workers share them."""
        for voice in VOICES:
            for style in STYLES:
                path = self._voice_file(voice, style)
                if not path.exists():
                    _write_voice(self._data / _VOICE, path, VOICES[voice], STYLES[style])

    def say(self, texts: Sequence[tuple[str, str]], voice: str, style: str, scratch: Path) -> Iterator[Utterance]:
        """(key, text) pairs, in one Festival process: it keeps the first voice file that it reads."""
        told = self._run(self._saying(voice, style, scratch), texts, scratch, r"^segments (\S+) (.*)$")
        segments = dict(told)
        for key, text in texts:
            path = scratch / f"{key}.wav"
            if key in segments and path.exists():
                utterance = _trimmed(key, text, path, segments[key])
                if utterance is not None:
                    yield utterance
                path.unlink()

    def read(self, texts: Sequence[tuple[str, str]], scratch: Path) -> dict[str, Reading]:
        """The front end alone: what would be said, without how long. A text that Festival fails on is left out."""
        readings = {}
        for key, tokens, segments in self._run(_READING, texts, scratch, r"^read (\S+) \|(.*)\|(.*)$"):
            pairs = [segment.rpartition(":")[::2] for segment in segments.split()]
            phones = np.array([_PHONE_IDS[phone] for phone, _ in pairs], np.uint8)
            places = np.array([int(token) - 1 for _, token in pairs])
            readings[key] = Reading(phones, places, tokens.split())
        return readings

    def _run(self, define: str, texts: Sequence[tuple[str, str]], scratch: Path, wanted: str) -> list[tuple[str, ...]]:
        """`define` defines (treat key text), which is called for each of the texts; the lines that are `wanted`."""
        lines = [define]
        for key, text in texts:
            quoted = text.replace("\\", " ").replace('"', '\\"')
            lines.append(f'(treat "{key}" "{quoted}")')
        scratch.mkdir(parents=True, exist_ok=True)
        script = scratch / "script.scm"
        script.write_text("\n".join(lines) + "\n", encoding="ascii")
        done = subprocess.run([*self._command, "-b", str(script)], capture_output=True, text=True, check=False)
        found = re.findall(wanted, done.stdout, re.MULTILINE)
        if not found:
            raise RuntimeError(f"Festival said nothing: {done.stderr[-500:]!r}")
        return found

    def _voice_file(self, voice: str, style: str) -> Path:
        return self._work / f"{voice}-{STYLES[style].pitch:.2f}.htsvoice"

    def _saying(self, voice: str, style: str, scratch: Path) -> str:
        lines = [
            "(voice_cmu_us_slt_arctic_hts)",
            f'(set! hts_engine_params (list (list "-m" "{self._voice_file(voice, style)}")'
            f' (list "-r" {STYLES[style].speed})))',
            "(define (treat key text)",
            " (unwind-protect (begin",
            "  (set! spoken (utt.synth (eval (list 'Utterance 'Text text))))",
            f'  (utt.save.wave spoken (string-append "{scratch}/" key ".wav") \'riff)',
            '  (format t "segments %s" key)',
            '  (mapcar (lambda (s) (format t " %s:%f" (item.name s) (item.feat s \'end)))',
            "   (utt.relation.items spoken 'Segment))",
            '  (format t "\\n"))',
            ' (format t "failed %s\\n" key)))',
        ]
        return "\n".join(lines)


def _unpacked(archive: Path, folder: Path) -> Path:
    if not (folder / "festival").exists():
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    return folder


def _write_voice(source: Path, target: Path, shape: VoiceShape, style: Style) -> None:
    raw = bytearray(source.read_bytes())
    data = raw.index(b"[DATA]\n") + len(b"[DATA]\n")
    header = bytes(raw[:data])
    found = re.search(rb"STREAM_PDF\[LF0\]:(\d+)-(\d+)", header)
    states = re.search(rb"NUM_STATES:(\d+)", header)
    assert found and states and header.count(_OWN_ALPHA) == 1, source
    begin, end = data + int(found[1]), data + int(found[2]) + 1
    # A count for each state, then the entries of all states.
    words = np.frombuffer(bytes(raw[begin:end]), "<u4").copy()
    entries = words[int(states[1]) :].view("<f4").reshape(-1, _LF0_FLOATS)
    entries[:, 0] += np.log(shape.pitch * style.pitch)
    raw[begin:end] = words.tobytes()
    raw[:data] = header.replace(_OWN_ALPHA, b"ALPHA=%.2f" % shape.alpha)
    temporary = target.with_suffix(".part")
    temporary.write_bytes(raw)
    temporary.rename(target)


def _read_wave(path: Path) -> npt.NDArray[np.float64]:
    with wave.open(str(path)) as file:
        assert file.getframerate() == _TEACHER_RATE_HZ and file.getsampwidth() == 2, file.getparams()
        return np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768


def _resampled(sound: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """32 kHz -> 24 kHz: three samples for each, a low pass up to 11.4 kHz, every fourth of them."""
    up, down, half = 3, 4, 240
    places = np.arange(-half, half + 1)
    cutoff = 0.95 / down
    kernel = up * cutoff * np.sinc(cutoff * places) * np.kaiser(len(places), 9.0)
    spread = np.zeros(len(sound) * up)
    spread[::up] = sound
    size = 1 << (len(spread) + len(kernel)).bit_length()
    smooth = np.fft.irfft(np.fft.rfft(spread, size) * np.fft.rfft(kernel, size), size)
    return smooth[half : half + len(spread) : down]


def _trimmed(key: str, text: str, path: Path, listed: str) -> Utterance | None:
    """None: nothing was said in it."""
    names, ends = [], []
    for segment in listed.split():
        name, _, end = segment.rpartition(":")
        names.append(name)
        ends.append(float(end))
    spoken = [index for index, name in enumerate(names) if name not in SILENT]
    if not spoken:
        return None
    first_s = ends[spoken[0] - 1] if spoken[0] else 0.0
    last_s = ends[spoken[-1]]
    sound = _resampled(_read_wave(path))
    begin = max(0, round((first_s - _LEAD_S) * RATE_HZ))
    sound = sound[begin : round((last_s + _TAIL_S) * RATE_HZ)]
    voiced = sound[round(first_s * RATE_HZ) - begin : round(last_s * RATE_HZ) - begin]
    gain = min(_LOUDNESS / np.sqrt(np.mean(voiced**2) + 1e-9), _PEAK / (np.abs(sound).max() + 1e-9))
    fade = np.ones(len(sound))
    ramp = np.linspace(0, 1, round(_FADE_S * RATE_HZ))
    fade[: len(ramp)], fade[-len(ramp) :] = ramp, ramp[::-1]
    frames = -(-len(sound) // FRAME_SAMPLES)
    samples = np.zeros(frames * FRAME_SAMPLES, np.int16)
    samples[: len(sound)] = np.round(sound * fade * gain * 32767)
    middles_s = (begin + LABEL_SAMPLES * (np.arange(len(samples) // LABEL_SAMPLES) + 0.5)) / RATE_HZ
    places = np.searchsorted(np.array(ends), middles_s)
    ids = np.array([*(_PHONE_IDS[name] for name in names), 0], np.uint8)
    return Utterance(key, text, samples, ids[np.minimum(places, len(names))])
