#!/usr/bin/env bash
# Makes the environment of Ray Serve: tests/deploy_ray/environment.sh [FOLDER]
# Does nothing when the folder already matches the requirements. It holds Ray and what Ray needs; everything else, torch
# and Oscine included, comes from .venv and src beside it.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-$root/.venv-ray}
stamp=$folder/ray-stamp

wanted=$(cat "$here/requirements.txt" "$here/environment.sh" | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

rm -rf "$folder"
"$root/.venv/bin/python" -m venv --without-pip "$folder"
"$root/.venv/bin/pip" --quiet --disable-pip-version-check --python "$folder/bin/python" \
    install --no-compile --no-deps -r "$here/requirements.txt"

# Relative to the folder of packages, so that a checkout can be moved.
for packages in "$folder"/lib/python3*/site-packages; do
    printf '%s\n' ../../../../src "../../../../.venv/lib/$(basename "$(dirname "$packages")")/site-packages" \
        > "$packages/oscine.pth"
done

"$folder/bin/python" -c 'import oscine, ray.serve, ray.dashboard.optional_deps'
echo "$wanted" > "$stamp"
