"""Command lines of tiny training runs."""

from pathlib import Path

from specblock_zoo.cli.main import main
from tests.support.tiny import TinyRun

# Lightning's own calls of deprecated functions, and its advice that does not apply to three-step runs.
QUIET = (
    "ignore::DeprecationWarning",
    "ignore:.*isinstance.treespec, LeafSpec",
    "ignore:The number of training batches",
    "ignore:.*does not have many workers",
    "ignore:The dirpath has changed",
    "ignore:Be aware that when using `ckpt_path`",
)


def run_options(run: TinyRun, folder: Path) -> list[str]:
    """Flags of a run on the tiny target and cache that keeps its files in `folder`; one batch is an epoch."""
    return [
        f"--model.target={run.target}",
        f"--data.cache_dir={run.cache}",
        "--data.batch_tokens=400",
        "--data.val_fraction=0.1",
        f"--trainer.default_root_dir={folder}",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        "--trainer.enable_model_summary=false",
        "--trainer.log_every_n_steps=1",
        "--trainer.logger=lightning.pytorch.loggers.CSVLogger",
        f"--trainer.logger.save_dir={folder}",
        "--trainer.logger.name=run",
        "--trainer.logger.version=0",
    ]


def fit(run: TinyRun, folder: Path, *flags: str) -> int:
    """`specblock fit` in this process; returns its exit code."""
    return main(["fit", *run_options(run, folder), *flags])
