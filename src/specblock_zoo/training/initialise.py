"""A drafter's configuration and first weights, read off the target it will draft for."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.configuration import DrafterConfig
from specblock_zoo.models.pretrained import PretrainedDrafter
from specblock_zoo.models.registry import DEFAULT_KIND, kind_of
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.targets.registry import family_of
from specblock_zoo.training.checks import check_options

FROM_THE_TARGET = ("vocab_size", "target_hidden_size", "target_num_hidden_layers")
COPIED_SHAPES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
QUERY_SHARE = 0.1
"""Size of the slot vector beside the rest of the first state: enough to tell slots apart, too little to drown what the
copied layers expect (ours)."""
RIDGE = 1e-3
"""Ridge penalty relative to the mean diagonal of the (scaled) Gram matrix (ours; 3e-4 to 1e-2 differ little)."""
FIT_TOKENS = 30_000


def drafter_config(
    target: PreTrainedConfig, facts: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> DrafterConfig:
    """Configuration of a drafter: the target's shapes and rotary positions, then `facts`, then the user's `options`.

    Args:
        facts: what data and objective decide, e.g. `tap_layers`, `draft_vocab_size`.
        options: `model_type`, the kind of drafter, and fields of its configuration.

    Raises:
        UnknownNameError: there is no such kind.
        ConfigurationError: an option is not a field of its configuration, or a value is out of range.
        CacheMismatchError: an option contradicts a fact.
    """
    options = dict(options or {})
    kind = kind_of(options.pop("model_type", DEFAULT_KIND)).config
    rope = family_of(target).rope_parameters(target)
    scaling = {} if rope.get("rope_type", "default") == "default" else {"rope_scaling": rope}
    from_target = {
        **{name: getattr(target, name) for name in COPIED_SHAPES},
        # Absent from configs of families whose heads split the hidden size evenly.
        "head_dim": getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads,
        "target_hidden_size": target.hidden_size,
        "target_num_hidden_layers": target.num_hidden_layers,
        "rope_theta": rope["rope_theta"],
        **scaling,
    }
    fixed = {**facts, **{name: from_target[name] for name in FROM_THE_TARGET}}
    check_options(kind, options, fixed)
    return kind(**{**from_target, **fixed, **options})


@torch.no_grad()
def copy_last_layers(drafter: SpecBlockDrafter, target: PreTrainedModel) -> None:
    """Starts decoder layers, final norm and head rows as copies of the target's last ones (ours; paper: from scratch).

    The shift passes each slot's own state already. Query and key norms of a target (Qwen3) have no counterpart and are
    left out.

    Args:
        drafter: written in place; its vocabulary map must be set.

    Raises:
        ConfigurationError: the target's layers are of another kind, or a tensor has another shape in the drafter.
    """
    for copy, original in zip(drafter.layers, last_layers(target, len(drafter.layers)), strict=True):
        copy_parameters(copy, dict(original.named_parameters()))
    copy_norm_and_head(drafter, target)


def last_layers(target: PreTrainedModel, count: int) -> list[nn.Module]:
    """The target's last `count` decoder layers.

    Raises:
        ConfigurationError: they compute something else than a drafter's layers do, or are too few.
    """
    family = family_of(target.config)
    if not family.layers_start_drafters:
        raise ConfigurationError(
            f"Layers of the {family.name} family cannot start a drafter: they compute something else than its own.",
            "Use initialise: scratch.",
        )
    layers = family.decoder_layers(target)
    if len(layers) <= count:
        raise ConfigurationError(
            f"The drafter has {count} layers, the target {len(layers)}.",
            "Give the drafter fewer layers than the target, or use initialise: scratch.",
        )
    return list(layers[len(layers) - count :])


@torch.no_grad()
def copy_norm_and_head(drafter: Any, target: PreTrainedModel) -> None:
    """Starts the final norm and the head as copies of the target's; errors as `copy_parameters`."""
    family = family_of(target.config)
    copy_parameters(drafter.norm, dict(family.final_norm(target).named_parameters()))
    copy_parameters(drafter.lm_head, {"weight": family.head_weight(target)[drafter.draft_tokens]})


def start_from_target(
    drafter: SpecBlockDrafter, target: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]
) -> None:
    """First weights of a SpecBlock drafter: the target's last layers, and an input layer fitted to them."""
    copy_last_layers(drafter, target)
    fit_first_state(drafter, batches)


@torch.no_grad()
def fit_first_state(
    drafter: SpecBlockDrafter, batches: Iterable[Mapping[str, Tensor]], tokens: int = FIT_TOKENS
) -> None:
    """Sets the input layer so that the first state of a pair (h_i, t_{i+1}) predicts token i + 1's last tap (ours).

    That is what the copied layers were made to read, and the pair determines most of it: a ridge regression on all taps
    and the normalised token embedding, see `pair_sums`.

    Args:
        drafter: written in place; must be attached to its target's embeddings, with norms still at one.
        batches: training batches (schema: `data.collate`); read until `tokens` pairs are seen.
    """
    layer, hidden = drafter.input_layer, drafter.config.hidden_size
    taps = layer.condition_proj.in_features
    sums = pair_sums(lambda batch: regression_rows(drafter, layer.token_norm, batch), batches, tokens)
    solution = ridge(sums.gram, sums.cross, hidden)
    condition = solution[:taps]
    size = sums.size(condition)
    layer.condition_proj.weight.copy_(condition.T)
    # The condition norm brings the projected taps to size one; `size` gives them back the size the regression found.
    identity = torch.eye(hidden, dtype=torch.float64)
    layer.fuse.weight.copy_(torch.cat((size * identity, solution[taps:].T, QUERY_SHARE * size * identity), dim=1))


@dataclass(frozen=True)
class PairSums:
    """What a regression of token states on pairs needs.

    Attributes:
        gram: sum of x x^T over pairs, x = taps of a token and normalised embedding of the next, float64.
        cross: sum of x y^T, y = what is to be predicted of that next token, its last tap for one.
        weight: sum of the weights of the pairs, which are in both sums.
    """

    gram: Tensor
    cross: Tensor
    weight: float

    def size(self, coefficients: Tensor) -> float:
        """Root mean square of x @ coefficients over the pairs; `[rows, outputs]`, rows: the first numbers of x."""
        rows, outputs = coefficients.shape
        squares = ((self.gram[:rows, :rows] @ coefficients) * coefficients).sum()
        return float(squares / (outputs * self.weight)) ** 0.5


def pair_sums(
    read: Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor]], batches: Iterable[Mapping[str, Tensor]], tokens: int
) -> PairSums:
    """Reads `batches` until `tokens` pairs are seen.

    Each pair weighs by the inverse square of its state's size, because a target's first token often carries a state a
    hundred times the usual size. A state of zeros has nothing to predict and weighs nothing.

    Args:
        read: batch -> x `[pairs, columns]` and y `[pairs, outputs]`, float32.
    """
    gram, cross, weight, seen = torch.zeros(()), torch.zeros(()), 0.0, 0
    for batch in batches:
        known, wanted = read(batch)
        size = wanted.pow(2).mean(-1, keepdim=True)
        importance = torch.where(size > 0, size.rsqrt(), 0.0)
        known, wanted = known * importance, wanted * importance
        # Products in float32, sums of many batches in float64.
        gram = gram + (known.T @ known).double()
        cross = cross + (known.T @ wanted).double()
        seen, weight = seen + len(known), weight + float(importance.pow(2).sum())
        if seen >= tokens:
            break
    return PairSums(gram, cross, weight)


def regression_rows(
    drafter: PretrainedDrafter, token_norm: nn.Module, batch: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """What a pair knows, `[rows, taps*hidden + hidden]`, and the last tap of its token, `[rows, hidden]`, float32."""
    real = batch["attention_mask"][:, 1:].bool()
    before, after = batch["features"][:, :-1][real], batch["features"][:, 1:][real]
    token = token_norm(drafter.embed(batch["input_ids"][:, 1:][real]))
    return torch.cat((before.float(), token), dim=-1), after[:, -drafter.config.hidden_size :].float()


def ridge(gram: Tensor, cross: Tensor, group: int) -> Tensor:
    """Coefficients of a ridge regression from its sums.

    Columns are scaled in groups of `group`, so that taps of different size are penalised alike.

    Args:
        gram: sum of x x^T, `[columns, columns]`, float64.
        cross: sum of x y^T, `[columns, outputs]`, float64.
    """
    scale = gram.diagonal().view(-1, group).mean(1).clamp(min=torch.finfo(gram.dtype).tiny).sqrt()
    scale = scale.repeat_interleave(group)[:, None]
    scaled = gram / scale / scale.T
    scaled.diagonal().add_(RIDGE)
    return torch.linalg.solve(scaled, cross / scale) / scale


def copy_parameters(module: nn.Module, source: Mapping[str, Tensor]) -> None:
    """Copies same-named tensors into a module; raises `ConfigurationError` where one is absent or of another shape."""
    for name, parameter in module.named_parameters():
        found = source.get(name)
        if found is None or found.shape != parameter.shape:
            shape = None if found is None else tuple(found.shape)
            raise ConfigurationError(
                f"Cannot start {name} {tuple(parameter.shape)} of the drafter from the target's {shape}.",
                "Keep the target's shapes in model.drafter, or use initialise: scratch.",
            )
        parameter.copy_(found)
