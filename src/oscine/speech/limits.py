"""Limits of all that requests may hold together: process/resources.py counts it, docs/configuration.md lists it."""

from __future__ import annotations

from dataclasses import replace

from oscine.config import ServerConfig
from oscine.process.resources import Ledger, Limit

_SMALL_BYTES = 64 * 2**10
_SHARE_OF_ADDRESS = 0.75  # of each limit, by default: one client leaves room for others
_ALWAYS = 2**16  # jobs: work of streams that were admitted, which must not fail for load


def ledger_of(config: ServerConfig) -> Ledger:
    return Ledger(limits_of(config))


def limits_of(config: ServerConfig) -> list[Limit]:
    def held(
        kind: str, setting: str, covers: str, full: str, *, key: str = "", free: int = 0, advice: str = ""
    ) -> Limit:
        """`setting` and `key` name settings: the limit in all, and that of a key."""
        in_all, of_key = getattr(config, setting), (config.bytes_per_key, getattr(config, key) if key else None)
        return Limit(
            kind=kind,
            covers=covers,
            full=full,
            settings=tuple(name for name in (setting, key) if name),
            in_all=in_all,
            per_key=min((most for most in of_key if most is not None), default=None),
            per_address=config.bytes_per_address or round(_SHARE_OF_ADDRESS * in_all),
            free=free,
            advice=advice,
        )

    def jobs(kind: str, threads: int, in_all: int, covers: str) -> Limit:
        return Limit(
            kind=kind,
            covers=covers,
            full=f"{{limit}} {kind.replace('_', ' ')} jobs {{whose}} run or wait",
            in_all=in_all,
            per_key=config.jobs_per_key,
            per_address=config.jobs_per_address or round(_SHARE_OF_ADDRESS * in_all),
            threads=threads,
        )

    def always(kind: str, threads: int, covers: str) -> Limit:
        return replace(jobs(kind, threads, _ALWAYS, covers), per_key=None, per_address=None)

    return [
        held(
            *("request", "max_bytes_in_flight"),
            "bodies until their requests end, messages of WebSockets until they are handled; 64 KiB of each are free",
            "large requests {whose} have {limit} in memory",
            free=_SMALL_BYTES,
        ),
        held(
            *("response", "max_bytes_in_flight"),
            "lists of voices, voice files and encoded files, until they are read; 64 KiB of each are free",
            "large responses {whose} have {limit} in memory",
            free=_SMALL_BYTES,
        ),
        held(
            *("clip", "max_bytes_in_flight"),
            "reference clips, from the first byte that is fetched until their voices are made",
            "reference clips {whose} have {limit} in memory",
        ),
        held(
            *("live_text", "max_bytes_in_flight"),
            "utterances of WebSockets that wait to be spoken: 8 KiB each, and four bytes a character",
            "texts {whose} that wait to be spoken have {limit}",
            advice="send the text as it is spoken, or ",
        ),
        held(
            *("audio", "max_collected_bytes"),
            "audio that is collected into whole files, batches and sentences, until it is read, and the segments whose "
            "words are timed; 64 KiB of each are free",
            "files {whose} that are not sent yet have {limit}",
            key="collected_bytes_per_key",
            free=_SMALL_BYTES,
            advice="stream the audio, or ",
        ),
        held(
            *("kept_file", "kept_files_bytes"),
            "files that URLs of DashScope's protocol name; one that exceeds a limit alone has a data: URL",
            "kept files {whose} have {limit}",
            key="kept_files_bytes_per_key",
        ),
        held(
            *("phrase", "phrase_cache_bytes"),
            "phrases that are recorded for the cache of phrases while they are spoken; without room they are not",
            "phrases {whose} have {limit}",
        ),
        # Text and voice files are apart from other files: the list of voices must not delay speech.
        jobs("text", 2, 256, "texts that take longer than some milliseconds to prepare"),
        jobs("voice_file", 2, 256, "uploaded voices that speech reads"),
        jobs("file", 2, 256, "voices and consents that are uploaded, exported and deleted"),
        jobs("voice_list", 1, 256, "lists of voices and consents"),
        jobs("clip_decoding", 2, 1024, "clips whose base64 is decoded, whose file is read, or whose hash is made"),
        jobs("name_lookup", 8, 256, "names of hosts that clips are fetched from"),
        jobs("clone", 4, 64, "clips that are decoded and made into voices, each once"),
        jobs("conversion", 1, 8, "files of `POST /v1/audio/encode`"),
        jobs("alignment", 1, 64, "segments to align and clips to transcribe; beyond it, words have no times"),
        always("encoding", 4, "audio of streams and files that is encoded, a chunk a job"),
        always("model_change", 2, "models that are added and removed, for clients with the role `admin`"),
    ]
