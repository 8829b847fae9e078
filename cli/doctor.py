"""`attnprobe doctor`: what a checkpoint is, and what can be done with it."""

from __future__ import annotations

import json
import shutil

import click


@click.command(name="doctor")
@click.argument("checkpoint", metavar="CKPT")
@click.option("--device", default="cpu", show_default=True, help="Where to open it: cpu, cuda or cuda:N.")
@click.option("--dtype", default="float32", show_default=True, help="float32, bfloat16, float16 or float64.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(checkpoint: str, *, device: str, dtype: str, trust_remote_code: bool, as_json: bool) -> None:
    """Say what CKPT is, what would bite later, and what each command can do with it.

    CKPT is the folder of a checkpoint, `demo`, or an id on the Hugging Face hub. A model whose attention cannot be
    reached ends with exit code 3 and the reason.
    """
    from attnprobe.doctor import examine
    from attnprobe.doctor_text import render

    findings = examine(checkpoint, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    if as_json:
        click.echo(json.dumps(findings, indent=2, ensure_ascii=False))
    else:
        click.echo(render(findings, width=min(shutil.get_terminal_size().columns, 100)))
