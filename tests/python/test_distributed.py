"""flashlatent.distributed over processes: distributed_cases.py has the cases."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
CASES = pathlib.Path(__file__).with_name("distributed_cases.py")


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_disagree(world):
    done = subprocess.run([sys.executable, str(CASES.with_name("distributed_refusals.py")), str(world)], capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


def test_a_process_that_checks_every_call():
    done = subprocess.run([sys.executable, str(CASES.with_name("distributed_refusals.py")), "2", "environment"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


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


def test_a_message_of_no_request_has_views():
    from flashlatent.distributed._message import Message

    for message, shape in [(Message(0, 2, 64, torch.bfloat16), (0, 2, 3, 64)),
                           (Message(0, 1, 64, torch.float16, total=0), (0, 3, 64)),
                           (Message(2, 1, 64, torch.float16, total=0), (0, 3, 64))]:
        memory = message.empty(torch.zeros(1), 3)
        assert message.out(memory).shape == shape
        assert message.lse(memory).shape == (message.batch, 3, message.s_q)


def test_arguments_are_refused_by_name(tmp_path):
    import numpy as np

    import flashlatent
    from flashlatent.distributed import ContextParallel

    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for run in (0, -1, 1.5, "a", 2**21, True):
            with pytest.raises(flashlatent.InvalidArgumentError, match="run is .*; a whole number from 1 to 1048576"):
                ContextParallel(run=run)
        with pytest.raises(flashlatent.ArgumentTypeError, match="q is a ndarray; a torch.Tensor"):
            ContextParallel().decode(np.zeros((1, 1, 1, 64)), None, softmax_scale=1)
        q, kv_cache = torch.zeros(1, 1, 2, 64, dtype=torch.float16), torch.zeros(1, 4, 1, 64, dtype=torch.float16)
        rest = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
        begins = torch.tensor([0, 1], dtype=torch.int32)
        decode = lambda q=q, v_dim=64, **options: ContextParallel().decode(q, kv_cache, *rest, softmax_scale=1,
                                                                           v_dim=v_dim, **options)
        decode_kv = lambda *caches: ContextParallel().decode_kv(q, *caches, *rest, softmax_scale=1)
        for match, call in [
            ("q is \\(64,\\); \\(batch, s_q, h, d\\)", lambda: decode(q[0, 0, 0])),
            ("q is \\(1, 1, 2, 64\\); .* with cu_seqlens_q", lambda: decode(cu_seqlens_q=begins)),
            ("v_dim is 'x'; a whole number from 1 to 4096", lambda: decode(v_dim="x")),
            ("v_dim is -4; a whole number", lambda: decode(v_dim=-4)),
            ("v_dim is True; a whole number", lambda: decode(v_dim=True)),
            ("tokens is 0; a whole number", lambda: decode(q[0], cu_seqlens_q=begins, tokens=0)),
            ("cu_seqlens_q is a list; a torch.Tensor", lambda: decode(q[0], cu_seqlens_q=[0, 1])),
            ("cu_seqlens_q is \\(1, 2\\); int32 \\(batch", lambda: decode(q[0], cu_seqlens_q=begins[None])),
            ("overlap is 'no'; True or False", lambda: decode(overlap="no")),
            ("all_heads is 1; True or False", lambda: decode(all_heads=1)),
            ("shard is given", lambda: decode(shard=(0, 1, 1))),
            ("key_cache is a NoneType; a torch.Tensor", lambda: decode_kv(None, None)),
            ("key_cache has 1 dimensions and value_cache 4", lambda: decode_kv(kv_cache[0, 0, 0], kv_cache)),
            ("q has 2 heads on this rank; a multiple of key_cache's 3", lambda: decode_kv(*[kv_cache.expand(1, 4, 3, 64)] * 2)),
        ]:
            with pytest.raises(flashlatent.InvalidArgumentError, match=match):
                call()
        assert ContextParallel(run=np.int64(4)).tokens.run == 4
        decode(check_inputs=True)
    finally:
        dist.destroy_process_group()


def test_auto_takes_what_was_the_faster():
    from flashlatent.distributed import _exchange
    path = pathlib.Path(__file__).parents[2] / "bench/results/h100/distributed_nccl.json"
    times = {}
    for row in json.loads(path.read_text())["results"]:
        if row["gpus"] > 1 and "exchange_ms" in row:
            message = row["h_q"] * row["b"] * row["s_q"] * (2 * row["d_v"] + 4)
            times.setdefault((row["gpus"], row["name"], message), {})[row["exchange"]] = row["exchange_ms"]
    assert times
    for (gpus, name, message), ways in times.items():
        chosen = _exchange.chosen("auto", message)
        # Two runs of a shape are some per cent apart.
        assert ways[chosen] <= 1.1 * min(ways.values()), f"{name} on {gpus} GPUs: {chosen} of {ways}"
