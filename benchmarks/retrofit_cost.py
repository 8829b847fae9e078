"""Cost of residual attention against transformers' own eager attention: a forward pass, a training step, memory.

    python -m benchmarks.retrofit_cost CKPT TRAIN_FILE [LENGTH]

The same batches, by turns, in one run; gates by head that learn. Peak memory is that of a process of its own for each,
less what it held before the first pass, so that weights and libraries do not hide the difference.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attnprobe.attention import AttentionSession
from attnprobe.residual.gates import ResidualGates
from attnprobe.residual.stream import carried
from attnprobe.scoring import first_output
from attnprobe.workbench import Workbench
from benchmarks.common import compare, open_bench, report

BATCHES, BATCH = 8, 32
Batches = list[dict[str, Tensor]]


def longest(bench: Workbench) -> Batches:
    """Batches of the longest rows."""
    rows = sorted(range(len(bench.encoded)), key=lambda row: -bench.encoded.lengths[row])[: BATCHES * BATCH]
    return [bench.encoded.batch(rows[at : at + BATCH]).inputs for at in range(0, len(rows), BATCH)]


def forward(session: AttentionSession, batches: Batches, gates: ResidualGates | None) -> None:
    """A pass over every batch; with gates under residual attention, else under transformers' eager."""
    session.model.eval()
    with torch.no_grad():
        _under(session, gates, lambda: [first_output(session.model, inputs) for inputs in batches])


def learn(session: AttentionSession, batches: Batches, gates: ResidualGates | None) -> None:
    """A training step on every batch."""
    model = session.model.train()
    parameters = [*model.parameters(), *(() if gates is None else gates.parameters())]
    optimizer = torch.optim.AdamW(parameters, lr=1e-7)

    def steps() -> None:
        for inputs in batches:
            first_output(model, inputs).float().square().mean().backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    _under(session, gates, steps)


WAYS = {"forward pass": forward, "training step": learn}


def _under(session: AttentionSession, gates: ResidualGates | None, run: Callable[[], object]) -> None:
    if gates is None:
        session.model.set_attn_implementation("eager")
        run()
        session.model.set_attn_implementation("attnprobe")
    else:
        with carried(session, "sum", gates.effective):
            run()


def memory(way: str, kind: str, checkpoint: str, train_file: str, length: str) -> None:
    """Print the MiB that a process comes to hold for a way under residual or plain attention."""
    bench = open_bench(checkpoint, train_file, examples=2000, batch_size=BATCH, max_length=int(length))
    with bench.attached() as session:
        gates = ResidualGates(sites=len(session.sites), heads=session.sites[0].heads) if kind == "residual" else None
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        WAYS[way](session, longest(bench)[:2], gates)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def main(checkpoint: str, train_file: str, length: str = "64") -> None:
    bench = open_bench(checkpoint, train_file, examples=2000, batch_size=BATCH, max_length=int(length))
    batches = longest(bench)
    with bench.attached() as session:
        gates = ResidualGates(sites=len(session.sites), heads=session.sites[0].heads)
        for name, way in WAYS.items():
            found = compare(partial(way, session, batches, gates), partial(way, session, batches, None))
            report(f"{name}, residual / plain", found)
    for name in WAYS:
        peaks = []
        for kind in ("residual", "plain"):
            arguments = ["--memory", name, kind, checkpoint, train_file, length]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.retrofit_cost", *arguments],
                capture_output=True,
                text=True,
                check=True,
            )
            peaks.append(float(done.stdout.split()[-1]))
        print(f"{name}, memory, residual / plain: {peaks[0] / peaks[1]:.2f} x ({peaks[0]:.0f} and {peaks[1]:.0f} MiB)")


if __name__ == "__main__":
    if sys.argv[1] == "--memory":
        memory(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
