"""Find a model's attention sites by running it once, and check that the seam reproduces its own attention."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnprobe.attention.blocks import Blocks, find_blocks
from attnprobe.attention.call import AttentionCall, Site
from attnprobe.attention.session import AttentionSession, switched
from attnprobe.errors import AttnProbeError, UnsupportedModelError
from attnprobe.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LENGTH = 7
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}
"""Largest difference between the seam and a model's own eager attention, relative to the largest output.

Many families compute their softmax in float32 whatever the weights are, so that float64 can't agree to its last digits.
"""


@contextmanager
def attach(model: PreTrainedModel, *, backend: str = "eager") -> Iterator[AttentionSession]:
    """Put a model's attention under control, and give it back bit for bit.

    The sites are found by running the model on a few made-up tokens, with its own eager attention and with the
    project's, which must agree: support is established, never assumed from a name.

    Args:
        model: any transformers model that calls the attention interface.
        backend: ``eager`` or ``sdpa``.

    Raises:
        UnsupportedModelError: the model's attention never calls the interface, or is not reproduced.
        UsageError: unknown backend, or the model is attached already.
    """
    with switched(model, backend=backend) as session:
        with evaluating(model):
            try:
                _discover(session, example_inputs(model))
            except AttnProbeError:
                raise
            except (ValueError, TypeError, AttributeError, IndexError, KeyError, RuntimeError) as error:
                reason = " ".join(str(error).split())
                raise UnsupportedModelError(
                    f"{type(model).__name__} can't be run on made-up tokens, so its attention can't be found: {reason}"
                ) from error
        yield session


def _discover(session: AttentionSession, inputs: dict[str, Tensor]) -> None:
    """Number the sites of a session, check it against the model's own attention, and find its blocks."""
    model = session.model
    session.number(_self_attention(model, _record_calls(session, inputs)))
    actual = _outputs(model, inputs)
    _require_equal(model, _outputs_under(model, "eager", inputs), actual)
    blocks = find_blocks(model, session.sites)
    if blocks is not None and _resumes_exactly(model, blocks, inputs, actual):
        session.blocks = blocks


def _resumes_exactly(model: PreTrainedModel, blocks: Blocks, inputs: dict[str, Tensor], whole: list[Tensor]) -> bool:
    """Whether passes resumed at the middle and at the last site give the whole pass bit for bit."""
    with blocks.recorded() as states:
        _outputs(model, inputs)
    if len(states) != len(blocks.modules):
        return False
    for site in {len(blocks.of_site) // 2, len(blocks.of_site) - 1}:
        with blocks.resumed(site, states):
            resumed = _outputs(model, inputs)
        if not all(torch.equal(a, b) for a, b in zip(resumed, whole, strict=True)):
            return False
    return True


def find_sites(model: PreTrainedModel) -> tuple[Site, ...]:
    """The sites of a model, by depth. Raises as :func:`attach` does."""
    with attach(model) as session:
        return session.sites


def example_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Made-up inputs for one small forward pass: two rows, the second with two tokens of padding.

    Raises:
        UnsupportedModelError: the model takes neither token ids nor pixel values.
    """
    config, device = model.config.get_text_config(), model.device
    if model.main_input_name == "pixel_values":
        size, channels = getattr(config, "image_size", 224), getattr(config, "num_channels", 3)
        height, width = (size, size) if isinstance(size, int) else size
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randn(2, channels, height, width, generator=generator)
        return {"pixel_values": pixels.to(device, model.dtype)}
    if model.main_input_name != "input_ids":
        raise UnsupportedModelError(
            f"{type(model).__name__} takes {model.main_input_name}; only models of token ids or pixels are supported"
        )
    ids = _token_rows(config, _LENGTH)
    mask = torch.ones_like(ids)
    accepted = inspect.signature(model.forward).parameters
    if "attention_mask" in accepted:
        mask[1, -2:] = 0
        pad = getattr(config, "pad_token_id", None)
        ids[1, -2:] = pad if isinstance(pad, int) and pad >= 0 else ids[1, 0]
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids
    return {name: tensor.to(device) for name, tensor in inputs.items() if name in accepted}


def _token_rows(config: Any, length: int) -> Tensor:
    """(2, length) ordinary token ids; the same special end in each row, for heads that look for it."""
    special = {getattr(config, f"{name}_token_id", None) for name in ("pad", "eos", "bos", "mask", "image")}
    flat = {i for s in special for i in (s if isinstance(s, list) else [s])}
    ordinary = [i for i in range(config.vocab_size) if i not in flat]
    ids = torch.tensor([[ordinary[(5 + 3 * i + 2 * row) % len(ordinary)] for i in range(length)] for row in (0, 1)])
    eos = getattr(config, "eos_token_id", None)
    eos = eos[0] if isinstance(eos, list) and eos else eos
    if isinstance(eos, int) and 0 <= eos < config.vocab_size:
        ids[0, -1] = eos
        ids[1, -3] = eos  # the last token before the padding
    return ids


def _record_calls(session: AttentionSession, inputs: dict[str, Tensor]) -> list[tuple[nn.Module, AttentionCall]]:
    calls: list[tuple[nn.Module, AttentionCall]] = []
    session._discoverer = lambda module, call: calls.append((module, call))
    try:
        _outputs(session.model, inputs)
    finally:
        session._discoverer = None
    if not calls:
        raise UnsupportedModelError(
            f"{type(session.model).__name__} never calls transformers' attention interface, so its attention can't "
            "be reached; see `attnprobe doctor --help` for the supported families"
        )
    return calls


def _self_attention(model: PreTrainedModel, calls: list[tuple[nn.Module, AttentionCall]]) -> tuple[Site, ...]:
    """Number the calls that are self-attention of the model's first stack.

    Of a model with encoder and decoder these are the encoder's: its decoder reads other tokens.
    """
    names = {module: name for name, module in model.named_modules()}
    encoder = set(model.get_encoder().modules()) if getattr(model.config, "is_encoder_decoder", False) else set()
    applications: Counter[nn.Module] = Counter()
    sites: list[Site] = []
    for module, call in calls:
        _, heads, queries, keys = call.shape
        if queries != keys or (encoder and module not in encoder):
            continue
        future = torch.ones(queries, keys, dtype=torch.bool, device=call.valid.device).triu(1)
        site = Site(
            index=len(sites),
            name=names[module],
            module=module,
            application=applications[module],
            heads=heads,
            kv_heads=call.key.shape[1],
            head_dim=call.query.shape[-1],
            causal=not bool((call.valid.expand(-1, -1, queries, keys) & future).any()),
        )
        applications[module] += 1
        sites.append(site)
    if not sites:
        raise UnsupportedModelError(f"{type(model).__name__} has no self-attention, only attention across sequences")
    return tuple(sites)


def _outputs(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The floating-point tensors a model returns, in order."""
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    with torch.no_grad():
        result = model(**inputs, **options, return_dict=True)
    return [value for value in result.values() if isinstance(value, Tensor) and value.is_floating_point()]


def _outputs_under(model: PreTrainedModel, implementation: str, inputs: dict[str, Tensor]) -> list[Tensor]:
    current = model.config._attn_implementation
    with quiet_transformers():
        model.set_attn_implementation(implementation)
        try:
            return _outputs(model, inputs)
        finally:
            model.set_attn_implementation(current)


def _require_equal(model: PreTrainedModel, expected: list[Tensor], actual: list[Tensor]) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        scale = max(1.0, theirs.abs().max().item())
        difference = (ours - theirs).abs().max().item() / scale
        if not difference <= _TOLERANCE.get(theirs.dtype, 1e-4):
            raise UnsupportedModelError(
                f"the attention of {type(model).__name__} is not reproduced: its output differs by {difference:.2g} "
                "from its own eager attention, so no figure for it can be trusted"
            )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module in eval mode, and each back into the mode it was in."""
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
        model.eval()
        yield
