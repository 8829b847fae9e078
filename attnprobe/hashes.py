"""Hashes of files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256(file: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
