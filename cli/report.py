"""`attnprobe report`: a run folder's report, made again from its tables."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="report")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
def command(run: Path) -> None:
    """Make report.html of RUN again from its tables alone: no checkpoint, no data, no GPU."""
    from attnprobe.report import write_report

    click.echo(f"report: {write_report(run)}")
