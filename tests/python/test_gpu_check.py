"""scripts/gpu_check: the commands of its jobs."""

import importlib.machinery
import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts/gpu_check"))
spec = importlib.util.spec_from_loader("gpu_check", loader)
gpu_check = importlib.util.module_from_spec(spec)
loader.exec_module(gpu_check)


def test_a_case_that_was_set_aside_runs_alone():
    job = gpu_check.Check("check full #2", 30, "flashlatent",
                          ["--suite", "full", "--shard", "2/8", "--filter", "fp8", "--max-refused", "9"])
    words = ["flashlatent", "check", "--backend", "cuda", "--names", "--suite", "full"]
    assert job.command("a case")[-2:] == ["--after", "a case"]
    assert job.alone("a case") == [*words, "--max-refused", "9", "--filter", "a case"]
