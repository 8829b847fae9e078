"""`attnprobe importance`: which attention positions, heads and sites a checkpoint needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnprobe.data.sources import DataOptions
from attnprobe.importance.options import ImportanceOptions
from attnprobe.options import ModelOptions

from .options import build, config_option, options_of, run_folder_options, run_mode
from .output import default_folder, print_json, silence, typed


@click.command(name="importance")
@click.argument("checkpoint", metavar="CKPT")
@options_of(DataOptions, ModelOptions, ImportanceOptions)
@run_folder_options
@click.option("--json", "as_json", is_flag=True, help="Print where everything is as one JSON object.")
@config_option
def command(
    checkpoint: str,
    *,
    output_dir: Path | None,
    overwrite: bool,
    resume: bool,
    quiet: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Measure which attention positions, heads and sites CKPT needs, and leave a run folder with a report.

    CKPT is a folder, an id on the Hugging Face hub, or `demo`. Without data, sentences of Python's own
    documentation are used, and what is measured is fidelity to the model itself or its language-model loss.
    """
    data, model, options = build(DataOptions, values), build(ModelOptions, values), build(ImportanceOptions, values)
    mode = run_mode(overwrite=overwrite, resume=resume)
    if quiet:
        silence()
    folder = output_dir or default_folder("importance", checkpoint)

    from attnprobe.importance.run import run_importance
    from attnprobe.report import headline

    run = run_importance(
        checkpoint,
        data=data,
        model=model,
        options=options,
        output_dir=folder,
        mode=mode,
        quiet=quiet,
        command_line=typed(),
    )
    finding, report = headline(run.path), run.path / "report.html"
    if as_json:
        print_json({"run": str(run.path), "report": str(report), "finding": finding})
    else:
        click.echo(f"{finding}\nreport: {report}")
