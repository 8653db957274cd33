"""Facts about a target family: which layers are read, where its embedding and head are, what its cache can do."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.structures import FEWEST_LAYERS, default_tap_layers

TAP_CONVENTION = "output of decoder layer i, 0-based, residual stream before the final norm"


def check_tap_layers(tap_layers: tuple[int, ...], num_layers: int) -> None:
    """Raises `ConfigurationError` unless every tap is a layer index 0..L-1, each at most once."""
    in_range = all(0 <= layer < num_layers for layer in tap_layers)
    if not (tap_layers and in_range and len(set(tap_layers)) == len(tap_layers)):
        raise ConfigurationError(
            f"Tap layers {tuple(tap_layers)} do not fit a target of {num_layers} layers.",
            f"Give distinct 0-based indices from 0 to {num_layers - 1}.",
        )


@dataclass(frozen=True)
class TargetFamily:
    """One family of causal language models, as far as a drafter and its decoding need to know it.

    Attributes:
        name: how we call the family; also the registry key of its tests.
        model_types: values of `config.model_type` that belong to it.
        config_class, model_class: the transformers classes that tests build tiny targets from.
        tiny_facts: keyword arguments of the family's smallest useful config.
        layers_start_drafters: whether copies of its decoder layers may start a drafter, because they compute what its
            own do (pre-norm, plain RMSNorm, SwiGLU).
        mask_by_layer_type: whether the decoder takes ready-made attention masks as a dict by layer type, else one mask.
    """

    name: str
    model_types: tuple[str, ...]
    config_class: type[PreTrainedConfig]
    model_class: type[PreTrainedModel]
    tiny_facts: tuple[tuple[str, Any], ...]
    layers_start_drafters: bool = True
    mask_by_layer_type: bool = False

    def rope_parameters(self, config: PreTrainedConfig) -> dict[str, Any]:
        """Rotary parameters of the layers that see the whole prefix, or of all where they share them."""
        found: dict[str, Any] = config.rope_parameters
        return dict(found.get("full_attention", found))

    def tap_layers(self, config: PreTrainedConfig) -> tuple[int, ...]:
        """Default tap layers of a target with this config."""
        return default_tap_layers(config.num_hidden_layers)

    def decoder(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model without its head; its `last_hidden_state` is the state after the final norm."""
        decoder: PreTrainedModel = model.get_decoder()
        return decoder

    def decoder_layers(self, model: PreTrainedModel) -> nn.ModuleList:
        """The decoder layers, in order."""
        return cast(nn.ModuleList, self.decoder(model).get_submodule("layers"))

    def final_norm(self, model: PreTrainedModel) -> nn.Module:
        """The norm between the last layer and the head."""
        return self.decoder(model).get_submodule("norm")

    def embedding_weight(self, model: PreTrainedModel) -> Tensor:
        """Token embeddings `[vocab, hidden]`, the live parameter, not a copy."""
        return cast(nn.Embedding, model.get_input_embeddings()).weight

    def head_weight(self, model: PreTrainedModel) -> Tensor:
        """Rows of the language-model head `[vocab, hidden]`, the live parameter; these families have no head bias."""
        return cast(nn.Linear, model.get_output_embeddings()).weight

    def logit_cap(self, config: PreTrainedConfig) -> float | None:
        """What the head's logits are pressed below (`functional.sampling.capped`); None where they are taken as is."""
        cap: float | None = getattr(config, "final_logit_softcapping", None)
        return cap

    def attention_windows(self, config: PreTrainedConfig) -> dict[str, int | None]:
        """How far back each kind of layer looks, in tokens, itself included; None = the whole prefix.

        Raises:
            ConfigurationError: layers that attend in another way, of which a draft tree cannot be verified.
        """
        window = getattr(config, "sliding_window", None)
        default = "full_attention" if window is None else "sliding_attention"
        kinds = set(getattr(config, "layer_types", None) or [default])
        known = {"full_attention": None, "sliding_attention": window}
        if not kinds <= set(known):
            raise ConfigurationError(
                f"The target has layers of kind {', '.join(sorted(kinds - set(known)))}; known: {', '.join(known)}.",
                "Use a target whose layers all attend to a prefix or a window of it.",
            )
        return {kind: known[kind] for kind in sorted(kinds)}

    def tiny_config(self, **overrides: Any) -> PreTrainedConfig:
        """A config small enough for a test on one core and of the family's real shape (grouped heads, no head bias)."""
        return self.config_class(**{**dict(self.tiny_facts), **overrides})

    def tiny_model(self, seed: int = 0, **overrides: Any) -> PreTrainedModel:
        """A random float32 model of `tiny_config(**overrides)`, for evaluation; the global generator is untouched."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.model_class(self.tiny_config(**overrides))
        model.float().eval().requires_grad_(False)
        return model


TINY_SHAPE: tuple[tuple[str, Any], ...] = (
    ("vocab_size", 96),
    ("hidden_size", 32),
    ("intermediate_size", 64),
    ("num_hidden_layers", FEWEST_LAYERS),
    ("num_attention_heads", 4),
    ("num_key_value_heads", 2),
    ("max_position_embeddings", 512),
    # Wide enough that next-token distributions differ from position to position.
    ("initializer_range", 0.2),
    ("bos_token_id", 1),
    ("eos_token_id", 2),
    ("pad_token_id", 0),
)
