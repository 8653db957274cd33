"""Train a shadow of the serving drafter on the buffers; the last good weights are reference and way back."""

import copy
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specblock_zoo.adaptation.buffers import HeadRows, TextRows
from specblock_zoo.adaptation.events import Action
from specblock_zoo.adaptation.heads import head_problem
from specblock_zoo.data.layout import TAIL_MASS, TOP_IDS, TOP_LOG_PROBS
from specblock_zoo.errors import check_values
from specblock_zoo.functional.losses import cross_entropy
from specblock_zoo.functional.vocab import target_to_draft
from specblock_zoo.inference.prepack import optimize_for_cpu
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.training.rollout import RolloutSettings
from specblock_zoo.training.specblock import rollout
from specblock_zoo.training.teachers import TopTeacher

BETAS = (0.9, 0.95)
HEADS = ("lm_head", "rank_head")
"""What a head update trains: they read cached states, so no decoder backward is needed."""


@dataclass(frozen=True)
class UpdateSettings:
    """How an update trains.

    Attributes:
        head_beta, full_beta: weight of KL(reference draft || draft) beside KL(target || draft).
        least_pull: rows of the head train where the gradient of some slot's loss to their logit is as large; all others
            stay, and their logits count as they are (see `heads`; ours).
        rank_weight: weight of the rank loss.
        head_learning_rate, full_learning_rate: of AdamW.
        head_epochs, head_batch: passes over the buffered slots, and slots per step.
        full_epochs, full_batch: passes over the buffered texts, and texts per step.
        clip: largest norm of the gradient of all that trains.
        block_sampling: see `RolloutSettings`; default a quarter for each block after the first that the drafter drafts.
        seed: of the order of rows and texts.
    """

    head_beta: float = 1.0
    full_beta: float = 0.1
    least_pull: float = 0.1
    rank_weight: float = 1.0
    head_learning_rate: float = 1e-3
    full_learning_rate: float = 2e-4
    head_epochs: int = 4
    head_batch: int = 128
    full_epochs: int = 1
    full_batch: int = 8
    clip: float = 1.0
    block_sampling: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("head_epochs", "head_batch", "full_epochs", "full_batch")}
        weights = {name: getattr(self, name) for name in ("head_beta", "full_beta", "least_pull", "rank_weight")}
        sizes = {name: getattr(self, name) for name in ("head_learning_rate", "full_learning_rate", "clip")}
        check_values(
            self,
            {
                **{name: (count >= 1, "at least 1") for name, count in counts.items()},
                **{name: (weight >= 0, "at least 0") for name, weight in weights.items()},
                **{name: (size > 0, "a number above 0") for name, size in sizes.items()},
            },
        )


@dataclass(frozen=True)
class Update:
    """What an update gives: modules by name, ready to serve, and the loss before each of its steps in nats."""

    action: Action
    modules: dict[str, nn.Module]
    losses: tuple[float, ...]
    seconds: float


def plain_copy(drafter: SpecBlockDrafter, dtype: torch.dtype, device: torch.device) -> SpecBlockDrafter:
    """A copy with weights of its own, without the borrowed embeddings, that takes no gradient yet."""
    made: Any = copy.deepcopy(drafter)
    made.last_stats = None
    copied: SpecBlockDrafter = nn.Module.to(made, device=device, dtype=dtype).eval()
    return copied.requires_grad_(False)


def serving_copy(drafter: SpecBlockDrafter, prepack: bool) -> SpecBlockDrafter:
    """A copy that serves where and as the drafter does, its weights laid out for the CPU's kernels if so wanted."""
    copied = plain_copy(drafter, drafter.dtype, drafter.device)
    if prepack:
        # Not in 8 bits: every swap would have to round again.
        optimize_for_cpu(copied, int8=False)
    return copied


def with_modules(serving: SpecBlockDrafter, modules: dict[str, nn.Module]) -> SpecBlockDrafter:
    """A drafter that shares with `serving` every module that is not replaced; `serving` stays as it is.

    Queries under way go on with the drafter they began with, so no tree ever sees two sets of weights.
    """
    made = copy.copy(serving)
    made._modules = {**serving._modules, **modules}
    return made


class Updater:
    """Owns the shadow, its optimizer and the last good weights; used by one thread at a time.

    Args:
        drafter: the drafter as it serves now, in plain layout.
        device: where the shadow trains; default the drafter's.
        prepack: lay the modules it hands out for the CPU's kernels; the shadow stays plain, for packed weights take no
            gradient.

    Attributes:
        embedding: the target's token embeddings `[vocab, hidden]`; full updates need them.
        optimizer: of full updates. A head update has one of its own: the rows it trains are its own too.
    """

    def __init__(
        self,
        drafter: SpecBlockDrafter,
        settings: UpdateSettings,
        device: torch.device | None = None,
        prepack: bool = False,
    ) -> None:
        self.settings, self.prepack = settings, prepack
        self.serving_dtype, self.serving_device = drafter.dtype, drafter.device
        self.device = device or drafter.device
        # Float32, whatever serves: an update is smaller than a bfloat16 step.
        self.shadow = plain_copy(drafter, torch.float32, self.device)
        self.good = plain_copy(drafter, torch.float32, self.device)
        self.embedding: Tensor | None = None
        # Fused: one pass over the moments instead of seven.
        self.optimizer = torch.optim.AdamW(
            self.shadow.parameters(), lr=settings.full_learning_rate, betas=BETAS, weight_decay=0.0, fused=True
        )
        self.updates = 0

    def trained(self, action: Action) -> dict[str, nn.Parameter]:
        """The parameters an action trains, by name."""
        every = dict(self.shadow.named_parameters())
        return every if action is Action.FULL else {n: p for n, p in every.items() if n.split(".")[0] in HEADS}

    def update(self, action: Action, data: HeadRows | Sequence[TextRows], least_steps: int = 0) -> Update:
        """Trains the shadow and returns the modules that have changed; all or nothing.

        Args:
            least_steps: of a head update; it passes over its slots once more until it has taken as many.

        Raises:
            FloatingPointError: a loss or a weight is no finite number; the shadow is what it was before.
        """
        started = time.perf_counter()
        parameters = self.trained(action)
        before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        momentum = copy.deepcopy(self.optimizer.state_dict()) if action is Action.FULL else None
        try:
            # `generate` runs without gradients.
            with torch.inference_mode(False), torch.enable_grad():
                losses = self._heads(data, least_steps) if isinstance(data, HeadRows) else self._full(data)
            _check_finite(losses, parameters)
            self.shadow.requires_grad_(False)
            modules = self.modules(HEADS if action is Action.HEAD else None)
        except BaseException:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(before[name])
            if momentum is not None:
                self.optimizer.load_state_dict(momentum)
            raise
        finally:
            self.shadow.requires_grad_(False)
            self.shadow.zero_grad(set_to_none=True)
        self.updates += 1
        return Update(action, modules, tuple(losses), time.perf_counter() - started)

    def modules(self, names: Sequence[str] | None = None) -> dict[str, nn.Module]:
        """Copies of the shadow's modules in the dtype and on the device that serve; default all of them."""
        chosen = self.shadow._modules if names is None else {name: self.shadow._modules[name] for name in names}
        copies = nn.ModuleDict({name: copy.deepcopy(module) for name, module in chosen.items() if module is not None})
        copies = copies.to(self.serving_device, self.serving_dtype).eval()
        if self.prepack:
            optimize_for_cpu(copies, int8=False)
        return dict(copies.items())

    def keep(self) -> None:
        """The shadow's weights are the last good ones from now on."""
        self.good.load_state_dict(self.shadow.state_dict())

    def revert(self) -> dict[str, nn.Module]:
        """The last good weights again, with a fresh optimizer; returns them as `modules` does."""
        self.shadow.load_state_dict(self.good.state_dict())
        self.optimizer.state.clear()
        return self.modules()

    def _heads(self, slots: HeadRows, least_steps: int) -> list[float]:
        settings, shadow = self.settings, self.shadow
        problem = head_problem(shadow, self.good, slots, settings.head_beta, settings.least_pull)
        weight, rank_head = shadow.lm_head.weight[problem.rows].requires_grad_(True), shadow.rank_head
        parameters = [weight, *rank_head.requires_grad_(True).parameters()]
        optimizer = torch.optim.AdamW(
            parameters, lr=settings.head_learning_rate, betas=BETAS, weight_decay=0.0, fused=True
        )
        an_epoch = math.ceil(len(problem) / settings.head_batch)
        epochs = max(settings.head_epochs, math.ceil(least_steps / max(1, an_epoch)))
        every = (
            problem.loss(weight, rank_head, index.to(self.device), settings.rank_weight)
            for index in batches(len(problem), settings.head_batch, epochs, self._generator())
        )
        losses = self._descend(every, parameters, optimizer)
        with torch.no_grad():
            shadow.lm_head.weight[problem.rows] = weight
        return losses

    def _full(self, texts: Sequence[TextRows]) -> list[float]:
        if self.embedding is not None:
            for drafter in (self.shadow, self.good):
                drafter.attach(self.embedding.to(self.device))
        settings, generator = self.settings, self._generator()
        parameters = list(self.shadow.requires_grad_(True).parameters())
        every = (
            full_loss(self.shadow, self.good, [texts[number] for number in index.tolist()], settings, generator)
            for index in batches(len(texts), settings.full_batch, settings.full_epochs, generator)
        )
        return self._descend(every, parameters, self.optimizer)

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.settings.seed + self.updates)

    def _descend(
        self, every: Iterable[Tensor], parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer
    ) -> list[float]:
        losses = []
        for loss in every:
            losses.append(float(loss.detach()))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, self.settings.clip, error_if_nonfinite=False)
            optimizer.step()
        return losses


def batches(count: int, size: int, epochs: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Numbers below `count` in random order, `size` at a time, int64; anew for each of `epochs`."""
    for _ in range(epochs):
        yield from torch.randperm(count, generator=generator).split(size)


def _check_finite(losses: Sequence[float], parameters: dict[str, nn.Parameter]) -> None:
    broken = [name for name, parameter in parameters.items() if not bool(parameter.isfinite().all())]
    if not losses or not all(map(torch.isfinite, torch.tensor(losses))) or broken:
        raise FloatingPointError(f"losses {losses}; not finite: {', '.join(broken) or 'a loss'}")


def full_loss(
    shadow: SpecBlockDrafter,
    good: SpecBlockDrafter,
    texts: Sequence[TextRows],
    settings: UpdateSettings,
    generator: torch.Generator,
) -> Tensor:
    """The training loss on whole texts, plus beta KL(good || draft) on the block at one random position of each."""
    batch = collated(texts, shadow.device)
    teacher = TopTeacher(shadow.lm_head.weight.detach(), target_to_draft(shadow.t2d))
    sampling = settings.block_sampling
    chosen = RolloutSettings(block_sampling=(0.25,) * (shadow.config.num_blocks - 1) if sampling is None else sampling)
    total = rollout(shadow, batch, teacher, chosen, generator).total(rank_weight=settings.rank_weight)
    anchors = [_anchor(shadow, good, batch, row, generator) for row in range(len(texts))]
    return total + settings.full_beta * torch.stack(anchors).mean()


def _anchor(
    shadow: SpecBlockDrafter, good: SpecBlockDrafter, batch: dict[str, Tensor], row: int, generator: torch.Generator
) -> Tensor:
    """Mean over a block's slots of -sum(good's probabilities * log draft probabilities)."""
    scored = batch["loss_mask"][row].nonzero()[:, 0]
    # The pair before the token at `end`: its block drafts the scored text.
    end = max(1, int(scored[int(torch.randint(len(scored), (), generator=generator))]) - 1) if len(scored) else 1
    features, tokens = batch["features"][row : row + 1, :end], batch["input_ids"][row : row + 1, 1 : end + 1]
    positions = torch.arange(end, device=tokens.device)[None]
    with torch.no_grad():
        reference = good.extend(features, tokens, positions).block.logits[0].softmax(-1)
    return cross_entropy(shadow.extend(features, tokens, positions).block.logits[0], reference).mean()


def collated(texts: Sequence[TextRows], device: torch.device) -> dict[str, Tensor]:
    """Texts as a batch of the training forward, padded on the right."""

    def padded(tensors: Sequence[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(list(tensors), batch_first=True).to(device)

    return {
        "input_ids": padded([text.input_ids.long() for text in texts]),
        "features": padded([text.features.float() for text in texts]),
        "loss_mask": padded([text.loss_mask for text in texts]),
        TOP_IDS: padded([text.target.ids.long() for text in texts]),
        TOP_LOG_PROBS: padded([text.target.log_probs for text in texts]),
        TAIL_MASS: padded([text.target.tail for text in texts]),
    }
