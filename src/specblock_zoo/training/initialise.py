"""A drafter's configuration and first weights, read off the target it will draft for."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.specblock import SpecBlockConfig, SpecBlockDrafter
from specblock_zoo.targets.capture import forward_with_taps
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
"""Size of the slot vector beside condition and token in the first state: enough to tell slots apart, too little to
drown what the copied layers expect (ours)."""
PROBE_TOKENS = 64


def drafter_config(
    target: PreTrainedConfig, facts: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> SpecBlockConfig:
    """Configuration of a drafter: the target's shapes and rotary positions, then `facts`, then the user's `options`.

    Args:
        facts: what data and objective decide, e.g. `tap_layers`, `draft_vocab_size`.
        options: fields of `SpecBlockConfig`.

    Raises:
        ConfigurationError: an option is not a field of `SpecBlockConfig`, or its value is out of range.
        CacheMismatchError: an option contradicts a fact.
    """
    options = options or {}
    rope = dict(target.rope_parameters)
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
    check_options(options, fixed)
    return SpecBlockConfig(**{**from_target, **fixed, **options})


@torch.no_grad()
def initialise_from_target(drafter: SpecBlockDrafter, target: PreTrainedModel, stream_rms: float | None = None) -> None:
    """Starts the drafter as the target's last layers reading the last tap (ours; the paper starts from scratch).

    Decoder layers, final norm and the head's draft rows are copies; the first state of a pair (h_i, t_{i+1}) is the
    normalised last tap plus the normalised token, at the magnitude the copied layers are used to; the shift passes each
    slot's own state. Query and key norms of a target (Qwen3) have no counterpart and are left out.

    Args:
        drafter: written in place; its vocabulary map must be set.
        stream_rms: root mean square of the residual stream entering the copied layers; measured when None.

    Raises:
        ConfigurationError: a tensor to copy has another shape in the drafter.
    """
    family = family_of(target.config)
    first_copied = len(family.decoder_layers(target)) - len(drafter.layers)
    if first_copied < 1:
        raise ConfigurationError(
            f"The drafter has {len(drafter.layers)} layers, the target {len(family.decoder_layers(target))}.",
            "Give the drafter fewer layers than the target, or use initialise: scratch.",
        )
    for copy, original in zip(drafter.layers, family.decoder_layers(target)[first_copied:], strict=True):
        _copy_parameters(copy, dict(original.named_parameters()))
    _copy_parameters(drafter.norm, dict(family.final_norm(target).named_parameters()))
    _copy_parameters(drafter.lm_head, {"weight": family.head_weight(target)[drafter.draft_tokens]})
    scale = residual_rms(target, first_copied - 1) if stream_rms is None else stream_rms
    _pass_last_tap(drafter, scale)


def _copy_parameters(module: nn.Module, source: Mapping[str, Tensor]) -> None:
    for name, parameter in module.named_parameters():
        found = source.get(name)
        if found is None or found.shape != parameter.shape:
            shape = None if found is None else tuple(found.shape)
            raise ConfigurationError(
                f"Cannot start {name} {tuple(parameter.shape)} of the drafter from the target's {shape}.",
                "Keep the target's shapes in model.drafter, or use initialise: scratch.",
            )
        parameter.copy_(found)


def _pass_last_tap(drafter: SpecBlockDrafter, scale: float) -> None:
    layer, config = drafter.input_layer, drafter.config
    if config.target_hidden_size != config.hidden_size:
        raise ConfigurationError(
            f"The target's hidden size is {config.target_hidden_size}, the drafter's {config.hidden_size}.",
            "Make them equal, or use initialise: scratch.",
        )
    identity = torch.eye(config.hidden_size)
    earlier_taps = torch.zeros(config.hidden_size, layer.condition_proj.in_features - config.hidden_size)
    layer.condition_proj.weight.copy_(torch.cat((earlier_taps, identity), dim=1))
    # The sum of two independent vectors of unit size has size sqrt(2).
    pair = scale * 2**-0.5 * identity
    layer.fuse.weight.copy_(torch.cat((pair, pair, QUERY_SHARE * scale * identity), dim=1))


@torch.no_grad()
def residual_rms(target: PreTrainedModel, layer: int, tokens: Sequence[int] | None = None) -> float:
    """Median over tokens of the root mean square of layer `layer`'s output.

    By default over tokens spread evenly through the vocabulary. The median, because a target's first token often
    carries an activation a hundred times the usual size.
    """
    size = target.config.vocab_size
    ids = torch.tensor([tokens if tokens is not None else range(0, size, max(1, size // PROBE_TOKENS))])
    _, features = forward_with_taps(family_of(target.config).decoder(target), [layer], input_ids=ids, use_cache=False)
    return float(features.features.float().pow(2).mean(-1).sqrt().median())
