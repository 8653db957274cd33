"""`model.generate(**inputs, assistant_model=drafter)`: the only file that knows transformers' generation internals.

`generate` picks its decoding method from the target's class and never hands the target to an assistant, so the one way
in without a change to the target is to wrap `GenerationMixin._assisted_decoding`; assistants that are no `Drafter` go
through untouched.
"""

import functools
import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specblock_zoo.errors import TargetMismatchError, UnsupportedOptionError
from specblock_zoo.inference.cache import DrafterCache
from specblock_zoo.inference.decode import Laps, Session, decode, prefill
from specblock_zoo.inference.stats import DecodeStats
from specblock_zoo.inference.text import Rules, Text
from specblock_zoo.inference.verify import Prompt, Verifier
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.registry import family_of

TREE_ATTENTION = ("sdpa", "eager")
KNOWN_INPUTS = {
    *("attention_mask", "position_ids", "use_cache", "logits_to_keep", "cache"),
    *("synced_gpus", "tokenizer", "inputs_tensor"),
}
PLAIN = "Leave assistant_model out for this call."
OTHER_METHODS = ("prompt_lookup_num_tokens", "use_mtp", "assistant_early_exit", "speculation_type")
_ORIGINAL = "_specblock_original"


def install() -> None:
    """Makes every target's `generate` accept a `Drafter` as `assistant_model`; calling it again changes nothing.

    Raises:
        ImportError: transformers' generation has another shape than this code knows.
    """
    mixin: Any = GenerationMixin
    original = mixin._assisted_decoding
    if hasattr(original, _ORIGINAL):
        return
    if "assistant_model" not in inspect.signature(original).parameters:
        raise ImportError("specblock-zoo needs transformers >= 5.24, whose _assisted_decoding takes assistant_model.")

    # `wraps` matters: generate() looks for `inputs_tensor` in the signature.
    @functools.wraps(original)
    def _assisted_decoding(self: Any, *args: Any, assistant_model: Any = None, **kwargs: Any) -> Any:
        if isinstance(assistant_model, Drafter):
            return assisted_decoding(self, *args, **{**kwargs, "drafter": assistant_model})
        return original(self, *args, assistant_model=assistant_model, **kwargs)

    setattr(_assisted_decoding, _ORIGINAL, original)
    mixin._assisted_decoding = _assisted_decoding


def uninstall() -> None:
    """Undoes `install`."""
    mixin: Any = GenerationMixin
    mixin._assisted_decoding = getattr(mixin._assisted_decoding, _ORIGINAL, mixin._assisted_decoding)


def assisted_decoding(
    model: PreTrainedModel,
    input_ids: Tensor,
    drafter: Drafter,
    generation_config: GenerationConfig,
    **kwargs: Any,
) -> GenerateDecoderOnlyOutput | Tensor:
    """What `generate` calls in place of its own assisted decoding; same arguments, same result, fewer target forwards.

    Args:
        input_ids: int64 `[1, length]`.
        kwargs: `logits_processor`, `stopping_criteria`, `streamer`, `synced_gpus` and the model inputs, as prepared by
            `generate`.

    Raises:
        UnsupportedOptionError: an option cannot be honoured without changing the text.
        TargetMismatchError: the drafter was made for another target.
    """
    streamer, processors, criteria = (
        kwargs.pop(name, None) for name in ("streamer", "logits_processor", "stopping_criteria")
    )
    check_supported(model, input_ids, generation_config, kwargs)
    check_fits(model, drafter)
    drafter.attach(family_of(model.config).embedding_weight(model))
    keep = bool(generation_config.return_dict_in_generate)
    rules = Rules(
        processors,
        criteria,
        do_sample=generation_config.do_sample,
        streamer=streamer,
        keep_scores=keep and bool(generation_config.output_scores),
        keep_logits=keep and bool(generation_config.output_logits),
    )
    cache = kwargs["cache"]
    verifier = Verifier(model, drafter.tap_layers(model.config.num_hidden_layers), cache)
    session = Session(drafter, verifier, Text(input_ids, rules), drafter.config.tree_settings, DrafterCache())
    run(session, prompt_of(input_ids, cache, generation_config, kwargs))
    return packed(session, keep)


def run(session: Session, prompt: Prompt) -> None:
    """Decodes to the end of the text and leaves a `DecodeStats` in `drafter.last_stats`."""
    model, laps = session.verifier.model, Laps(session.verifier.model.device)
    pairs, finished = prefill(session, prompt)
    prefill_ms = laps.lap()
    with decode_kernels(model):
        rounds = () if finished else tuple(decode(session, pairs))
    session.drafter.last_stats = DecodeStats(rounds, prefill_ms)
    if session.text.rules.streamer is not None:
        session.text.rules.streamer.end()


def decode_kernels(model: PreTrainedModel) -> AbstractContextManager[Any]:
    """The context plain `generate` decodes in (it swaps expert kernels), so that both run the same ones."""
    context = getattr(model, "_optimize_model_for_decode", None)
    return context() if context is not None else nullcontext()


def prompt_of(input_ids: Tensor, cache: Cache, config: GenerationConfig, inputs: Mapping[str, Any]) -> Prompt:
    """The part of the prompt the cache does not hold yet, with its mask and positions."""
    past, mask, positions = int(cache.get_seq_length()), inputs.get("attention_mask"), inputs.get("position_ids")
    # With a filled cache the ids are either the whole text or only its new end; the mask is always the whole text's.
    whole = mask.shape[1] if mask is not None else getattr(config, "_mask_length", input_ids.shape[1])
    ids = input_ids[:, past:] if whole == input_ids.shape[1] else input_ids
    if ids.shape[1] == 0:
        raise UnsupportedOptionError(
            f"The cache holds {past} tokens, and with them the whole prompt of {input_ids.shape[1]}.",
            "Crop the cache by one token, or pass a longer prompt.",
        )
    visible = None if mask is None or bool(mask.all()) else mask.bool()
    if positions is None and visible is not None:
        positions = (visible.long().cumsum(-1) - 1).clamp(min=0)
    if positions is None:
        positions = torch.arange(past, past + ids.shape[1], device=ids.device)[None]
    return Prompt(ids, visible, positions[:, -ids.shape[1] :])


def packed(session: Session, as_dict: bool) -> GenerateDecoderOnlyOutput | Tensor:
    """The sequences, or transformers' output record around them."""
    text = session.text
    if not as_dict:
        return text.ids.clone()
    fields: dict[str, Any] = {"sequences": text.ids.clone(), "cache": session.verifier.cache}
    if text.rules.keep_scores:
        fields["scores"] = tuple(text.scores)
    if text.rules.keep_logits:
        fields["logits"] = tuple(text.logits)
    return GenerateDecoderOnlyOutput(**fields)


def check_fits(model: PreTrainedModel, drafter: Drafter) -> None:
    """Raises `TargetMismatchError` when the drafter's target had another shape, naming both values."""
    config, target = drafter.config, model.config
    expected = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.target_hidden_size,
        "num_hidden_layers": config.target_num_hidden_layers,
    }
    for name, value in expected.items():
        found = getattr(target, name)
        if value is not None and value != found:
            made_for = f" ({config.target_name})" if config.target_name else ""
            raise TargetMismatchError(
                f"The drafter was made for a target{made_for} with {name} {value}; this target has {found}.",
                "Use the drafter of this target, or train one with `specblock fit`.",
            )
    device = next(drafter.parameters()).device
    if device != model.device:
        raise TargetMismatchError(
            f"The drafter is on {device}, the target on {model.device}.", "Call drafter.to(model.device)."
        )
    taps = drafter.tap_layers(target.num_hidden_layers)
    if max(taps) >= target.num_hidden_layers:
        raise TargetMismatchError(
            f"The drafter reads target layers {taps}; this target has {target.num_hidden_layers} layers.",
            "Use the drafter of this target.",
        )


def check_supported(
    model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, inputs: Mapping[str, Any]
) -> None:
    """Raises `UnsupportedOptionError` for the first option that cannot be honoured, with the way out."""
    for refused, problem, hint in (*_refused_options(input_ids, config, inputs), *_refused_targets(model, inputs)):
        if refused:
            raise UnsupportedOptionError(f"Cannot generate with {problem}", hint)


Refusal = tuple[bool, str, str]
"""(whether it applies, the problem, the way out)"""


def _refused_options(input_ids: Tensor, config: GenerationConfig, inputs: Mapping[str, Any]) -> tuple[Refusal, ...]:
    rows, length = input_ids.shape
    other = next((name for name in OTHER_METHODS if getattr(config, name, None)), None)
    extra = sorted(name for name, value in inputs.items() if name not in KNOWN_INPUTS and value is not None)
    return (
        (rows != 1, f"batch_size = {rows} and a drafter; only 1 is supported.", "Generate row by row."),
        (length == 0, "an empty prompt and a drafter.", "Pass at least one token."),
        (inputs.get("use_cache") is False, "use_cache=False and a drafter.", "Remove use_cache=False."),
        (bool(inputs.get("synced_gpus")), "synced_gpus=True (ZeRO-3 or FSDP) and a drafter.", PLAIN),
        (other is not None, f"{other} and a drafter at once.", f"Remove {other} or assistant_model."),
        (bool(config.output_attentions), "output_attentions=True and a drafter.", PLAIN),
        (bool(config.output_hidden_states), "output_hidden_states=True and a drafter.", PLAIN),
        (bool(extra), f"the model input {', '.join(extra)} and a drafter.", PLAIN),
    )


def _refused_targets(model: PreTrainedModel, inputs: Mapping[str, Any]) -> tuple[Refusal, ...]:
    cache, attention = inputs.get("cache"), model.config._attn_implementation
    whole_prefix = family_of(model.config).full_attention_only(model.config)
    return (
        (model.training, "a target in train() mode: dropout would change the text.", "Call model.eval() first."),
        (
            attention not in TREE_ATTENTION,
            f"attention implementation {attention!r} and a draft tree; supported: {', '.join(TREE_ATTENTION)}.",
            'Call model.set_attn_implementation("sdpa").',
        ),
        (not whole_prefix, "a drafter for a target with sliding-window or linear attention layers.", PLAIN),
        (
            not croppable(cache),
            f"a {type(cache).__name__} and a drafter: accepted rows could not be moved together in it.",
            "Leave cache_implementation out, or pass a DynamicCache that is not offloaded.",
        ),
    )


def croppable(cache: Cache | None) -> bool:
    """Whether every layer grows freely and sees the whole prefix, so that accepted rows can be moved together."""
    plain_layers = isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)
    return plain_layers and not getattr(cache, "offloading", False)
