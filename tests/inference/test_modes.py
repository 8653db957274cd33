"""A target is asked once whether it judges trees; where it does not, chains are drafted and the text is the same."""

import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference import modes
from specblock_zoo.inference.modes import form_of, judges_trees, tree_deviation
from specblock_zoo.inference.verify import Form
from specblock_zoo.targets.registry import FAMILIES
from tests.support.decoding import STATIC_TAKES_BACK, generate, prompt_ids, scripted_drafter, target_of

pytestmark = pytest.mark.contract

LENGTH, NEW = 11, 14


@pytest.fixture(autouse=True)
def _nothing_asked_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "_answers", {})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_family_judges_trees(family: str, dtype: torch.dtype) -> None:
    model = target_of(family).to(dtype)
    assert tree_deviation(model, Form.ADDITIVE) < modes.TOLERANCES.get(dtype, modes.LOW_PRECISION_TOLERANCE)
    assert form_of(model) is Form.ADDITIVE


def test_a_vocabulary_smaller_than_the_probe_is_asked_too() -> None:
    model = target_of("llama", vocab_size=3, bos_token_id=0, pad_token_id=0)
    assert form_of(model) is Form.ADDITIVE


@pytest.mark.parametrize("family", FAMILIES)
def test_masks_that_are_not_heeded_are_noticed(family: str) -> None:
    assert tree_deviation(target_of(family), Form.CAUSAL) > 2 * modes.LOW_PRECISION_TOLERANCE


@pytest.mark.parametrize(
    ("dtype", "nodes", "is_forgiven"),
    [(torch.bfloat16, 1, True), (torch.bfloat16, 2, False), (torch.float32, 1, False)],
)
def test_one_node_that_rounding_sends_elsewhere_is_forgiven(
    dtype: torch.dtype, nodes: int, is_forgiven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = modes._read_alone

    def disturbed(model: PreTrainedModel, prefix: torch.Tensor, tokens: list[int]) -> torch.Tensor:
        logits = read(model, prefix, tokens)
        logits[:nodes] = logits[:nodes].flip(-1)
        return logits

    monkeypatch.setattr(modes, "_read_alone", disturbed)
    deviation = tree_deviation(target_of("llama").to(dtype), Form.ADDITIVE)
    assert (deviation < modes.TOLERANCES.get(dtype, modes.LOW_PRECISION_TOLERANCE)) is is_forgiven


class DeafModel(type(target_of("llama"))):
    """Loses ready-made masks, as a release of transformers once did."""

    def forward(self, *args: object, attention_mask: torch.Tensor | None = None, **kwargs: object) -> object:
        mask = attention_mask if attention_mask is None or attention_mask.ndim == 2 else None
        return super().forward(*args, attention_mask=mask, **kwargs)


def deaf() -> PreTrainedModel:
    heard = target_of("llama")
    model = DeafModel(heard.config).eval().requires_grad_(False)
    model.load_state_dict(heard.state_dict())
    return model


@pytest.mark.parametrize("padding", [0, 3])
def test_a_failing_comparison_falls_back_to_chains_with_one_warning(padding: int) -> None:
    model, ids = deaf(), torch.nn.functional.pad(prompt_ids(LENGTH), (padding, 0))
    mask = torch.nn.functional.pad(torch.ones(1, LENGTH, dtype=torch.int64), (padding, 0))
    text = generate(model, ids, NEW, attention_mask=mask)
    drafter = scripted_drafter(model, text[:, padding:], lambda index: (0, 0, 1)[index % 3], num_blocks=2)
    with pytest.warns(UserWarning, match="DeafModel with sdpa attention"):
        first = generate(model, ids, NEW, assistant_model=drafter, attention_mask=mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = generate(model, ids, NEW, assistant_model=drafter, attention_mask=mask)
    assert torch.equal(first, text)
    assert torch.equal(second, text)
    assert drafter.last_stats.tau > 1.0
    for each in drafter.last_stats.history:
        assert each.tree.parents.tolist() == list(range(-1, len(each.tree) - 1))


@pytest.mark.filterwarnings("ignore:DeafModel")
def test_strict_drafters_refuse_instead() -> None:
    model = deaf()
    drafter = scripted_drafter(model, prompt_ids(LENGTH))
    drafter.strict = True
    with pytest.raises(UnsupportedOptionError, match="DeafModel"):
        generate(model, prompt_ids(LENGTH), NEW, assistant_model=drafter)


@pytest.mark.parametrize("family", FAMILIES)
def test_chains_without_a_mask_write_the_same_text(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What attention implementations without masks do; here asked of one that would take them."""
    model = target_of(family)
    monkeypatch.setitem(modes.FORMS, model.config._attn_implementation, Form.CAUSAL)
    text = generate(model, prompt_ids(LENGTH), NEW)
    drafter = scripted_drafter(model, text, lambda index: -(index % 5 == 0), num_blocks=2)
    assert torch.equal(generate(model, prompt_ids(LENGTH), NEW, assistant_model=drafter), text)
    assert drafter.last_stats.tau > 2.0


def test_nobody_is_asked_twice() -> None:
    asked = []

    def compare(*_: object) -> float:
        asked.append(1)
        return 0.0

    model = target_of("llama")
    assert judges_trees(model, Form.ADDITIVE, compare)
    assert judges_trees(model, Form.ADDITIVE, compare)
    model.set_attn_implementation("eager")
    assert judges_trees(model, Form.ADDITIVE, compare)
    assert len(asked) == 2


def test_threads_that_come_at_once_ask_once() -> None:
    asked = []

    def compare(*_: object) -> float:
        asked.append(1)
        time.sleep(0.02)
        return 0.0

    model = target_of("llama")
    with ThreadPoolExecutor(max_workers=4) as threads:
        assert all(threads.map(lambda _: judges_trees(model, Form.ADDITIVE, compare), range(8)))
    assert len(asked) == 1


def test_unknown_attention_is_refused_with_the_known_ones() -> None:
    model = target_of("llama")
    model.config._attn_implementation = "paged|sdpa"
    with pytest.raises(UnsupportedOptionError, match=r"paged\|sdpa.*sdpa, sdpa_grouped, eager"):
        form_of(model)


# What torch says of flex attention that is not compiled, and of its own older names.
FLEX_NOISE = ("ignore:flex_attention called without torch.compile", "ignore::DeprecationWarning")


def flex_texts(family: str, new: int) -> None:
    """Trees, windows and two padded rows, against plain generate with sdpa attention."""
    model = target_of(family, num_hidden_layers=4)
    ids = torch.cat((torch.nn.functional.pad(prompt_ids(LENGTH), (2, 0)), prompt_ids(LENGTH + 2, 1)))
    mask = torch.ones_like(ids).index_fill(1, torch.tensor([0, 1]), 0)
    mask[1] = 1
    alone = generate(model, prompt_ids(LENGTH), new)
    together = generate(model, ids, 2, attention_mask=mask)
    drafter = scripted_drafter(model, alone, lambda index: (0, 1, 0, -1)[index % 4], num_blocks=1, max_nodes=6)
    model.set_attn_implementation("flex_attention")
    assert torch.equal(generate(model, prompt_ids(LENGTH), new, assistant_model=drafter), alone)
    assert drafter.last_stats.tau > 1.0
    assert max(map(len, (each.tree for each in drafter.last_stats.history))) == 6, "trees, not chains"
    assert torch.equal(generate(model, ids, 2, attention_mask=mask, assistant_model=drafter), together)


@pytest.mark.filterwarnings(*FLEX_NOISE)
def test_flex_attention_judges_trees() -> None:
    """Not compiled here, which spares a minute of a C++ compiler; the mask is the same."""
    with torch.compiler.set_stance("force_eager"):
        flex_texts("qwen2", 5)


@pytest.mark.slow
@pytest.mark.filterwarnings(*FLEX_NOISE)
def test_compiled_flex_attention_judges_trees_of_changing_size() -> None:
    flex_texts("llama", NEW)


def test_flash_attention_drafts_chains_without_being_asked() -> None:
    model = target_of("llama")
    model.config._attn_implementation = "flash_attention_2"
    assert form_of(model) is Form.CAUSAL


def test_targets_of_one_class_and_another_configuration_are_asked_for_themselves() -> None:
    plain, other = target_of("llama"), target_of("llama", rope_theta=500.0)
    answers = {id(plain.config): 1.0, id(other.config): 0.0}

    def compare(model: PreTrainedModel, _: Form) -> float:
        return answers[id(model.config)]

    with pytest.warns(UserWarning, match="does not heed"):
        assert not judges_trees(plain, Form.ADDITIVE, compare)
    assert judges_trees(other, Form.ADDITIVE, compare)


def blind_to_masks(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, None]:
    """Attention as FlashAttention computes it: causal from the end, a 2-D mask only says which columns there are."""
    if attention_mask is not None:
        assert attention_mask.all(), "no padding here"
        key, value = (each[:, :, : attention_mask.shape[1]] for each in (key, value))
    key, value = (each.repeat_interleave(module.num_key_value_groups, 1) for each in (key, value))
    queries, keys = query.shape[2], key.shape[2]
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, seen, scale=options["scaling"])
    return mixed.transpose(1, 2).contiguous(), None


@pytest.mark.skipif(not STATIC_TAKES_BACK, reason="this transformers cannot crop static caches")
def test_a_kernel_without_masks_is_told_where_the_text_ends_in_a_static_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    text = generate(target_of("llama"), prompt_ids(LENGTH), 20)
    name, model = "flash_attention_2", target_of("llama")
    monkeypatch.setitem(AttentionInterface._global_mapping, name, blind_to_masks)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, name, flash_attention_mask)
    model.config._attn_implementation = name
    drafter = scripted_drafter(model, text, lambda index: -(index % 5 == 0), num_blocks=2)
    static = {"cache_implementation": "static", "max_cache_len": 64}
    for options in ({}, static):
        assert torch.equal(generate(model, prompt_ids(LENGTH), 20, **options), text)
        assert torch.equal(generate(model, prompt_ids(LENGTH), 20, assistant_model=drafter, **options), text)
    assert drafter.last_stats.tau > 2.0
