"""`attnprobe sparsify`: learn which attention a checkpoint can do without, and export the masked model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnprobe.data.sources import DataOptions
from attnprobe.distributed import is_main
from attnprobe.options import ModelOptions
from attnprobe.sparsify.options import SparsifyOptions

from .options import build, config_option, options_of, run_folder_options, run_mode
from .output import default_folder, print_run, silence, typed


@click.command(name="sparsify")
@click.argument("checkpoint", metavar="CKPT")
@options_of(DataOptions, ModelOptions, SparsifyOptions)
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
    """Learn attention masks for CKPT, hold them against controls, and export the sparsest model that keeps its metric.

    CKPT is a folder, an id on the Hugging Face hub, `demo`, or an earlier export. Masks are learnt from --train-file
    (or the training split) and measured on --eval-file (or the evaluation split); what is exported is chosen on rows
    held out of the training data.
    """
    data, model, options = build(DataOptions, values), build(ModelOptions, values), build(SparsifyOptions, values)
    mode = run_mode(overwrite=overwrite, resume=resume)
    if quiet:
        silence()
    folder = output_dir or default_folder("sparsify", checkpoint)

    from attnprobe.sparsify.run import run_sparsify

    run = run_sparsify(
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
