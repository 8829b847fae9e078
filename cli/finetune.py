"""`attnprobe finetune`: fine-tune a checkpoint under dropouts of attention, and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnprobe.data.sources import DataOptions
from attnprobe.distributed import is_main
from attnprobe.dropout.options import DropoutOptions
from attnprobe.finetune.options import FinetuneOptions
from attnprobe.options import ModelOptions

from .options import build, config_option, options_of, run_folder_options, run_mode
from .output import default_folder, print_run, silence, typed


@click.command(name="finetune")
@click.argument("checkpoint", metavar="CKPT")
@options_of(DataOptions, ModelOptions, FinetuneOptions, DropoutOptions)
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
    """Fine-tune CKPT under several dropouts of attention, over seeds, compare them, and keep the best model.

    CKPT is a folder, an id on the Hugging Face hub, or `demo`; where it has no head for the labels, it is given one.
    Models learn from --train-file (or the training split) and are measured on --eval-file (or the evaluation split);
    the one that is kept is chosen on rows held out of the training data, and is an ordinary checkpoint.
    """
    data, model = build(DataOptions, values), build(ModelOptions, values)
    options, dropout = build(FinetuneOptions, values), build(DropoutOptions, values)
    mode = run_mode(overwrite=overwrite, resume=resume)
    if quiet:
        silence()
    folder = output_dir or default_folder("finetune", checkpoint)

    from attnprobe.finetune.run import run_finetune

    run = run_finetune(
        checkpoint,
        data=data,
        model=model,
        options=options,
        dropout=dropout,
        output_dir=folder,
        mode=mode,
        quiet=quiet,
        command_line=typed(),
    )
    if is_main():
        print_run(run.path, as_json=as_json)
