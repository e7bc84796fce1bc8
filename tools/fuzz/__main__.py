# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.fuzz"""

import sys

from .run import main

sys.exit(main())
