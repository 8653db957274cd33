"""Methods are read strictly, and those of one drafter share its weights."""

from typing import Any

import pytest
import torch

from specblock_zoo.bench.methods import KINDS, Drafted, Workbench, read_methods, tree_settings, with_tree
from specblock_zoo.errors import ConfigurationError, TargetMismatchError, UnknownNameError
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference.prepack import PackedLinear, can_prepack
from specblock_zoo.structures import TreeSettings
from specblock_zoo.targets.llama import LLAMA
from specblock_zoo.targets.local import load_target
from tests.support.tiny_pair import TinyFolders, character_tokenizer

PLAIN: dict[str, Any] = {"plain": None}


def workbench(folders: TinyFolders, packed: bool = False) -> Workbench:
    model, tokenizer = load_target(folders.target, dtype=torch.float32)
    return Workbench(
        str(folders.target), model, tokenizer, load_target, lambda name, *_: load_drafter(name), packed, longest=64
    )


def test_the_kind_is_the_name_unless_it_is_given() -> None:
    methods = read_methods({"plain": {}, "mine": {"kind": "drafter", "drafter": "x"}, "prompt_lookup": {"tokens": 3}})
    assert [method.kind for method in methods] == ["plain", "drafter", "prompt_lookup"]
    assert all(isinstance(method.spec, KINDS[method.kind]) for method in methods)


@pytest.mark.parametrize(
    ("described", "error", "problem"),
    [
        ({"plane": {}}, UnknownNameError, "unknown kind 'plane'; nearest: plain"),
        ({"plain": {"tokens": 3}}, ConfigurationError, r"'plain' \(plain\): tokens"),
        ({"x": {"kind": "drafter"}, **PLAIN}, ConfigurationError, "drafter: Field required"),
        ({"x": {"kind": "drafter", "drafter": "a", "mode": "bush"}, **PLAIN}, ConfigurationError, "bush"),
        ({"prompt_lookup": {"tokens": 0}, **PLAIN}, ConfigurationError, "tokens"),
        ({"a b": {"kind": "plain"}}, ConfigurationError, "a b"),
        ({"prompt_lookup": {}}, ConfigurationError, "plain decoding to compare with"),
    ],
)
def test_what_cannot_be_a_method_is_explained(described: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        read_methods(described)


def test_tree_settings_are_replaced_by_name_and_type() -> None:
    found = tree_settings(TreeSettings(), {"num_blocks": 3, "branching": [2, 2, 2, 2]})
    assert (found.num_blocks, found.branching, found.max_nodes) == (3, (2, 2, 2, 2), TreeSettings().max_nodes)
    with pytest.raises(ConfigurationError, match="num_block is no tree setting; there are num_blocks"):
        tree_settings(TreeSettings(), {"num_block": 3})
    with pytest.raises(ConfigurationError, match="branching"):
        tree_settings(TreeSettings(), {"branching": [2, 2]})


def test_methods_of_one_drafter_share_weights_and_not_settings(tiny_folders: TinyFolders) -> None:
    bench = workbench(tiny_folders)
    name = str(tiny_folders.drafter)
    tree, chain = Drafted(drafter=name, tree={"max_nodes": 5}), Drafted(drafter=name, mode="chain")
    one, two = (with_tree(bench.drafter(name), spec.overrides) for spec in (tree, chain))
    assert (one.config.max_nodes, one.config.chain) == (5, False)
    assert (two.config.max_nodes, two.config.chain) == (8, True)
    assert [each.data_ptr() for each in one.parameters()] == [each.data_ptr() for each in two.parameters()]
    assert bench.drafter(name).config.chain is False


def test_a_bad_tree_setting_is_refused_when_loading(tiny_folders: TinyFolders) -> None:
    with pytest.raises(ConfigurationError, match="no tree setting"):
        Drafted(drafter=str(tiny_folders.drafter), tree={"depth": 2}).load(workbench(tiny_folders))


@pytest.mark.skipif(not can_prepack(), reason="this torch build has no oneDNN operators")
def test_packing_reaches_target_and_drafters(tiny_folders: TinyFolders) -> None:
    bench = workbench(tiny_folders, packed=True)
    drafter = bench.drafter(str(tiny_folders.drafter))
    bench.pack()
    for network in (bench.model, drafter):
        assert any(isinstance(module, PackedLinear) for module in network.modules())


def test_an_assistant_with_another_vocabulary_is_refused(tiny_folders: TinyFolders) -> None:
    bench = workbench(tiny_folders)
    bench.load_target = lambda *_: (LLAMA.tiny_model(vocab_size=50), character_tokenizer())
    spec = KINDS["assistant"].model_validate({"model": "other"})
    with pytest.raises(TargetMismatchError, match="50 tokens; the target has 94"):
        spec.load(bench)


def test_methods_of_one_assistant_share_weights_and_not_settings(tiny_folders: TinyFolders) -> None:
    bench, name = workbench(tiny_folders), str(tiny_folders.target)
    asks: Any = [KINDS["assistant"](model=name, tokens=tokens).build(bench) for tokens in (2, 3)]
    one, two = (ask.keywords["assistant"] for ask in asks)
    assert [each.generation_config.num_assistant_tokens for each in (one, two)] == [2, 3]
    assert [each.data_ptr() for each in one.parameters()] == [each.data_ptr() for each in two.parameters()]
