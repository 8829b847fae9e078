"""Masked generation: a cache, padding and beams give what whole passes of single texts give."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import attnprobe
from attnprobe.attention import BACKENDS
from attnprobe.errors import DataError, UnsupportedModelError
from tests.export.exported import LENGTH, Exported, generator, of_family, texts
from tests.helpers.families import family, run
from tests.helpers.tolerance import assert_differs, assert_near

NEW = 9
PROMPTS = ("a film", "it", "the cat sat")


@pytest.fixture(scope="module", params=["offset", "cell"])
def gpt2(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Exported once, never changed."""
    return generator(tmp_path_factory.mktemp("gpt2"), request.param)


def by_whole_passes(model: Any, ids: Tensor, *, new: int = NEW) -> list[int]:
    """Greedy tokens of one text, each from a pass over all that comes before it."""
    for _ in range(new):
        logits = run(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})["logits"]
        ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    tokens: list[int] = ids[0, -new:].tolist()
    return tokens


def greedy(model: Any, inputs: dict[str, Tensor], **options: Any) -> list[list[int]]:
    found = model.generate(
        **{name: inputs[name] for name in ("input_ids", "attention_mask")},
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    tokens: list[list[int]] = found[:, -NEW:].tolist()
    return tokens


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_a_cache_as_without(gpt2: Exported, backend: str) -> None:
    """And a batch, padded on the left, as its rows one by one."""
    loaded: Any = attnprobe.load(gpt2.folder, backend=backend)
    loaded.generation_config.eos_token_id = None
    batch = texts(gpt2, *PROMPTS, side="left")
    alone = [texts(gpt2, text)["input_ids"] for text in PROMPTS]
    expected = [by_whole_passes(loaded, ids) for ids in alone]
    for use_cache in (True, False):
        assert greedy(loaded, batch, use_cache=use_cache) == expected
    dense: Any = transformers.AutoModelForCausalLM.from_pretrained(gpt2.folder)
    dense.generation_config.eos_token_id = None
    assert greedy(dense, batch) != expected


def test_logits_with_a_cache_are_those_of_the_whole_pass(gpt2: Exported) -> None:
    """Token by token, and in pieces of several tokens."""
    loaded: Any = attnprobe.load(gpt2.folder)
    inputs = texts(gpt2, "it is not very good", "the film", side="left")
    positions = inputs.pop("position_ids")
    accepted = inspect.signature(loaded.forward).parameters
    name = "cache" if "cache" in accepted else "past_key_values"  # renamed within transformers 5
    whole = run(loaded, {**inputs, "position_ids": positions, "use_cache": False})["logits"]  # type: ignore[dict-item]
    real = inputs["attention_mask"].bool()
    for piece in (1, 3):
        cache, parts = None, []
        for start in range(0, real.shape[1], piece):
            columns = slice(start, start + piece)
            with torch.no_grad():
                output = loaded(
                    input_ids=inputs["input_ids"][:, columns],
                    attention_mask=inputs["attention_mask"][:, : start + piece],
                    position_ids=positions[:, columns],
                    use_cache=True,
                    **{name: cache},
                )
            cache = output[name]
            parts.append(output.logits)
        assert_near(torch.cat(parts, dim=1)[real], whole[real], 1e-5)
    assert_differs(whole[real], run(gpt2.checkpoint.model, {**inputs, "position_ids": positions})["logits"][real])


def test_beams(gpt2: Exported) -> None:
    """One beam's text is scored as a whole pass scores it, and beams of a padded batch are those of single rows."""
    loaded: Any = attnprobe.load(gpt2.folder)
    loaded.generation_config.eos_token_id = None
    batch = texts(gpt2, *PROMPTS, side="left")
    together = greedy(loaded, batch, num_beams=3)
    alone = [greedy(loaded, texts(gpt2, text), num_beams=3)[0] for text in PROMPTS]
    assert together == alone


def test_beyond_the_limit_of_a_cell_mask(tmp_path: Path) -> None:
    exported = generator(tmp_path, "cell")
    loaded: Any = attnprobe.load(exported.folder)
    loaded.generation_config.eos_token_id = None
    ids = texts(exported, "it is not very good")["input_ids"]
    with pytest.raises(DataError, match=f"covers {LENGTH} tokens, and a row has {LENGTH + 1}"):
        loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=LENGTH, pad_token_id=0)


def test_a_cache_of_fixed_size_is_refused(tmp_path: Path) -> None:
    exported = generator(tmp_path)
    loaded: Any = attnprobe.load(exported.folder)
    inputs = texts(exported, "it is")
    with pytest.raises((UnsupportedModelError, DataError), match="a masked model"):
        greedy(loaded, inputs, cache_implementation="static")


@pytest.mark.parametrize("name", ["mistral", "gemma2", "llama-8/2"])
def test_sliding_windows_and_grouped_queries(name: str, tmp_path: Path) -> None:
    """A sliding layer's cache holds its last keys alone."""
    exported = of_family(tmp_path, family(name))
    loaded: Any = attnprobe.load(exported.folder)
    loaded.generation_config.eos_token_id = None
    inputs = family(name).inputs("left", rows=(7, 4))
    alone = [inputs["input_ids"][:1], inputs["input_ids"][1:, 3:]]
    assert greedy(loaded, inputs) == [by_whole_passes(loaded, ids) for ids in alone]
