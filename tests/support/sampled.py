"""Probabilities of dictated texts: through the drafted loop, and by the target alone."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StoppingCriteriaList
from transformers.generation.stopping_criteria import MaxLengthCriteria

from specblock_zoo.inference.decode import Session, decode, prefill
from specblock_zoo.inference.text import Rules, Text
from specblock_zoo.inference.verify import Prompt, Verifier
from specblock_zoo.models.base import Drafter


class ForcedText(Text):
    """A text whose draws are dictated; remembers the probability each of them had."""

    def __init__(self, prompt: Tensor, rules: Rules, draws: Sequence[int]) -> None:
        super().__init__(prompt, rules)
        self.draws, self.log_prob = iter(draws), 0.0

    def choose(self, logits: Tensor) -> tuple[int, bool]:
        token = next(self.draws)
        self.log_prob += float(logits.double().log_softmax(-1)[token])
        return self.commit_best(token)


def log_prob_through_the_loop(target: PreTrainedModel, drafter: Drafter, ids: Tensor, draws: Sequence[int]) -> float:
    """Log-probability with which the drafted loop writes `draws`."""
    rules = Rules(
        do_sample=True, stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(ids.shape[1] + len(draws))])
    )
    drafter.attach(target.get_input_embeddings().weight)
    text, taps = ForcedText(ids, rules, draws), drafter.tap_layers(target.config.num_hidden_layers)
    session = Session(drafter, Verifier(target, taps, DynamicCache()), drafter.config.tree_settings)
    for _ in decode(session, prefill(session, Prompt(ids, None, torch.arange(ids.shape[1])[None]), [text])):
        pass
    assert text.ids[0, ids.shape[1] :].tolist() == list(draws)
    return text.log_prob


@torch.no_grad()
def log_prob_of_target(target: PreTrainedModel, ids: Tensor, draws: Sequence[int]) -> float:
    """Log-probability of `draws` after `ids` by one plain forward."""
    logits = target(torch.cat((ids, torch.tensor([draws])), 1)).logits[0].double().log_softmax(-1)
    return sum(float(logits[ids.shape[1] - 1 + step, token]) for step, token in enumerate(draws))
