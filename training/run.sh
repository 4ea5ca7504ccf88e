#!/usr/bin/env bash
# The whole training in three commands of less than ten minutes each, on a machine with one large GPU and 16 cores:
#   training/run.sh 1 WORK OUT    the teacher speaks (the rest of it in the background); codec
#   training/run.sh 2 WORK OUT    codes; talker and predictor, and beside them the decoder alone; export
#   training/run.sh 3 WORK OUT    both once more with a small learning rate; export; held-out sentences
# CARRY is what carry.sh packed. OUT gets what is worth taking home, in files of at most 15 MB. Seconds can be set.
set -euo pipefail

stage=$1 work=$2 out=$3
root=$(cd "$(dirname "$0")/.." && pwd)
carry=${CARRY:-$root/.carry/training}
python=${PYTHON:-python3}
here=$root/training
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
mkdir -p "$work" "$out"

size=(--sizes "${SIZES:-demo}")
codec=("${size[@]}" --steps 20000 --batch "${BATCH:-48}" --compile)
talker=("${size[@]}" --steps 30000 --workers "${LOADERS:-8}")
# BUNDLE set to nothing: the system's own Festival.
bundle=${BUNDLE-$carry/teachers.tar.xz}
teacher=(${bundle:+--bundle "$bundle"})

take_home() {
    cp "$work/log.jsonl" "$out/log.jsonl"
    ls -l "$out"
}

case $stage in
1)
    cp -r "$carry/sentences.txt" "$carry/vocabulary" "$work/"
    "$python" "$here/speech.py" "$work" "${teacher[@]}" --only "${FIRST_PART:-0.2}"
    # Detached: it goes on when this command has ended.
    nohup setsid nice -n 10 "$python" "$here/speech.py" "$work" "${teacher[@]}" > "$work/speech.txt" 2>&1 &
    echo $! > "$work/speech.pid"
    "$python" "$here/codec.py" "$work" "${codec[@]}" --limit-s "${CODEC_S:-400}"
    "$python" "$here/keep.py" "$work" "$out" codec
    "$python" "$here/evaluate.py" codec "$work/heard-codec" --work "$work" "${teacher[@]}" --limit "${HELD_OUT:-20}"
    tar -C "$work" -cf "$out/heard-codec.tar" heard-codec
    tail -n 1 "$work/speech.txt"
    take_home
    ;;
2)
    # Whatever is not said by then is left out.
    speaking=$(cat "$work/speech.pid")
    for _ in $(seq "${SPEECH_WAIT_S:-120}"); do
        kill -0 "$speaking" 2> /dev/null || break
        sleep 1
    done
    kill -- "-$speaking" 2> /dev/null || true  # with its workers
    tail -n 1 "$work/speech.txt"
    "$python" "$here/encode.py" "$work" --pack "$out"
    "$python" "$here/codec.py" "$work" "${codec[@]}" --polish --limit-s "${TALKER_S:-420}" --rate 3e-4 \
        > "$work/polish.txt" 2>&1 &
    polish=$!
    "$python" "$here/talker.py" "$work" "${talker[@]}" --limit-s "${TALKER_S:-420}"
    wait "$polish"
    tail -n 1 "$work/polish.txt"
    "$python" "$here/export.py" "$work" "$work/demo" --parts "$out"
    take_home
    ;;
3)
    "$python" "$here/codec.py" "$work" "${codec[@]}" --polish --again --limit-s "${AGAIN_S:-200}" --rate 1.5e-4 \
        > "$work/polish.txt" 2>&1 &
    polish=$!
    "$python" "$here/talker.py" "$work" "${talker[@]}" --again --limit-s "${AGAIN_S:-200}" --rate 7e-4
    wait "$polish"
    tail -n 1 "$work/polish.txt"
    "$python" "$here/export.py" "$work" "$work/demo" --parts "$out"
    "$python" "$here/evaluate.py" model "$work/heard" --model "$work/demo" --batch 100 --limit "${HELD_OUT:-100}"
    "$python" "$here/keep.py" "$work" "$out" talker
    take_home
    ;;
*)
    echo "stage 1, 2 or 3, not '$stage'" >&2
    exit 2
    ;;
esac
