#!/bin/sh
# A wheel of at most 60 MB installs without a compiler and runs an example: test_wheel.sh WHEEL
set -eu
size=$(stat -c %s "$1")
[ "$size" -le 60000000 ] || { echo "$1 has $size bytes, more than 60 MB"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
/usr/bin/python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --only-binary=:all: "$1"
env -i PATH="$folder/bin" "$folder/bin/python" -I "$(dirname "$0")/../python/examples/01_numpy.py"
echo "$1: $size bytes, installed and run"
