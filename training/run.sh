#!/usr/bin/env bash
# The whole training, on a machine with one large GPU and 16 cores whose commands may last ten minutes at most:
#   training/run.sh all WORK OUT SECONDS [STAGE]     starts everything in the background, then waits as `wait` does
#   training/run.sh wait WORK OUT SECONDS [STAGE]    until STAGE has ended (default: the next one), or the seconds are
#                                                    over; then copies to OUT what is new, and says where things stand
#   training/run.sh stop WORK                        ends it; `all` goes on from there
#   training/run.sh restore WORK PARTS               a new WORK from what came home (codec.*, codes-*, talker.*): `all`
#                                                    then begins with the talker, or behind it if it came home too
# Stages: speech, codec, heard, encode, talker, foretell, polish, export, keep, check. One that fails does not stop the
# others.
# WORK/driver.txt has their times. A copy is of eight files and 62 MB at most, of at most 15 MB each.
# CARRY is what carry.sh packed. All that can be set stands in `settings`; it counts for `all`.
# Everything is a function: bash reads a script while it runs it, and this one may be replaced meanwhile.
set -uo pipefail

settings() {
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    carry=${CARRY:-$here/../.carry/training}
    python=${PYTHON:-python3}
    first_part=${FIRST_PART:-0.12}      # of the speech, before the codec; the rest is said beside it
    codec_s=${CODEC_S:-520}
    judges_from=${JUDGES_FROM:-0.45}    # of the codec's time
    talker_s=${TALKER_S:-600}           # AGAIN=1: from the weights that are there, with a new schedule
    polish_s=${POLISH_S:-400}           # of the decoder alone; 0: none
    heard=${HEARD:-30}                  # held-out sentences of each voice, through the codec
    size=(--sizes "${SIZES:-demo}")
    codec=("${size[@]}" --steps 60000 --batch "${BATCH:-48}" --compile)
    talker=("${size[@]}" --steps 60000 --rows "${ROWS:-24000}" --workers "${LOADERS:-8}")
    bundle=${BUNDLE-$carry/teachers.tar.xz}  # set to nothing: the system's own Festival
    teacher=(${bundle:+--bundle "$bundle"})
    logs=$work/logs fresh=$work/fresh home=$work/home
    export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
}

# --- in the background ---

drive() {
    echo $$ > "$work/driver.pid"
    note "begins: codec $codec_s s, talker $talker_s s, polish $polish_s s"
    cp -r "$carry/sentences.txt" "$carry/vocabulary" "$work/"
    if [ -e "$work/done/encode" ]; then
        speak_on --only "$first_part" # the decoder's polish needs some; the talker needs none
    else
        stage speech within 300 speech.py "$work" "${teacher[@]}" --only "$first_part"
        speak_on
    fi
    stage codec train_codec
    stage heard hear_codec
    [ -e "$work/done/encode" ] || stop_speaking
    stage encode encode
    stage talker train_talker
    finish_speaking
    stage foretell within 120 foretell.py "$work"
    [ "$polish_s" -eq 0 ] || stage polish robust_codec "$polish_s" --polish --rate 3e-4 --judges-from 0.3
    stage export export_model
    stage keep keep_weights
    stage check check_model
    note "all done"
}

note() {
    printf '%5d s  %s\n' "$SECONDS" "$*" >> "$work/driver.txt"
}

# A stage that has ended well is not begun again: remove WORK/done/NAME for that.
stage() {
    local name=$1 begun=$SECONDS
    shift
    [ ! -e "$work/done/$name" ] || return 0
    note "$name begins"
    if "$@" > "$logs/$name.txt" 2>&1; then
        touch "$work/done/$name"
        note "$name ended after $((SECONDS - begun)) s"
    else
        note "$name FAILED after $((SECONDS - begun)) s: $(tail -n 1 "$logs/$name.txt" | cut -c 1-200)"
    fi
}

# A script of this folder, for so many seconds at most.
within() {
    timeout --foreground -k 10 "$1" "$python" "$here/$2" "${@:3}"
}

# Files from $fresh to $home, each at once and whole.
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

speak_on() {
    # In a process group of its own, to be ended with its workers.
    setsid nice -n 10 "$python" "$here/speech.py" "$work" "${teacher[@]}" "$@" > "$logs/speaking.txt" 2>&1 < /dev/null &
    echo $! > "$work/speech.pid"
}

stop_speaking() {
    [ -f "$work/speech.pid" ] || return 0
    kill -- "-$(cat "$work/speech.pid")" 2> /dev/null && sleep 1
    rm -f "$work/speech.pid"
    note "spoken: $(tail -n 1 "$logs/speaking.txt")"
}

# What is said beside a restored run is little, and all of it is needed.
finish_speaking() {
    local until=$((SECONDS + 300))
    [ -f "$work/speech.pid" ] || return 0
    while [ "$SECONDS" -lt "$until" ] && kill -0 "$(cat "$work/speech.pid")" 2> /dev/null; do sleep 0.5; done
    stop_speaking
}

# codec.py with a second try, from what it has saved, without graphs.
robust_codec() {
    local seconds=$1
    shift
    within $((seconds + 150)) codec.py "$work" "${codec[@]}" --limit-s "$seconds" "$@" && return
    note "codec.py failed; once more with --no-graph"
    within $((seconds + 150)) codec.py "$work" "${codec[@]}" --limit-s "$seconds" "$@" --no-graph
}

train_codec() {
    local status=0
    robust_codec "$codec_s" --judges-from "$judges_from" || status=1
    within 60 keep.py "$work" "$fresh" codec && bring || status=1
    return $status
}

hear_codec() {
    within 120 evaluate.py codec "$work/heard-codec" --work "$work" "${teacher[@]}" --limit "$heard" &&
        tar -C "$work" -cf "$fresh/heard-codec.tar" heard-codec && bring
}

encode() {
    within 120 words.py "$work" "${teacher[@]}" && within 300 encode.py "$work" --pack "$fresh" && bring
}

train_talker() {
    local limits=(--limit-s "$talker_s")
    [ -z "${AGAIN:-}" ] || limits+=(--again)
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
    within 150 evaluate.py model "$work/heard-demo" --model "$work/demo" --batch 8 --limit 8 &&
        tar -C "$work" -cf "$fresh/heard-demo.tar" heard-demo && bring
}

# --- in the foreground ---

start() {
    if driving; then
        echo "it runs already (process $(cat "$work/driver.pid")); use 'wait', or 'stop' first" >&2
        exit 1
    fi
    mkdir -p "$work" "$work/done" "$logs" "$fresh" "$home"
    rm -f "$work/told.txt" "$work/driver.pid"
    [ -z "${AGAIN:-}" ] || rm -f "$work/done/talker"
    : > "$work/driver.txt"
    # A session of its own: it goes on when this command has ended.
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
        echo "nothing was begun in $work: use 'all' first" >&2
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
    for name in $name speaking; do
        [ -f "$logs/$name.txt" ] || continue
        echo "--- $name"
        tail -n 3 "$logs/$name.txt" | cut -c 1-500
    done
    ls -l "$out"
    nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2> /dev/null || true
}

restore() {
    local stage
    mkdir -p "$work/done"
    "$python" "$here/keep.py" "$work" --restore "$1" && "$python" "$here/encode.py" "$work" --unpack "$1" || exit 1
    for stage in speech codec heard encode; do touch "$work/done/$stage"; done
    [ ! -e "$work/talker.pt" ] || touch "$work/done/talker"
}

stop() {
    driving && kill -- "-$(cat "$work/driver.pid")"
    while driving; do sleep 0.2; done
    stop_speaking
    note "stopped"
}

main() {
    local usage="run.sh all|wait WORK OUT SECONDS [STAGE], run.sh stop WORK, run.sh restore WORK PARTS"
    local command=${1:-} work=${2:?$usage} out=${3:-}
    settings
    case $command in
    all) start && wait_for "${4:?$usage}" "${5:-}" ;;
    wait) wait_for "${4:?$usage}" "${5:-}" ;;
    stop) stop ;;
    restore) restore "${out:?$usage}" ;;
    drive) drive ;;
    *)
        echo "$usage; not '$command'" >&2
        exit 2
        ;;
    esac
}

main "$@"; exit
