"""Measurements of Oscine. Not part of the wheel; run a module from the repository root: `python -m benchmarks.frame`.

frame        one frame on a GPU, part by part       server       `oscine serve` under `oscine bench`, one machine
model        the engine without a server            soak         long load, overload, vanishing clients, kill -9
listeners    streams that one engine can sustain    front_end    the server over an engine without a model
check_model  GPU against CPU, full-size weights     client_selftest   accuracy of the bench client
admission    host time of an admission, by part     first_audio  the stages of the time to the first audio
demo_recordings   the demo voice on a GPU, alone and in company, for `oscine eval`
on_gpu       the GPU tests and most of these that need a GPU, within a time limit; --list shows its steps
gpu_tests    counts of the GPU tests                 sanitize     the CUDA kernels under compute-sanitizer
python_api   `Oscine`: alone and in a batch        cpu          published sizes on a CPU
report       writes docs/benchmarks.md, its plots, and the tables of the README from docs/results/*.json
"""

import sys
from pathlib import Path

# A bare GPU machine has the repository but no installed package.
sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", "tools")]
