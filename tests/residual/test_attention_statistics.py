"""Entropy and divergence of attention against scipy's, over what counts alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy
from torch import Tensor

from attnprobe.attention import AttentionCall, attach
from attnprobe.residual.attention_statistics import measure
from tests.helpers.families import family, run


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_entropy_and_divergence_are_scipys(name: str) -> None:
    of = family(name)
    model, inputs = of.model(), of.inputs()
    counted = inputs["attention_mask"].bool().clone()
    counted[1, 0] = False
    rows: dict[int, Tensor] = {}

    def observe(call: AttentionCall, probabilities: Tensor) -> None:
        rows[call.site.index] = probabilities.double()

    with attach(model) as session:
        with session.observe(observe):
            run(model, inputs)
        found = measure(session, [(inputs, counted)])
    places = counted.nonzero().tolist()
    assert found.entropy.shape == (of.sites, of.heads, len(places))
    for site in range(of.sites):
        for head in range(of.heads):
            for number, (b, i) in enumerate(places):
                row = rows[site][b, head, i].numpy()
                keys = i + 1 if of.causal else int(inputs["attention_mask"][b].sum())
                expected = float(entropy(row))
                assert float(found.entropy[site, head, number]) == pytest.approx(expected, abs=1e-5)
                relative = float(found.relative[site, head, number])
                assert (
                    math.isnan(relative)
                    if keys == 1
                    else relative == pytest.approx(expected / math.log(keys), abs=1e-5)
                )
    for site in range(of.sites - 1):
        for below in range(of.heads):
            for above in range(of.heads):
                pairs = [(rows[site][b, below, i].numpy(), rows[site + 1][b, above, i].numpy()) for b, i in places]
                mean = np.mean([jensenshannon(p, q) ** 2 for p, q in pairs])
                assert found.divergence[site, below, above] == pytest.approx(mean, abs=1e-5)
    assert (found.matched_heads() <= found.same_heads() + 1e-12).all()


def test_batches_add_up() -> None:
    of = family("bert")
    model, inputs = of.model(), of.inputs()
    counted = inputs["attention_mask"].bool()
    with attach(model) as session:
        whole = measure(session, [(inputs, counted)])
        single = measure(
            session, [({n: t[row : row + 1] for n, t in inputs.items()}, counted[row : row + 1]) for row in range(3)]
        )
    np.testing.assert_allclose(single.entropy, whole.entropy, atol=1e-5)
    np.testing.assert_allclose(single.divergence, whole.divergence, atol=1e-6)


def test_uniform_rows_have_the_largest_entropy_and_do_not_differ() -> None:
    of = family("bert")
    model = of.model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".query." in name:
                parameter.zero_()
    inputs = of.inputs()
    with attach(model) as session:
        found = measure(session, [(inputs, inputs["attention_mask"].bool())])
    np.testing.assert_allclose(found.relative, 1.0, atol=1e-5)
    np.testing.assert_allclose(found.divergence, 0.0, atol=1e-6)
