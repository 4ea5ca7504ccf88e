#!/usr/bin/env bash
# The whole training, on a machine with one large GPU and 16 cores where a command may run for at most ten minutes:
#   training/run.sh all WORK OUT SECONDS [STAGE]     starts everything in the background, then waits as `wait` does
#   training/run.sh wait WORK OUT SECONDS [STAGE]    waits until STAGE has ended (default: the next one) or for SECONDS,
#                                                    then copies new files to OUT and prints the state
#   training/run.sh stop WORK                        stops it; `all` continues from there
#   training/run.sh assemble WORK                    joins the pieces in WORK/teacher to kokoro.safetensors
#   training/run.sh restore WORK PARTS               makes a new WORK from copied files (codec.*, talker.*), or from
#                                                    a checkpoint; `all` then skips the stages that made them
# Stages: speech, codec (and beside them codes, talker, more), export, keep, check, heard. LAST names the last stage to
# run; AGAIN ("codec", "talker" or both) trains on from the saved weights with a new schedule. A failed stage does not
# stop the others. WORK/driver.txt has the times. One copy has at most eight files of at most 15 MB, 62 MB in all.
# CARRY is the output of carry.sh. `settings` lists all variables; they apply to `all`.
# Everything is in functions, because bash reads a script while it runs and this file may be replaced meanwhile.
set -uo pipefail

settings() {
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    carry=${CARRY:-$here/../.carry/training}
    python=${PYTHON:-python3}
    hours=${HOURS:-6}                   # of speech, with which the codec begins
    more_hours=${MORE_HOURS:-30}        # of speech, at last
    sentences=${TALKER_SENTENCES:-200000}  # for the talker
    rounds=${ROUNDS:-1}                 # how often the talker gets each sentence, each time by another voice
    writers=${WRITERS:-6}               # processes that write the codes
    codec_s=${CODEC_S:-1250}
    codec_until_s=${CODEC_UNTIL_S:-}    # instead: ends so many seconds after the start of `all`
    rate=${RATE:-4e-4}                  # the codec's highest learning rate
    last=${LAST:-heard}                 # the last stage
    talker_s=${TALKER_S:-800}
    talker_rate=${TALKER_RATE:-1.5e-3}
    heard=${HEARD:-10}                  # held-out sentences of each voice, the teacher's codes decoded
    checked=${CHECKED:-30}              # held-out sentences of each voice, by the checkpoint
    size=(--sizes "${SIZES:-demo}")
    # CODEC_OPTIONS and TALKER_OPTIONS: more options of codec.py and talker.py. Empty COMPILE: not compiled.
    codec=("${size[@]}" --batch "${BATCH:-16}" --rate "$rate" ${COMPILE---compile} ${CODEC_OPTIONS:-})
    talker=("${size[@]}" --rate "$talker_rate" --steps 60000 --rows "${ROWS:-24000}" --workers "${LOADERS:-8}")
    talker+=(${TALKER_OPTIONS:-})
    teacher=(--teacher "${TEACHER:-$work/teacher}")  # the folder that `assemble` made
    logs=$work/logs fresh=$work/fresh home=$work/home
    export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
    [ ! -d "$carry/packages" ] || export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$carry/packages
}

# --- in the background ---

drive() {
    echo $$ > "$work/driver.pid"
    note "begins: codec $codec_s s, talker $talker_s s; last stage $last"
    cp "$carry"/*.tsv "$carry"/*.tsv.xz "$work/"
    [ -e "$work/vocabulary" ] || cp -r "$carry/vocabulary" "$work/"
    start_mps
    (stage codes write_codes && stage talker train_talker) &
    stage speech speak --hours "$hours"
    stage more speak --hours "$more_hours" &
    stage codec train_codec
    wait
    stage export export_model
    stage keep keep_weights
    stage check check_model
    stage heard record_codec
    note "all done"
}

note() {
    printf '%5d s  %s\n' "$SECONDS" "$*" >> "$work/driver.txt"
}

# Skips a stage that succeeded before; remove WORK/done/NAME to repeat it.
stage() {
    local name=$1 begun=$SECONDS
    shift
    [ ! -e "$work/done/$name" ] && [ ! -e "$work/over" ] || return 0
    note "$name begins"
    if "$@" > "$logs/$name.txt" 2>&1; then
        touch "$work/done/$name"
        note "$name ended after $((SECONDS - begun)) s"
    else
        note "$name FAILED after $((SECONDS - begun)) s: $(tail -n 1 "$logs/$name.txt" | cut -c 1-200)"
    fi
    [ "$name" != "$last" ] || touch "$work/over"
}

# NVIDIA's Multi-Process Service, where it works: two processes whose kernels are small then share the GPU at once
# instead of in turns.
start_mps() {
    mkdir -p "$work/mps"
    export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
    if nvidia-cuda-mps-control -d > "$logs/mps.txt" 2>&1; then
        if timeout 60 "$python" -c 'import torch; torch.ones(1, device="cuda").item()' >> "$logs/mps.txt" 2>&1; then
            note "processes share the GPU at once"
            return 0
        fi
        echo quit | nvidia-cuda-mps-control
    fi
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    note "processes share the GPU in turns"
}

# Runs a script of this folder with a time limit in seconds.
within() {
    timeout --foreground -k 10 "$1" "$python" "$here/$2" "${@:3}"
}

# Moves files atomically from $fresh to $home.
bring() {
    local file
    for file in "$fresh"/*; do
        [ -e "$file" ] || continue
        if [ "$(stat -c %s "$file")" -le 15728640 ]; then
            mv -f "$file" "$home/"
        else
            note "${file##*/} is larger than 15 MB and stays in $fresh"
        fi
    done
    return 0
}

speak() {
    within 600 speech.py "$work" "${teacher[@]}" --phonemes "$work/phonemes.tsv.xz" "$@"
}

# The codes of all sentences, `rounds` times with different voices. The CPU is the limit, hence several processes.
write_codes() {
    local round part jobs=()
    for round in $(seq 0 $((rounds - 1))); do
        for part in $(seq 0 $((writers - 1))); do
            speak --codes-only --limit "$sentences" --round "$round" --part "$part" --parts "$writers" &
            jobs+=($!)
        done
    done
    for part in "${jobs[@]}"; do wait "$part" || return; done
}

again() {
    [[ " ${AGAIN:-} " == *" $1 "* ]]
}

# Once more from its last checkpoint without graphs if it fails.
train_codec() {
    [ -z "$codec_until_s" ] || codec_s=$((codec_until_s - SECONDS))
    local run=(codec.py "$work" "${codec[@]}" --seconds "$codec_s")
    ! again codec || run+=(--again --judge-from 0)
    within $((codec_s + 150)) "${run[@]}" && return
    note "codec.py failed; once more with --no-graph"
    within $((codec_s + 150)) "${run[@]}" --no-graph
}

record_codec() {
    within 120 evaluate.py codec "$work/heard-codec" --work "$work" "${teacher[@]}" --phonemes "$work/heldout.tsv" \
        --limit "$heard" | tee -a "$work/heard.jsonl" &&
        tar -C "$work" -cf "$fresh/heard-codec.tar" heard-codec && bring
}

train_talker() {
    local limits=(--limit-s "$talker_s")
    ! again talker || limits+=(--again)
    within $((talker_s + 150)) talker.py "$work" "${talker[@]}" "${limits[@]}" --compile && return
    note "talker.py failed; once more without --compile"
    within $((talker_s + 150)) talker.py "$work" "${talker[@]}" "${limits[@]}"
}

export_model() {
    within 120 export.py "$work" "$work/demo" --parts "$fresh" && bring
}

keep_weights() {
    within 60 keep.py "$work" "$fresh" talker codec && bring
}

check_model() {
    within 150 evaluate.py model "$work/heard-demo" --model "$work/demo" --limit "$checked" &&
        tar -C "$work" -cf "$fresh/heard-demo.tar" heard-demo && bring
}

# --- in the foreground ---

start() {
    if driving; then
        echo "already running (process $(cat "$work/driver.pid")); use 'wait', or 'stop' first" >&2
        exit 1
    fi
    mkdir -p "$work" "$work/done" "$logs" "$fresh" "$home"
    rm -f "$work/told.txt" "$work/driver.pid"
    rm -f "$work/over"
    local name
    for name in ${AGAIN:-}; do rm -f "$work/done/$name"; done
    : > "$work/driver.txt"
    # In its own session, so that it continues after this command.
    setsid nohup bash "$here/run.sh" drive "$work" > "$logs/driver.txt" 2>&1 < /dev/null &
    until [ -s "$work/driver.pid" ]; do sleep 0.2; done
}

driving() {
    [ -s "$work/driver.pid" ] && kill -0 "$(cat "$work/driver.pid")" 2> /dev/null
}

ended_stages() {
    grep -cE ' (ended|FAILED) after ' "$work/driver.txt"
}

arrived() {
    if [ -n "$1" ]; then
        grep -qE "  $1 (ended|FAILED) after " "$work/driver.txt"
    else
        [ "$(ended_stages)" -gt "$(cat "$work/told.txt" 2> /dev/null || echo 0)" ]
    fi
}

wait_for() {
    local deadline=$((SECONDS + $1)) name=${2:-}
    if [ ! -f "$work/driver.txt" ]; then
        echo "nothing was started in $work: use 'all' first" >&2
        exit 1
    fi
    until arrived "$name" || ! driving || [ "$SECONDS" -ge "$deadline" ]; do sleep 1; done
    ended_stages > "$work/told.txt"
    take_home
    tell
}

take_home() {
    local bytes=0 files=0 left=0 stamp size name
    mkdir -p "$out"
    touch "$work/taken.txt"
    cp "$work/log.jsonl" "$out/" 2> /dev/null
    tar -C "$work" -czf "$out/logs.tar.gz" driver.txt logs 2> /dev/null
    while read -r stamp size name; do
        grep -qxF "$stamp $size $name" "$work/taken.txt" && continue
        if [ $files -ge 6 ] || [ $((bytes + size)) -gt 60000000 ]; then
            left=$((left + 1))
        elif cp "$home/$name" "$out/$name"; then
            echo "$stamp $size $name" >> "$work/taken.txt"
            files=$((files + 1)) bytes=$((bytes + size))
        fi
    done < <(find "$home" -type f -printf '%T@ %s %f\n' | sort -n)
    [ $left -eq 0 ] || echo "$left more files wait to be copied: call 'wait' again"
}

tell() {
    local name
    cat "$work/driver.txt"
    driving || echo "(nothing runs)"
    name=$(grep -oE '[a-z]+ begins$' "$work/driver.txt" | tail -n 1 | cut -d ' ' -f 1)
    for name in $name; do
        [ -f "$logs/$name.txt" ] || continue
        echo "--- $name"
        tail -n 3 "$logs/$name.txt" | cut -c 1-500
    done
    ls -l "$out"
    nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2> /dev/null || true
}

# Joins the pieces of the teacher's weights and checks the hashes.
assemble() {
    cd "$work/teacher" || exit 1
    cat kokoro.safetensors.[0-9][0-9] > kokoro.safetensors && sha256sum --check --quiet SHA256SUMS || exit 1
    rm -f kokoro.safetensors.[0-9][0-9]
}

restore() {
    local stage
    mkdir -p "$work/done"
    if [ -e "$1/config.json" ]; then
        "$python" "$here/from_checkpoint.py" "$work" "$1" "${size[@]}" || exit 1
    else
        "$python" "$here/keep.py" "$work" --restore "$1" || exit 1
    fi
    for stage in codec talker; do
        [ ! -e "$work/$stage.pt" ] || touch "$work/done/$stage"
    done
}

stop() {
    driving && kill -- "-$(cat "$work/driver.pid")"
    while driving; do sleep 0.2; done
    note "stopped"
}

main() {
    local usage="run.sh all|wait WORK OUT SECONDS [STAGE], run.sh assemble|stop WORK, run.sh restore WORK PARTS"
    local command=${1:-} work=${2:?$usage} out=${3:-}
    settings
    case $command in
    all) start && wait_for "${4:?$usage}" "${5:-}" ;;
    wait) wait_for "${4:?$usage}" "${5:-}" ;;
    stop) stop ;;
    restore) restore "${out:?$usage}" ;;
    assemble) assemble ;;
    drive) drive ;;
    *)
        echo "$usage; not '$command'" >&2
        exit 2
        ;;
    esac
}

main "$@"; exit
