"""`model.generate(**inputs, assistant_model=drafter)`: the only file that knows transformers' generation internals.

`generate` picks its decoding method from the target's class and never hands the target to an assistant, so the one way
in without a change to the target is to wrap `GenerationMixin._assisted_decoding`; assistants that are no `Drafter` go
through untouched.
"""

import functools
import inspect
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference import target_cache
from specblock_zoo.inference.capture import exclusive
from specblock_zoo.inference.costs import costs_for
from specblock_zoo.inference.decode import Laps, Session, decode, prefill
from specblock_zoo.inference.modes import form_of
from specblock_zoo.inference.pacing import Account, account_of
from specblock_zoo.inference.refusals import Request, check_call, check_fits, check_form, check_supported
from specblock_zoo.inference.stats import DecodeStats
from specblock_zoo.inference.text import Rules, Text
from specblock_zoo.inference.verify import Form, Prompt, Verifier
from specblock_zoo.inference.versions import CACHE_NAME
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.registry import family_of

WRAPPED = ("_assisted_decoding", "_validate_generation_mode")
_ORIGINAL = "_specblock_original"


def install() -> None:
    """Makes every target's `generate` accept a `Drafter` as `assistant_model`; calling it again changes nothing.

    Raises:
        ImportError: transformers' generation has another shape than this code knows.
    """
    mixin: Any = GenerationMixin
    if hasattr(mixin._assisted_decoding, _ORIGINAL):
        return
    if "assistant_model" not in inspect.signature(mixin._assisted_decoding).parameters:
        raise ImportError(
            "This version of transformers has no _assisted_decoding that takes assistant_model. "
            "Install one that specblock-zoo declares, or do not import it."
        )
    for name, wrap in zip(WRAPPED, (_with_decoding, _with_validation), strict=True):
        original = getattr(mixin, name, None)
        if original is not None:
            wrapper = wrap(original)
            setattr(wrapper, _ORIGINAL, original)
            setattr(mixin, name, wrapper)


def uninstall() -> None:
    """Undoes `install`."""
    for name in WRAPPED:
        found = getattr(GenerationMixin, name, None)
        if hasattr(found, _ORIGINAL):
            setattr(GenerationMixin, name, getattr(found, _ORIGINAL))


def _with_decoding(original: Any) -> Any:
    # `wraps` matters: generate() looks for `inputs_tensor` in the signature.
    @functools.wraps(original)
    def _assisted_decoding(self: Any, *args: Any, assistant_model: Any = None, **kwargs: Any) -> Any:
        if isinstance(assistant_model, Drafter):
            return assisted_decoding(self, *args, **{**kwargs, "drafter": assistant_model})
        return original(self, *args, assistant_model=assistant_model, **kwargs)

    return _assisted_decoding


def _with_validation(original: Any) -> Any:
    """Transformers drops an assistant it has no use for, and blames tokenizers where two models do not fit."""

    @functools.wraps(original)
    def _validate_generation_mode(self: Any, mode: Any, config: Any, kwargs: Any, *rest: Any) -> Any:
        drafter = kwargs.get("assistant_model")
        if isinstance(drafter, Drafter):
            if mode is GenerationMode.ASSISTED_GENERATION:
                check_call(self, config, kwargs)
            check_fits(self, drafter)
            if mode is not GenerationMode.ASSISTED_GENERATION:
                warnings.warn(
                    f"The drafter is not used: transformers decodes with {mode.value} here "
                    f"(num_beams = {config.num_beams}). Set num_beams=1 to use it.",
                    stacklevel=3,
                )
        return original(self, mode, config, kwargs, *rest)

    return _validate_generation_mode


def assisted_decoding(
    model: PreTrainedModel,
    input_ids: Tensor,
    drafter: Drafter,
    generation_config: GenerationConfig,
    **kwargs: Any,
) -> GenerateDecoderOnlyOutput | Tensor:
    """What `generate` calls in place of its own assisted decoding; same arguments, same result, fewer target forwards.

    Args:
        input_ids: int64 `[rows, length]`, padded on the left.
        kwargs: `logits_processor`, `stopping_criteria`, `streamer`, `synced_gpus` and the model inputs, as prepared by
            `generate`.

    Raises:
        UnsupportedOptionError: an option cannot be honoured without changing the text.
        TargetMismatchError: the drafter was made for another target.
    """
    streamer, processors, criteria = (
        kwargs.pop(name, None) for name in ("streamer", "logits_processor", "stopping_criteria")
    )
    keep = bool(generation_config.return_dict_in_generate)
    rules = Rules(
        processors,
        criteria,
        do_sample=generation_config.do_sample,
        streamer=streamer,
        keep_scores=keep and bool(generation_config.output_scores),
        keep_logits=keep and bool(generation_config.output_logits),
    )
    kwargs[CACHE_NAME] = target_cache.started(kwargs.get(CACHE_NAME))
    request = Request(input_ids, generation_config, rules, kwargs)
    family = family_of(model.config)
    check_supported(model, request)
    check_fits(model, drafter)
    form = form_of(model, drafter.strict)
    check_form(form, input_ids.shape[0])
    taps, cache = drafter.tap_layers(model.config.num_hidden_layers), cache_for(request)
    compiled = drafter.capture.target(model, taps, cache) if drafter.capture else None
    verifier = Verifier(model, taps, cache, form, compiled)
    several = input_ids.shape[0] > 1
    texts = [Text(row[None], rules.of_row(index) if several else rules) for index, row in enumerate(input_ids)]
    with drafter.query() as (drafting, observer), exclusive(drafting):
        drafting.attach(family.embedding_weight(model))
        settings = drafting.config.tree_settings
        chosen = replace(settings, chain=True) if form is Form.CAUSAL else settings
        session = Session(drafting, verifier, chosen, observer)
        session = replace(session, account=account_for(drafter, session, rules.do_sample))
        run(session, prompt_of(request, verifier), texts)
    return packed(request, verifier.cache, texts)


def run(session: Session, prompt: Prompt, texts: Sequence[Text]) -> None:
    """Decodes to the end of every text and leaves a `DecodeStats` in `drafter.last_stats`."""
    model, laps = session.verifier.model, Laps(session.verifier.model.device)
    try:
        rows = prefill(session, prompt, texts)
        prefill_ms = laps.lap()
        with decode_kernels(model):
            rounds = tuple(decode(session, rows))
    finally:
        session.verifier.close()
    session.drafter.last_stats = DecodeStats(rounds, prefill_ms)
    if texts[0].rules.streamer is not None:
        texts[0].rules.streamer.end()


def account_for(owner: Drafter, session: Session, sampled: bool) -> Account | None:
    """The account that paces this call's trees; None where `cost_curve`, or the lack of one, leaves them alone.

    `owner` is the drafter that the caller knows; who drafts in its place may be another object at each call.
    """
    verifier, wanted = session.verifier, session.settings.cost_curve
    if wanted == "off":
        return None
    with decode_kernels(verifier.model):
        # What a captured forward costs cannot be told from two calls: the first ones compile and record.
        measure = wanted == "measured" and session.drafter.capture is None
        costs = costs_for(verifier.model, session.drafter, verifier.form, measure=measure)
    return None if costs is None else account_of(owner, costs, sampled)


def decode_kernels(model: PreTrainedModel) -> AbstractContextManager[Any]:
    """The context plain `generate` decodes in (it swaps expert kernels), so that both run the same ones."""
    context = getattr(model, "_optimize_model_for_decode", None)
    return context() if context is not None else nullcontext()


def cache_for(request: Request) -> Cache:
    """The cache to decode with: the caller's or `generate`'s, for several rows one of our own.

    Layers with a window count their columns; holes between rows would push text out of it, so ours keep everything.
    """
    several = request.input_ids.shape[0] > 1
    return DynamicCache() if several or request.cache is None else request.cache


def prompt_of(request: Request, verifier: Verifier) -> Prompt:
    """The part of the prompts the cache does not hold yet, with its mask and positions, on the target's device."""
    input_ids, inputs, cache, device = request.input_ids, request.inputs, verifier.cache, verifier.model.device
    past, mask, positions = int(cache.get_seq_length()), inputs.get("attention_mask"), inputs.get("position_ids")
    # With a filled cache the ids are either the whole text or only its new end; the mask is always the whole text's.
    whole = mask.shape[1] if mask is not None else getattr(request.config, "_mask_length", input_ids.shape[1])
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
    if visible is None and verifier.form is Form.CAUSAL and target_cache.capacity(cache) < target_cache.UNBOUNDED:
        # All that tells a kernel without a mask where the text ends in a buffer.
        visible = torch.ones(len(ids), past + ids.shape[1], dtype=torch.bool)
    positions = positions[:, -ids.shape[1] :].expand(len(ids), -1)
    return Prompt(ids.to(device), None if visible is None else visible.to(device), positions.to(device))


def packed(request: Request, cache: Cache, texts: Sequence[Text]) -> GenerateDecoderOnlyOutput | Tensor:
    """The sequences, padded on the right to the longest, or transformers' output record around them."""
    config = request.config
    longest = max(map(len, texts))
    sequences = torch.cat([torch.nn.functional.pad(text.ids, (0, longest - len(text)), value=-1) for text in texts])
    if len(texts) > 1 and any(len(text) < longest for text in texts):
        pad: Any = config._pad_token_tensor
        sequences = sequences.where(sequences >= 0, pad.to(sequences.device))
    if not config.return_dict_in_generate:
        return sequences
    fields: dict[str, Any] = {"sequences": sequences}
    if len(texts) == 1:
        fields[CACHE_NAME] = cache
    if request.rules.keep_scores:
        fields["scores"] = tuple(texts[0].scores)
    if request.rules.keep_logits:
        fields["logits"] = tuple(texts[0].logits)
    return GenerateDecoderOnlyOutput(**fields)
