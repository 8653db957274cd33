"""Tree or chain: what an attention implementation can judge, found out by asking it once."""

import threading
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.functional.tree import ROOT, Node, flatten, path_to
from specblock_zoo.inference.attention import GROUPED_SDPA
from specblock_zoo.inference.verify import Form, Prompt, Verifier
from specblock_zoo.targets.identity import config_sha256
from specblock_zoo.targets.registry import family_of

FORMS: dict[str, Form] = {
    "sdpa": Form.ADDITIVE,
    GROUPED_SDPA: Form.ADDITIVE,
    "eager": Form.ADDITIVE,
    "flex_attention": Form.BLOCK,
    "flash_attention_2": Form.CAUSAL,
    "flash_attention_3": Form.CAUSAL,
    "flash_attention_4": Form.CAUSAL,
}
"""Attention implementations by how they take a mask; those with `Form.CAUSAL` judge chains."""

PROBE_PREFIX = (11, 3, 7, 2, 5, 13, 1, 17)
PROBE_PARENTS = (ROOT, 0, 0, ROOT, 3, 2)
PROBE_TOKENS = (4, 9, 6, 8, 10, 12)
TOLERANCES = {torch.float32: 1e-2, torch.float64: 1e-2}
LOW_PRECISION_TOLERANCE = 0.15
"""Mean deviation of a node's logits, in standard deviations of these. Rounding was at most 1e-5 in float32 and 0.004 in
bfloat16 and float16 (SmolLM2-135M and eight tiny families, CPU; 0.021 where bfloat16 is emulated, and 0.23 at one node
of a mixture of experts); masks that were not heeded, 0.3 to 1.1."""

Key = tuple[type, str, torch.dtype, str]
_answers: dict[Key, bool] = {}
_asking = threading.Lock()


def form_of(model: PreTrainedModel, strict: bool = False) -> Form:
    """How to have this target judge drafts.

    The first call per (model class, attention implementation, dtype, configuration) compares a six-node tree with its
    chains.

    Args:
        strict: refuse instead of falling back to chains where the comparison fails.

    Raises:
        UnsupportedOptionError: an attention implementation nobody has looked at, or a failed comparison with `strict`.
    """
    attention = model.config._attn_implementation
    if attention not in FORMS:
        raise UnsupportedOptionError(
            f"Cannot generate with attention implementation {attention!r} and a drafter; known: {', '.join(FORMS)}.",
            'Call model.set_attn_implementation("sdpa").',
        )
    if FORMS[attention] is Form.CAUSAL or judges_trees(model, FORMS[attention]):
        return FORMS[attention]
    found = (
        f"{type(model).__name__} with {attention} attention in {model.dtype} does not judge a draft tree as its chains"
    )
    if strict:
        raise UnsupportedOptionError(f"{found}.", 'Call model.set_attn_implementation("eager"), or draft chains.')
    return Form.CAUSAL


def judges_trees(model: PreTrainedModel, form: Form, compare: Callable[..., float] | None = None) -> bool:
    """Whether trees are judged right; asked once per process and key, warns once where they are not."""
    key = (type(model), model.config._attn_implementation, model.dtype, config_sha256(model.config))
    with _asking:
        if key not in _answers:
            deviation = (compare or tree_deviation)(model, form)
            _answers[key] = deviation <= TOLERANCES.get(model.dtype, LOW_PRECISION_TOLERANCE)
            if not _answers[key]:
                warnings.warn(
                    f"{key[0].__name__} with {key[1]} attention in {key[2]} does not heed tree masks or positions "
                    f"(deviation {deviation:.2g}); drafting chains instead, which is slower.",
                    stacklevel=2,
                )
        return _answers[key]


@torch.no_grad()
def tree_deviation(model: PreTrainedModel, form: Form) -> float:
    """Largest mean deviation of a node's logits between a tree forward and its path read alone, in their spread.

    In low precision the second largest: rounding may send one node to another expert. A mask that is not heeded spoils
    four of the seven.
    """
    depths: list[int] = []
    for parent in PROBE_PARENTS:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    # Small vocabularies are for tests; which tokens they are hardly matters.
    vocab = len(family_of(model.config).embedding_weight(model))
    prefix_ids, tokens = ([token % vocab for token in each] for each in (PROBE_PREFIX, PROBE_TOKENS))
    nodes = zip(tokens, PROBE_PARENTS, depths, strict=True)
    tree = flatten([Node(token, parent, 0.0, 0, 0, 0, depth) for token, parent, depth in nodes])
    prefix = torch.tensor([prefix_ids], device=model.device)
    verifier = Verifier(model, (0,), DynamicCache(), form)
    verifier.read(Prompt(prefix[:, :-1], None, torch.arange(prefix.shape[1] - 1, device=model.device)[None]))
    judged = verifier.judge([prefix_ids[-1]], [tree]).logits[0].float()
    alone = _read_alone(model, prefix, tokens).float()
    spread = alone.std().clamp_min(torch.finfo(torch.float32).tiny)
    deviations = ((judged - alone).abs().mean(-1) / spread).nan_to_num(nan=torch.inf)
    return float(deviations.topk(1 if model.dtype in TOLERANCES else 2).values[-1])


def _read_alone(model: PreTrainedModel, prefix: Tensor, tokens: Sequence[int]) -> Tensor:
    """Logits at the end of each path `[nodes + 1, vocab]`; what stands behind an end is filling, nobody looks ahead."""
    paths = [[tokens[each] for each in path_to(PROBE_PARENTS, node)] for node in range(ROOT, len(tokens))]
    longest = max(map(len, paths))
    filled = prefix.new_tensor([path + (longest - len(path)) * [0] for path in paths])
    logits = model(input_ids=torch.cat((prefix.expand(len(paths), -1), filled), dim=1), use_cache=False).logits
    ends = torch.tensor([prefix.shape[1] - 1 + len(path) for path in paths], device=logits.device)
    picked: Tensor = logits[torch.arange(len(paths), device=logits.device), ends]
    return picked
