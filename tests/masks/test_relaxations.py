"""Ways to draw a gate: by the formula, by how often it is open, very cold and very hot, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnprobe.masks.relaxations import RELAXATIONS, SMOOTHNESS, logistic_noise
from tests.helpers.tolerance import assert_identical, assert_near
from tests.references import masks as reference

NAMES = pytest.mark.parametrize("name", RELAXATIONS)
ALPHAS = (-7.0, -3.0, -1.0, -0.25, 0.0, 0.5, 2.0, 5.0)
DRAWS = 40_000


def noise_of(*shape: int, seed: int = 0) -> Tensor:
    return logistic_noise(shape, torch.Generator().manual_seed(seed))


def draw(name: str, alpha: Tensor, noise: Tensor, tau: float = SMOOTHNESS) -> Tensor:
    return RELAXATIONS[name].draw(alpha, noise, tau)


@pytest.mark.parametrize("tau", [0.02, 0.3, SMOOTHNESS, 1.0, 5.0])
@NAMES
def test_by_the_formula(name: str, tau: float) -> None:
    noise = noise_of(101, len(ALPHAS)).double()
    gates = draw(name, torch.tensor(ALPHAS, dtype=torch.float64).expand_as(noise), noise, tau)
    expected = [
        [reference.drawn(name, alpha, drawn, tau) for alpha, drawn in zip(ALPHAS, row, strict=True)]
        for row in noise.tolist()
    ]
    assert_near(gates, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("tau", [0.1, SMOOTHNESS, 2.0])
@NAMES
def test_how_often_a_gate_is_open(name: str, tau: float) -> None:
    """Drawn above 0; a plain Gumbel-sigmoid never is 0: above a half."""
    alpha = torch.tensor(ALPHAS)
    gates = draw(name, alpha, noise_of(DRAWS, len(ALPHAS)), tau)
    share = (gates > (0.5 if name == "soft" else 0.0)).double().mean(0)
    probability = RELAXATIONS[name].open_probability(alpha.double(), tau)
    expected = torch.tensor([reference.open_probability(name, a, tau) for a in ALPHAS], dtype=torch.float64)
    assert_near(probability, expected)
    error = (expected * (1 - expected) / DRAWS).sqrt()
    assert ((share - expected).abs() < 4 * error + 3e-5).all(), (share - expected) / error


@NAMES
def test_a_gate_at_the_level_is_as_often_open_as_closed(name: str) -> None:
    for tau in (0.2, SMOOTHNESS, 1.0):
        level = RELAXATIONS[name].level(tau)
        assert float(RELAXATIONS[name].open_probability(torch.tensor(level).double(), tau)) == pytest.approx(0.5)
        assert level == pytest.approx(tau * math.log(1 / 11) if name == "hard-concrete" else 0.0)


@NAMES
def test_cold_gates_are_open_or_closed(name: str) -> None:
    """tau to 0: every relaxation is the hard one."""
    noise = noise_of(5003)
    alpha = torch.linspace(-5, 5, 5003)
    hard = (alpha + noise > 0).float()
    clear = (alpha + noise).abs() > 1e-3
    assert_near(draw(name, alpha, noise, 1e-5)[clear], hard[clear])
    assert abs(RELAXATIONS[name].level(1e-5)) < 1e-4


@pytest.mark.parametrize("name", ["soft", "hard-concrete"])
def test_hot_gates_are_half_open(name: str) -> None:
    noise = noise_of(503)
    assert_near(draw(name, torch.full((503,), 2.0), noise, 1e5), torch.full((503,), 0.5), 1e-3)


@pytest.mark.parametrize("name", ["hard", "straight-through", "hard-concrete"])
def test_gates_that_are_exactly_open_or_closed(name: str) -> None:
    """Hard gates all are, whatever their logits; stretched ones often."""
    for scale in (0.0, 1.0, 500.0):
        gates = draw(name, scale * noise_of(DRAWS, seed=1), noise_of(DRAWS))
        exact = (gates == 0) | (gates == 1)
        share = float(exact.double().mean())
        assert share == 1 if name != "hard-concrete" else share > 0.2
        assert (gates == 0).any()
        assert (gates == 1).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@NAMES
def test_gates_lie_between_closed_and_open(name: str, dtype: torch.dtype) -> None:
    """From whatever logits, at whatever temperature."""
    noise = noise_of(20_011).to(dtype)
    for scale, tau in ((1.0, 0.01), (30.0, 1.0), (1e4, 0.1)):
        gates = draw(name, scale * noise_of(20_011, seed=1).to(dtype), noise, tau)
        assert gates.dtype == dtype
        assert ((gates >= 0) & (gates <= 1)).all()


@NAMES
def test_gradients(name: str) -> None:
    """Hard gates have the soft one's; stretched ones 1.2 times it, none where they are cut; straight-through ones 1."""
    tau = 0.6
    noise = noise_of(811).double()
    alpha = torch.linspace(-4, 4, 811, dtype=torch.float64, requires_grad=True)
    gates = draw(name, alpha, noise, tau)
    (gradient,) = torch.autograd.grad(gates.sum(), alpha)
    soft = torch.sigmoid((alpha.detach() + noise) / tau)
    expected = soft * (1 - soft) / tau
    if name == "hard-concrete":
        inside = (gates > 0) & (gates < 1)
        assert 100 < int(inside.sum()) < 811
        expected = torch.where(inside, 1.2 * expected, 0.0)
    if name == "straight-through":
        expected = torch.ones_like(expected)
    assert_near(gradient, expected)


@NAMES
def test_gradients_are_finite_from_any_logit(name: str) -> None:
    alpha = torch.tensor([-1e4, -80.0, -1.0, 0.0, 1.0, 80.0, 1e4]).repeat(57).requires_grad_()
    (gradient,) = torch.autograd.grad(draw(name, alpha, noise_of(7 * 57), 0.02).sum(), alpha)
    assert gradient.isfinite().all()
    assert gradient.any()


def test_noise_is_logistic() -> None:
    """Mean 0, variance pi^2 / 3, distribution function a sigmoid."""
    noise = noise_of(DRAWS)
    assert noise.dtype == torch.float32
    values = noise.double()
    assert abs(float(values.mean())) < 4 * math.pi / math.sqrt(3 * DRAWS)
    assert float(values.var()) == pytest.approx(math.pi**2 / 3, rel=0.05)
    for at in (-4.0, -1.0, 0.0, 0.5, 3.0):
        p = reference.sigmoid(at)
        assert abs(float((values < at).double().mean()) - p) < 4 * math.sqrt(p * (1 - p) / DRAWS)


def test_noise_is_never_infinite() -> None:
    """Uniform numbers of exactly 0 come up once in 2^24."""
    noise = noise_of(1_000_003, seed=3)
    assert noise.isfinite().all()
    assert noise.abs().max() < 14
    assert float(noise.max()) == pytest.approx(-float(noise.min()), rel=0.4)


def test_noise_is_the_generators() -> None:
    assert_identical(noise_of(2, 3, 5), noise_of(2, 3, 5))
    assert not torch.equal(noise_of(2, 3, 5), noise_of(2, 3, 5, seed=1))


def test_the_table_says_what_each_is() -> None:
    assert list(RELAXATIONS) == ["straight-through", "hard-concrete", "hard", "soft"]
    assert all(relaxation.summary[-1] != "." for relaxation in RELAXATIONS.values())
