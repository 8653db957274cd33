"""Weights laid out once for the CPU's matrix kernels, instead of at every call.

Verifying a tree is a matrix product of 2 to 64 rows, where the plain float32 route is at its worst. oneDNN multiplies
by a blocked copy of the weight; making the copy once is what inductor's freezing does behind `torch.compile`, without
compiling.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference.attention import use_grouped_attention
from specblock_zoo.models.decoder import Prepackable

PACKED_DTYPES = (torch.float32, torch.bfloat16)


class PackedLinear(nn.Module):
    """A linear layer whose weight lies in oneDNN's blocked layout; inference only, the row-major weight is given up."""

    packed: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # A blocked tensor cannot be saved, moved or viewed, so it is no buffer.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        # A model of packed layers alone still has to know its dtype and device, which are those of its parameters.
        self.placeholder = nn.Parameter(linear.weight.detach().new_empty(0), requires_grad=False)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return result

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, packed"


def can_prepack() -> bool:
    """True where this torch build has the oneDNN operators."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def is_packed(model: nn.Module) -> bool:
    """Whether `optimize_for_cpu` went over this model."""
    return any(isinstance(module, PackedLinear) for module in model.modules())


@torch.no_grad()
def optimize_for_cpu(model: nn.Module) -> nn.Module:
    """Replaces every linear layer of a model in place, for inference on a CPU; returns the model.

    Works on targets and drafters alike; modules of ours that have a twin with fewer products (`Prepackable`) give way
    to it, and a target's `sdpa` attention to one that does not copy keys and values (`grouped_sdpa`). Results equal the
    plain layers' up to rounding. Embeddings stay as they are, also where the head shares them: the head then has its
    own copy.

    Raises:
        UnsupportedOptionError: no oneDNN operators, another device or dtype than those, or a model in train mode.
    """
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    hint = "Leave the model as it is; packing changes only speed."
    if not can_prepack():
        raise UnsupportedOptionError("This torch build has no oneDNN operators, so weights cannot be prepacked.", hint)
    for weight in weights:
        if weight.device.type != "cpu" or weight.dtype not in PACKED_DTYPES:
            raise UnsupportedOptionError(
                f"Prepacking needs float32 or bfloat16 weights on the CPU; found {weight.dtype} on {weight.device}.",
                hint,
            )
    if model.training:
        raise UnsupportedOptionError(
            "The model is in train mode; packed weights take no gradient.", "Call model.eval()."
        )
    _pack(model)
    if isinstance(model, PreTrainedModel):
        use_grouped_attention(model)
    return model


def _pack(module: nn.Module) -> None:
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear:
            setattr(module, name, PackedLinear(child).eval())
        elif isinstance(child, Prepackable):
            setattr(module, name, child.prepacked(PackedLinear).eval())
        else:
            _pack(child)
