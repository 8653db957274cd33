"""An observer is told of every round, in order, with what the models said."""

import torch

from specblock_zoo.inference.text import Text
from tests.support.decoding import generate, prompt_ids, random_drafter, target_of


class Listening:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.drafts, self.verdicts = [], []

    def drafted(self, text: Text, pairs: object, block: object) -> None:
        self.drafts.append((text, pairs, block))

    def judged(self, text: Text, tree: object, verdict: object, logits: object) -> None:
        self.verdicts.append((text, tree, verdict, logits))


def test_observers_see_every_round() -> None:
    model = target_of("llama")
    drafter = random_drafter(model)
    kind = type("Watched", (type(drafter),), {"query": lambda self: _given(self)})
    drafter.__class__, drafter.observer = kind, Listening()
    ids = prompt_ids(7)
    text = generate(model, ids, 10, assistant_model=drafter)
    assert torch.equal(text, generate(model, ids, 10))
    heard, stats = drafter.observer, drafter.last_stats
    assert [verdict for _, _, verdict, _ in heard.verdicts] == [each.verdict for each in stats.history]
    assert all(len(logits) == len(tree) + 1 for _, tree, _, logits in heard.verdicts)
    tokens = torch.cat([pairs.tokens for _, pairs, _ in heard.drafts], dim=1)
    assert torch.equal(tokens, text[:, 1 : 1 + tokens.shape[1]])
    assert len({id(each[0]) for each in (*heard.drafts, *heard.verdicts)}) == 1


def _given(drafter: object) -> object:
    from contextlib import nullcontext

    return nullcontext((drafter, drafter.observer))
