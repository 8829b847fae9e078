"""Options of a sweep: what they mean, and one line for each that cannot be meant."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from attnprobe.errors import UsageError
from attnprobe.masks.gates import SHARINGS
from attnprobe.masks.granularity import GRANULARITIES
from attnprobe.masks.mask import DIAGONALS
from attnprobe.masks.patterns import PATTERNS
from attnprobe.masks.relaxations import RELAXATIONS
from attnprobe.sparsify import options as module
from attnprobe.sparsify.methods import METHODS
from attnprobe.sparsify.options import SparsifyOptions

TARGET = "--target-sparsity must lie between 0 and 1 (0 % and 100 %), not "
SHARE = "--target-sparsity must be a share such as 0.9 or 90%, not "
SEEDS = "--seeds must be whole numbers from 0 to 4294967295, by commas, not "
INFINITE, NAN = float("inf"), float("nan")

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "target 0": ({"target_sparsity": ("0",)}, TARGET + "0"),
    "target 1": ({"target_sparsity": ("0.5", "1")}, TARGET + "1"),
    "target 0 %": ({"target_sparsity": ("0%",)}, TARGET + "0%"),
    "target 100 %": ({"target_sparsity": ("100%",)}, TARGET + "100%"),
    "target 120 %": ({"target_sparsity": ("120%",)}, TARGET + "120%"),
    "target 90 for 90 %": ({"target_sparsity": ("90",)}, TARGET + "90; for 90 per cent write 90%"),
    "target 100": ({"target_sparsity": ("100",)}, TARGET + "100; for 100 per cent write 100%"),
    "target 120": ({"target_sparsity": ("120",)}, TARGET + "120"),
    "target below 0": ({"target_sparsity": ("-0.5",)}, TARGET + "-0.5"),
    "target no number": ({"target_sparsity": ("most",)}, SHARE + "'most'"),
    "target with two signs": ({"target_sparsity": ("90%%",)}, SHARE + "'90%%'"),
    "target empty": ({"target_sparsity": ("",)}, SHARE + "''"),
    "target that is 1 but for the seventh digit": ({"target_sparsity": ("99.99999%",)}, TARGET + "99.99999%"),
    "target nan": ({"target_sparsity": ("nan",)}, TARGET + "nan"),
    "target infinite": ({"target_sparsity": ("inf",)}, TARGET + "inf"),
    "no target": ({"target_sparsity": ()}, "--target-sparsity must name at least one share, such as 0.9"),
    "unknown method": (
        {"methods": ("dam", "moon")},
        f"--methods: unknown 'moon'; choose from {', '.join(METHODS)}",
    ),
    "no method": ({"methods": ()}, f"--methods must name at least one of {', '.join(METHODS)}"),
    "method twice": ({"methods": ("dam", "star", "dam")}, "--methods names 'dam' twice: give each once"),
    "unknown granularity": (
        {"granularity": "row"},
        "--granularity: unknown 'row'; choose from cell, offset, block, head",
    ),
    "unknown sharing": ({"share": "all"}, "--share: unknown 'all'; choose from none, sites, heads"),
    "unknown diagonal": ({"diagonal": ("free", "open")}, "--diagonal: unknown 'open'; choose from free, keep, drop"),
    "no diagonal": ({"diagonal": ()}, "--diagonal must name at least one of free, keep, drop"),
    "diagonal twice": ({"diagonal": ("keep", "keep")}, "--diagonal names 'keep' twice: give each once"),
    "unknown training": ({"train": "weights"}, "--train: unknown 'weights'; choose from gates, all"),
    "unknown relaxation": (
        {"relaxation": "gumbel"},
        f"--relaxation: unknown 'gumbel'; choose from {', '.join(RELAXATIONS)}",
    ),
    "unknown engine": ({"engine": "spark"}, "--engine: unknown 'spark'; choose from local, ray"),
    "unknown split": ({"count_on": "test"}, "--count-on: unknown 'test'; choose from train, eval"),
    "seed no number": ({"seeds": ("0", "x")}, SEEDS + "'x'"),
    "seed below 0": ({"seeds": ("-1",)}, SEEDS + "'-1'"),
    "seed empty": ({"seeds": ("",)}, SEEDS + "''"),
    "seed too large": ({"seeds": ("4294967295", "4294967296")}, SEEDS + "'4294967296'"),
    "seeds alike": ({"seeds": ("1", "2", "1")}, "--seeds must differ, and 1,2,1 do not: give each once"),
    "seeds alike but for zeros": ({"seeds": ("1", "01")}, "--seeds must differ, and 1,01 do not: give each once"),
    **{
        f"{flag} too small": ({name: least - 1}, f"{flag} must be at least {least}, not {least - 1}")
        for flag, name, least in (
            ("--max-steps", "max_steps", 1),
            ("--block-size", "block_size", 1),
            ("--draws", "draws", 1),
            ("--kernel-block", "kernel_block", 1),
            ("--gradient-accumulation-steps", "gradient_accumulation_steps", 1),
            ("--save-steps", "save_steps", 0),
            ("--logging-steps", "logging_steps", 1),
            ("--window", "window", 2),
            ("--resamples", "resamples", 10),
        )
    },
    **{
        f"{flag} {value}": ({name: value}, f"{flag} must be above 0 and finite, not {value}")
        for flag, name in (
            ("--temperature", "temperature"),
            ("--final-temperature", "final_temperature"),
        )
        for value in (0.0, -1.0, NAN, INFINITE)
    },
    **{
        f"{flag} {value}": ({name: value}, f"{flag} must be above 0 and at most 1000, not {value}")
        for flag, name in (
            ("--gate-learning-rate", "gate_learning_rate"),
            ("--learning-rate", "learning_rate"),
        )
        for value in (0.0, -1.0, 1001.0, NAN, INFINITE)
    },
    **{
        f"--weight-decay {value}": ({"weight_decay": value}, f"--weight-decay must be from 0 to 1000, not {value}")
        for value in (-0.1, 1001.0, NAN, INFINITE)
    },
    **{
        f"held out {value}": (
            {"held_out": value},
            f"--held-out must be above 0 and at most 0.9, not {value}",
        )
        for value in (0.0, 1.0, NAN, INFINITE)
    },
    **{
        f"{flag} {value}": ({name: value}, f"{flag} must be from 0 to {high}, not {value}")
        for flag, name, high in (
            ("--distill", "distill", "1"),
            ("--ramp", "ramp", "1"),
            ("--settle", "settle", "0.9"),
            ("--warmup", "warmup", "1"),
            ("--max-drop", "max_drop", "100"),
        )
        for value in (-0.1, 100.5, NAN, INFINITE)
    },
    **{
        f"{flag} {value}": ({name: value}, f"{flag} must be at least 0 and finite, not {value}")
        for flag, name in (
            ("--max-grad-norm", "max_grad_norm"),
            ("--num-cpus", "num_cpus"),
            ("--num-gpus", "num_gpus"),
        )
        for value in (-0.1, NAN, INFINITE)
    },
    "heating": (
        {"temperature": 0.1, "final_temperature": 0.2},
        "--final-temperature must not be above --temperature, and 0.2 is above 0.1",
    ),
    **{
        f"lambda {value}": ({"lambda_": value}, f"--lambda must be above 0 and finite, not {value}")
        for value in (0.0, -1.0, NAN, INFINITE)
    },
    "two precisions": ({"bf16": True, "fp16": True}, "--bf16 and --fp16 exclude each other: choose one"),
    **{
        f"{name} of cells": (
            {"granularity": "cell", name: True},
            "--symmetric and --segment-aware are for --granularity offset: leave them out",
        )
        for name in ("symmetric", "segment_aware")
    },
    "weights that stay can't be tuned": (
        {"tune_controls": True},
        "--tune-controls tunes weights, so it needs --train all",
    ),
    "a cluster for nothing": (
        {"address": "auto"},
        "--address is of a Ray cluster: give --engine ray as well",
    ),
}


@pytest.mark.parametrize(("values", "text"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_meant_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        SparsifyOptions(**values)
    assert str(caught.value) == text
    assert caught.value.exit_code == 2


ACCEPTED: dict[str, dict[str, Any]] = {
    "the least of everything": {
        "max_steps": 1,
        "block_size": 1,
        "draws": 1,
        "kernel_block": 1,
        "save_steps": 0,
        "logging_steps": 1,
        "window": 2,
        "resamples": 10,
        "distill": 0.0,
        "ramp": 0.0,
        "settle": 0.0,
        "warmup": 0.0,
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "max_drop": 0.0,
        "num_cpus": 0.0,
    },
    "the most": {"distill": 1.0, "ramp": 1.0, "settle": 0.9, "warmup": 1.0, "max_drop": 100.0, "held_out": 0.9},
    "one temperature": {"temperature": 0.3, "final_temperature": 0.3},
    "ray": {"engine": "ray", "address": "auto", "num_gpus": 0.5},
    "a price": {"lambda_": 1e-9},
    "offsets of pairs": {"symmetric": True, "segment_aware": True},
    "blocks": {"granularity": "block", "block_size": 7},
}


@pytest.mark.parametrize("values", ACCEPTED.values(), ids=ACCEPTED)
def test_what_can_be_meant(values: dict[str, Any]) -> None:
    options = SparsifyOptions(**values)
    assert all(getattr(options, name) == value for name, value in values.items())


TARGETS: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "shares": (("0.9", "0.5"), (0.5, 0.9)),
    "per cent": (("95%", "12.5%"), (0.125, 0.95)),
    "the same in two ways": (("0.9", "90%", "90.0%", ".9"), (0.9,)),
    "digits that per cent has not exactly": (
        ("0.999", "99.9%", "0.333", "33.3%", "66.6%", "0.666"),
        (0.333, 0.666, 0.999),
    ),
    "small": (("1e-3",), (0.001,)),
}


@pytest.mark.parametrize(("texts", "values"), TARGETS.values(), ids=TARGETS)
def test_targets(texts: tuple[str, ...], values: tuple[float, ...]) -> None:
    assert SparsifyOptions(target_sparsity=texts).targets == values


def test_seeds() -> None:
    assert SparsifyOptions().seed_numbers == ()
    assert SparsifyOptions(seeds=("3", "0", "12")).seed_numbers == (3, 0, 12)


def test_names_are_those_of_the_tables() -> None:
    """Written twice, since the tables need torch and help must not."""
    assert tuple(GRANULARITIES) == module.GRANULARITY_NAMES
    assert tuple(RELAXATIONS) == module.RELAXATION_NAMES
    assert module.SHARING_NAMES == SHARINGS
    assert module.DIAGONAL_NAMES == DIAGONALS
    assert {name for name, method in METHODS.items() if method.kind == "pattern"} == set(PATTERNS)


def test_every_option_is_documented() -> None:
    for option in fields(SparsifyOptions):
        text = option.metadata["help"]
        assert text.endswith((".", "]")), option.name
        assert text[0].isupper() or text[0].islower()
        default = getattr(SparsifyOptions(), option.name)
        for choice in option.metadata.get("choices", ()):
            assert isinstance(choice, str)
        if "choices" in option.metadata:
            chosen = default if isinstance(default, tuple) else (default,)
            assert set(chosen) <= set(option.metadata["choices"]), option.name
