#!/usr/bin/env bash
# Makes the environment with the checkers of deploy/, apart from ours: tests/deploy/environment.sh [FOLDER]
# Does nothing when the folder already matches the requirements. Needs .venv: its pip is quicker than most Pythons' own.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-$root/.venv-linters}
stamp=$folder/linters-stamp

wanted=$(cat "$here/requirements.txt" "$here/environment.sh" | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

rm -rf "$folder"
"${PYTHON:-python3}" -m venv --without-pip "$folder"
"$root/.venv/bin/pip" --quiet --disable-pip-version-check --python "$folder/bin/python" \
    install --no-compile --no-deps -r "$here/requirements.txt"
"$folder/bin/python" -c 'import check_jsonschema, grafana_foundation_sdk, kubernetes_validate, promql_parser'
echo "$wanted" > "$stamp"
