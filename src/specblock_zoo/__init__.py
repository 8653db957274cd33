"""SpecBlock Zoo: block-iterative drafters that make a target generate the same text in fewer forwards.

Importing the package teaches transformers two things: `AutoModel` loads our drafters, and `generate` accepts one as
`assistant_model`; and it teaches our drafters the names of the zoo. Everything else in transformers stays as it is.
"""

from specblock_zoo.errors import SpecBlockError
from specblock_zoo.hub.zoo import list_entries, load_drafter, locate
from specblock_zoo.inference import hf_generate
from specblock_zoo.inference.prepack import optimize_for_cpu
from specblock_zoo.models import registry, source
from specblock_zoo.models.specblock.configuration_specblock import SpecBlockConfig
from specblock_zoo.models.specblock.modeling_specblock import SpecBlockDrafter
from specblock_zoo.structures import TreeSettings
from specblock_zoo.targets.local import load_target

__version__ = "0.1.0"

__all__ = [
    "SpecBlockConfig",
    "SpecBlockDrafter",
    "SpecBlockError",
    "TreeSettings",
    "__version__",
    "list_entries",
    "load_drafter",
    "load_target",
    "optimize_for_cpu",
]

registry.register()
hf_generate.install()
source.install(locate)
