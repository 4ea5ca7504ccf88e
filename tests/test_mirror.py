"""Tests mirror src/: a test file has the place and the name of its module, perhaps with a word after it.

`server/live/test_utterance_pauses.py` tests `server/live/utterance.py`. What crosses modules is named by its promise,
and listed here. A module without a test of its name is listed with the one that covers it.
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
# The other way round: the test of a module that has none of its name.
TESTED_BY = {
    "audio/decoding/test_clip_decoder": "audio/decoding/decoder_process audio/decoding/wire",
    "audio/decoding/test_clip_decoder_corpus": "audio/decoding/decoders",
    "audio/test_encoders": "audio/formats audio/libav_encoders",
    "commands/test_doctor": "commands/official_codes",
    "deploy/tritonserver/test_repository": "deploy/tritonserver/engine_models",
    "deploy_ray/test_ray": "deploy/ray",
    "engine/test_loop_queue": "engine/admission",
    "engine/test_memory_plan": "engine/memory_sizes",
    "export/test_onnx_file": "export/description",
    "export/test_parts": "commit export/codec_step export/codec_window export/encoders export/graph",
    "fleet/test_simulation": "fleet/engine",
    "kernels/cuda/test_chain": "kernels/operations",
    "kernels/cuda/test_linear": "kernels/cuda/launches kernels/cuda/program",
    "kernels/test_conv": "kernels/conv_tiles",
    "model/test_codec": "model/streaming",
    "model/test_names": "model/speech_model",
    "model/test_weights": "model/json_files",
    "prompt/test_cloning": "model/encoders",
    "runner/cpu/test_backend": (
        "model/layers runner/backend runner/cpu/layers runner/cpu/predictor runner/cpu/steps runner/torch_backend"
    ),
    "runner/cuda/test_codec_stack": "runner/cuda/codec_layers",
    "runner/cuda/test_interpreted": "runner/cuda/graphs runner/slot_state",
    "runner/cuda/test_precompile": "runner/cuda/triton_programs",
    "runner/cuda/test_prefill_packs": "kernels/admit runner/cuda/admission_block",
    "runner/test_slot_runner": "runner/runner",
    "server/api/test_voices": "server/api/voice_upload server/http/forms",
    "server/http/test_connections": "server/http/websocket_limits",
    "server/live/test_live_session_refusals": "server/live/messages",
    "server/test_asyncapi": "server/dialects/routes",
    "server/test_app": "server/api/models server/service",
    "server/test_vllm_omni_requests": "server/dialects/vllm_omni",
    "speech/test_cloned_voices": "speech/limits",
    "speech/test_phrase_cache": "speech/service",
    "speech/test_run": "speech/events types",
    "test_request": "errors fields",
    "tritonserver/test_tritonserver": "deploy/tritonserver/codec_model",
    "commands/test_serve": "serving/model_loader",
    "text/english/test_reader": "text/english/numbers text/english/quantities text/english/words",
    "text/english/test_written": "text/english/lexicon",
    "text/normalization/test_rule": (
        "text/normalization/calendar text/normalization/language text/normalization/number_words"
        " text/normalization/quantities text/normalization/speller text/scanner"
    ),
    "text/test_preparation": "text/chain",
}


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


def own_tests(module: str) -> list[str]:
    """The tests that have the module's name, perhaps with a word after it."""
    folder, name = (PACKAGE / module).parent.relative_to(PACKAGE), Path(module).name
    return [*(TESTS / folder).glob(f"test_{name}.py"), *(TESTS / folder).glob(f"test_{name}_*.py")]


def test_every_module_has_a_test_of_its_name_or_a_listed_one() -> None:
    found = (file.relative_to(PACKAGE).with_suffix("").as_posix() for file in PACKAGE.rglob("[!_]*.py"))
    without = {module for module in found if not own_tests(module)}
    listed = [module for modules in TESTED_BY.values() for module in modules.split()]
    assert without == set(listed) and len(listed) == len(set(listed)), "name a test after the module, or list it"


def test_every_listed_test_exists() -> None:
    assert [name for name in TESTED_BY if not (TESTS / f"{name}.py").exists()] == []
