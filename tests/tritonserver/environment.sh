#!/usr/bin/env bash
# Makes the environment of the Triton server: tests/tritonserver/environment.sh [FOLDER, default .venv-tritonserver]
# Does nothing when the folder already matches the requirements. It shares the packages of .venv, torch above all, and
# has its own NumPy before theirs.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-$root/.venv-tritonserver}
stamp=$folder/tritonserver-stamp

wanted=$(cat "$here/requirements.txt" "$here/environment.sh" | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

# Made anew: what an older list left behind could hide that something is missing in this one.
rm -rf "$folder"
# By the Python of .venv, whose compiled packages fit no other.
"$root/.venv/bin/python" -m venv --without-pip "$folder"
"$root/.venv/bin/pip" --quiet --disable-pip-version-check --python "$folder/bin/python" \
    install --no-compile --no-deps -r "$here/requirements.txt"
site='import sysconfig; print(sysconfig.get_paths()["purelib"])'
echo "import site; site.addsitedir('$("$root/.venv/bin/python" -c "$site")')" \
    > "$("$folder/bin/python" -c "$site")/shared.pth"
"$folder/bin/python" -c 'import numpy, tritonclient.grpc.aio, torch; assert numpy.__version__ < "2", numpy'

echo "$wanted" > "$stamp"
