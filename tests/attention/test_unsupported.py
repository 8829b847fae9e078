"""Models that the seam can't reach, can't reproduce or can't run: one line, exit code 3, and the model as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.bert import modeling_bert

from attnprobe.attention import attach, find_sites
from attnprobe.errors import UnsupportedModelError
from attnprobe.quiet import quiet_transformers
from tests.attention.snapshot import assert_unchanged, snapshot
from tests.helpers.families import DECODER, ENCODER, TOKENS, family

NEVER_CALLS = "never calls transformers' attention interface, so its attention can't be reached"
NOT_RUN = "can't be run on made-up tokens, so its attention can't be found: "


def _encoder(name: str, **extra: object) -> Callable[[], PreTrainedModel]:
    settings = {**ENCODER, **extra}
    return lambda: getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings))


def _gpt_oss() -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 1e4}
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    config = transformers.GptOssConfig(**DECODER, **experts, num_key_value_heads=2, head_dim=4, rope_parameters=rope)
    return transformers.GptOssForCausalLM(config)


def _fnet() -> PreTrainedModel:
    settings = {name: value for name, value in ENCODER.items() if name != "num_attention_heads"}
    return transformers.FNetModel(transformers.FNetConfig(**settings))


def _clip() -> PreTrainedModel:
    vision = {name: ENCODER[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = transformers.CLIPConfig(
        text_config=ENCODER, vision_config={**vision, "image_size": 12, "patch_size": 4}, projection_dim=8
    )
    return transformers.CLIPModel(config)


def _gpt2_without_padding() -> PreTrainedModel:
    config = transformers.GPT2Config(n_embd=24, n_layer=2, n_head=3, **{**TOKENS, "pad_token_id": None})
    return transformers.GPT2ForSequenceClassification(config)


def _whisper() -> PreTrainedModel:
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
    config = transformers.WhisperConfig(d_model=24, **layers, num_mel_bins=8, max_source_positions=11, **TOKENS)
    return transformers.WhisperModel(config)


UNSUPPORTED: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "deberta-v2": (_encoder("DebertaV2"), NEVER_CALLS),
    "mpnet": (_encoder("MPNet"), NEVER_CALLS),
    "convbert": (_encoder("ConvBert", num_attention_heads=4, embedding_size=16), NEVER_CALLS),
    "longformer": (_encoder("Longformer", attention_window=8), NEVER_CALLS),
    "big_bird": (_encoder("BigBird", attention_type="original_full"), NEVER_CALLS),
    "roformer": (_encoder("RoFormer", embedding_size=24), NEVER_CALLS),
    "rembert": (_encoder("RemBert", input_embedding_size=16), NEVER_CALLS),
    "ibert": (_encoder("IBert"), NEVER_CALLS),
    "megatron-bert": (_encoder("MegatronBert"), NEVER_CALLS),
    "luke": (_encoder("Luke", entity_vocab_size=11, entity_emb_size=16), NEVER_CALLS),
    "fnet": (_fnet, NEVER_CALLS),
    "gpt_oss": (_gpt_oss, "GptOssAttention uses attention sinks (s_aux), which is not supported"),
    "clip": (_clip, f"CLIPModel {NOT_RUN}"),
    "gpt2 without padding": (_gpt2_without_padding, f"{NOT_RUN}Cannot handle batch sizes > 1 if no padding token"),
    "whisper": (_whisper, "WhisperModel takes input_features; only models of token ids or pixels are supported"),
}


@pytest.fixture
def quiet() -> Iterator[None]:
    """Without what transformers says of configurations this small."""
    with quiet_transformers():
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_says_why_in_one_line_and_leaves_the_model_as_it_was(name: str) -> None:
    build, reason = UNSUPPORTED[name]
    model = build().train()
    before = snapshot(model)
    with pytest.raises(UnsupportedModelError) as raised, attach(model):
        pass
    message = str(raised.value)
    assert reason in message
    assert "\n" not in message
    assert raised.value.exit_code == 3
    assert_unchanged(model, before)


def test_a_model_whose_attention_is_not_reproduced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own attention does something that the function is not told of."""
    own = modeling_bert.eager_attention_forward

    def doubled(*args: Tensor, **kwargs: float) -> tuple[Tensor, Tensor]:
        output, weights = own(*args, **kwargs)
        return 2 * output, weights

    model = family("bert").model()
    assert len(find_sites(model)) == 3
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", doubled)
    with pytest.raises(UnsupportedModelError, match="attention of BertModel is not reproduced: its output differs by"):
        find_sites(model)


def test_an_error_of_many_lines_becomes_one() -> None:
    class Broken(transformers.BertModel):  # type: ignore[misc]
        def forward(self, input_ids: Tensor, **_: object) -> Tensor:
            raise RuntimeError(f"sizes do\n  not match:\n\t{list(input_ids.shape)}")

    with pytest.raises(UnsupportedModelError, match=r"found: sizes do not match: \[2, 7\]$"):
        find_sites(Broken(transformers.BertConfig(**ENCODER)))


def test_weights_that_are_not_numbers_are_refused() -> None:
    model = family("bert").model()
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.weight[0, 0] = torch.nan
    with pytest.raises(UnsupportedModelError, match="differs by nan"):
        find_sites(model)
