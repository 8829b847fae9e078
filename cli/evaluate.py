"""`attnprobe evaluate`: metric and loss of a checkpoint, gated or not."""

from __future__ import annotations

from typing import Any

import click

from attnprobe.data.sources import DataOptions
from attnprobe.options import GateOptions, ModelOptions

from .options import build, config_option, options_of
from .output import print_json, silence


@click.command(name="evaluate")
@click.argument("checkpoint", metavar="CKPT")
@options_of(DataOptions, ModelOptions, GateOptions)
@click.option("--quiet", is_flag=True, help="No log on stderr, errors apart.")
@click.option("--json", "as_json", is_flag=True, help="The result is JSON with or without this flag.")
@config_option
def command(checkpoint: str, *, quiet: bool, as_json: bool, **values: Any) -> None:
    """Score CKPT on data, with its attention as it is or gated at every site and head, and print one JSON object."""
    del as_json
    data, model, gates = build(DataOptions, values), build(ModelOptions, values), build(GateOptions, values)
    if quiet:
        silence()

    from attnprobe.evaluation import evaluate

    print_json(evaluate(checkpoint, data=data, model=model, gates=gates))
