#!/usr/bin/env bash
# Installs the JavaScript clients: tests/clients/node/environment.sh FOLDER
# Without npm it installs nothing, and their tests are skipped.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
folder=$1
if ! command -v npm > /dev/null; then
    echo "npm is not installed: the JavaScript clients are left out"
    exit 0
fi
mkdir -p "$folder"
cp "$here/package.json" "$here/package-lock.json" "$folder"
(cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error > /dev/null)
touch "$folder/installed"
