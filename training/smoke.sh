#!/usr/bin/env bash
# Every step of the training in a few minutes on a CPU, at toy size: proves that the steps fit together and that the
# exported folder loads and makes sound (noise). training/smoke.sh [WORK]. Needs Festival (apt: festival
# festvox-us-slt-hts).
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-$root/.cache/training-smoke}
python=${PYTHON:-$root/.venv/bin/python}
here=$root/training
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
mkdir -p "$work"

"$python" "$here/checks.py"
# Few sentences, by rule alone; the vocabulary needs some more to learn from.
"$python" "$here/texts.py" "$work/sentences.txt" --count 400 --words /nonexistent
"$python" "$here/vocabulary.py" "$work" --sizes toy
head -n 20 "$work/sentences.txt" > "$work/few.txt"
"$python" "$here/speech.py" "$work" --sentences "$work/few.txt" --workers 1
# Judges from the middle on; the second call goes on where the first one ended.
"$python" "$here/codec.py" "$work" --sizes toy --steps 3 --batch 2 --judges-from 0.5
"$python" "$here/codec.py" "$work" --sizes toy --steps 5 --batch 2 --judges-from 0.5
"$python" "$here/words.py" "$work" --workers 1
"$python" "$here/encode.py" "$work" --pack "$work/packed"
"$python" "$here/talker.py" "$work" --sizes toy --steps 10 --rows 1200 --workers 1 --watch-every 5
"$python" "$here/foretell.py" "$work"
"$python" "$here/codec.py" "$work" --sizes toy --steps 2 --batch 2 --polish
"$python" "$here/keep.py" "$work" "$work/kept"
"$python" "$here/keep.py" "$work/again" --restore "$work/kept"
"$python" "$here/export.py" "$work" "$work/model" --parts "$work/parts"
"$python" "$here/evaluate.py" model "$work/spoken" --model "$work/model" --limit 2 --voice wren --device cpu
"$python" "$here/plot.py" --log "$work/log.jsonl" --out "$work/plots"
echo "smoke: all steps ran; $work/model speaks"
