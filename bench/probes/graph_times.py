"""What the probes of this folder share: times of calls in CUDA graphs, and their JSON."""

import argparse
import json
import statistics
import subprocess
import sys

import torch

import flashlatent


def time_of(calls, replays=15):
    """us a call of a graph of these calls, the median of its replays."""
    for call in calls[:1]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return round(statistics.median(times), 2)


def arguments_of(description):
    """--layers and --json."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--json")
    return parser.parse_args()


def write(arguments, results):
    """Writes the results to the file that --json names, if it does."""
    if not arguments.json:
        return
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                            text=True, check=False).stdout.strip()
    lines = ",\n  ".join(json.dumps(result) for result in results)
    head = {"machine": {"gpu": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__},
            "version": flashlatent.__version__, "command": " ".join(["python", *sys.argv]), "layers": arguments.layers}
    with open(arguments.json, "w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + ', "results": [\n  ' + lines + "\n]}\n")
