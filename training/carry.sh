#!/usr/bin/env bash
# Packs what the training machine needs and cannot fetch: Festival with its voice for x86_64 (binary, libraries, data),
# the sentences and the vocabulary learnt from them. training/carry.sh [OUT, default .carry/training]
# Needs a Debian 12 with apt; its own architecture may differ.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/.carry/training}
count=${SENTENCES:-40000}
python=${PYTHON:-$root/.venv/bin/python}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out"

# An apt of its own, for amd64, that knows the system's sources and keys and changes nothing of the system.
mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial" "$scratch/debs"
: > "$scratch/status"
cat > "$scratch/apt.conf" <<CONF
Dir::State "$scratch";
Dir::State::lists "$scratch/lists";
Dir::State::status "$scratch/status";
Dir::Cache "$scratch/cache";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
CONF
export APT_CONFIG=$scratch/apt.conf
apt-get update -qq
# Festival's libraries reach for sound servers that are never used here; the loader wants them all the same.
(cd "$scratch/debs" && apt-get download -qq festival festvox-us-slt-hts festlex-cmu festlex-poslex libestools2.5 \
    libc6 libgcc-s1 libstdc++6 libgomp1 libtinfo6 libasound2 libpulse0 libasyncns0 libdbus-1-3 libsndfile1 libsystemd0 \
    libx11-6 libx11-xcb1 libxcb1 libxau6 libxdmcp6 libbsd0 libmd0 libcap2 libgcrypt20 libgpg-error0 liblz4-1 liblzma5 \
    libzstd1 libflac12 libmp3lame0 libmpg123-0 libogg0 libopus0 libvorbis0a libvorbisenc2 \
    sword-text-web wamerican-small)
unset APT_CONFIG
for deb in "$scratch"/debs/*.deb; do
    dpkg-deb -x "$deb" "$scratch/unpacked"
done

"$python" "$root/training/texts.py" "$out/sentences.txt" --count "$count" \
    --bible "$scratch/unpacked"/usr/share/sword/modules/texts/ztext/engWEB2015eb \
    --words "$scratch/unpacked/usr/share/dict/american-english-small" \
    --lexicon "$scratch/unpacked/usr/share/festival/dicts/cmu/cmudict-0.4.out"

"$python" "$root/training/vocabulary.py" "$out"

# The binary and every library that it needs, directly or not; a missing one is an error here and not there.
bundle=$scratch/teachers
mkdir -p "$bundle/lib" "$bundle/share" "$bundle/licences"
cp "$scratch/unpacked/usr/bin/festival" "$bundle/festival"
pending=("$bundle/festival")
while [ ${#pending[@]} -gt 0 ]; do
    file=${pending[0]}
    pending=("${pending[@]:1}")
    for name in $(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        [ -e "$bundle/lib/$name" ] && continue
        found=$(find "$scratch/unpacked" -name "$name" | head -n 1)
        [ -n "$found" ] || { echo "no package brought $name, which ${file##*/} needs" >&2; exit 1; }
        cp -L "$found" "$bundle/lib/$name"
        pending+=("$bundle/lib/$name")
    done
done
cp -rL "$scratch/unpacked/usr/share/festival" "$bundle/share/festival"
for package in festival festvox-us-slt-hts festlex-cmu festlex-poslex; do
    cp "$scratch/unpacked/usr/share/doc/$package/copyright" "$bundle/licences/$package"
done
tar -C "$bundle" --sort=name --owner=0 --group=0 --mtime=@0 -cJf "$out/teachers.tar.xz" .
ls -l "$out"
