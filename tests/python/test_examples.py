"""The examples run and say that they are right."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

import flashlatent

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def run(name, *arguments):
    return subprocess.run([sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True,
                          timeout=300)


def test_first_call():
    done = run("first_call.py")
    assert done.returncode == 0, done.stderr
    assert "largest difference" in done.stdout


@pytest.mark.parametrize("step", sorted(path.name for path in (EXAMPLES / "tutorial").glob("[0-9]_*.py")))
def test_tutorial(step):
    done = run(f"tutorial/{step}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) >= 1
    if not flashlatent.info()["backends"]["cuda"]["available"]:
        assert ("needs a GPU" in done.stdout) == (step[0] in "67")


def test_mla_layer():
    pytest.importorskip("torch")
    done = run("mla_layer.py", "--tokens", "30")  # over a page's end
    assert done.returncode == 0, done.stdout + done.stderr


def test_distributed_decode():
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                           str(EXAMPLES / "distributed_decode.py")], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("650 of 1300 tokens") == 2


def test_cuda_graph_decode():
    pytest.importorskip("torch")
    done = run("cuda_graph_decode.py", "--steps", "70")
    if flashlatent.info()["backends"]["cuda"]["available"]:
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert done.returncode == 1 and done.stderr.startswith("cuda_graph_decode: it needs a GPU: ")
        assert done.stderr.count("\n") == 1


def test_engine_bench(tmp_path):
    done = run("engine_bench.py", "--help")
    assert done.returncode == 0 and "--backends" in done.stdout
    pytest.importorskip("matplotlib")
    sys.path.insert(0, str(EXAMPLES))
    try:
        import engine_bench
    finally:
        sys.path.pop(0)
    results = [dict(backend=name, heads=16, batch=batch, context=1024, mode="graph", ms_per_output_token=0.1 * batch)
               for name in ("flashlatent", "FLASHMLA") for batch in (1, 16)]
    results[0]["gpu_ms_per_step"] = 0.05
    engine_bench.draw(results, tmp_path / "chart.svg")
    assert "FLASHMLA" in (tmp_path / "chart.svg").read_text() or (tmp_path / "chart.svg").stat().st_size > 5000


def test_engine_bench_runs_engines_in_one_process(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import engine_bench

    def run_one(settings):
        for batch in settings["batch"]:
            if settings["backend"] == "FLASHMLA" and batch == 16:
                raise ValueError("no such\nkernel")
            yield dict(backend=settings["backend"], heads=settings["heads"], batch=batch)

    freed, path = [], tmp_path / "engine.json"
    monkeypatch.setattr(engine_bench, "run_one", run_one)
    monkeypatch.setattr(engine_bench, "free_engine", lambda: freed.append(1))
    monkeypatch.setattr(engine_bench, "machine", lambda: {})
    monkeypatch.setattr(sys, "argv", [
        "engine_bench.py", "--together", "--modes", "graph", "--heads", "16", "--batch", "1", "16",
        "--backends", "FLASHMLA", "TRITON_MLA", "--json", str(path)])
    with pytest.raises(SystemExit) as end:
        engine_bench.main()
    made = json.loads(path.read_text())
    assert end.value.code == 0 and len(freed) == 2
    assert [(row["backend"], row["batch"]) for row in made["results"]] == [
        ("FLASHMLA", 1), ("TRITON_MLA", 1), ("TRITON_MLA", 16)]
    assert made["failed"] == ["FLASHMLA, 16 heads, graph: ValueError: no such"]


def test_engine_bench_times_graphs():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import engine_bench
    finally:
        sys.path.pop(0)

    class Graph:
        def replay(self):
            clock.now += 5

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock.now

        def elapsed_time(self, end):
            return end.at - self.at

    clock = types.SimpleNamespace(now=0)
    cuda = types.SimpleNamespace(CUDAGraph=Graph, Event=Event, synchronize=lambda: None)
    original = Graph.replay
    with engine_bench.GraphTimes(cuda) as times:
        for _ in range(10):
            clock.now += 100  # the host's
            Graph().replay()
    assert Graph.replay is original
    assert times.median(steps=10) == 5
    assert times.median(steps=3) is None  # several graphs a step
    assert times.median(steps=40) is None  # steps without a graph


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_first_call_of_the_docs(page):
    text = (EXAMPLES.parent / page).read_text(encoding="utf-8")
    code = text.partition("```python run\n")[2].partition("```")[0]
    names = {}
    exec(code, names)
    assert names["out"].shape == (2, 1, 16, 512) and names["lse"].shape == (2, 16, 1)
