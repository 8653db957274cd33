"""Folders as Medusa's authors publish them: read strictly, written back bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from specblock_zoo.errors import UnsupportedOptionError, WeightsMismatchError
from specblock_zoo.models.medusa import MedusaDrafter, published

VOCAB, HIDDEN, HEADS = 40, 16, 3
Write = Callable[[dict[str, Tensor], Path], None]


def save_safe(tensors: dict[str, Tensor], folder: Path) -> None:
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / published.SAFE_FILE)


def save_pickled(tensors: dict[str, Tensor], folder: Path) -> None:
    torch.save(tensors, folder / published.PICKLED_FILE)


class AuthorsBlock(nn.Module):
    """As the authors write it: the same block stands in all layers of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


def authors_heads(layers: int) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(
        nn.Sequential(*[AuthorsBlock()] * layers, nn.Linear(HIDDEN, VOCAB, bias=False)) for _ in range(HEADS)
    )


def write_published(
    folder: Path, layers: int = 1, prefix: str = "", save: Write = save_safe, **fields: Any
) -> nn.ModuleList:
    heads = authors_heads(layers)
    counts = {"medusa_num_heads": HEADS, "medusa_num_layers": layers, "base_model_name_or_path": "org/target"}
    (folder / "config.json").write_text(json.dumps({**counts, **fields}))
    save({prefix + name: tensor for name, tensor in heads.state_dict().items()}, folder)
    return heads


@torch.no_grad()
@pytest.mark.parametrize("save", [save_safe, save_pickled])
@pytest.mark.parametrize(("layers", "prefix"), [(1, ""), (2, ""), (1, "medusa_heads.")])
def test_published_heads_say_what_the_authors_say(tmp_path: Path, layers: int, prefix: str, save: Write) -> None:
    heads = write_published(tmp_path, layers, prefix, save)
    assert published.is_published(tmp_path)
    drafter = MedusaDrafter.from_pretrained(tmp_path)
    states = torch.randn(2, HIDDEN)
    expected = torch.stack([head(states) for head in heads], dim=1)
    torch.testing.assert_close(drafter.draft(states).logits, expected)
    assert torch.equal(drafter.target_tokens(torch.arange(VOCAB)), torch.arange(VOCAB))
    assert drafter.config.target_num_hidden_layers is None


def test_a_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    write_published(first, layers=2)
    drafter = MedusaDrafter.from_pretrained(first, dtype="auto")
    drafter.config.target_name = "org/target"
    published.write(drafter.config, drafter.state_dict(), second)
    before, after = load_file(first / published.SAFE_FILE), load_file(second / published.SAFE_FILE)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((first / "config.json").read_text()) == json.loads((second / "config.json").read_text())


def test_half_precision_is_kept_unless_asked_otherwise(tmp_path: Path) -> None:
    write_published(tmp_path, save=lambda tensors, folder: save_safe({n: t.half() for n, t in tensors.items()}, folder))
    assert MedusaDrafter.from_pretrained(tmp_path).dtype == torch.float16
    assert MedusaDrafter.from_pretrained(tmp_path, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"medusa_num_heads": HEADS + 1}, r"heads\.3\.0\.linear\.weight: expected \(16, 16\), found None"),
        ({"medusa_num_heads": HEADS - 1}, r"heads\.2\.1\.weight: expected None, found \(40, 16\)"),
        ({"medusa_num_layers": 2}, "counts 2 residual blocks"),
    ],
)
def test_counts_that_differ_from_the_tensors_are_refused(tmp_path: Path, fields: dict[str, int], words: str) -> None:
    write_published(tmp_path, **fields)
    with pytest.raises(WeightsMismatchError, match=words):
        MedusaDrafter.from_pretrained(tmp_path)


class Trap:
    """Unpickling it would run code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("code ran",))


def test_a_pickle_with_code_and_a_cut_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_published(tmp_path, save=save_pickled)
    file = tmp_path / published.PICKLED_FILE
    torch.save({"0.1.weight": Trap()}, file)
    with pytest.raises(WeightsMismatchError, match="tensors only"):
        MedusaDrafter.from_pretrained(tmp_path)
    assert "code ran" not in capsys.readouterr().out
    write_published(tmp_path, save=save_pickled)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(WeightsMismatchError, match="100 bytes"):
        MedusaDrafter.from_pretrained(tmp_path)


def test_a_reduced_vocabulary_cannot_be_written(tmp_path: Path) -> None:
    write_published(tmp_path)
    drafter = MedusaDrafter.from_pretrained(tmp_path)
    drafter.config.vocab_size = VOCAB + 1
    with pytest.raises(UnsupportedOptionError, match="41 tokens; these cover 40"):
        published.write(drafter.config, drafter.state_dict(), tmp_path)


def test_other_folders_are_not_taken_for_it(tmp_path: Path) -> None:
    assert not published.is_published(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert not published.is_published(tmp_path)


def test_a_folder_without_weights_says_which_files_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 3}')
    with pytest.raises(WeightsMismatchError, match=r"neither medusa_lm_head\.safetensors nor medusa_lm_head\.pt"):
        MedusaDrafter.from_pretrained(tmp_path)
