from types import SimpleNamespace

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn

from specblock_zoo.data.datamodule import FeatureDataModule
from specblock_zoo.data.sources import SourceSettings
from specblock_zoo.errors import ConfigurationError, CorruptCacheError
from tests.support.cached import make_cache

LENGTHS = [3 + (i * 37) % 29 for i in range(30)]
# Lightning's own calls of deprecated functions, and its advice that does not apply to a loader that is a memory map.
QUIET = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore:.*isinstance.treespec, LeafSpec",
    "ignore:.*does not have many workers",
    "ignore:The number of training batches",
    "ignore:Checkpoint directory",
)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    make_cache(folder, LENGTHS, shard_size=7)
    return str(folder)


def data_module(cache_dir, **changes):
    data = FeatureDataModule(cache_dir, **{"batch_tokens": 70, "val_fraction": 0.2, **changes})
    data.setup("fit")
    return data


def seen(loader):
    return [batch["input_ids"].tolist() for batch in loader]


def test_training_and_validation_together_are_the_cache(cache_dir):
    data = data_module(cache_dir)
    assert sorted(data.train_set.indices + data.val_set.indices) == list(range(30))
    assert 0 < len(data.val_set) < len(data.train_set)


def test_epochs_differ_in_order_and_not_in_number_of_batches(cache_dir):
    loader = data_module(cache_dir).train_dataloader()
    first, second = seen(loader), seen(loader)
    assert len(first) == len(second) == len(loader)
    assert first != second


def test_validation_is_the_same_every_time(cache_dir):
    data = data_module(cache_dir)
    loader = data.val_dataloader()
    assert seen(loader) == seen(loader) == seen(data.val_dataloader())


def test_the_order_is_a_function_of_the_seed(cache_dir):
    orders = [seen(data_module(cache_dir, seed=seed).train_dataloader()) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on fewer cores than workers
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("left", [8, 1])
def test_a_loader_is_taken_up_at_the_same_batch(cache_dir, num_workers, left):
    data = data_module(cache_dir, source=SourceSettings(num_workers=num_workers))
    loader = data.train_dataloader()
    running = iter(loader)
    for _ in range(len(loader) - left):
        next(running)
    state = loader.state_dict()
    rest = [batch["input_ids"].tolist() for batch in running]
    resumed = data.train_dataloader()
    resumed.load_state_dict(state)
    assert len(rest) == left
    assert seen(resumed) == rest
    assert seen(resumed) == seen(loader), "the next epoch agrees too"


def test_no_process_waits_for_another_before_its_first_batch(cache_dir, monkeypatch):
    """Elsewhere the first process prepares the data while the others wait, until their time runs out."""

    def refuse(*arguments, **options):
        raise AssertionError("a process would wait for the others")

    for name in ("barrier", "broadcast", "broadcast_object_list", "all_gather", "all_gather_object", "all_reduce"):
        monkeypatch.setattr(torch.distributed, name, refuse)
    firsts = []
    for rank in (1, 0):
        data = FeatureDataModule(cache_dir, batch_tokens=70, val_fraction=0.2)
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2)
        data.prepare_data()
        data.setup("fit")
        firsts.append(next(iter(data.train_dataloader()))["input_ids"].tolist())
    assert firsts[0] != firsts[1]


def test_without_validation_there_is_no_validation_loader(cache_dir):
    assert data_module(cache_dir, val_fraction=0.0).val_dataloader() == []


def test_sequences_are_cut_at_max_length(cache_dir):
    loader = data_module(cache_dir, max_length=8).train_dataloader()
    assert max(batch["input_ids"].shape[1] for batch in loader) == 8


def test_manifest_and_vocabulary_are_those_of_the_cache(cache_dir):
    data = FeatureDataModule(cache_dir)
    assert data.manifest.fingerprint.tap_layers == (1, 2, 3)
    assert int(data.vocab_map().t2d.sum()) == data.manifest.fingerprint.draft_vocab_size


def test_a_folder_that_is_no_cache_is_refused_at_setup(tmp_path):
    with pytest.raises(CorruptCacheError, match=str(tmp_path)):
        FeatureDataModule(str(tmp_path)).setup("fit")


class Recorder(LightningModule):
    """Remembers what it was fed."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.fed = []

    def training_step(self, batch, batch_idx):
        self.fed.append(batch["input_ids"].tolist())
        return self.weight * batch["features"].float().nan_to_num(0, 0, 0).tanh().mean()

    def validation_step(self, batch, batch_idx):
        assert batch["attention_mask"].any(-1).all()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(cache_dir, folder, max_steps, resume=None, **changes):
    module = Recorder()
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=3,
        max_steps=max_steps,
        logger=False,
        callbacks=[ModelCheckpoint(folder, save_last=True, every_n_train_steps=1)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = FeatureDataModule(cache_dir, **{"batch_tokens": 70, "val_fraction": 0.2, **changes})
    trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True if resume else None)
    return module.fed


@QUIET
@pytest.mark.parametrize("stop", ["mid-epoch", "end of epoch"])
def test_a_resumed_run_is_fed_what_the_uninterrupted_one_would_have_been(cache_dir, tmp_path, stop):
    whole = train(cache_dir, tmp_path / "whole", -1)
    batches = len(whole) // 3
    steps = batches + 3 if stop == "mid-epoch" else batches
    first = train(cache_dir, tmp_path / "part", steps)
    second = train(cache_dir, tmp_path / "part", -1, resume=tmp_path / "part" / "last.ckpt")
    assert len(first) == steps
    assert first + second == whole


@QUIET
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_tokens": 35}, "batch_tokens is 35 here and 70 in the checkpoint"),
        ({"seed": 1}, "seed is 1 here and 0 in the checkpoint"),
        ({"val_fraction": 0.5}, "val_fraction is 0.5 here and 0.2 in the checkpoint"),
        ({"max_length": 8}, "max_length is 8 here and None in the checkpoint"),
    ],
)
def test_a_run_is_not_resumed_with_other_batches(cache_dir, tmp_path, changes, said):
    train(cache_dir, tmp_path, 2)
    with pytest.raises(ConfigurationError, match=said):
        train(cache_dir, tmp_path / "on", -1, resume=tmp_path / "last.ckpt", **changes)


def test_a_run_is_not_resumed_by_another_number_of_processes(cache_dir):
    data = data_module(cache_dir)
    stored = data.state_dict()
    data.trainer = SimpleNamespace(world_size=2, global_rank=0, state=SimpleNamespace(fn=TrainerFn.FITTING))
    with pytest.raises(ConfigurationError, match="processes is 2 here and 1 in the checkpoint"):
        data.load_state_dict(stored)


def test_a_run_is_not_resumed_with_as_many_sequences_of_other_lengths(cache_dir, tmp_path):
    make_cache(tmp_path, [length + 1 for length in LENGTHS], shard_size=7)
    other = data_module(str(tmp_path))
    other.trainer = SimpleNamespace(world_size=1, global_rank=0, state=SimpleNamespace(fn=TrainerFn.FITTING))
    with pytest.raises(ConfigurationError, match=r"batches: training tokens is \d+ here and \d+ in the checkpoint"):
        other.load_state_dict(data_module(cache_dir).state_dict())


@QUIET
def test_a_checkpoint_that_does_not_know_its_batches_still_loads(cache_dir, tmp_path):
    train(cache_dir, tmp_path, 2)
    stored = torch.load(tmp_path / "last.ckpt", weights_only=True)
    del stored["FeatureDataModule"]
    torch.save(stored, tmp_path / "old.ckpt")
    assert train(cache_dir, tmp_path, 4, resume=tmp_path / "old.ckpt")
