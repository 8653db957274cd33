"""What makes two targets the same target: hashes of weights, config and tokenizer, never a path."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

# Facts that change the states; the rest of a config (dtype, paths, library version) does not.
CONFIG_FACTS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
)
# The same, of those families alone that have them: absent or None they leave the hash as it was.
RARE_FACTS = (
    "sliding_window",
    "layer_types",
    "attention_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
)


@dataclass(frozen=True)
class TargetIdentity:
    """Identity of a loaded target.

    Attributes:
        name: as the user named it; informative, a folder may move.
        revision: Hub commit, where there is one.
        weights_sha256: of the local weight files, where there is no revision.
        config_sha256, tokenizer_sha256: of the facts that change states and token ids; the chat template is one.
        template_sha256: of the chat template alone, to tell which of the two changed.
    """

    name: str
    revision: str | None
    weights_sha256: str | None
    config_sha256: str
    tokenizer_sha256: str
    template_sha256: str | None = None


def _sha256_of_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def config_sha256(config: PreTrainedConfig) -> str:
    """Hash of the config facts that change the target's states."""
    facts = {fact: getattr(config, fact, None) for fact in CONFIG_FACTS}
    rare = {fact: getattr(config, fact, None) for fact in RARE_FACTS}
    return _sha256_of_json(facts | {fact: value for fact, value in rare.items() if value})


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of the token table and the chat template."""
    return _sha256_of_json({"vocab": tokenizer.get_vocab(), "chat_template": tokenizer.chat_template})


def weights_sha256(folder: Path) -> str | None:
    """Hash over the safetensors files of a folder, names included; None when there are none."""
    digest = hashlib.sha256()
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest() if files else None


def identify(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> TargetIdentity:
    """The identity of a target that `load_target(name)` returned."""
    folder = Path(model.config.name_or_path or "")
    return TargetIdentity(
        name=name,
        revision=getattr(model.config, "_commit_hash", None),
        weights_sha256=weights_sha256(folder) if model.config.name_or_path and folder.is_dir() else None,
        config_sha256=config_sha256(model.config),
        tokenizer_sha256=tokenizer_sha256(tokenizer),
        template_sha256=_sha256_of_json(tokenizer.chat_template),
    )
