"""What an extraction will hold and cost: decided before a byte is written."""

import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.data.examples import Counts, Example, Reading, choose_examples, eligible_examples
from specblock_zoo.data.extract import Extractor, length_sorted_batches
from specblock_zoo.data.layout import layout_of
from specblock_zoo.data.manifest import Fingerprint, Manifest
from specblock_zoo.data.records import content_sha256, read_records
from specblock_zoo.data.settings import DTYPES, Extraction
from specblock_zoo.data.vocab import choose_vocabulary, take_vocabulary, vocabulary_sha256
from specblock_zoo.functional.vocab import VocabMap
from specblock_zoo.targets.base import check_tap_layers
from specblock_zoo.targets.identity import identify
from specblock_zoo.targets.local import fast_dtype, load_target
from specblock_zoo.targets.registry import family_of

SKIPPED_SHOWN = 10


@dataclass(frozen=True)
class Plan:
    """The sequences in their order, the draft vocabulary, an empty manifest, and the target that will be run.

    Attributes:
        skipped: what was wrong with each record that was left out.
    """

    examples: list[Example]
    counts: Counts
    vocab: VocabMap
    manifest: Manifest
    extractor: Extractor
    tokenizer: PreTrainedTokenizerBase
    skipped: list[str]

    @property
    def bytes(self) -> int:
        """Size of the finished cache."""
        return self.counts.tokens * self.extractor.layout.bytes_per_token


def make_plan(extraction: Extraction) -> Plan:
    """Loads the target, reads the records, chooses sequences and draft vocabulary.

    Raises:
        ConfigurationError, EmptyDataError, BadRecordError, NoSupervisedTokensError, TargetMismatchError: bad input.
        MissingPackageError: an embedded target whose package is absent.
    """
    extraction.check()
    if extraction.num_threads:
        torch.set_num_threads(extraction.num_threads)
    dtype = DTYPES[extraction.dtype] if extraction.dtype else fast_dtype(extraction.device)
    model, tokenizer = load_target(extraction.target, dtype, extraction.device)
    config = model.config
    taps = tuple(extraction.tap_layers) if extraction.tap_layers else family_of(config).tap_layers(config)
    check_tap_layers(taps, config.num_hidden_layers)
    reading = Reading(
        tokenizer, extraction.target, config.vocab_size, extraction.supervise_reasoning, extraction.skip_bad
    )
    records = read_records([Path(file) for file in extraction.records], reading.on_bad)
    eligible, counts = eligible_examples(records, extraction.limits, reading)
    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    if extraction.vocabulary is None:
        vocab = choose_vocabulary(eligible, config.vocab_size, extraction.draft_vocab_size, ends)
    else:
        vocab = take_vocabulary(Path(extraction.vocabulary), eligible, config.vocab_size)
    examples, counts = choose_examples(eligible, counts, extraction.limits)
    fingerprint = _fingerprint(extraction, model, tokenizer, taps, vocab)
    manifest = Manifest(fingerprint, counts.as_dict(), vocab.coverage, len(examples), _package_version())
    extractor = Extractor.of(model, layout_of(fingerprint), vocab)
    return Plan(examples, counts, vocab, manifest, extractor, tokenizer, reading.skipped)


def _fingerprint(
    extraction: Extraction,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    taps: tuple[int, ...],
    vocab: VocabMap,
) -> Fingerprint:
    identity = identify(extraction.target, model, tokenizer)
    config = model.config
    return Fingerprint(
        target=identity.name,
        target_revision=identity.revision,
        weights_sha256=identity.weights_sha256,
        config_sha256=identity.config_sha256,
        tokenizer_sha256=identity.tokenizer_sha256,
        template_sha256=identity.template_sha256,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        vocab_size=config.vocab_size,
        tap_layers=taps,
        dtype=str(model.dtype).removeprefix("torch."),
        attention=config._attn_implementation,
        data_sha256=content_sha256([Path(file) for file in extraction.records]),
        **asdict(extraction.limits),
        shard_size=extraction.shard_size,
        draft_vocab_size=len(vocab.d2t),
        vocabulary_sha256=vocabulary_sha256(vocab),
        state_dtype=extraction.state_dtype,
        teacher=extraction.teacher,
        teacher_top=min(extraction.teacher_top, len(vocab.d2t)) if extraction.teacher == "topk" else 0,
        supervise_reasoning=extraction.supervise_reasoning,
    )


def _package_version() -> str:
    try:
        return version("specblock-zoo")
    except PackageNotFoundError:
        return "not installed"


def describe(plan: Plan) -> str:
    """What was read and what is kept, for the terminal."""
    fingerprint, layout = plan.manifest.fingerprint, plan.extractor.layout
    counts = ", ".join(f"{name} {count:,}" for name, count in plan.manifest.counts.items())
    skipped = [f"skipped: {problem}" for problem in plan.skipped[:SKIPPED_SHOWN]]
    return "\n".join(
        [
            *skipped,
            counts,
            f"draft vocabulary {fingerprint.draft_vocab_size:,} of {fingerprint.vocab_size:,} tokens, covers "
            f"{plan.manifest.vocab_coverage:.2%} of the supervised tokens",
            f"target {fingerprint.target} in {fingerprint.dtype}, taps {fingerprint.tap_layers} stored as "
            f"{fingerprint.state_dtype}, teacher {fingerprint.teacher}",
            f"{layout.bytes_per_token:,} bytes per token, {plan.bytes / 1e9:.3f} GB in all",
        ]
    )


def tokens_per_second(plan: Plan, batch_tokens: int) -> float:
    """Speed of the extraction, measured on the batch in the middle; the first forward, which warms up, is not timed."""
    batches = list(length_sorted_batches([len(example) for example in plan.examples], batch_tokens))
    batch = [plan.examples[i] for i in batches[len(batches) // 2]]
    plan.extractor.forward(batch[:1])
    start = time.perf_counter()
    plan.extractor.forward(batch)
    return sum(map(len, batch)) / (time.perf_counter() - start)
