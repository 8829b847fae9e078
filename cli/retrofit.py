"""`attnprobe retrofit`: give a finished checkpoint residual attention, with controls, and export it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnprobe.data.sources import DataOptions
from attnprobe.distributed import is_main
from attnprobe.options import ModelOptions
from attnprobe.retrofit.options import RetrofitOptions

from .options import build, config_option, options_of, run_folder_options, run_mode
from .output import default_folder, print_run, silence, typed


@click.command(name="retrofit")
@click.argument("checkpoint", metavar="CKPT")
@options_of(DataOptions, ModelOptions, RetrofitOptions)
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
    """Give CKPT RealFormer's residual attention by brief continued training, hold it against controls, and export it.

    CKPT is a folder, an id on the Hugging Face hub, `demo`, or an earlier export. Training starts exactly at the
    checkpoint. It is trained on --train-file (or the training split) and measured on --eval-file (or the evaluation
    split).
    """
    data, model, options = build(DataOptions, values), build(ModelOptions, values), build(RetrofitOptions, values)
    mode = run_mode(overwrite=overwrite, resume=resume)
    if quiet:
        silence()
    folder = output_dir or default_folder("retrofit", checkpoint)

    from attnprobe.retrofit.run import run_retrofit

    run = run_retrofit(
        checkpoint,
        data=data,
        model=model,
        options=options,
        output_dir=folder,
        mode=mode,
        quiet=quiet,
        command_line=typed(),
    )
    if is_main():
        print_run(run.path, as_json=as_json)
