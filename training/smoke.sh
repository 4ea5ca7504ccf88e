#!/usr/bin/env bash
# Runs every step of the training in a few minutes on a CPU, at toy size: shows that the steps fit together and that the
# exported folder loads and produces audio (noise). training/smoke.sh [WORK]. Needs the output of carry.sh (.carry).
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-$root/.cache/training-smoke}
carry=${CARRY:-$root/.carry}
python=${PYTHON:-$root/.venv/bin/python}
here=$root/training
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
mkdir -p "$work"

"$python" "$here/checks.py"
# Only generated sentences; enough of them for the vocabulary.
"$python" "$here/texts.py" "$work/sentences.txt" --count 400 --words /nonexistent
"$python" "$here/vocabulary.py" "$work" --sizes toy
# Only short ones: the teacher needs two CPU seconds per second of speech.
xz -dc "$carry/training/phonemes.tsv.xz" | awk 'length($0) < 60' | head -n 24 > "$work/phonemes.tsv" || true
"$python" "$here/speech.py" "$work" --teacher "$carry/teacher"
"$python" "$here/speech.py" "$work" --teacher "$carry/teacher" --codes-only
"$python" "$here/speech.py" "$work" --teacher "$carry/teacher" --codes-only --round 1
# Discriminators take part in the second half; the second call resumes the first.
"$python" "$here/codec.py" "$work" --sizes toy --steps 3 --batch 2 --judge-from 0.5
"$python" "$here/codec.py" "$work" --sizes toy --steps 5 --batch 2 --judge-from 0.5
"$python" "$here/evaluate.py" codec "$work/heard" --work "$work" --teacher "$carry/teacher" --voice wren --limit 1 \
    --phonemes "$carry/training/heldout.tsv" --device cpu
"$python" "$here/talker.py" "$work" --sizes toy --steps 10 --rows 1200 --workers 1 --watch-every 5
"$python" "$here/keep.py" "$work" "$work/kept"
"$python" "$here/keep.py" "$work/again" --restore "$work/kept"
cmp "$work/vocabulary/merges.txt" "$work/again/vocabulary/merges.txt"
"$python" "$here/keep.py" "$work" "$work/kept-small" codec --small
"$python" "$here/keep.py" "$work/small" --restore "$work/kept-small"
"$python" "$here/export.py" "$work" "$work/model" --parts "$work/parts"
"$python" "$here/from_checkpoint.py" "$work/reopened" "$work/model" --sizes toy
"$python" "$here/export.py" "$work/reopened" "$work/model-again"
cmp "$work/model/model.safetensors" "$work/model-again/model.safetensors"
cmp "$work/model/speech_tokenizer/model.safetensors" "$work/model-again/speech_tokenizer/model.safetensors"
"$python" "$here/evaluate.py" model "$work/spoken" --model "$work/model" --limit 2 --voice wren --device cpu
"$python" "$here/plot.py" --log "$work/log.jsonl" --out "$work/plots"
echo "smoke: all steps ran; $work/model speaks"
