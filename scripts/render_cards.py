"""Renders every document that is generated from the zoo; with `--check` only says which are out of date.

Usage: python scripts/render_cards.py [--check true]
"""

import sys
from pathlib import Path

from jsonargparse import auto_cli

from specblock_zoo.bench.records import write_atomically
from specblock_zoo.hub.card import generated_documents, stale_documents

ROOT = Path(__file__).parents[1]


def render(check: bool = False) -> int:
    """Writes the generated documents, or lists the stale ones and returns 1 if there are any.

    Args:
        check: write nothing.
    """
    stale = stale_documents(ROOT)
    documents = generated_documents(ROOT)
    for path in stale:
        sys.stdout.write(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}\n")
        if not check:
            write_atomically(path, documents[path])
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(auto_cli(render))
