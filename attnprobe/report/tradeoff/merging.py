"""Merging run folders into one trade-off: a folder with a table, a page, and what else is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from attnprobe.errors import RunFolderError, UsageError
from attnprobe.report.page import write_page
from attnprobe.report.tradeoff.collecting import Merged, collect
from attnprobe.report.tradeoff.merged_page import merged_page
from attnprobe.report.tradeoff.texts import as_csv, as_json, as_markdown
from attnprobe.runs import replacing

FORMATS: dict[str, str] = {
    "csv": "tradeoff.csv",
    "html": "report.html",
    "md": "tradeoff.md",
    "json": "tradeoff.json",
}
"""What runs can be merged into, and the file that it is in."""

DEFAULT = ("csv", "html")

_TEXTS: dict[str, Callable[[Merged], str]] = {"csv": as_csv, "md": as_markdown, "json": as_json}


def merge_runs(
    folders: Sequence[Path], output_dir: Path, *, formats: Sequence[str] | None = None, overwrite: bool = False
) -> list[Path]:
    """Merge run folders of `sparsify` and `importance` into a folder, and return the files written.

    Args:
        folders: the run folders; see `collect` for which can be merged.
        output_dir: where to; made with its parents, and empty unless `overwrite`.
        formats: names of `FORMATS`; None: those of `DEFAULT`.
        overwrite: replace what an earlier merging left in the folder, and nothing else.

    Raises:
        UsageError: an unknown format, or runs that cannot be compared.
        RunFolderError: a run folder that cannot be read, or an output folder that cannot be written or is not empty.
    """
    formats = DEFAULT if formats is None else formats
    _require_formats(formats)
    _require_free(output_dir, overwrite=overwrite)
    merged = collect(folders)
    texts = {name: _TEXTS[name](merged) for name in FORMATS if name in formats and name in _TEXTS}
    page = merged_page(merged) if "html" in formats else None
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"can't make the folder {output_dir}: {error.strerror or error}; choose another --output-dir"
        ) from error
    for name, text in texts.items():
        with replacing(output_dir / FORMATS[name]) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
    if page is not None:
        write_page(output_dir / FORMATS["html"], page)
    for name, file in FORMATS.items():
        if name not in formats:  # left by an earlier merging, of other runs
            (output_dir / file).unlink(missing_ok=True)
    return [output_dir / file for name, file in FORMATS.items() if name in formats]


def _require_formats(formats: Sequence[str]) -> None:
    if not formats:
        raise UsageError(f"--format must name at least one of {', '.join(FORMATS)}")
    for name in formats:
        if name not in FORMATS:
            raise UsageError(f"--format: unknown {name!r}; choose from {', '.join(FORMATS)}")


def _require_free(folder: Path, *, overwrite: bool) -> None:
    """See that files can be written into a folder without harm to any other; changes nothing."""
    try:
        present = sorted(item.name for item in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise RunFolderError(
            f"can't read the folder {folder}: {error.strerror or error}; choose another --output-dir"
        ) from error
    if present and not overwrite:
        raise RunFolderError(f"{folder} is not empty; choose another --output-dir, or give --overwrite")
    foreign = [name for name in present if name not in FORMATS.values()]
    if foreign:
        raise RunFolderError(
            f"--overwrite replaces what an earlier merging left, and {folder} also holds {foreign[0]}; choose another "
            "--output-dir"
        )
