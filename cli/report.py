"""`attnprobe report`: a run folder's report, made again from its tables; or several runs merged into one."""

from __future__ import annotations

from pathlib import Path

import click

from attnprobe.errors import UsageError

from .output import silence


@click.command(name="report")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder to merge the runs into. Needed with several; without it, report.html of the one RUN is made again.",
)
@click.option(
    "--format",
    "formats",
    default=None,
    metavar="NAME,...",
    help="What to merge into, by commas: csv (all rows), html (the report), md (means over seeds), json (records). "
    "[default: csv,html]",
)
@click.option("--overwrite", is_flag=True, help="Replace what an earlier merging left in --output-dir.")
@click.option("--quiet", is_flag=True, help="No log on stderr, errors apart.")
def command(
    runs: tuple[Path, ...], *, output_dir: Path | None, formats: str | None, overwrite: bool, quiet: bool
) -> None:
    """Make report.html of RUN again from its tables alone: no checkpoint, no data, no GPU.

    With --output-dir, merge run folders of `sparsify` (several targets, methods, checkpoints, tasks, seeds) and of
    `importance` into one tradeoff.csv and one report.html. Runs that cannot be compared are refused.
    """
    if quiet:
        silence()
    if output_dir is None:
        _require_one(runs, formats=formats, overwrite=overwrite)

        from attnprobe.report import write_report

        click.echo(f"report: {write_report(runs[0])}")
        return

    from attnprobe.report import merge_runs

    wanted = None if formats is None else [name.strip() for name in formats.split(",") if name.strip()]
    for path in merge_runs(runs, output_dir, formats=wanted, overwrite=overwrite):
        click.echo(f"{'report' if path.suffix == '.html' else 'table'}: {path}")


def _require_one(runs: tuple[Path, ...], *, formats: str | None, overwrite: bool) -> None:
    """Raises: UsageError for what makes sense with --output-dir alone."""
    if len(runs) > 1:
        raise UsageError(f"merging {len(runs)} runs needs --output-dir: name the folder to merge them into")
    for flag, given in (("--format", formats is not None), ("--overwrite", overwrite)):
        if given:
            raise UsageError(f"{flag} is for merging, which needs --output-dir: name the folder, or leave {flag} out")
