"""The layer is the public one, a context built in pieces is the whole one, and the tree is EAGLE-2's."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from specblock_zoo.errors import WeightsMismatchError
from specblock_zoo.functional.tree import path_to
from specblock_zoo.inference.cache import DrafterCache
from specblock_zoo.inference.grow import Limits, Pairs, grow_tree, refresh
from specblock_zoo.models.eagle3 import Eagle3Drafter
from specblock_zoo.structures import DraftTree, KeyValues, TreeSettings
from tests.support.drafters import HIDDEN, VOCAB, tiny_eagle3
from tests.support.eagle import logits_along

LENGTH = 9
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def sequence(length: int = LENGTH, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(1, length, 3 * HIDDEN, generator=generator)
    return features, torch.randint(VOCAB, (1, length), generator=generator)


class PublicLayer(nn.Module):
    """The layer as public implementations write it: transformers' Llama parts, wider attention input, two norms."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, layer_idx=0)
        for name, heads in (("q_proj", 4), ("k_proj", 2), ("v_proj", 2)):
            setattr(self.self_attn, name, nn.Linear(2 * config.hidden_size, heads * config.head_dim, bias=False))
        self.mlp = LlamaMLP(config)
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        for name in norms:
            setattr(self, name, LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps))
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        length = hidden.shape[1]
        residual = hidden
        both = torch.cat((self.input_layernorm(embedding), self.hidden_norm(hidden)), dim=-1)
        rope = self.rotary(hidden, torch.arange(length)[None])
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        hidden = residual + self.self_attn(both, position_embeddings=rope, attention_mask=mask)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


@torch.no_grad()
def test_the_layer_equals_the_public_one() -> None:
    drafter = tiny_eagle3()
    shape = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**shape, head_dim=6, rms_norm_eps=1e-5, rope_theta=10000.0, attn_implementation="eager")
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        drafter.layers[0].get_submodule(norm).weight.uniform_(0.5, 1.5)
    public = PublicLayer(config)
    missing = public.load_state_dict(drafter.layers[0].state_dict(), strict=True)
    assert not missing.missing_keys
    features, tokens = sequence()
    expected = drafter.norm(public(drafter.embed(tokens), drafter.fc(features)))
    found = drafter.extend(features, tokens, torch.arange(LENGTH)[None]).block
    torch.testing.assert_close(found.logits[0, 0], drafter.lm_head(expected)[0, -1], **CLOSE)
    assert found.rank_logits.argmax(-1).tolist() == [[0]]


@torch.no_grad()
@pytest.mark.parametrize("ends", [[4, 9], [1, 2, 3, 8, 9]])
def test_a_context_built_in_pieces_is_the_whole_one(ends: list[int]) -> None:
    drafter = tiny_eagle3()
    features, tokens = sequence()
    whole = drafter.extend(features, tokens, torch.arange(LENGTH)[None])
    cache, start = DrafterCache(), 0
    for end in ends:
        output = refresh(drafter, cache, Pairs(features[:, start:end], tokens[:, start:end], start))
        start = end
    torch.testing.assert_close(output.block.logits, whole.block.logits, **CLOSE)
    torch.testing.assert_close(cache.view()[0].keys, whole.context[0].keys, **CLOSE)
    torch.testing.assert_close(cache.view()[0].values, whole.context[0].values, **CLOSE)
    assert isinstance(whole.path[0], KeyValues)
    torch.testing.assert_close(whole.path[0].keys, whole.context[0].keys[:, :, -1:])


def grown(drafter: Eagle3Drafter, settings: TreeSettings) -> tuple[DraftTree, int]:
    features, tokens = sequence()
    cache = DrafterCache()
    first = refresh(drafter, cache, Pairs(features, tokens, 0))
    return grow_tree(drafter, cache, first, LENGTH - 1, Limits(settings, max_depth=20))


def eagle2_tree(drafter: Eagle3Drafter, depth: int, width: int, max_nodes: int) -> dict[tuple[int, ...], float]:
    """EAGLE-2 (arXiv 2406.16858): expand the `width` likeliest nodes of each depth, then keep the best of all."""
    features, tokens = sequence()
    frontier: dict[tuple[int, ...], float] = {(): 0.0}
    everything: dict[tuple[int, ...], float] = {}
    for _ in range(depth):
        children: dict[tuple[int, ...], float] = {}
        for path, score in frontier.items():
            best = logits_along(drafter, features, tokens, path)[-1].log_softmax(-1).topk(width)
            for log_prob, draft_id in zip(best.values.tolist(), best.indices, strict=True):
                children[(*path, int(drafter.target_tokens(draft_id)))] = score + log_prob
        everything |= children
        frontier = dict(sorted(children.items(), key=lambda item: -item[1])[:width])
    return dict(sorted(everything.items(), key=lambda item: -item[1])[:max_nodes])


@torch.no_grad()
@pytest.mark.parametrize(("depth", "width", "max_nodes"), [(1, 4, 3), (3, 2, 5), (4, 3, 12), (4, 3, 60)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_tree_is_eagle2s(depth: int, width: int, max_nodes: int, seed: int) -> None:
    drafter = tiny_eagle3(seed=seed, num_blocks=depth, beam_width=width, max_nodes=max_nodes)
    drafter.lm_head.weight.mul_(4)
    tree, calls = grown(drafter, drafter.config.tree_settings)
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    found = {
        tuple(tokens[node] for node in path_to(parents, index)): score
        for index, score in enumerate(tree.log_probs.tolist())
    }
    expected = eagle2_tree(drafter, depth, width, max_nodes)
    assert found.keys() == expected.keys()
    assert all(found[path] == pytest.approx(score, abs=1e-4) for path, score in expected.items())
    assert calls == depth


@torch.no_grad()
def test_the_chain_is_the_greedy_path() -> None:
    drafter = tiny_eagle3(num_blocks=4, chain=True)
    tree, calls = grown(drafter, drafter.config.tree_settings)
    features, tokens = sequence()
    path: list[int] = []
    for _ in range(4):
        best = logits_along(drafter, features, tokens, path)[-1].argmax()
        path.append(int(drafter.target_tokens(best)))
    assert tree.tokens.tolist() == path
    assert tree.parents.tolist() == [-1, 0, 1, 2]
    assert calls == 4


def test_saved_and_loaded_it_is_the_same_and_has_no_embeddings(tmp_path: Path) -> None:
    drafter = tiny_eagle3()
    drafter.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored.keys() == drafter.state_dict().keys()
    assert not any("embed_tokens" in name for name in stored)
    loaded = Eagle3Drafter.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in drafter.state_dict().items())
    stored.pop("fc.weight")
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsMismatchError, match=r"fc\.weight"):
        Eagle3Drafter.from_pretrained(tmp_path)
