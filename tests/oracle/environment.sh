#!/usr/bin/env bash
# Makes a separate environment for the official package: tests/oracle/environment.sh [FOLDER]
# Does nothing when the folder already matches the requirements. Needs .venv: its pip is quicker than most Pythons' own.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-$root/.venv-oracle}
stamp=$folder/oracle-stamp

# The checksum includes this script, which lists the packages installed without their requirements.
wanted=$(cat "$here/requirements.txt" "$here/environment.sh" "$root/constraints.txt" | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi
rm -f "$stamp"

[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv --without-pip "$folder"
install=("$root/.venv/bin/pip" --quiet --disable-pip-version-check --python "$folder/bin/python" install --no-compile)
"${install[@]}" -c "$root/constraints.txt" -r "$here/requirements.txt"
# qwen-tts would install gradio and torchaudio; dashscope is needed for one data file only, the Qwen vocabulary.
"${install[@]}" --no-deps qwen-tts==0.1.1 dashscope==2.0.2

# A stub for torchaudio: the 25 Hz tokenizer imports it, and our tests never call it.
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$packages/torchaudio/compliance"
: > "$packages/torchaudio/__init__.py"
: > "$packages/torchaudio/compliance/__init__.py"
cat > "$packages/torchaudio/compliance/kaldi.py" <<'STUB'
def fbank(*args, **kwargs):
    raise NotImplementedError("torchaudio is a stub in this environment")
STUB

# And one for numba: for librosa it compiles twenty seconds long, when it first reads or resamples a file, functions
# that our tests never call.
rm -rf "$packages/numba"
mkdir "$packages/numba"
cat > "$packages/numba/__init__.py" <<'STUB'
def undecorated(*arguments, **options):
    return arguments[0] if arguments and callable(arguments[0]) else lambda function: function


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return undecorated
STUB

"$folder/bin/python" -c 'import qwen_tts'  # shows that all is there, and compiles what is used and no more

echo "$wanted" > "$stamp"
