"""Cached drafting equals the dense reference; files are read strictly."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specblock_zoo.errors import VocabularyMismatchError, WeightsMismatchError
from specblock_zoo.models import decoder
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.models.specblock.dense import dense_blocks
from specblock_zoo.models.specblock.modeling_specblock import MOST_PAIRS_PLANNED, extension_plan
from specblock_zoo.structures import BranchMemory, ContextOutput, KeyValues
from tests.support.drafters import DRAFT_VOCAB, HIDDEN, VOCAB, WIDTH, tiny_drafter

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
LENGTH = 9
VARIANTS = [
    {"context_slots": kept, "shift": shift, "advance_positions": advance}
    for kept, shift, advance in [(1, "every_layer", True), (2, "between_layers", True), (3, "none", False)]
]


def sequence() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(1, LENGTH, 3 * HIDDEN), torch.randint(VOCAB, (1, LENGTH))


def joined(parts: list[tuple[KeyValues, ...]]) -> tuple[KeyValues, ...]:
    return tuple(KeyValues(*(torch.cat(t, 2) for t in zip(*layer, strict=True))) for layer in zip(*parts, strict=True))


def extend_in_pieces(drafter: SpecBlockDrafter, ends: list[int]) -> tuple[ContextOutput, tuple[KeyValues, ...]]:
    features, tokens = sequence()
    context: list[tuple[KeyValues, ...]] = []
    start = 0
    for end in ends:
        positions = torch.arange(start, end)[None]
        past = joined(context) if context else None
        output = drafter.extend(features[:, start:end], tokens[:, start:end], positions, past)
        context.append(output.context)
        start = end
    return output, joined(context)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ends", [[9], [4, 9], [1, 2, 3, 8, 9]])
def test_first_block_equals_dense_reference_however_the_context_came(variant, ends) -> None:
    drafter = tiny_drafter(**variant)
    output, _ = extend_in_pieces(drafter, ends)
    expected = dense_blocks(drafter, *sequence())[0]
    torch.testing.assert_close(output.block.hidden[0], expected.hidden[0, -1], **CLOSE)
    torch.testing.assert_close(output.block.logits[0], expected.logits[0, -1], **CLOSE)
    torch.testing.assert_close(output.block.rank_logits[0], expected.rank_logits[0, -1], **CLOSE)


def test_long_extensions_take_another_kernel_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = tiny_drafter(context_slots=2)
    expected, _ = extend_in_pieces(drafter, [3, 9])
    monkeypatch.setattr(decoder, "LONG_EXTENSION", 0)
    found, _ = extend_in_pieces(drafter, [3, 9])
    torch.testing.assert_close(found.block.logits, expected.block.logits, **CLOSE)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("starts", [(1, 1), (3, 2), (2, 3)])
def test_later_blocks_equal_dense_reference(variant, starts) -> None:
    drafter = tiny_drafter(**variant)
    features, tokens = sequence()
    position = 2
    dense = dense_blocks(drafter, features, tokens, starts)
    first = drafter.extend(features[:, : position + 1], tokens[:, : position + 1], torch.arange(position + 1)[None])
    kept = drafter.config.context_slots
    context = tuple(KeyValues(kv.keys[:, :, :-kept], kv.values[:, :, :-kept]) for kv in first.context)
    block, path, mask, depth = first.block, first.path, torch.zeros(1, 0, dtype=torch.bool), 0
    memory = tuple(KeyValues(kv.keys[:, :, :0], kv.values[:, :, :0]) for kv in path)
    for number, start in enumerate(starts, 1):
        depth += start
        memory = joined([memory, path])
        mask = torch.cat((mask, torch.arange(WIDTH)[None] < start), dim=1)
        seen = BranchMemory(context, memory, mask)
        fed = tokens[:, position + depth]
        output = drafter.branch(fed, block.hidden[:, start - 1], torch.tensor([depth]), torch.tensor(position), seen)
        block, path = output.block, output.path
        torch.testing.assert_close(block.logits[0], dense[number].logits[0, position], **CLOSE)


def test_hidden_context_rows_change_nothing() -> None:
    drafter = tiny_drafter()
    features, tokens = sequence()
    context = drafter.extend(features[:, :5], tokens[:, :5], torch.arange(5)[None]).context
    noise = tuple(KeyValues(*(torch.cat((torch.randn_like(t), t), 2) for t in kv)) for kv in context)
    mask = (torch.arange(10) >= 5)[None]
    arguments = (features[:, 5:7], tokens[:, 5:7], torch.arange(5, 7)[None])
    plain, hidden = drafter.extend(*arguments, context), drafter.extend(*arguments, noise, mask)
    torch.testing.assert_close(plain.block.logits, hidden.block.logits, **CLOSE)


def test_shift_starts_as_the_identity() -> None:
    shifted, plain = tiny_drafter(shift="every_layer"), tiny_drafter(shift="none")
    plain.load_state_dict({k: v for k, v in shifted.state_dict().items() if "shift_proj" not in k})
    plain.attach(shifted.embedding)
    a, b = (drafter.extend(*sequence(), torch.arange(LENGTH)[None]).block.logits for drafter in (shifted, plain))
    torch.testing.assert_close(a, b, **CLOSE)


def test_folder_round_trip(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    drafter.save_pretrained(tmp_path)
    assert not any("embed_tokens" in name for name in load_file(tmp_path / "model.safetensors"))
    loaded = SpecBlockDrafter.from_pretrained(tmp_path)
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name


@pytest.mark.parametrize("fault", ["missing", "extra", "reshaped"])
def test_wrong_weight_files_are_refused_by_tensor_name(tmp_path: Path, fault: str) -> None:
    tiny_drafter().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    if fault == "missing":
        del weights["norm.weight"]
    elif fault == "extra":
        weights["another.weight"] = torch.zeros(2)
    else:
        weights["norm.weight"] = torch.zeros(HIDDEN + 1)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsMismatchError, match="another" if fault == "extra" else "norm") as caught:
        SpecBlockDrafter.from_pretrained(tmp_path)
    assert "expected" in str(caught.value)
    assert "found" in str(caught.value)


def test_a_weight_file_cut_short_is_refused(tmp_path: Path) -> None:
    tiny_drafter().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(WeightsMismatchError, match="cannot be read as safetensors"):
        SpecBlockDrafter.from_pretrained(tmp_path)


def test_contradicting_vocabulary_map_is_refused(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    drafter.d2t[3] += 1
    drafter.save_pretrained(tmp_path)
    with pytest.raises(VocabularyMismatchError):
        SpecBlockDrafter.from_pretrained(tmp_path)


def test_target_tokens_follow_the_vocabulary_map() -> None:
    drafter = tiny_drafter()
    assert drafter.draft_tokens.tolist() == drafter.t2d.nonzero()[:, 0].tolist()
    assert drafter.target_tokens(torch.arange(DRAFT_VOCAB)).tolist() == drafter.draft_tokens.tolist()


def test_saved_weights_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    drafter = tiny_drafter(attached=False)
    drafter.norm.weight.data[0] = torch.nan
    drafter.save_pretrained(tmp_path)
    with pytest.raises(WeightsMismatchError, match=r"NaN in norm\.weight"):
        SpecBlockDrafter.from_pretrained(tmp_path)


@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, {"dtype": "auto"}, {"device_map": "cpu"}])
def test_loading_options_of_transformers_are_honoured(tmp_path: Path, options: dict[str, object]) -> None:
    saved = tiny_drafter(attached=False)
    saved.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = SpecBlockDrafter.from_pretrained(tmp_path, **options)
    assert loaded.dtype == (torch.bfloat16 if options.get("dtype") is torch.bfloat16 else torch.float32)
    torch.testing.assert_close(loaded.state_dict(), saved.to(loaded.dtype).state_dict(), rtol=0, atol=0)


def test_the_rank_head_runs_when_somebody_asks_and_once() -> None:
    drafter, calls = tiny_drafter(), []
    drafter.rank_head.register_forward_hook(lambda *_: calls.append(1))
    output, _ = extend_in_pieces(drafter, [LENGTH])
    assert calls == []
    ranks = output.block.rank_logits
    assert ranks is output.block.rank_logits
    assert calls == [1]
    assert ranks.requires_grad
    normed = drafter.norm(output.block.hidden)
    torch.testing.assert_close(
        ranks, drafter.rank_head.score(normed, output.block.logits, drafter.config.rank_top), **CLOSE
    )
    with torch.no_grad():
        quiet, _ = extend_in_pieces(drafter, [LENGTH])
    assert not quiet.block.rank_logits.requires_grad, "as if it had been run with the block"


@torch.no_grad()
def test_a_prepacked_input_layer_gives_the_same_states() -> None:
    layer = tiny_drafter().input_layer
    packed, inputs = layer.prepacked(lambda linear: linear), torch.randn(2, 2, 5, HIDDEN)
    torch.testing.assert_close(packed(*inputs), layer(*inputs), **CLOSE)
    torch.testing.assert_close(packed.slots(), layer.slots())
    assert packed.prepacked(lambda linear: linear) is packed


def test_plans_of_rounds_are_kept_and_those_of_prompts_are_not() -> None:
    device = torch.device("cpu")
    assert extension_plan(3, WIDTH, 1, device) is extension_plan(3, WIDTH, 1, device)
    long = MOST_PAIRS_PLANNED + 1
    assert extension_plan(long, WIDTH, 1, device) is not extension_plan(long, WIDTH, 1, device)
