"""`import specblock_zoo` is all a user needs: names, automatic classes, and `generate` that knows our drafters."""

import subprocess
import sys
from pathlib import Path

from transformers import AutoConfig, AutoModel, GenerationMixin

import specblock_zoo
from specblock_zoo import SpecBlockConfig, SpecBlockDrafter
from specblock_zoo.inference import hf_generate

TINY = SpecBlockConfig(
    vocab_size=32,
    draft_vocab_size=16,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    target_hidden_size=16,
    target_num_hidden_layers=8,
    tap_layers=(1, 3, 4),
)
WITHOUT_HEAVY_PACKAGES = """
import sys
import specblock_zoo
sys.exit(", ".join({"lightning", "torchmetrics", "datasets", "pandas"} & set(sys.modules)) or None)
"""


def test_every_public_name_exists() -> None:
    assert [name for name in specblock_zoo.__all__ if not hasattr(specblock_zoo, name)] == []


def test_automatic_classes_find_a_saved_drafter(tmp_path: Path) -> None:
    SpecBlockDrafter(TINY).save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), SpecBlockConfig)
    assert isinstance(AutoModel.from_pretrained(tmp_path), SpecBlockDrafter)


def test_importing_teaches_generate_once() -> None:
    wrapped = GenerationMixin._assisted_decoding
    hf_generate.install()
    assert GenerationMixin._assisted_decoding is wrapped
    hf_generate.uninstall()
    assert GenerationMixin._assisted_decoding is not wrapped
    hf_generate.install()


def test_generating_needs_neither_lightning_nor_datasets() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_HEAVY_PACKAGES], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
