"""What drafters that are transformers models share: vocabulary map, borrowed embeddings, strict loading."""

import json
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from specblock_zoo.errors import UnknownNameError, UnsupportedOptionError, WeightsMismatchError
from specblock_zoo.functional.vocab import check_vocab_map, draft_to_target
from specblock_zoo.models.base import Drafter
from specblock_zoo.models.configuration import DrafterConfig
from specblock_zoo.models.decoder import ROTARY_ROWS, inverse_frequencies, rotary, rotary_table
from specblock_zoo.models.folders import Shapes, check_shapes, read_shapes
from specblock_zoo.models.source import folder_of
from specblock_zoo.structures import ContextOutput


class PublishedFormat(Protocol):
    """A checkpoint format of other people that a drafter's class can be built from; a module will do."""

    def is_published(self, folder: Any) -> bool:
        """True for a local folder in this format."""

    def read_config(self, folder: Path) -> Any:
        """Our configuration of the drafter in `folder`."""

    def read_weights(self, folder: Path) -> dict[str, Tensor]:
        """Its tensors under our names."""


class PretrainedDrafter(PreTrainedModel, Drafter):
    """A drafter over a reduced vocabulary, loaded strictly and saved without the embeddings it borrows."""

    published: ClassVar[PublishedFormat | None] = None
    """Other people's format of the same drafter, where there is one."""
    base_model_prefix = ""
    main_input_name = "tokens"
    _supports_sdpa = True

    config: DrafterConfig
    d2t: Tensor
    t2d: Tensor

    def add_vocabulary(self) -> None:
        """Registers the vocabulary map: offsets `d2t` `[draft_vocab]` and marks `t2d` `[vocab]`."""
        self.register_buffer("d2t", torch.zeros(self.config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.arange(self.config.vocab_size) < self.config.draft_vocab_size)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # transformers lists its keywords, we hand them through
        cls, folder: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Loads a drafter by zoo name, Hub repository or folder (ours, or the published format), strictly.

        Args:
            folder: zoo name (the tag may be left out), `org/name` on the Hub, or a path.
            kwargs: as in transformers, `revision`, `token`, `cache_dir`, `local_files_only`, `force_download`, `dtype`
                and `device_map` among them. Safetensors only.

        Raises:
            UnknownNameError: there is no such name, repository or folder, or it holds no drafter.
            WeightsMismatchError: tensors are missing, extra, not numbers or of another shape, or a file is not what the
                zoo entry says.
            VocabularyMismatchError: the vocabulary map contradicts itself.
            AccessError, HubError: the repository may not be read, or the Hub cannot be reached.
        """
        return cls.from_folder(folder_of(folder, kwargs), str(folder), *args, **kwargs)

    @classmethod
    def from_folder(cls, place: Path, name: str, *args: Any, **kwargs: Any) -> Any:
        """Loads a drafter from a folder on this machine; `name` is what the user called it, for messages."""
        wants_info = kwargs.pop("output_loading_info", False)
        info: dict[str, Any] = {}
        if cls.published is not None and cls.published.is_published(place):
            drafter = load_published(cls, place, kwargs.get("dtype"), kwargs.get("device_map"))
        else:
            files = place / kwargs.get("subfolder", "")
            check_kind(cls, files, name)
            config = kwargs.get("config") or cls.config_class.from_pretrained(files)  # type: ignore[union-attr]  # set by every drafter
            check_shapes(shapes_of(skeleton(cls, config)), read_shapes(files), files)
            # Mismatched shapes are reported, and refused below by name; transformers' own error names none.
            fixed = {"ignore_mismatched_sizes": True, "output_loading_info": True, "use_safetensors": True}
            loaded: Any = super().from_pretrained(place, *args, **{**kwargs, **fixed})
            drafter, info = loaded
            check_loading(name, info)
            check_vocab_map(drafter.d2t, drafter.t2d, drafter.config.vocab_size)
        check_numbers(name, drafter)
        drafter.name_or_path = name
        return (drafter, info) if wants_info else drafter

    def forward(self, *args: Any, **kwargs: Any) -> ContextOutput:
        """Same as `extend`."""
        return self.extend(*args, **kwargs)

    def target_tokens(self, draft_ids: Tensor) -> Tensor:
        """Draft-vocabulary ids -> target ids, any shape, int64."""
        return draft_ids + self.d2t[draft_ids]

    @property
    def draft_tokens(self) -> Tensor:
        """Target id of every draft id, int64 `[draft_vocab]`."""
        return draft_to_target(self.d2t)

    def embed(self, tokens: Tensor) -> Tensor:
        """Target-vocabulary ids -> the target's (borrowed) embeddings in the drafter's dtype, `[..., hidden]`."""
        return F.embedding(tokens, self.embedding).to(self.dtype)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary tables at integer positions `[rows, length]`."""
        scaling = tuple(sorted((self.config.rope_scaling or {}).items()))
        # On a CPU reading a table costs less than its sines; elsewhere looking at the positions would be a transfer.
        on_cpu = positions.device.type == "cpu" and not torch.compiler.is_compiling()
        if on_cpu and positions.numel() and int(positions.max()) < ROTARY_ROWS:
            table = rotary_table(self.config.head_dim, self.config.rope_theta, scaling, self.dtype)
            cosine, sine = (F.embedding(positions, each)[:, None] for each in table)
            return cosine, sine
        frequencies = inverse_frequencies(self.config.head_dim, self.config.rope_theta, scaling, positions.device)
        return rotary(positions, frequencies, self.dtype)


def skeleton(cls: Any, config: PreTrainedConfig) -> Any:
    """A drafter of class `cls` on the meta device: every name and shape, no memory."""
    with torch.device("meta"):
        return cls(config)


def shapes_of(drafter: Any) -> Shapes:
    """Name -> shape of everything a weight file must hold."""
    return {name: tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}


def load_published(cls: Any, folder: Any, dtype: torch.dtype | str | None = None, device_map: Any = None) -> Any:
    """Builds a drafter from a folder in its class's published format; no tensor is initialised, each comes from a file.

    Args:
        dtype: of the weights; None or `auto` keeps the file's.
        device_map: one device for the whole drafter.

    Raises:
        WeightsMismatchError: tensors are missing, extra or of another shape.
        UnsupportedOptionError: `device_map` spreads the drafter over several devices.
    """
    folder = Path(str(folder))
    drafter, weights = skeleton(cls, cls.published.read_config(folder)), cls.published.read_weights(folder)
    check_shapes(shapes_of(drafter), {name: tuple(tensor.shape) for name, tensor in weights.items()}, folder)
    drafter.load_state_dict(weights, assign=True)
    check_vocab_map(drafter.d2t, drafter.t2d, drafter.config.vocab_size)
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    stored = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    return drafter.to(named or stored).to(one_device(device_map)).eval()


def one_device(device_map: Any) -> torch.device:
    """The device that a `device_map` names for everything."""
    places = set(device_map.values()) if isinstance(device_map, dict) else {device_map or "cpu"}
    if len(places) != 1 or places & {"balanced", "balanced_low_0", "sequential"}:
        raise UnsupportedOptionError(
            f"device_map {device_map!r} spreads a published drafter over devices; it is loaded whole.",
            "Name one device, e.g. device_map='cuda:0', or convert it first: specblock convert published FOLDER OUT.",
        )
    place = places.pop()
    if place == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(place)


def check_kind(cls: Any, folder: Path, name: str) -> None:
    """Raises `UnknownNameError` for a folder that holds another kind of drafter than `cls`."""
    file, expected = folder / "config.json", cls.config_class.model_type
    found = json.loads(file.read_text(encoding="utf-8")).get("model_type") if file.is_file() else expected
    if found != expected:
        raise UnknownNameError(
            f"{name} holds a {found!r} model; {cls.__name__} loads {expected!r}.",
            "specblock_zoo.load_drafter loads a drafter of any kind.",
        )


def check_loading(folder: str, info: dict[str, Any]) -> None:
    """Raises `WeightsMismatchError` naming every tensor that is missing, extra or of another shape."""
    faults = {
        name: sorted(map(str, info.get(name) or ())) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")
    }
    found = [f"{name.replace('_', ' ')}: {', '.join(keys)}" for name, keys in faults.items() if keys]
    if found:
        raise WeightsMismatchError(
            f"The weights in {folder} are not this drafter's: {'; '.join(found)}.",
            "Check that config.json and model.safetensors come from the same training run.",
        )


def check_numbers(folder: str, drafter: nn.Module) -> None:
    """Raises `WeightsMismatchError` naming tensors with NaN: they were never written, or training diverged."""
    broken = [name for name, value in drafter.named_parameters() if not value.is_meta and bool(value.isnan().any())]
    if broken:
        raise WeightsMismatchError(
            f"The weights in {folder} hold NaN in {', '.join(broken)}; expected numbers.",
            "Take an earlier checkpoint, or fetch the weights again.",
        )
