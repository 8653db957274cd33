"""Cost curves of a target and drafter on one machine: found in the user's cache folder, else measured coarsely once.

One file per (shapes of target and drafter, attention, device, dtypes, threads, weight layout, torch version). Speed
depends on shapes and not on weights, so a drafter that goes on training keeps its curve.
"""

import hashlib
import json
import threading
import warnings
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from specblock_zoo.data.files import replacing
from specblock_zoo.errors import BadRecordError
from specblock_zoo.functional.costs import Curve, RoundCosts
from specblock_zoo.inference.measure import coarse_costs
from specblock_zoo.inference.prepack import cpu_capabilities, is_packed
from specblock_zoo.inference.verify import Form
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.identity import CONFIG_FACTS, config_sha256
from specblock_zoo.targets.local import DEFAULT_CACHE_DIR

VERSION = 3
"""Of the file, and of our forwards: 3 since drafting on packed weights became cheaper twice."""
WORTH_MEASURING = 1_000_000
"""Hidden size squared times layers, from which a target is measured at first use. Below, a forward costs what its
dispatch costs, whatever its width."""


@dataclass(frozen=True)
class CostKey:
    """What a curve holds for.

    Attributes:
        target, drafter: hashes of the facts that decide what a forward costs.
        attention: implementation of the target's attention.
        device: name of the processor or accelerator.
        dtypes: of target and drafter.
        threads: of torch.
        packed: whether the weights of target and drafter are prepacked (`optimize_for_cpu`).
        branches: whether later blocks were measured.
        torch: its version.
    """

    target: str
    drafter: str
    attention: str
    device: str
    dtypes: tuple[str, str]
    threads: int
    packed: tuple[bool, bool]
    branches: bool
    torch: str

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


DRAFTER_FACTS = (
    *("draft_vocab_size", "num_hidden_layers", "block_width", "context_slots", "rank_hidden_size", "beam_width"),
    *("branching", "independent_slots", "residual_layers", "target_hidden_size", "tap_layers"),
)


def cpu_name() -> str:
    """The processor's model name; empty where torch cannot tell."""
    return str(cpu_capabilities().get("cpu_name") or "")


def key_of(model: PreTrainedModel, drafter: Drafter) -> CostKey:
    """The key of a pair as it is loaded now."""
    facts = {fact: getattr(drafter.config, fact, None) for fact in (*CONFIG_FACTS, *DRAFTER_FACTS)}
    device = model.device
    cpu = cpu_name() or torch.backends.cpu.get_cpu_capability()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    return CostKey(
        target=config_sha256(model.config)[:16],
        drafter=hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16],
        attention=str(model.config._attn_implementation),
        device=f"{device.type}: {name}",
        dtypes=(str(model.dtype), str(getattr(drafter, "dtype", model.dtype))),
        threads=torch.get_num_threads(),
        packed=(is_packed(model), is_packed(drafter)),
        branches=drafter.config.tree_settings.num_blocks > 1,
        torch=torch.__version__,
    )


def folder_of_costs(cache_dir: str | Path | None = None) -> Path:
    """Where curves lie: `costs` below the cache folder that converted targets are kept in."""
    return Path(cache_dir or DEFAULT_CACHE_DIR).expanduser() / "costs"


def store(key: CostKey, costs: RoundCosts, folder: Path) -> Path:
    """Writes a curve, whole or not at all, for this process's next call too; returns its file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{key.digest}.json"
    text = json.dumps({"version": VERSION, "key": asdict(key), "costs": asdict(costs)}, indent=1)
    with replacing(file) as half_done:
        half_done.write_text(text, encoding="utf-8")
    forget()
    return file


def read(key: CostKey, folder: Path) -> RoundCosts | None:
    """The stored curve; None when there is none, or only one of another format version.

    Raises:
        BadRecordError: the file is not what `store` writes.
    """
    file = folder / f"{key.digest}.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return parsed(record["costs"]) if record["version"] == VERSION else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise BadRecordError(
            f"{file} is no cost curve: {type(cause).__name__}: {cause}.",
            "Measure again with `specblock tune`, or delete the file.",
        ) from cause


def parsed(record: dict[str, Any]) -> RoundCosts:
    """Costs from their JSON form. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
    verify, branch = (Curve(tuple(record[name]["sizes"]), tuple(record[name]["ms"])) for name in ("verify", "branch"))
    for curve in (verify, branch):
        numbers = [*curve.sizes, *curve.ms, record["first_block"]]
        rising = all(low < high for low, high in pairwise(curve.sizes))
        whole = all(isinstance(each, int | float) and 0 <= each < float("inf") for each in numbers)
        if not (curve.sizes and len(curve.sizes) == len(curve.ms) and curve.sizes[0] == 1 and rising and whole):
            raise ValueError("sizes must rise from 1, with one time from 0 up each")
    return RoundCosts(verify, float(record["first_block"]), branch)


_known: dict[tuple[CostKey, str], RoundCosts | None] = {}
_asking = threading.Lock()


def costs_for(model: PreTrainedModel, drafter: Drafter, form: Form, measure: bool) -> RoundCosts | None:
    """The costs of a pair, looked up once per process and key; None where there is no curve.

    A broken file or measurement is reported once and then not there: a curve saves time, and is no reason to refuse an
    answer.

    Args:
        measure: without a stored curve measure a coarse one, unless the target is too small for it to say anything.
    """
    key, folder = key_of(model, drafter), folder_of_costs()
    asked = (key, f"{folder} {measure}")
    with _asking:
        if asked not in _known:
            try:
                found = read(key, folder)
            except BadRecordError as error:
                warnings.warn(str(error), stacklevel=2)
                found = None
            if found is None and measure and is_worth_measuring(model):
                found = _measured(model, drafter, form, key.branches)
            _known[asked] = found
        return _known[asked]


def _measured(model: PreTrainedModel, drafter: Drafter, form: Form, branches: bool) -> RoundCosts | None:
    try:
        return coarse_costs(model, drafter, form, branches)
    except Exception as error:
        # What is wrong with the pair itself, the call that follows says better.
        warnings.warn(
            f"No cost curve: {type(error).__name__} while measuring ({error}); the drafter's settings size its trees.",
            stacklevel=3,
        )
        return None


def forget() -> None:
    """Makes the next call look at the files again."""
    with _asking:
        _known.clear()


def is_worth_measuring(model: PreTrainedModel) -> bool:
    """Whether wider forwards of this target cost more than narrow ones at all."""
    config = model.config
    return int(config.num_hidden_layers) * int(config.hidden_size) ** 2 >= WORTH_MEASURING
