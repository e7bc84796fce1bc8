# SPDX-License-Identifier: BSD-3-Clause
"""Generated files of the site; unchanged files are not rewritten, for the builder's cache."""

from __future__ import annotations

from pathlib import Path


def write_generated(folder, contents):
    """Make `folder` hold exactly these files (text or bytes by name)."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_file() and path.name not in contents:
            path.unlink()
    for name, content in contents.items():
        path = Path(folder, name)
        data = content.encode() if isinstance(content, str) else content
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)
