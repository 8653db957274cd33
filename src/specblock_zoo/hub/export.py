"""Folders in the layouts of serving engines, as far as these can express a drafter; strict keys in both directions.

`speculators` is the container that vLLM reads (its `config.json` has no `model_type` but a `speculators_model_type`);
`sglang` is the published layout of the method's authors, which their SGLang branch loads, with the tap layers spelled
as SGLang's EAGLE-3 loader expects them. Stock releases of both engines know no SpecBlock proposer: each needs a plugin
that registers one, and an export says so.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save_file
from torch import Tensor

from specblock_zoo.errors import ConfigurationError, UnsupportedOptionError, WeightsMismatchError
from specblock_zoo.hub.entry import ENTRY_FILE, read_entry
from specblock_zoo.hub.fetch import is_repository
from specblock_zoo.models.folders import Shapes, check_shapes, fresh_folder, read_tensors
from specblock_zoo.models.pretrained import shapes_of, skeleton
from specblock_zoo.models.specblock import SpecBlockConfig, SpecBlockDrafter, published
from specblock_zoo.models.specblock.convert import (
    Drafted,
    check_expressible,
    published_fields,
    read_native,
    read_published,
    write_published,
)
from specblock_zoo.structures import default_tap_layers
from specblock_zoo.targets.local import EMBEDDED_TARGETS

FormatName = Literal["speculators", "sglang"]
ALGORITHM = "specblock"
CONDITION, FUSED = "input_layer.condition_proj.weight", "fc.weight"
"""The projection of the target's features: our name, and the one both engines use for EAGLE-3."""

LAYER_FIELDS = {
    **{name: name for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")},
    **{name: name for name in ("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings")},
    **{name: name for name in ("vocab_size", "rope_theta", "rope_scaling", "bos_token_id", "eos_token_id")},
}
OWN_FIELDS = (
    *("block_width", "num_blocks", "train_blocks", "shift", "advance_positions", "context_slots", "rank_top"),
    *("rank_hidden_size", "target_num_hidden_layers", "pad_token_id", "initializer_range"),
)
TREE_FIELDS = (
    *("max_nodes", "beam_width", "branching", "confident_root", "confident_slots", "merge_duplicates", "chain"),
    *("bound_all_starts", "min_path_prob", "cost_curve", "max_slots", "lookup_tokens", "lookup_alone"),
)
"""Drafting defaults that neither layout has a place for; the engine's own settings decide there."""


@dataclass(frozen=True)
class Layout:
    """One engine's way to lay a drafter out.

    Attributes:
        write: puts a drafter into a folder.
        read: takes it out again, strictly.
        caveat: what whoever serves it must know.
    """

    write: Callable[[Drafted, str, Path], None]
    read: Callable[[Path], Drafted]
    caveat: str


def export(folder: Path, out: Path, form: FormatName) -> str:
    """Writes the drafter in `folder` to `out` in an engine's layout and returns what its user must know.

    Raises:
        UnsupportedOptionError: the layout cannot express this drafter; every reason is named.
        WeightsMismatchError: the written folder does not read back as the same drafter, or `folder` is not whole.
        ConfigurationError: `out` is in use.
    """
    layout = LAYOUTS[form]
    drafted = read_published(folder) if published.is_published(folder) else read_native(folder)
    verifier = verifier_of(folder, drafted[0])
    with fresh_folder(out) as scratch:
        layout.write(drafted, verifier, scratch)
        check_same(drafted, layout.read(scratch), out)
    return layout.caveat


def verifier_of(folder: Path, config: SpecBlockConfig) -> str:
    """Hub repository of the target, which an engine loads by that name.

    Raises:
        UnsupportedOptionError: the drafter records no target that an engine could find.
    """
    if (folder / ENTRY_FILE).is_file():
        return read_entry(folder).target.repository
    name = config.target_name or ""
    name = EMBEDDED_TARGETS[name].repository if name in EMBEDDED_TARGETS else name
    if not is_repository(name) or Path(name).exists():
        raise UnsupportedOptionError(
            f"The drafter records the target {config.target_name!r}; engines need a Hub repository 'org/name'.",
            f"Put an {ENTRY_FILE} with target.repository beside the weights.",
        )
    return name


def taps_of(config: SpecBlockConfig) -> tuple[int, ...]:
    """Tap layers, spelled out. Raises `UnsupportedOptionError` when they hang on a target depth that is not known."""
    if config.tap_layers:
        return tuple(config.tap_layers)
    if config.target_num_hidden_layers is None:
        raise UnsupportedOptionError(
            "The drafter's tap layers follow from its target's depth, and it records neither.",
            "Convert it first, and set tap_layers in config.json.",
        )
    return default_tap_layers(config.target_num_hidden_layers)


def write_speculators(drafted: Drafted, verifier: str, folder: Path) -> None:
    """The container of `speculators`; fields that only a SpecBlock proposer needs stand under `specblock`."""
    config, weights = drafted
    tokens = config.block_width * config.num_blocks
    fields = {
        "architectures": ["SpecBlockSpeculator"],
        "speculators_model_type": ALGORITHM,
        "speculators_config": {
            "algorithm": ALGORITHM,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "transformer_layer_config": {
            "model_type": "llama",
            **{theirs: getattr(config, ours) for ours, theirs in LAYER_FIELDS.items()},
        },
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        # Their index counts the embedding as 0: state i is the output of layer i - 1.
        "aux_hidden_state_layer_ids": [layer + 1 for layer in taps_of(config)],
        ALGORITHM: {name: getattr(config, name) for name in OWN_FIELDS},
        "torch_dtype": str(weights["lm_head.weight"].dtype).removeprefix("torch."),
    }
    write_json(fields, folder)
    save_file(renamed(weights, {CONDITION: FUSED}), folder / "model.safetensors", metadata={"format": "pt"})


def read_speculators(folder: Path) -> Drafted:
    """The inverse of `write_speculators`.

    Raises:
        WeightsMismatchError: tensors or keys are missing or extra.
    """
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    expected = {
        *("architectures", "speculators_model_type", "speculators_config", "transformer_layer_config", "torch_dtype"),
        *("draft_vocab_size", "target_hidden_size", "aux_hidden_state_layer_ids", ALGORITHM),
    }
    check_keys(fields, expected, "config.json")
    layer, own = fields["transformer_layer_config"], fields[ALGORITHM]
    check_keys(layer, {"model_type", *LAYER_FIELDS.values()}, "transformer_layer_config")
    check_keys(own, set(OWN_FIELDS), ALGORITHM)
    config = SpecBlockConfig(
        **{ours: layer[theirs] for ours, theirs in LAYER_FIELDS.items()},
        **own,
        draft_vocab_size=fields["draft_vocab_size"],
        target_hidden_size=fields["target_hidden_size"],
        tap_layers=[index - 1 for index in fields["aux_hidden_state_layer_ids"]],
    )
    return config, checked(config, renamed(read_tensors(folder), {FUSED: CONDITION}), folder)


def write_sglang(drafted: Drafted, verifier: str, folder: Path) -> None:
    """The authors' layout, with the tap layers where SGLang's loaders look for them."""
    config, weights = drafted
    check_expressible(config)
    taps = [layer + 1 for layer in taps_of(config)]
    extra = {
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": taps, "use_aux_hidden_state": True},
        "target_model_name_or_path": verifier,
        "target_num_hidden_layers": config.target_num_hidden_layers,
    }
    write_published(config, weights, folder, **extra)


def read_sglang(folder: Path) -> Drafted:
    """The inverse of `write_sglang`; errors as `read_speculators`."""
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config, weights = read_published(folder)
    extra = {"eagle_config", "target_model_name_or_path", "target_num_hidden_layers"}
    check_keys(fields, {*published_fields(config, weights["lm_head.weight"].dtype), *extra}, "config.json")
    config.tap_layers = [index - 1 for index in fields["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
    config.target_num_hidden_layers = fields["target_num_hidden_layers"]
    return config, weights


def check_same(written: Drafted, read: Drafted, out: Path) -> None:
    """Raises unless a written folder reads back as the same drafter, tensor by tensor and field by field."""
    ignored = {
        *TREE_FIELDS,
        *("architectures", "dtype", "target_name", "target_revision", "tokenizer_hash", "vocab_coverage"),
        *("num_blocks", "_name_or_path", "transformers_version"),
    }
    before, after = ({**config.to_dict(), "tap_layers": list(taps_of(config))} for config, _ in (written, read))
    for name in before.keys() - ignored:
        if before[name] != after.get(name):
            raise ConfigurationError(
                f"{out}: {name} is {before[name]!r} here and {after.get(name)!r} after the export.",
                "This layout cannot hold the drafter; nothing was written.",
            )
    different = [name for name, tensor in written[1].items() if not tensor.equal(read[1][name])]
    if different:
        raise WeightsMismatchError(f"{out}: {', '.join(different)} changed in the export.", "Nothing was written.")


def checked(config: SpecBlockConfig, weights: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """`weights`, once their names and shapes are those of `config`."""
    expected: Shapes = shapes_of(skeleton(SpecBlockDrafter, config))
    check_shapes(expected, {name: tuple(tensor.shape) for name, tensor in weights.items()}, folder)
    return weights


def renamed(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """`weights` with some names exchanged."""
    return {names.get(name, name): tensor for name, tensor in weights.items()}


def check_keys(fields: Mapping[str, Any], expected: set[str], where: str) -> None:
    """Raises `WeightsMismatchError` naming unknown and missing keys."""
    unknown, missing = sorted(fields.keys() - expected), sorted(expected - fields.keys())
    if unknown or missing:
        raise WeightsMismatchError(
            f"{where}: unknown keys {unknown}, missing keys {missing}.", "Export the drafter again with this version."
        )


def write_json(fields: Mapping[str, Any], folder: Path) -> None:
    """Writes `config.json`."""
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


LAYOUTS: dict[FormatName, Layout] = {
    "speculators": Layout(
        write_speculators,
        read_speculators,
        "Stock vLLM has no SpecBlock proposer and verifies chains, not trees: it needs a plugin that registers "
        "'specblock'. Tree settings are not part of this layout.",
    ),
    "sglang": Layout(
        write_sglang,
        read_sglang,
        "Stock SGLang has no SpecBlock worker: this layout is for the authors' branch, or a plugin that registers the "
        "architecture. Tree settings are not part of it.",
    ),
}
