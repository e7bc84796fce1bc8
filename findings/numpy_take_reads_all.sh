#!/bin/sh
# numpy.take of a few rows copies the whole array, if that is a cut of a mapped file.
#
# take asks for its first argument in C order and at multiples of the item size, and copies one that is not: a
# part of a mapped array with fewer columns or tokens, or an array in an archive of np.savez, whose numbers
# seldom lie at such multiples. 16 rows of a file then need the memory of all of it. Indexing, which the
# documentation calls the same ("fancy" indexing along an axis), reads the 16 rows.
#
# Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.1
"$folder/venv/bin/python" - "$folder/keys.npy" <<'PYTHON'
import sys
import tracemalloc

import numpy as np

written = np.lib.format.open_memmap(sys.argv[1], "w+", np.float32, (8, 32768, 128))
written[:, 1] = 1.0
written.flush()
keys = np.load(sys.argv[1], mmap_mode="r")[:, :32000]
rows = np.arange(16) * 2000 + 1


def peak(select):
    tracemalloc.start()
    found = select()
    size = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return found, size


taken, of_take = peak(lambda: np.take(keys, rows, axis=1))
indexed, of_index = peak(lambda: keys[:, rows])
whole = peak(lambda: np.take(keys.base, rows, axis=1))[1]
print("numpy", np.__version__)
print(f"keys, mapped and cut: {keys.nbytes / 2**20:.0f} MiB; the 16 rows: {indexed.nbytes / 2**20:.2f} MiB")
print(f"peak of np.take: {of_take:.1f} MiB; of indexing: {of_index:.1f} MiB; of np.take without the cut: {whole:.1f} MiB")
assert (taken == indexed).all()
assert of_take > 0.9 * keys.nbytes / 2**20
assert of_index < 1
assert whole < 1
PYTHON
