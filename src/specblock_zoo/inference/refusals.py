"""What cannot be honoured with a drafter: each refusal names the option and the way out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import Cache, GenerationConfig, PreTrainedModel
from transformers.generation import logits_process as processors
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
)

from specblock_zoo.errors import TargetMismatchError, UnsupportedOptionError
from specblock_zoo.inference import target_cache
from specblock_zoo.inference.text import Rules
from specblock_zoo.inference.verify import Form
from specblock_zoo.inference.versions import CACHE_NAME
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.registry import family_of

KNOWN_INPUTS = {
    *("attention_mask", "position_ids", "use_cache", "logits_to_keep", CACHE_NAME),
    *("synced_gpus", "tokenizer", "inputs_tensor", "cache_position"),
}
PLAIN = "Leave assistant_model out for this call."
ROW_BY_ROW = "Generate row by row."
OTHER_METHODS = ("prompt_lookup_num_tokens", "use_mtp", "assistant_early_exit", "speculation_type")
ROW_WISE_CRITERIA = {EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria, StopStringCriteria}
ROW_WISE_PROCESSORS = {
    processors.EpsilonLogitsWarper,
    processors.EtaLogitsWarper,
    processors.ExponentialDecayLengthPenalty,
    processors.ForcedBOSTokenLogitsProcessor,
    processors.ForcedEOSTokenLogitsProcessor,
    processors.InfNanRemoveLogitsProcessor,
    processors.LogitNormalization,
    processors.MinLengthLogitsProcessor,
    processors.MinNewTokensLengthLogitsProcessor,
    processors.MinPLogitsWarper,
    processors.NoBadWordsLogitsProcessor,
    processors.NoRepeatNGramLogitsProcessor,
    processors.RepetitionPenaltyLogitsProcessor,
    processors.SequenceBiasLogitsProcessor,
    processors.SuppressTokensAtBeginLogitsProcessor,
    processors.SuppressTokensLogitsProcessor,
    processors.TemperatureLogitsWarper,
    processors.TopKLogitsWarper,
    processors.TopPLogitsWarper,
    processors.TypicalLogitsWarper,
}
"""Look at one row at a time, so that rows of a batch may be processed when their turn comes."""


@dataclass(frozen=True)
class Request:
    """One generate call as it reaches us: `inputs` are the keyword arguments that are no field of `rules`."""

    input_ids: Tensor
    config: GenerationConfig
    rules: Rules
    inputs: Mapping[str, Any]

    @property
    def cache(self) -> Cache | None:
        """The target's cache that `generate` prepared, or that the caller passed."""
        return self.inputs.get(CACHE_NAME)


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


Refusal = tuple[bool, str, str]
"""(whether it applies, the problem, the way out)"""


def check_call(model: PreTrainedModel, config: GenerationConfig, given: Mapping[str, Any]) -> None:
    """Refuses what transformers would refuse next, in words that fit a drafter.

    Args:
        given: keyword arguments of the call that concern the way of decoding.

    Raises:
        UnsupportedOptionError: see the table.
        UnknownNameError: the target is of no known family.
    """
    kind, several = type(model).__name__, config.num_return_sequences or 1
    _refuse(
        (bool(model.config.is_encoder_decoder), f"an encoder-decoder target ({kind}) and a drafter.", PLAIN),
        (bool(model._is_stateful), f"{kind} and a drafter: its state cannot take tokens back.", PLAIN),
        (
            several > 1,
            f"num_return_sequences = {several} and a drafter.",
            f"Repeat the prompt instead: input_ids.repeat_interleave({several}, dim=0), and its attention_mask.",
        ),
        (
            given.get("assistant_tokenizer") is not None,
            "assistant_tokenizer and a drafter, which reads the target's own tokens.",
            "Leave assistant_tokenizer out.",
        ),
    )
    family_of(model.config)


def check_supported(model: PreTrainedModel, request: Request) -> None:
    """Raises `UnsupportedOptionError` for the first option that cannot be honoured, with the way out."""
    _refuse(*_options(model, request))
    if request.input_ids.shape[0] > 1:
        _refuse(*_batches(request))


def check_form(form: Form, rows: int) -> None:
    """Raises `UnsupportedOptionError` where rows of unequal length cannot be told apart without a tree mask."""
    problem = f"batch_size = {rows} and chains only, which is what this target can judge with its attention."
    hint = 'Call model.set_attn_implementation("sdpa") or ("eager"), or give one row at a time.'
    _refuse((form is Form.CAUSAL and rows > 1, problem, hint))


def _refuse(*refusals: Refusal) -> None:
    for applies, problem, hint in refusals:
        if applies:
            raise UnsupportedOptionError(f"Cannot generate with {problem}", hint)


def _short_of(cache: Cache | None, rules: Rules) -> int:
    """Columns that the cache lacks for the longest text; the text's last token needs none."""
    holds = cache is not None and target_cache.holds_trees(cache)
    return max(0, rules.max_length - 1 - target_cache.capacity(cache)) if holds and cache is not None else 0


def _has_empty_row(mask: Tensor | None) -> bool:
    return mask is not None and not bool(mask.any(dim=-1).all())


def _rotary_limit(model: PreTrainedModel) -> int | None:
    """Length of a text from which the target's rotary angles follow the longest position of a forward.

    A tree has positions ahead of its root, and would so turn the root otherwise than plain decoding does.
    """
    config: Any = model.config.get_text_config()
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # One table, or one per kind of layer.
    tables = [parameters, *(each for each in parameters.values() if isinstance(each, dict))]
    follows = [each for each in tables if each.get("rope_type", each.get("type")) in ("dynamic", "longrope")]
    limits = [each.get("original_max_position_embeddings") or config.max_position_embeddings for each in follows]
    return min(limits, default=None)


def _options(model: PreTrainedModel, request: Request) -> tuple[Refusal, ...]:
    config, inputs, cache = request.config, request.inputs, request.cache
    other = next((name for name in OTHER_METHODS if getattr(config, name, None)), None)
    extra = sorted(name for name, value in inputs.items() if name not in KNOWN_INPUTS and value is not None)
    limit, longest = _rotary_limit(model), request.rules.max_length
    return (
        (
            limit is not None and longest > limit,
            f"a text of up to {longest} tokens, rotary angles that change with its length beyond {limit}, and a "
            "drafter.",
            "Ask for fewer tokens, or leave assistant_model out for this call.",
        ),
        (request.input_ids.shape[1] == 0, "an empty prompt and a drafter.", "Pass at least one token."),
        (_has_empty_row(inputs.get("attention_mask")), "a row that is padding only.", "Leave that row out."),
        (inputs.get("use_cache") is False, "use_cache=False and a drafter.", "Remove use_cache=False."),
        (bool(inputs.get("synced_gpus")), "synced_gpus=True (ZeRO-3 or FSDP) and a drafter.", PLAIN),
        (other is not None, f"{other} and a drafter at once.", f"Remove {other} or assistant_model."),
        (bool(config.output_attentions), "output_attentions=True and a drafter.", PLAIN),
        (bool(config.output_hidden_states), "output_hidden_states=True and a drafter.", PLAIN),
        (bool(extra), f"the model input {', '.join(extra)} and a drafter.", PLAIN),
        (model.training, "a target in train() mode: dropout would change the text.", "Call model.eval() first."),
        (
            not target_cache.holds_trees(cache),
            f"a {type(cache).__name__} and a drafter: accepted rows could not be moved together in it.",
            "Leave cache_implementation out, or pass a dynamic or static cache that is not offloaded or quantised.",
        ),
        (
            _short_of(cache, request.rules) > 0,
            f"a static cache that is {_short_of(cache, request.rules)} columns too small for "
            f"{request.rules.max_length} tokens.",
            f"Give it max_cache_len={request.rules.max_length - 1} or more, or ask for fewer tokens.",
        ),
    )


def _batches(request: Request) -> tuple[Refusal, ...]:
    rules, cache, rows = request.rules, request.cache, request.input_ids.shape[0]
    given = cache is not None and (getattr(cache, "_is_user_defined", False) or int(cache.get_seq_length()) > 0)
    static = target_cache.capacity(cache) < target_cache.UNBOUNDED if cache is not None else False
    together = [type(each) for each in rules.logits_processor if type(each) not in ROW_WISE_PROCESSORS]
    together += [type(each) for each in rules.stopping_criteria if type(each) not in ROW_WISE_CRITERIA]
    names = ", ".join(sorted({each.__name__ for each in together}))
    ends = {type(each) for each in rules.stopping_criteria} - {MaxLengthCriteria}
    # Plain decoding then goes on with rows that have stopped until all have.
    unpadded = bool(ends) and EosTokenCriteria not in ends
    several = f"batch_size = {rows}, a drafter and"
    return (
        (rules.streamer is not None, f"{several} a streamer: rows do not advance together.", ROW_BY_ROW),
        (rules.keep_scores or rules.keep_logits, f"{several} output_scores or output_logits.", ROW_BY_ROW),
        (bool(names), f"{several} {names}, which may look at all rows at once.", ROW_BY_ROW),
        (
            unpadded,
            f"{several} {', '.join(each.__name__ for each in ends)} alone.",
            "Set eos_token_id too, or generate row by row.",
        ),
        (given, f"{several} a cache of yours: rows leave it when they finish.", "Leave the cache out."),
        (static, f"{several} a static cache.", "Leave cache_implementation out."),
    )
