# SPDX-License-Identifier: BSD-3-Clause
"""What do other normalizers cost beside the softmax?"""

from _command import run

run("normalizers", "sparse_many", "sparse_decode", "sparse_long", "sparse_torch")
