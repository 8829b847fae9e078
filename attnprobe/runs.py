"""Run folders: the only hand-over between commands and reports. Written whole or not at all, and resumable.

``run.json`` (schema version, resolved arguments, versions, seed, checkpoint and data digests, status) is written first
and last. While a run goes on, each finished piece of work is a file under ``partial/``; a run that was killed goes on
behind the last of them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attnprobe.errors import RunFolderError, UsageError

SCHEMA_VERSION = 1
EXPORT_MARK = "attnprobe.json"
"""The file by which an export is known; the name in `attnprobe.export.format`, which needs torch; a test compares."""

Mode = Literal["new", "overwrite", "resume"]
Arrays = dict[str, NDArray[Any]]

_PACKAGES = ("attnprobe", "torch", "transformers", "captum", "scipy", "numpy", "pandas")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside ``path``, and rename it to ``path`` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise RunFolderError(f"can't write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


class RunFolder:
    """One run's folder. Made by :func:`open_run`, read by :func:`read_run`.

    Attributes:
        path: the folder.
        record: the contents of ``run.json``.
    """

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path = path
        self.record = record

    @property
    def complete(self) -> bool:
        """Whether the run has ended well."""
        return bool(self.record["status"] == "complete")

    def save(self, **changes: Any) -> None:
        """Change the record and write ``run.json``."""
        self.record |= changes
        with replacing(self.path / "run.json") as temporary:
            text = json.dumps(self.record, indent=2, ensure_ascii=False, default=str)
            temporary.write_text(text + "\n", encoding="utf-8")

    def finish(self, **changes: Any) -> None:
        """Mark the run as complete, and remove its partial results."""
        seconds = round(time.time() - datetime.fromisoformat(self.record["started"]).timestamp(), 1)
        self.save(status="complete", finished=_now(), seconds=seconds, **changes)
        shutil.rmtree(self.path / "partial", ignore_errors=True)

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        """Write a table as ``name``.csv: numbers to 7 significant digits, n/a as an empty field."""
        with replacing(self.path / f"{name}.csv") as temporary:
            table.to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")

    def write_arrays(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays as ``name``.npz (``name`` may hold folders)."""
        path = self.path / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def has_piece(self, name: str) -> bool:
        """Whether a piece of work is done, here or before the run was stopped."""
        return (self.path / "partial" / f"{name}.npz").exists()

    def keep_piece(self, name: str, arrays: Arrays) -> None:
        """Keep the result of a piece of work until the run is complete."""
        self.write_arrays(f"partial/{name}", arrays)

    def add_to_sums(self, name: str, number: int, arrays: Arrays) -> None:
        """Add to running sums, once for each ``number``: 0, 1, 2, ... in order, whatever was killed in between."""
        sums = self.sums(name)
        if int(sums.get("through", -1)) >= number:
            return
        added = {key: sums[key] + value if key in sums else value for key, value in arrays.items()}
        self.keep_piece(name, added | {"through": np.asarray(number)})

    def sums(self, name: str) -> Arrays:
        """Running sums; empty where none was begun."""
        return next(self.pieces([name])) if self.has_piece(name) else {}

    def pieces(self, names: Iterable[str]) -> Iterator[Arrays]:
        """Read pieces of work one by one."""
        for name in names:
            with np.load(self.path / "partial" / f"{name}.npz", allow_pickle=False) as file:
                yield {key: file[key] for key in file.files}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def require_usable(path: Path, *, mode: Mode) -> dict[str, Any] | None:
    """See that a run folder may be made, overwritten or resumed, before any work is done; changes nothing.

    Returns:
        The record of the run that the folder holds; None when it is empty or absent.

    Raises:
        RunFolderError: the folder can't be written, or is not empty and ``mode`` does not allow for what it holds.
    """
    try:
        occupied = path.exists() and any(not _is_leftover(item) for item in path.iterdir())
    except OSError as error:
        raise _unusable(path, error) from error
    if path.exists() and not os.access(path, os.W_OK | os.X_OK):
        raise RunFolderError(f"the run folder {path} is not writable; choose another --output-dir")
    if occupied and mode == "new":
        raise RunFolderError(f"{path} is not empty; choose another --output-dir, or give --overwrite or --resume")
    return _readable_record(path) if occupied else None


def _is_leftover(item: Path) -> bool:
    """Whether a file is the temporary one of a write that was killed, see :func:`replacing`."""
    return item.name.startswith(".") and item.name.endswith(".tmp") and item.is_file()


def _unusable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"can't make the run folder {path}: {error.strerror or error}; choose another --output-dir")


def open_run(
    path: Path,
    *,
    command: str,
    arguments: Mapping[str, Any],
    identity: Mapping[str, Any],
    files: Sequence[str],
    mode: Mode,
    command_line: str | None = None,
) -> RunFolder:
    """Make or take up a run folder.

    Args:
        path: the folder; made with its parents.
        command: the command's name.
        arguments: resolved arguments, as plain JSON values.
        identity: what else must be the same to go on with a run: digests of checkpoint and data.
        files: what the run will leave, and ``overwrite`` may remove; a name that ends in ``/`` is an export's folder.
        mode: ``new`` refuses a folder that is not empty; ``overwrite`` empties an earlier *run's* folder and nothing
            else; ``resume`` goes on with a run of the same arguments and identity, and starts one where there is none.
        command_line: what the user typed.

    Raises:
        RunFolderError: the folder can't be written, or is not the earlier run it would have to be.
        UsageError: resuming with other arguments, checkpoint or data.
    """
    arguments = json.loads(json.dumps(arguments, default=str))
    identity = json.loads(json.dumps(identity, default=str))
    earlier = require_usable(path, mode=mode)
    try:
        path.mkdir(parents=True, exist_ok=True)
        for leftover in filter(_is_leftover, list(path.iterdir())):
            leftover.unlink()
    except OSError as error:
        raise _unusable(path, error) from error
    if earlier is not None:
        if mode == "resume":
            _require_same(path, earlier, command, {"arguments": arguments, **identity})
            return RunFolder(path, earlier)
        _empty(path, earlier, inputs=[arguments.get(name) for name in ("checkpoint", "train_file", "eval_file")])
    record = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "status": "running",
        **({"command_line": command_line} if command_line else {}),
        "arguments": arguments,
        **identity,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in _PACKAGES}},
        "files": list(files),
        "warnings": [],
        "started": _now(),
    }
    run = RunFolder(path, record)
    run.save()
    return run


def _empty(path: Path, earlier: Mapping[str, Any], *, inputs: Sequence[str | None]) -> None:
    """Remove what an earlier run left, whatever its record says nothing outside, and nothing that is to be read now.

    Raises:
        UsageError: an input of the new run is among it.
    """
    names = [*earlier.get("files", ()), "run.json"]
    left = [path / name for name in names if name.removesuffix("/") == Path(name).name]
    for given in filter(None, inputs):
        if Path(given).expanduser().resolve() in [item.resolve() for item in left]:
            raise UsageError(f"--overwrite would remove {given}, which is to be read: choose another --output-dir")
    shutil.rmtree(path / "partial", ignore_errors=True)
    for item in left:
        if item.is_file():
            item.unlink()
        elif (item / EXPORT_MARK).is_file() and not item.is_symlink():  # an export
            shutil.rmtree(item)


def _readable_record(path: Path) -> dict[str, Any]:
    try:
        return read_run(path).record
    except RunFolderError as error:
        raise RunFolderError(
            f"{path} is not empty and holds no run of attnprobe that could be resumed or overwritten ({error}); "
            "choose another --output-dir"
        ) from error


def _require_same(path: Path, earlier: Mapping[str, Any], command: str, now: Mapping[str, Any]) -> None:
    if earlier["command"] != command:
        raise UsageError(
            f"{path} holds a run of `{earlier['command']}`, not of `{command}`: choose another --output-dir, or give "
            "--overwrite"
        )
    then: dict[str, Any] = {group: earlier.get(group) for group in now}
    differing = _differing(then["arguments"], now["arguments"]) or _differing(_flat(then), _flat(now))
    if differing:
        raise UsageError(
            f"{path} holds a run of other arguments, checkpoint or data ({'; '.join(differing)}); "
            "resume it with the same ones, or give another --output-dir or --overwrite"
        )


def _differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two flat records, in words."""
    keys = sorted({*then, *now})
    return [f"{k}: {then.get(k)!r} then, {now.get(k)!r} now" for k in keys if then.get(k) != now.get(k)]


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Two levels of a record as one: ``data`` and ``limit`` become ``data.limit``."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def read_run(path: Path) -> RunFolder:
    """Read a run folder's record.

    Raises:
        RunFolderError: there is no readable ``run.json`` of a known schema.
    """
    file = path / "run.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        version = record["schema_version"]
        record["command"], record["status"]
        if not isinstance(version, int) or not isinstance(record["arguments"], dict):
            raise TypeError("schema_version must be a whole number, arguments an object")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunFolderError(f"{path} has no run.json, so it is not a run folder: check the path") from error
    except OSError as error:
        raise RunFolderError(f"can't read {file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{file} is not a run's record: {error}; make the run again") from error
    if version > SCHEMA_VERSION:
        raise RunFolderError(
            f"{file} has schema {version}, newer than this version reads ({SCHEMA_VERSION}): update attnprobe"
        )
    return RunFolder(path, record)
