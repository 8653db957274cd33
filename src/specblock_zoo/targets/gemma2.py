"""The Gemma 2 family: every other layer through a window, and capped attention scores, which only eager attention has.

Its logits are capped after the head (`logit_cap`): the best token is the head's, its probability is not.
"""

from transformers import Gemma2Config, Gemma2ForCausalLM

from specblock_zoo.targets.base import TINY_SHAPE, TargetFamily

GEMMA2 = TargetFamily(
    name="gemma2",
    model_types=("gemma2",),
    config_class=Gemma2Config,
    model_class=Gemma2ForCausalLM,
    tiny_facts=(
        *TINY_SHAPE,
        ("head_dim", 8),
        ("query_pre_attn_scalar", 8),
        ("tie_word_embeddings", True),
        ("sliding_window", 8),
        ("attn_implementation", "eager"),
    ),
    layers_start_drafters=False,
    mask_by_layer_type=True,
)
