"""scripts/gpu_check: the commands of its jobs."""

import argparse
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


def test_jobs_take_one_gpu_after_the_other(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    program = tmp_path / "bin/flashlatent"
    program.parent.mkdir()
    program.touch()
    runner = gpu_check.Runner(argparse.Namespace(minutes=1, out=tmp_path, build=tmp_path, resume=False), "right")
    environments = [runner.environment(threads=2) for _ in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == ["3,5", "5,3", "3,5"]
    assert environments[0]["OMP_NUM_THREADS"] == "2"
