#!/usr/bin/env bash
# Installs wyoming-openai, which needs Python 3.12: tests/clients/wyoming/environment.sh FOLDER
# Without such a Python it installs nothing, and its tests are skipped.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
folder=$1
for python in python3.12 python3.13 python3.14 ~/.pyenv/versions/3.1[2-4].*/bin/python; do
    if "$python" -c '' 2> /dev/null; then
        "$python" -m venv --without-pip "$folder"
        "$root/.venv/bin/pip" --quiet --disable-pip-version-check --python "$folder/bin/python" \
            install --no-compile --no-deps -r "$here/requirements.txt"
        "$folder/bin/python" -m wyoming_openai --help > /dev/null
        touch "$folder/installed"
        exit 0
    fi
done
echo "Python 3.12 is not installed: wyoming-openai is left out"
