"""Folders that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnprobe.errors import RunFolderError
from attnprobe.export.format import MASKS, RECORD, TUNED

_CARD = "README.md"


def _temporary(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{os.getpid()}.{kind}")


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a model that attnprobe wrote: an export, or a fine-tuned checkpoint."""
    return any((folder / mark).is_file() for mark in (RECORD, TUNED))


def require_replaceable(folder: Path) -> None:
    """See that a folder may be written: it is absent, empty, or an earlier export. Raises: RunFolderError."""
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file: choose another folder for the export")
    if folder.is_dir() and any(folder.iterdir()) and not is_ours(folder):
        raise RunFolderError(f"{folder} is not empty and holds no export: choose another folder, or empty it")


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Give a new folder beside ``folder``, and put it in its place when the block ends without an error.

    What killed exports left is removed.

    Raises:
        RunFolderError: ``folder`` holds something else than an export, or can't be written.
    """
    folder = folder.absolute()
    require_replaceable(folder)
    new, old = _temporary(folder, "tmp"), _temporary(folder, "old")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
            shutil.rmtree(leftover)
        new.mkdir()
        yield new
        require_replaceable(folder)
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    except RunFolderError:
        raise
    except OSError as error:
        raise RunFolderError(f"can't write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def merged(folder: Path) -> Iterator[Path]:
    """Give a new folder beside ``folder``, and move its files there when the block ends without an error.

    The record comes first: until the last file is there, what does not belong together is refused, and never a mask
    silently left out. A card that is there stays.

    Raises:
        RunFolderError: ``folder`` can't be written.
    """
    folder = folder.absolute()
    new = _temporary(folder, "tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        yield new
        names = {path.name for path in new.iterdir()}
        stale = {path.name for path in folder.glob("model*.safetensors*")} - names
        if (folder / _CARD).exists():
            names.discard(_CARD)
        for name in sorted(names, key=lambda name: (name != RECORD, name != MASKS, name)):
            (new / name).replace(folder / name)
        for name in stale:
            (folder / name).unlink()
    except OSError as error:
        if isinstance(error, RunFolderError):
            raise
        raise RunFolderError(f"can't write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
