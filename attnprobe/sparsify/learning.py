"""Train gates, weights, or both, through transformers' Trainer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from attnprobe.attention import AttentionCall, AttentionSession
from attnprobe.data.batches import Batch, Encoded
from attnprobe.distributed import is_main, share, wait_for_all
from attnprobe.errors import MissingDependencyError, TrainingError, UsageError
from attnprobe.masks.applying import PassReader, of_queries
from attnprobe.masks.gates import Gates
from attnprobe.masks.mask import Mask, spread
from attnprobe.masks.tokens import TokenRules
from attnprobe.objectives import Objective, Prepared
from attnprobe.quiet import quiet_transformers
from attnprobe.scoring import first_output, scored_output
from attnprobe.sparsify.options import SparsifyOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COOLING = 0.1
"""Share of the gates' steps, the last, in which their temperature and learning rate fall."""

AVERAGING = 0.97
"""Decay of the running average of the logits, from the step on in which the density is the target's."""

PAPER_SHIFT = 1e4
"""What SparseBERT's code takes from the score of a closed cell."""

PAPER_LAMBDA = 1e-4
"""Its price of a gate, the milder of the two it reports."""

_MEGABATCH = 50
"""Batches whose rows are sorted by length together: less padding, and still a different mixture in every batch."""

_KEEP_LABELS = 256
"""Dense outputs of more columns than this are computed anew instead of being kept."""

DIVERGED = (
    "the training diverged, its loss or what it trains is no number any more: lower --learning-rate or "
    "--gate-learning-rate, or train without --fp16"
)

_WHOLE = "attnprobe-whole"
"""Stands in a checkpoint that every process has written to its end."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What is trained on.

    Attributes:
        encoded: the training data.
        rows: the rows of it that may be used.
        objective: what the output is scored by.
        rules: how positions are told.
    """

    encoded: Encoded
    rows: Sequence[int]
    objective: Objective
    rules: TokenRules

    def collate(self, rows: list[int]) -> dict[str, Tensor]:
        """Some rows as the objective scores them, as flat named tensors."""
        return _flat(self.objective.prepare(self.encoded.batch(rows)))


def _flat(prepared: Prepared) -> dict[str, Tensor]:
    tensors = {f"input_{name}": tensor for name, tensor in prepared.inputs.items()}
    tensors |= {"rows": prepared.batch.indices, "special": prepared.batch.special}
    if prepared.labels is not None:
        tensors["labels"] = prepared.labels
    return tensors


def _prepared(tensors: dict[str, Tensor]) -> Prepared:
    inputs = {n.removeprefix("input_"): tensor for n, tensor in tensors.items() if n.startswith("input_")}
    labels = tensors.get("labels")
    batch = Batch(indices=tensors["rows"], inputs=inputs, labels=labels, special=tensors["special"], segments=None)
    return Prepared(batch=batch, inputs=inputs, labels=labels)


class DenseOutputs:
    """The dense model's scored outputs on training rows.

    A row's output depends in its last digits on the rows beside it in a batch. So that a training does not depend on
    what this process did before, outputs are kept from batches of their own, and never from those of a training.

    Attributes:
        model: the dense model: the one that is trained where its weights stay, else a copy.
    """

    def __init__(self, model: PreTrainedModel, objective: Objective) -> None:
        self.model, self.objective = model, objective
        self._tables: dict[tuple[int, ...], Tensor | None] = {}
        self._table: Tensor | None = None

    def keep(self, lesson: Lesson, rows: Sequence[int], batch_size: int) -> None:
        """Compute the outputs of these rows, where they are small; :meth:`of` is then asked for no others."""
        key = (batch_size, *sorted(set(rows)))
        if key not in self._tables:
            self._tables[key] = self._computed(lesson, key[1:], batch_size)
        self._table = self._tables[key]

    def _computed(self, lesson: Lesson, rows: Sequence[int], batch_size: int) -> Tensor | None:
        """Outputs by number of the row, (all rows, columns); None where they are large, or by token."""
        table: Tensor | None = None
        for batch in map(lesson.encoded.batch, lesson.encoded.plan(batch_size, rows=rows)):
            prepared = self.objective.prepare(batch.to(self.model.device))
            output = self.now(prepared)
            by_token = output.dim() > 2 or (prepared.labels is not None and prepared.labels.dim() > 1)
            if by_token or output.shape[1] > _KEEP_LABELS:
                return None
            if table is None:
                table = output.new_full((len(lesson.encoded), *output.shape[1:]), math.nan)
            table[prepared.batch.indices] = output
        return table

    def of(self, prepared: Prepared) -> Tensor:
        """Scored output of a batch of the rows that are kept, or of any batch where none are, without gradient."""
        return self.now(prepared) if self._table is None else self._table[prepared.batch.indices]

    def now(self, prepared: Prepared) -> Tensor:
        """Scored output of any batch, computed anew, without gradient."""
        with torch.no_grad():
            return scored_output(self.model, self.objective, prepared)


class Learner(nn.Module):
    """What the Trainer trains: a model under gates (or under a fixed mask, or dense), and its loss.

    Attributes:
        model: the attached model.
        gates: learnable gates; None where only weights are trained.
    """

    accepts_loss_kwargs = False  # the Trainer divides by the number of accumulated batches
    _keys_to_ignore_on_save = None  # the Trainer asks for it where it loads a checkpoint

    def __init__(
        self,
        model: PreTrainedModel,
        gates: Gates | None,
        *,
        objective: Objective,
        dense: DenseOutputs | None,
        train_weights: bool,
        distill: float,
        price: float | None,
        paper_form: bool = False,
    ) -> None:
        super().__init__()
        self.paper_form = paper_form
        self.model, self.gates = model, gates
        self.objective, self.dense = objective, dense
        self.train_weights, self.distill, self.price = train_weights, distill, price
        self.values: Tensor | None = None
        """Gates in force: (sites, heads, gates seen + 2), drawn anew in each pass; None for the dense model."""
        self.fixed: Mask | None = None

    def train(self, mode: bool = True) -> Learner:
        """As for any module, but frozen weights see no dropout."""
        super().train(mode)
        if not self.train_weights:
            self.model.eval()
        return self

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        """The mean loss of a batch, as ``loss``; tensors are those of :meth:`Lesson.collate`."""
        prepared = _prepared(tensors)
        if self.dense is not None:
            self.values = None
            prepared = prepared.with_dense(self.dense.of(prepared))
        self.values = self.gates.draw() if self.gates is not None and self.fixed is None else None
        output = self.objective.output(first_output(self.model, prepared.inputs), prepared)
        loss = self._loss(output, prepared)
        if self.gates is not None:
            if self.fixed is not None:
                loss = loss + 0.0 * self.gates.logits.sum()  # every process has a gradient for every parameter
            elif self.price is not None:
                loss = loss + self.price * self._bought()
        return {"loss": loss}

    def _bought(self) -> Tensor:
        """What the price is for: the expected density; in the paper's form the sum of the gates as drawn."""
        assert self.gates is not None
        assert self.values is not None
        return self.values[..., :-2].sum() if self.paper_form else self.gates.density().float()

    def _loss(self, output: Tensor, prepared: Prepared) -> Tensor:
        if prepared.dense is None:
            return self.objective.loss(output, prepared).nanmean()
        divergence = self.objective.divergence(output, prepared).nanmean()
        if self.objective.kind == "fidelity" or self.distill == 1:
            return divergence
        return (1 - self.distill) * self.objective.loss(output, prepared).nanmean() + self.distill * divergence


class Schedule:
    """What is wanted when.

    Attributes:
        steps: optimizer steps in all.
        gate_steps: steps in which gates learn; in the rest the mask is fixed.
    """

    def __init__(self, options: SparsifyOptions, density: float | None, *, settles: bool) -> None:
        self.options, self.density = options, density
        self.steps = options.max_steps
        self.gate_steps = self.steps - (round(self.steps * options.settle) if settles else 0)

    def wanted(self, step: int) -> float | None:
        """Density wanted in a step: from 1 down to the target, falling fast first (Zhu & Gupta 2017)."""
        if self.density is None:
            return None
        left = max(0.0, 1 - step / self.full) if self.full > 0 else 0.0
        return self.density + (1 - self.density) * left**3

    @property
    def full(self) -> int:
        """The step from which the density wanted is the target."""
        return round(self.gate_steps * self.options.ramp)

    @property
    def cooling(self) -> int:
        """The step from which temperature and gates' learning rate fall: what is undecided then is decided."""
        return max(self.full, self.gate_steps - max(1, round(self.gate_steps * COOLING)))

    def cooled(self, step: int) -> float:
        """How far the cooling has gone, 0 to 1."""
        return max(0.0, (step - self.cooling + 1) / max(1, self.gate_steps - self.cooling))

    def gate_rate(self, step: int) -> float:
        """Factor on the gates' learning rate."""
        return 1.0 if self.options.paper_form else max(0.0, 1 - self.cooled(step))

    def temperature(self, step: int) -> float:
        """Temperature in a step: as it is at first, then falling geometrically while the gates cool."""
        if self.options.paper_form:
            return 1.0
        first, last = self.options.temperature, self.options.final_temperature
        return float(first * (last / first) ** min(1.0, self.cooled(step)))

    def weight_rate(self, step: int) -> float:
        """Factor on the weights' learning rate: up over the warm-up, then down to 0 in a line."""
        warm = self.steps * self.options.warmup
        return min(1.0, (step + 1) / warm if warm else 1.0) * (1 - step / self.steps)


class _Conductor(TrainerCallback):  # type: ignore[misc]
    """Moves gates along the schedule, and marks checkpoints that are whole."""

    def __init__(self, learner: Learner, schedule: Schedule, fix: Callable[[], None]) -> None:
        self.learner, self.schedule, self.fix = learner, schedule, fix

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, control
        gates, step = self.learner.gates, int(state.global_step)
        if gates is None or self.learner.fixed is not None:
            return
        if step >= self.schedule.gate_steps:
            self.fix()
            return
        gates.step, gates.temperature = step, self.schedule.temperature(step)
        if not self.learner.paper_form:
            if step < self.schedule.cooling:
                gates.take_in(AVERAGING if step > self.schedule.full else 0.0)
            elif step == self.schedule.cooling:
                gates.settle_on_average()
        wanted = self.schedule.wanted(step)
        if wanted is not None:
            gates.hold(wanted)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, state, control
        gates = self.learner.gates
        if gates is not None and self.learner.fixed is not None:
            gates.logits.grad = None  # momentum would move what is decided
        elif gates is not None and self.schedule.density is not None:
            gates.project_gradient()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del control
        wait_for_all(device=args.device.type)
        if is_main():
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _WHOLE).touch()

    def densities(self, step: int) -> dict[str, float]:
        """What the log tells of the gates after a step."""
        gates, wanted = self.learner.gates, self.schedule.wanted(step)
        told = {} if gates is None else {"density": float(gates.density())}
        return told if gates is None or wanted is None else told | {"wanted_density": wanted}


def train(
    session: AttentionSession,
    lesson: Lesson,
    options: SparsifyOptions,
    *,
    gates: Gates | None,
    mask: Mask | None,
    density: float | None,
    train_weights: bool,
    dense: DenseOutputs | None,
    folder: Path,
    batch_size: int,
    seed: int,
    resume: bool = False,
) -> tuple[Mask | None, float | None, list[dict[str, float]]]:
    """Train gates, weights under a mask, or the dense model's weights.

    Args:
        session: the attached model; its weights are changed in place with ``train_weights``.
        lesson: what is trained on.
        options: how.
        gates: to be learnt; then ``mask`` is None.
        mask: fixed, under which weights are trained.
        density: share of the training data's valid cells that the mask may keep; None: whatever ``--lambda`` leaves.
        train_weights: whether weights learn.
        dense: the dense model's outputs, where the loss needs them.
        folder: where the Trainer keeps its checkpoints.
        batch_size: rows in a batch of one process.
        seed: of order and dropout.
        resume: go on from the last checkpoint in ``folder``, if there is one.

    Returns:
        The mask; the share of valid cells kept by the gates' own decision just before it was brought to ``density``;
        the log, a row every ``logging_steps``.
    """
    model = session.model
    schedule = Schedule(options, density, settles=train_weights)
    learner = Learner(
        model,
        gates,
        objective=lesson.objective,
        dense=dense,
        train_weights=train_weights,
        distill=options.distill,
        price=(options.lambda_ or PAPER_LAMBDA) if density is None else None,
        paper_form=options.paper_form,
    )
    learner.fixed = None if mask is None else mask.to(model.device)
    before: float | None = None

    def fix() -> None:
        nonlocal mask, before
        assert gates is not None
        gates.temperature = schedule.temperature(schedule.gate_steps - 1)  # also where training is taken up here
        before = gates.natural_density()
        mask = share(gates.decide(density), device=model.device.type)
        learner.fixed = mask.to(model.device)

    conductor = _Conductor(learner, schedule, fix)
    arguments = training_arguments(options, folder, model.device, batch_size=batch_size, seed=seed)
    with ExitStack() as stack:
        stack.enter_context(_wanting_gradients(model, train_weights))
        stack.enter_context(gated(session, learner, lesson.rules))
        if options.gradient_checkpointing:
            stack.enter_context(_checkpointing(model))
        stack.enter_context(quiet_transformers())
        trainer = _trainer(learner, lesson, options, arguments, schedule, conductor)
        last = share(_last_checkpoint(folder) if resume else None, device=model.device.type)
        trainer.train(resume_from_checkpoint=last)
    if gates is not None and learner.fixed is None:
        fix()
    learner.eval()
    return mask, before, [row for row in trainer.state.log_history if "loss" in row]


def _trainer(
    learner: Learner,
    lesson: Lesson,
    options: SparsifyOptions,
    arguments: TrainingArguments,
    schedule: Schedule,
    conductor: _Conductor,
) -> Trainer:
    groups: list[dict[str, Any]] = []
    rates: list[Callable[[int], float]] = []
    if learner.gates is not None:
        groups.append({"params": [learner.gates.logits], "lr": options.gate_learning_rate, "betas": (0.9, 0.99)})
        rates.append(schedule.gate_rate)
    if learner.train_weights:
        wanted = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]
        for decays in (True, False):
            chosen = [parameter for parameter in wanted if (parameter.dim() > 1) == decays]
            decay = options.weight_decay if decays else 0.0
            groups.append({"params": chosen, "lr": options.learning_rate, "weight_decay": decay})
            rates.append(schedule.weight_rate)
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    processes, batch_size = arguments.world_size, arguments.per_device_train_batch_size
    order = training_order(
        lesson.encoded.lengths,
        lesson.rows,
        batch_size=batch_size,
        batches=options.max_steps * options.gradient_accumulation_steps * processes,
        seed=arguments.seed,
    )
    if learner.dense is not None:
        starts = range(arguments.process_index * batch_size, len(order), processes * batch_size)
        own = [row for start in starts for row in order[start : start + batch_size]]
        learner.dense.keep(lesson, min(own, lesson.rows, key=len), batch_size)
    trainer = _QuietTrainer(
        model=learner,
        args=arguments,
        train_dataset=order,
        data_collator=lesson.collate,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rates)),
        callbacks=[conductor],
    )
    trainer.densities = conductor.densities
    trainer.pop_callback(PrinterCallback)
    return trainer


class _QuietTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose checkpoints hold what is trained, under any tying of weights, and whose log tells of gates."""

    densities: Callable[[int], dict[str, float]]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if not math.isfinite(logs.get("loss", 0.0)):
            raise TrainingError(DIVERGED)
        told = self.densities(self.state.global_step) if "loss" in logs else {}
        super().log(logs | told, *args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        del state_dict
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        learner: Learner = self.accelerator.unwrap_model(self.model)
        names = {name for name, parameter in learner.named_parameters() if parameter.requires_grad}
        names |= {"gates.average"}
        torch.save({n: t for n, t in learner.state_dict().items() if n in names}, folder / "pytorch_model.bin")


def require_integrations(names: Sequence[str]) -> None:
    """See that the Trainer can log to these. Raises: UsageError for an unknown one, MissingDependencyError."""
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    if tuple(names) in (("all",), ("none",)):
        return
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            raise UsageError(f"--report-to: unknown {name!r:.60}; choose from {known}, all, none")
        if name not in get_available_reporting_integrations():
            raise MissingDependencyError(
                f"--report-to {name}: its package is not installed; install it, or choose others"
            )


def training_arguments(
    options: SparsifyOptions, folder: Path, device: torch.device, *, batch_size: int, seed: int
) -> TrainingArguments:
    """The Trainer's arguments for a point of a sweep."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=options.max_steps,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        max_grad_norm=options.max_grad_norm,
        bf16=options.bf16,
        fp16=options.fp16,
        seed=seed,
        use_cpu=device.type == "cpu",
        logging_steps=options.logging_steps,
        logging_nan_inf_filter=False,  # it would look at the loss of every step, and wait for the device
        report_to=list(options.report_to) or "none",
        save_strategy="steps" if options.save_steps else "no",
        save_steps=options.save_steps or 500,
        save_total_limit=2,  # the older one is whole while the newer is written
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        disable_tqdm=True,
        dataloader_pin_memory=device.type == "cuda",
        accelerator_config={"non_blocking": True},
        ddp_find_unused_parameters=options.train == "all",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs of one process would run copies that are not attached
    if device.type == "cuda" and device.index is not None:  # a single process would train on cuda:0
        torch.cuda.set_device(device)
        arguments._setup_devices = device
    return arguments


def training_order(
    lengths: Sequence[int], rows: Sequence[int], *, batch_size: int, batches: int, seed: int
) -> list[int]:
    """The rows of all batches, end to end: passes over the data in random order, each batch of rows of like length.

    Args:
        lengths: tokens of every row of the data.
        rows: those that may be used.
        batch_size: rows in a batch.
        batches: how many.
        seed: the same seed gives the same order.
    """
    generator = np.random.default_rng(seed)
    order: list[int] = []
    while len(order) < batches * batch_size:
        shuffled = generator.permutation(np.asarray(rows))
        for start in range(0, len(shuffled), _MEGABATCH * batch_size):
            mega = sorted(shuffled[start : start + _MEGABATCH * batch_size].tolist(), key=lambda row: lengths[row])
            cut = [mega[at : at + batch_size] for at in range(0, len(mega), batch_size)]
            if len(cut) > 1 and len(cut[-1]) < batch_size:  # a short batch would shift all that follow
                cut.pop()
            cut = [(batch * math.ceil(batch_size / len(batch)))[:batch_size] for batch in cut]
            order += [row for at in generator.permutation(len(cut)) for row in cut[at]]
    return order[: batches * batch_size]


@contextmanager
def gated(session: AttentionSession, learner: Learner, rules: TokenRules) -> Iterator[None]:
    """Put the learner's gates, or its fixed mask, in force in every pass of its model."""
    reader = PassReader(rules)

    def values(call: AttentionCall) -> Tensor | None:
        if learner.values is None or learner.gates is None:
            return None
        gates = learner.gates
        index = reader.once("index", lambda: gates.index(reader.positions(call)))
        return of_queries(spread(learner.values[call.site.index], index), call)

    def gate(call: AttentionCall) -> Tensor | None:
        if learner.fixed is not None:
            return _fixed(learner.fixed, reader, call)
        return None if learner.paper_form else values(call)

    def shift(call: AttentionCall) -> Tensor | None:
        drawn = values(call) if learner.paper_form else None
        return None if drawn is None else -PAPER_SHIFT * (1 - drawn)

    with reader.reading(session), session.gate(gate), session.shift(shift):
        yield


def _fixed(mask: Mask, reader: PassReader, call: AttentionCall) -> Tensor:
    at = reader.positions(call)
    cells = reader.once("cells", lambda: mask.cells(at))
    return of_queries(mask.keep(at, call.site.index, cells), call)


@contextmanager
def _wanting_gradients(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Ask for the weights' gradients, or for none; afterwards as before."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.requires_grad_(wanted)
    try:
        yield
    finally:
        for parameter, wants in before:
            parameter.requires_grad_(wants)
            parameter.grad = None


@contextmanager
def _checkpointing(model: PreTrainedModel) -> Iterator[None]:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()


def _last_checkpoint(folder: Path) -> str | None:
    """The last checkpoint that was written to its end."""
    whole = [mark.parent for mark in folder.glob(f"checkpoint-*/{_WHOLE}")]
    return str(max(whole, key=lambda path: int(path.name.rpartition("-")[2]))) if whole else None


def dense_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model's weights that stays as it is, in eval mode and without gradients."""
    twin = copy.deepcopy(model).eval()
    twin.requires_grad_(False)
    return twin
