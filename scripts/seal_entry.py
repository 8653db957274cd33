"""Fills in what `entry.yaml` can compute itself: the hashes of the weight files, and shapes from `config.json`.

Usage: python scripts/seal_entry.py zoo/<name>
Write the other fields by hand first; the sealed entry is checked as strictly as it is read.
"""

import json
import sys
from pathlib import Path

import yaml
from jsonargparse import auto_cli

from specblock_zoo.hub.entry import ENTRY_FILE, ENTRY_VERSION, hash_files, parse_entry, write_entry
from specblock_zoo.models.folders import weight_files

INDEX_FILE = "model.safetensors.index.json"
"""Of weights that are split; names the part that holds each tensor."""


def seal(folder: Path) -> None:
    """Rewrites `folder/entry.yaml` with hashes, kind, block width, tap layers and vocabulary size taken from the files.

    Args:
        folder: of the drafter, with `config.json`, weights (one file or split) and the hand-written fields.
    """
    path = folder / ENTRY_FILE
    fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    fields |= {
        "entry_version": ENTRY_VERSION,
        "kind": config["model_type"],
        "block_width": config["block_width"],
        "num_blocks": config["num_blocks"],
        "tap_layers": config["tap_layers"],
    }
    fields["draft_vocabulary"] = {"size": config["draft_vocab_size"], "coverage": config["vocab_coverage"]}
    index = [INDEX_FILE] if (folder / INDEX_FILE).is_file() else []
    fields["files"] = hash_files(folder, ("config.json", *(file.name for file in weight_files(folder)), *index))
    write_entry(parse_entry(fields, str(path)), folder)
    sys.stdout.write(f"sealed {path}\n")


if __name__ == "__main__":
    auto_cli(seal)
