"""A target that fits no single device is held in shards; its features are the same numbers."""

import os
import subprocess
import sys

import pytest

from tests.support import REPOSITORY
from tests.support.processes import LIMIT_S, free_port


@pytest.mark.distributed
def test_a_sharded_target_gives_the_features_of_the_whole_one() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    result = subprocess.run(
        [*launcher, "-m", "tests.support.sharded"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
