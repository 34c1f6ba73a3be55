#!/bin/sh
# Replays the golden trajectories on 64-bit Arm, emulated by qemu, with Debian's arm64 Python and NumPy.
#
# Nothing is installed on this machine: packages are unpacked in a folder that is removed at the end.
# Needs Debian or Ubuntu with network access to its archive, about 200 MB of disk, two to five minutes.
# It runs specification.py, HiLo's arithmetic as NumPy text, which every other backend equals bit for bit.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root" "$work/qemu"
: >"$work/status"

arm() {
    apt-get -q -oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oAPT::Sandbox::User=root \
        -oDir::State::Lists="$work/lists" -oDir::State::status="$work/status" -oDir::Cache="$work/cache" "$@"
}

echo "fetching qemu and arm64 packages" >&2
(cd "$work/qemu" && apt-get -q download qemu-user-static >/dev/null 2>&1 && dpkg -x ./*.deb .)
arm update >/dev/null
arm -y --no-install-recommends --download-only install python3-minimal python3-numpy >/dev/null
for package in "$work"/cache/archives/*.deb; do
    dpkg -x "$package" "$work/root"
done
# Debian links the BLAS library by update-alternatives, which needs an installation.
blas=$(find "$work/root/usr/lib/aarch64-linux-gnu/blas" "$work/root/usr/lib/aarch64-linux-gnu/lapack" -type d | tr '\n' ':' |
    sed "s|$work/root||g")

echo "running under qemu" >&2
mkdir -p "$work/root/tmp"
cp "$here/src/hilosync/arithmetic/specification.py" "$here/tests/optim/golden_trajectories.py" "$work/root/tmp/"
python=$(find "$work/root/usr/bin" -name 'python3.*' | head -n 1)
found=$("$work/qemu/usr/bin/qemu-aarch64-static" -L "$work/root" -E LD_LIBRARY_PATH="$blas" -E OPENBLAS_NUM_THREADS=1 \
    "$python" "$work/root/tmp/golden_trajectories.py" --specification "$work/root/tmp/specification.py")

if [ "$found" = "$(tr -d '\n' <"$here/tests/optim/golden.json")" ]; then
    echo "aarch64 gives the golden digests: $found"
else
    echo "aarch64 differs: expected $(cat "$here/tests/optim/golden.json"), got $found" >&2
    exit 1
fi
