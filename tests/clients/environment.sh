#!/usr/bin/env bash
# Makes the environment of foreign clients, apart from ours: tests/clients/environment.sh [FOLDER]
# Does nothing when the folder already matches the requirements. Needs .venv: its pip is quicker than most Pythons' own.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-$root/.venv-clients}
stamp=$folder/clients-stamp

# Those that do not run in this Python: each has a folder below.
foreign=(node wyoming)
lists=("$here/requirements.txt" "$here/environment.sh" "$here"/node/{environment.sh,package-lock.json})
lists+=("$here"/wyoming/{environment.sh,requirements.txt})
wanted=$(cat "${lists[@]}" | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

# Made anew: what an older list left behind could hide that something is missing in this one.
rm -rf "$folder"
"${PYTHON:-python3}" -m venv --without-pip "$folder"
loading=()
for one in "${foreign[@]}"; do
    bash "$here/$one/environment.sh" "$folder/$one" &
    loading+=($!)
done
"$root/.venv/bin/pip" --quiet --disable-pip-version-check --python "$folder/bin/python" \
    install --no-compile --no-deps -r "$here/requirements.txt"

# Each client is loaded once, with nothing to say: it shows that all is there, and compiles what is used and no more.
export PYTHONDONTWRITEBYTECODE='' LITELLM_LOCAL_MODEL_COST_MAP=True LOGURU_LEVEL=WARNING
for script in "$here"/*.py; do
    echo '{}' | "$folder/bin/python" "$script" > /dev/null &
    loading+=($!)
done
for process in "${loading[@]}"; do
    wait "$process"
done

echo "$wanted" > "$stamp"
