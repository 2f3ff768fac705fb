"""python -m flashlatent.bench: host time of a call, that is, how long Python is busy with it.

On a GPU calls only enqueue work: some are timed in a row, then the GPU is waited for, outside of the clock. On the
CPU the computation is part of a call; a problem with next to nothing to compute is timed instead.
"""

import argparse
import contextlib
import importlib.util
import platform
import statistics
import sys
import time

from . import Plan, Problem, Step, _program, info
from ._errors import FlashLatentError

ROUNDS = 5  # over all calls, so that no call alone has a slow moment of the machine


def host_microseconds(call, wait, repeats=10, calls=50):
    """Microseconds a call, of each of `repeats` runs of `calls` calls in a row."""
    for _ in range(calls):
        call()
    wait()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - start) / calls * 1e6)
        wait()
    return samples


def numpy_case():
    """A call that hardly computes: (arrays of decode(), out, lse, v_dim), NumPy."""
    import numpy as np
    q = np.ones((1, 1, 1, 64), np.float16)
    return (q, np.ones((1, 1, 1, 64), np.float16), np.zeros((1, 1), np.int32), np.ones(1, np.int32)), \
        np.empty_like(q), np.empty((1, 1, 1), np.float32), 64


def torch_case(device):
    """The same arrays as torch tensors on this device; for a GPU the smallest case that a kernel takes."""
    import torch
    if device == "cpu":
        arrays, out, lse, v_dim = numpy_case()
        return tuple(map(torch.from_numpy, arrays)), torch.from_numpy(out), torch.from_numpy(lse), v_dim
    options = {"device": device, "dtype": torch.bfloat16}
    q = torch.randn(1, 1, 16, 576, **options)
    kv_cache = torch.randn(64, 64, 1, 576, **options)
    block_table = torch.arange(64, dtype=torch.int32, device=device).reshape(1, 64)
    cache_seqlens = torch.full((1,), 4096, dtype=torch.int32, device=device)
    return ((q, kv_cache, block_table, cache_seqlens), torch.empty(1, 1, 16, 512, **options),
            torch.empty(1, 16, 1, device=device), 512)


def kv_calls(case, threads):
    """(name, call) for keys and values apart, as many query heads as in `case`, one KV head of 64."""
    (q, kv_cache, block_table, cache_seqlens), out, lse, _ = case
    q, out = q[..., :64], out[..., :64]
    keys, values = kv_cache[..., :64], kv_cache[..., -64:]
    problem = Problem.of_kv_arrays(q, keys, values, block_table, softmax_scale=0.1)
    plan = Plan.like(problem, q, threads=threads)
    plan.schedule(cache_seqlens)
    return [("Plan.decode_kv, out and lse given",
             lambda: plan.decode_kv(q, keys, values, block_table, cache_seqlens, out=out, lse=lse))]


def native_calls(case, threads):
    """(name, call) of the package's own functions. Arguments are written out, as in an engine: unpacking a tuple costs
    some tenths of a microsecond."""
    (q, kv_cache, block_table, cache_seqlens), out, lse, v_dim = case
    problem = Problem.of_arrays(q, kv_cache, block_table, softmax_scale=0.1, v_dim=v_dim)
    plan = Plan.like(problem, q, threads=threads)
    plan.schedule(cache_seqlens)
    step = Step(threads=threads)
    return [
        ("Plan.schedule", lambda: plan.schedule(cache_seqlens)),
        ("Plan.decode, out and lse given",
         lambda: plan.decode(q, kv_cache, block_table, cache_seqlens, out=out, lse=lse)),
        ("Plan.decode", lambda: plan.decode(q, kv_cache, block_table, cache_seqlens)),
        ("Step.decode, out and lse given",
         lambda: step.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=0.1, v_dim=v_dim, out=out,
                             lse=lse)),
        ("Step.decode",
         lambda: step.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=0.1, v_dim=v_dim)),
    ]


def torch_calls(case, threads):
    """(name, call) of the drop-in and the operators."""
    from . import flash_mla, torch as operators
    (q, kv_cache, block_table, cache_seqlens), out, lse, v_dim = case
    metadata, num_splits = flash_mla.get_mla_metadata()
    if threads:
        metadata.decode = Step(threads=threads)._decode_as_flash_mla
    plan = operators.plan(q, kv_cache, block_table, cache_seqlens, v_dim=v_dim)
    return [
        ("flash_mla_with_kvcache, metadata reused",
         lambda: flash_mla.flash_mla_with_kvcache(q, kv_cache, block_table, cache_seqlens, v_dim, metadata,
                                                  num_splits)),
        ("torch operator decode",
         lambda: operators.decode(q, kv_cache, block_table, cache_seqlens, softmax_scale=0.1, v_dim=v_dim,
                                  plan=plan)),
        ("torch operator decode_out",
         lambda: operators.decode_out(q, kv_cache, block_table, cache_seqlens, softmax_scale=0.1, v_dim=v_dim,
                                      plan=plan, out=out, lse=lse)),
    ]


def measure(device, packages):
    """Times of all calls on this device, for arrays of these packages: dicts of a result each."""
    threads = 1 if device == "cpu" else 0  # of many threads the waking would be timed
    results = []
    for package in packages:
        case = numpy_case() if package == "numpy" else torch_case(device)
        calls = native_calls(case, threads) + kv_calls(case, threads)
        if package == "torch":
            calls += torch_calls(case, threads)
        wait = lambda: None
        if package == "torch" and device != "cpu":
            import torch
            wait = lambda: torch.cuda.synchronize(device)
        samples = {name: [] for name, _ in calls}
        for _ in range(ROUNDS):
            for name, call in calls:
                samples[name] += host_microseconds(call, wait)
        for name, times in samples.items():
            least, median, most = min(times), statistics.median(times), max(times)
            results.append({"name": name, "package": package, "device": device, "us": median, "us_min": least,
                            "us_max": most})
            print(f"{package:6} {name:42} {median:8.2f} {least:8.2f} {most:8.2f}", flush=True)
    return results


def machine(device):
    """The machine and packages of the times, a dict."""
    host = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            host = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    backend = info()["backends"]["cpu" if device == "cpu" else "cuda"]
    index = int(device.partition(":")[2] or 0)
    gpu = None if device == "cpu" else backend["devices"][index]["name"]
    return {"gpu": gpu, "host": host, "python": platform.python_version()}


@_program.named("flashlatent.bench")
def main(arguments=None):
    """The program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m flashlatent.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (the GPU needs torch); cpu if left out")
    parser.add_argument("--package", action="append", choices=["numpy", "torch"],
                        help="whose arrays; numpy, and torch where it is installed, if left out")
    parser.add_argument("--json", metavar="FILE", help="also write the results there; -: to stdout, alone there")
    options = parser.parse_args(arguments)
    if options.json is not None and options.json != "-":
        _program.check_writable("--json", options.json)
    if options.device != "cpu":
        packages = ["torch"]
        cuda = info()["backends"]["cuda"]
        names = ["cuda"] + [f"cuda:{device['index']}" for device in cuda["devices"]]
        if not cuda["available"] or options.device not in names:
            reason = f"cpu, {', '.join(names)} are accepted" if cuda["available"] else cuda["reason"]
            raise _program.Refused(f"--device is {options.device}; {reason}")
        if options.package == ["numpy"]:
            raise _program.Refused(f"--package is numpy and --device {options.device}; torch is accepted there")
    else:
        packages = options.package or ["numpy", "torch"]
        if options.package is None and importlib.util.find_spec("torch") is None:
            print("torch is not installed: NumPy alone", file=sys.stderr)
            packages = ["numpy"]
    try:
        with contextlib.redirect_stdout(sys.stderr) if options.json == "-" else contextlib.nullcontext():
            print(f"{'':6} {'host time a call, us':42} {'median':>8} {'least':>8} {'most':>8}")
            results = measure(options.device, packages)
        document = {"machine": machine(options.device), "source_tree": info()["source_tree"],
                    "command": " ".join(["python -m flashlatent.bench", *(arguments or sys.argv[1:])]),
                    "results": results}
    except (FlashLatentError, ImportError) as error:
        raise _program.Refused(error) from None
    if options.json == "-":
        print(_program.a_case_a_line(document))
    elif options.json:
        _program.write_json("--json", options.json, document)
    return 0


if __name__ == "__main__":
    _program.leave(main)
