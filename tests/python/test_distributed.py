"""flashlatent.distributed over processes: distributed_cases.py has the cases."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
CASES = pathlib.Path(__file__).with_name("distributed_cases.py")


def run(world, kind):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    done = subprocess.run([sys.executable, str(CASES), str(world), kind], env=environment, capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


@pytest.mark.parametrize("world", [2, 4])
def test_gloo(world):
    run(world, "cpu")


@pytest.mark.parametrize("world", [2, 4])
def test_nccl(world):
    if torch.cuda.device_count() < world:
        pytest.skip(f"{world} GPUs are needed, {torch.cuda.device_count()} are there")
    run(world, "cuda")
