"""Weights laid out once for the CPU's matrix kernels, instead of at every call.

Verifying a tree is a matrix product of 2 to 64 rows, where the plain float32 route is at its worst. oneDNN multiplies
by a blocked copy of the weight; making the copy once is what inductor's freezing does behind `torch.compile`, without
compiling.

A drafter only proposes, so it may be rounded: its large weights are kept in 8 bits, a quarter of what a draft has to
read from memory.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference.attention import use_grouped_attention
from specblock_zoo.models.decoder import Pack, Prepackable
from specblock_zoo.models.pretrained import PretrainedDrafter

PACKED_DTYPES = (torch.float32, torch.bfloat16)
LARGE_WEIGHT = 1 << 17
"""Numbers from which a weight is worth 8 bits; below, rounding the input costs what reading the weight would."""
SMALLEST_SIZE = 1e-30
"""Largest number of a row or weight from which it has a scale of its own; 127 over it is still a float32."""
ROWS_HINT = 4
"""Rows that the layout of 8-bit weights is chosen for: the slots of a block."""


class _Packed(nn.Module):
    """What linear layers without a row-major weight share.

    Raises:
        UnsupportedOptionError: of `state_dict`, and so of `save_pretrained`: there is no weight to put into it.
    """

    packed: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # A model of packed layers alone still has to know its dtype and device, which are those of its parameters.
        self.placeholder = nn.Parameter(linear.weight.detach().new_empty(0), requires_grad=False)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        raise UnsupportedOptionError(
            f"{prefix.removesuffix('.') or 'This layer'} is packed for the CPU; its weight cannot be saved.",
            "Save the model before optimize_for_cpu, or load it again and save that.",
        )


class PackedLinear(_Packed):
    """A linear layer whose weight lies in oneDNN's blocked layout; inference only, the row-major weight is given up."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        # A blocked tensor cannot be saved, moved or viewed, so it is no buffer.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return result

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, packed"


class Int8Linear(_Packed):
    """A linear layer with weights rounded to 8 bits, one scale an output, and inputs rounded likewise, one scale a row.

    Rows do not depend on each other. On normal numbers a product deviates by 1 % of its size.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        weight = linear.weight.detach().float()
        self.scales = weight.abs().amax(1).clamp_min(SMALLEST_SIZE) / 127
        rounded = (weight / self.scales[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, [ROWS_HINT, self.in_features])
        self.zeros = torch.zeros(self.out_features, dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.float()
        size = torch.linalg.vector_norm(rows, torch.inf, -1, keepdim=True).clamp_min_(SMALLEST_SIZE)
        # Unsigned, 128 for zero, and cut off after half is added: that is what the kernel takes.
        rounded = torch.addcmul(rows.new_full((), 128.5), rows, 127 / size).to(torch.uint8)
        how: Any = (None, 1.0, 0, torch.float32, "none", [], "")
        product = torch.ops.onednn.qlinear_pointwise(rounded, 1.0, 128, self.packed, self.scales, self.zeros, *how)
        product = product * (size / 127)
        return (product if self.bias is None else product + self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, int8"


def cpu_capabilities() -> dict[str, Any]:
    """What torch knows of the processor; empty where it cannot tell (2.6 has no such call)."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities


@cache
def can_round() -> bool:
    """True where the processor multiplies 8-bit numbers natively (VNNI) and this torch build has the operators."""
    capabilities = cpu_capabilities()
    native = any(capabilities.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8"))
    return can_prepack() and native and hasattr(torch.ops.onednn, "qlinear_pointwise")


def can_prepack(dtype: torch.dtype = torch.float32) -> bool:
    """True where this torch build has the oneDNN operators, and they take weights of that dtype on this processor."""
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    return dtype is torch.float32 or (dtype is torch.bfloat16 and takes_bfloat16())


def takes_bfloat16() -> bool:
    """Whether oneDNN has kernels for bfloat16 here: x86 needs AVX512 or AVX-NE-CONVERT, ARM its bfloat16 products."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and bool(supported())


def is_packed(model: nn.Module) -> bool:
    """Whether `optimize_for_cpu` went over this model."""
    return any(isinstance(module, _Packed) for module in model.modules())


@torch.no_grad()
def optimize_for_cpu(model: nn.Module, int8: bool = True) -> nn.Module:
    """Replaces every linear layer of a model in place, for inference on a CPU; returns the model.

    Works on targets and drafters alike; modules of ours that have a twin with fewer products (`Prepackable`) give way
    to it, and a target's `sdpa` attention to one that does not copy keys and values (`grouped_sdpa`). Results equal the
    plain layers' up to rounding. Embeddings stay as they are, also where the head shares them: the head then has its
    own copy.

    Args:
        int8: keep a drafter's large weights in 8 bits where `can_round`: drafting is quicker, drafts differ a little,
            and the text is the target's as ever. A target, and what reads its raw features, is never rounded.

    Raises:
        UnsupportedOptionError: no oneDNN operators, another device or dtype than those (`can_prepack`), or a model in
            train mode. Later, for whoever asks the packed model for its `state_dict`, or saves it.
    """
    hint = "Leave the model as it is; packing changes only speed."
    if not can_prepack():
        raise UnsupportedOptionError("This torch build has no oneDNN operators, so weights cannot be prepacked.", hint)
    for weight in _linear_weights(model):
        if not _can_pack(weight):
            known = " or ".join(str(each).removeprefix("torch.") for each in PACKED_DTYPES if can_prepack(each))
            raise UnsupportedOptionError(
                f"Prepacking needs {known} weights on this CPU; found {weight.dtype} on {weight.device}.", hint
            )
    if model.training:
        raise UnsupportedOptionError(
            "The model is in train mode; packed weights take no gradient.", "Call model.eval()."
        )
    _pack(model, _layout(model) if int8 else PackedLinear)
    if isinstance(model, PreTrainedModel):
        use_grouped_attention(model)
    return model


def optimize_on_cpu(*models: nn.Module) -> bool:
    """`optimize_for_cpu` for models that are on a CPU that can (`can_prepack`); returns whether it was done."""
    possible = can_prepack() and all(_can_pack(weight) for model in models for weight in _linear_weights(model))
    for model in models if possible else ():
        optimize_for_cpu(model)
    return possible


def _linear_weights(model: nn.Module) -> list[Tensor]:
    return [module.weight for module in model.modules() if isinstance(module, nn.Linear)]


def _can_pack(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and can_prepack(weight.dtype)


def _layout(model: nn.Module) -> Pack:
    """Float for targets; for drafters 8 bits but for small weights, and for those that read the target's features.

    Some features are a hundred times the others' size: rounded on their scale, the others vanish.
    """
    if not isinstance(model, PretrainedDrafter) or not can_round():
        return PackedLinear
    features = len(model.config.tap_layers or (0, 0, 0)) * model.config.target_hidden_size

    def pack(linear: nn.Linear) -> nn.Module:
        exact = linear.in_features == features or linear.weight.numel() < LARGE_WEIGHT
        return (PackedLinear if exact else Int8Linear)(linear)

    return pack


def _pack(module: nn.Module, pack: Pack) -> None:
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear:
            setattr(module, name, pack(child).eval())
        elif isinstance(child, Prepackable):
            setattr(module, name, child.prepacked(pack).eval())
        else:
            _pack(child, pack)
