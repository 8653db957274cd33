"""The ways of answering that a benchmark compares: a literal table of kinds, each with its parameters."""

import copy
import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.bench.ask import Ask, ask_plainly, ask_with_drafter
from specblock_zoo.bench.compiled import ask_compiled, check_compiler
from specblock_zoo.bench.records import PositiveCount, Record, Share, describe
from specblock_zoo.bench.timing import explicit_mask
from specblock_zoo.errors import ConfigurationError, TargetMismatchError, UnknownNameError
from specblock_zoo.inference.prepack import optimize_for_cpu
from specblock_zoo.models.base import Drafter
from specblock_zoo.structures import TreeSettings

LoadTarget = Callable[[str, torch.dtype], tuple[PreTrainedModel, PreTrainedTokenizerBase]]
LoadDrafter = Callable[[str, PreTrainedModel, PreTrainedTokenizerBase], Drafter]


@dataclasses.dataclass
class Workbench:
    """What methods are built from: the target, and loaders for what else they need.

    Attributes:
        name, model, tokenizer: the target; every method but the compiled one runs on this very object.
        load_target: name, dtype -> a language model with its tokenizer.
        load_drafter: name, target, tokenizer -> a drafter that is known to belong to that target.
        packed: prepack the weights of whatever is loaded.
        longest: tokens of the longest prompt and its answer.
        drafters, assistants: those loaded so far, by name.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    load_target: LoadTarget
    load_drafter: LoadDrafter
    packed: bool
    longest: int = 0
    drafters: dict[str, Drafter] = dataclasses.field(default_factory=dict)
    assistants: dict[str, PreTrainedModel] = dataclasses.field(default_factory=dict)

    def drafter(self, name: str) -> Drafter:
        """A drafter, loaded once however many methods use it."""
        if name not in self.drafters:
            self.drafters[name] = self.load_drafter(name, self.model, self.tokenizer)
        return self.drafters[name]

    def assistant(self, name: str) -> PreTrainedModel:
        """A smaller language model in the target's dtype, loaded once however many methods use it."""
        if name not in self.assistants:
            self.assistants[name], _ = self.load_target(name, self.model.dtype)
        return self.assistants[name]

    def pack(self) -> None:
        """Prepacks the target and whatever drafts that was loaded so far; all methods then run on such weights."""
        if self.packed:
            for network in (self.model, *self.drafters.values(), *self.assistants.values()):
                optimize_for_cpu(network)


class MethodSpec(Record, ABC):
    """Parameters of a method. `is_baseline`: it may be what speedups are taken against."""

    is_baseline: ClassVar[bool] = False

    def load(self, bench: Workbench) -> None:
        """Loads what the method needs, and refuses what does not fit, before anything is prepacked or timed."""

    @abstractmethod
    def build(self, bench: Workbench) -> Ask:
        """The method, ready to be asked."""


class Plain(MethodSpec):
    """The target alone, as `generate` runs it."""

    is_baseline: ClassVar[bool] = True

    def build(self, bench: Workbench) -> Ask:
        return partial(ask_plainly, bench.model)


class PlainMasked(MethodSpec):
    """The target alone through the masked attention kernel, see `timing.explicit_mask`."""

    is_baseline: ClassVar[bool] = True

    def build(self, bench: Workbench) -> Ask:
        ask = partial(ask_plainly, bench.model)

        def masked(question: Any) -> Any:
            with explicit_mask(bench.model):
                return ask(question)

        return masked


class PlainCompiled(MethodSpec):
    """The target alone, its one-token forward compiled over a static cache; a second copy of the weights."""

    def load(self, bench: Workbench) -> None:
        check_compiler()

    def build(self, bench: Workbench) -> Ask:
        model, _ = bench.load_target(bench.name, bench.model.dtype)
        return ask_compiled(model, bench.longest)


class PromptLookup(MethodSpec):
    """Transformers' n-gram lookup in the text so far. `tokens`: copied per round at most; `ngram`: longest match."""

    tokens: PositiveCount = 8
    ngram: PositiveCount = 3

    def build(self, bench: Workbench) -> Ask:
        return partial(
            ask_plainly, bench.model, prompt_lookup_num_tokens=self.tokens, max_matching_ngram_size=self.ngram
        )


class Assistant(MethodSpec):
    """Standard speculative sampling with a smaller language model of the same vocabulary, drafting a chain.

    Attributes:
        model: name of an embedded target, a model folder or a Hub repository.
        tokens: drafted per round.
        confidence: stop drafting below this probability; 0 always drafts `tokens`.
    """

    model: str
    tokens: PositiveCount = 5
    confidence: Share = 0.0

    def load(self, bench: Workbench) -> None:
        expected, found = bench.model.config.vocab_size, bench.assistant(self.model).config.vocab_size
        if found != expected:
            raise TargetMismatchError(
                f"The assistant {self.model!r} has a vocabulary of {found} tokens; the target has {expected}.",
                "Take an assistant that shares the target's tokenizer.",
            )

    def build(self, bench: Workbench) -> Ask:
        assistant = copy.copy(bench.assistant(self.model))
        settings: Any = copy.deepcopy(assistant.generation_config)
        settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = self.tokens, "constant"
        settings.assistant_confidence_threshold = self.confidence
        assistant.generation_config = settings
        return partial(ask_plainly, bench.model, assistant=assistant)


class Drafted(MethodSpec):
    """A drafter of any type.

    Attributes:
        drafter: name in the zoo, a folder or a Hub repository.
        mode: draft whole trees, or only the likeliest chain.
        tree: fields of `TreeSettings` that replace the drafter's own defaults.
    """

    drafter: str
    mode: Literal["tree", "chain"] = "tree"
    tree: dict[str, Any] = Field(default_factory=dict)

    @property
    def overrides(self) -> dict[str, Any]:
        """What the method changes of the drafter's defaults."""
        return self.tree | ({"chain": True} if self.mode == "chain" else {})

    def load(self, bench: Workbench) -> None:
        with_tree(bench.drafter(self.drafter), self.overrides)

    def build(self, bench: Workbench) -> Ask:
        return partial(ask_with_drafter, bench.model, with_tree(bench.drafter(self.drafter), self.overrides))


def with_tree(drafter: Drafter, overrides: Mapping[str, Any]) -> Drafter:
    """A drafter that shares the weights and has tree settings of its own; errors as `tree_settings`."""
    settings = tree_settings(drafter.config.tree_settings, overrides)
    own = copy.copy(drafter)
    own.config = copy.deepcopy(drafter.config)
    for name in overrides:
        setattr(own.config, name, getattr(settings, name))
    return own


def tree_settings(defaults: TreeSettings, overrides: Mapping[str, Any]) -> TreeSettings:
    """Tree settings with some fields replaced.

    Raises:
        ConfigurationError: no such field, or a value of the wrong type.
    """
    fields = dataclasses.asdict(defaults)
    unknown = sorted(set(overrides) - set(fields))
    if unknown:
        raise ConfigurationError(
            f"{', '.join(unknown)} is no tree setting; there are {', '.join(fields)}.", "Correct the method's `tree`."
        )
    try:
        replaced: TreeSettings = TypeAdapter(TreeSettings).validate_python({**fields, **overrides})
    except ValidationError as error:
        raise ConfigurationError(f"Tree settings: {describe(error)}.", "Correct the method's `tree`.") from error
    return replaced


KINDS: dict[str, type[MethodSpec]] = {
    "plain": Plain,
    "plain_masked": PlainMasked,
    "plain_compiled": PlainCompiled,
    "prompt_lookup": PromptLookup,
    "assistant": Assistant,
    "drafter": Drafted,
}


class Method(Record):
    """A named method: its kind in `KINDS` and its parameters."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    kind: str
    spec: MethodSpec


def read_methods(described: Mapping[str, Mapping[str, Any] | None]) -> tuple[Method, ...]:
    """The methods of a configuration: name -> `kind` (default: the name) and the kind's parameters.

    Raises:
        UnknownNameError: no such kind.
        ConfigurationError: a parameter is unknown or has a wrong value, or there is nothing to compare with.
    """
    methods = tuple(_read_method(name, dict(parameters or {})) for name, parameters in described.items())
    if not any(method.spec.is_baseline for method in methods):
        raise ConfigurationError(
            f"The methods are {', '.join(described) or 'none'}; a speedup needs plain decoding to compare with.",
            "Add the methods plain and plain_masked.",
        )
    return methods


def _read_method(name: str, parameters: dict[str, Any]) -> Method:
    kind = str(parameters.pop("kind", name))
    if kind not in KINDS:
        nearest = difflib.get_close_matches(kind, KINDS, n=3, cutoff=0.4) or list(KINDS)
        raise UnknownNameError(
            f"Method {name!r} is of the unknown kind {kind!r}; nearest: {', '.join(nearest)}.",
            f"Take one of {', '.join(KINDS)}.",
        )
    try:
        return Method(name=name, kind=kind, spec=KINDS[kind].model_validate(parameters))
    except ValidationError as error:
        raise ConfigurationError(
            f"Method {name!r} ({kind}): {describe(error)}.",
            f"Parameters: {', '.join(KINDS[kind].model_fields) or 'none'}.",
        ) from error
