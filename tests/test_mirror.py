"""Tests mirror src/: a test file has the place and the name of its module, perhaps with a word after it.

`server/live/test_utterance_pauses.py` tests `server/live/utterance.py`. What crosses modules is named by its promise,
and listed here.
"""

from pathlib import Path

import oscine

TESTS, PACKAGE = Path(__file__).parent, Path(oscine.__file__).parent
# Folders of tests that mirror something else: other packages, pages, programs beside the server, whole environments.
OTHERS = (
    *("benchmarks", "docs", "examples", "oscine_bench", "oscine_eval", "tools"),
    *("deploy_ray", "faults", "fuzz", "lowest", "reference", "server/playground", "tritonserver"),
)
ACROSS = {
    "the whole package": (
        *("test_bad_input", "test_entrances", "test_gpu", "test_imports", "test_install", "test_mirror", "test_oracle"),
        *("test_parity", "test_private_names", "test_prose", "test_repository", "test_sampling_parity"),
        "test_server_load",
    ),
    "requests from the socket to the engine": (
        *(
            "server/test_clip_corpus",
            "server/test_collected_audio",
            "server/test_counted_costs",
            "server/test_dialogue",
            "server/test_every_form",
        ),
        *(
            "server/test_fields_of_others",
            "server/test_garbage",
            "server/test_request_corpus",
            "server/test_text_fields",
        ),
        *("server/test_word_timestamps", "server/dialects/test_hostile_clients"),
    ),
    "clients of other projects": (
        *("server/test_clients", "server/test_elevenlabs_clients", "server/test_node_clients"),
        *("server/test_sglang_omni_requests", "server/test_vllm_omni_requests", "server/test_wyoming"),
    ),
    "files that operators install": (
        *("deploy/test_docker", "deploy/test_kubernetes", "deploy/test_monitoring", "deploy/test_proxies"),
        *("deploy/test_lock", "deploy/test_systemd"),
    ),
    "the worker process": ("engine/remote/test_spawn",),
    "the work on a text": ("text/test_work", "text/english/test_written"),
    "streams in any backend": ("runner/test_poisoned_streams", "runner/test_slot_codec"),
    "kernels of every file": (
        *("kernels/cuda/test_attention", "kernels/cuda/test_chain", "kernels/cuda/test_fp8", "kernels/cuda/test_plans"),
        *("kernels/cuda/test_sample", "kernels/cuda/test_tiled", "kernels/cuda/test_window_attention"),
        *("kernels/test_interpreter", "runner/cuda/test_interpreted"),
    ),
}
LISTED = {name for names in ACROSS.values() for name in names}


def files() -> list[str]:
    found = (file.relative_to(TESTS).with_suffix("").as_posix() for file in TESTS.rglob("test_*.py"))
    return sorted(name for name in found if not name.startswith(tuple(f"{folder}/" for folder in OTHERS)))


def has_module(name: str) -> bool:
    """Whether a module or a folder has this name, or this name without its last words."""
    folder, _, stem = name.rpartition("test_")
    words = stem.split("_")
    stems = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    return any((PACKAGE / folder / f"{one}.py").exists() or (PACKAGE / folder / one).is_dir() for one in stems)


def test_every_test_file_has_the_place_and_the_name_of_its_module() -> None:
    misplaced = [name for name in files() if name not in LISTED and not has_module(name)]
    assert not misplaced, "name them after their modules, or list them in ACROSS"


def test_every_file_that_crosses_modules_exists() -> None:
    assert set(files()) >= LISTED
