"""Training of independent heads (Medusa-1, arXiv 2401.10774): the target is frozen, every head learns on its own."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.data.layout import LAST_HIDDEN
from specblock_zoo.errors import CacheMismatchError
from specblock_zoo.functional.head import HeadSettings, score_slot
from specblock_zoo.functional.losses import LOSSES
from specblock_zoo.functional.objective import LossReport, slot_terms
from specblock_zoo.models.medusa import MedusaConfig, MedusaDrafter
from specblock_zoo.targets.registry import family_of
from specblock_zoo.training.initialise import FIT_TOKENS, ridge
from specblock_zoo.training.method import Assumptions, TrainingMethod, Work, blocks_and_slots
from specblock_zoo.training.rollout import RolloutSettings
from specblock_zoo.training.teachers import Teacher


def rollout(
    drafter: MedusaDrafter,
    batch: Mapping[str, Tensor],
    teacher: Teacher,
    settings: RolloutSettings,
    generator: torch.Generator | None = None,
) -> LossReport:
    """Grades every head on one batch (schema: `data.collate`, with the last states); nothing is drawn.

    A head counts wherever the token it drafts does. With `settings.valid_prefix` the heads before it must be right too,
    as decoding needs it to matter; the paper's training has no such mask.

    Raises:
        CacheMismatchError: the batch has no last states.
    """
    tokens, states = batch["input_ids"], last_states(batch)
    counted = batch["loss_mask"].bool() & (teacher.draft_ids[tokens] >= 0)
    how = HeadSettings(LOSSES[settings.draft_loss], 0, settings.kept_logits)
    on_path = torch.ones_like(counted)
    terms = []
    for slot, head in enumerate(drafter.heads):
        ahead = 2 + slot
        rows = on_path[:, : max(0, tokens.shape[1] - ahead)] & counted[:, ahead:]
        sequence, position = rows.nonzero(as_tuple=True)
        reached = head.states(states[sequence, position].to(drafter.dtype))
        taught = teacher.rows(batch, sequence, position + ahead - 1)
        everywhere = torch.ones_like(position, dtype=torch.bool)
        scores = score_slot(reached, head.projection.weight, taught, everywhere.float(), how)
        terms.append(slot_terms(scores, None, everywhere))
        if settings.valid_prefix:
            right = scores.drafted == teacher.draft_ids[tokens[sequence, position + ahead]]
            on_path = torch.zeros_like(on_path).index_put((sequence, position), right)
    return LossReport.stack([terms])


def last_states(batch: Mapping[str, Tensor]) -> Tensor:
    """The target's states after its final norm, `[batch, seq, hidden]`; raises `CacheMismatchError` without them."""
    if LAST_HIDDEN not in batch:
        raise CacheMismatchError(
            f"The heads read the target's last states; the cache holds {', '.join(sorted(batch))}.",
            f"Build the cache with --teacher={LAST_HIDDEN}.",
        )
    return batch[LAST_HIDDEN]


@torch.no_grad()
def initialise(
    drafter: MedusaDrafter, target: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], tokens: int = FIT_TOKENS
) -> None:
    """Starts every head as the target's head after the best linear guess of the state it is meant to read.

    The paper starts from the target's head on the unmoved state, which repeats the token the target has just chosen; a
    ridge regression from each state to the one 1 + k tokens later costs one pass over a few batches (ours; dependent
    slots start from a regression too).

    Args:
        drafter: written in place; its vocabulary map must be set.
        batches: training batches (schema: `data.collate`); read until `tokens` states are seen.
    """
    size, count = drafter.config.hidden_size, len(drafter.heads)
    gram = torch.zeros(size, size, dtype=torch.float64)
    cross = torch.zeros(size, count * size, dtype=torch.float64)
    seen = 0
    for batch in batches:
        known, wanted = states_and_later_ones(batch, count)
        gram += known.T @ known
        cross += known.T @ wanted
        seen += len(known)
        if seen >= tokens:
            break
    rows = family_of(target.config).head_weight(target)[drafter.draft_tokens].double()
    for head, guess in zip(drafter.heads, ridge(gram, cross, size).chunk(count, dim=1), strict=True):
        head.projection.weight.copy_(rows @ guess.T)


def states_and_later_ones(batch: Mapping[str, Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Last states `[rows, hidden]`, and side by side those of the `count` tokens after each, float32."""
    states = last_states(batch).float()
    real = batch["attention_mask"][:, count:].bool()
    length = real.shape[1]
    later = torch.cat([states[:, 1 + k : 1 + k + length] for k in range(count)], dim=-1)
    return states[:, :length][real], later[real]


def work(config: MedusaConfig, objective: RolloutSettings, assumed: Assumptions) -> Work:
    """What a token of a batch costs: every graded row goes through its own head's residual blocks, and nothing else."""
    alpha = assumed.alpha if objective.valid_prefix else 1.0
    graded = [assumed.supervised * alpha**slot for slot in range(config.block_width)]
    values = (1 + 2 * config.residual_layers) * config.hidden_size
    return Work([graded], 0.0, sum(graded), config.residual_layers * config.hidden_size**2, values, layers=0)


METHOD = TrainingMethod(rollout, initialise, blocks_and_slots, work)
