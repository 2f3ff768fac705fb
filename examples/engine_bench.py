#!/usr/bin/env python3
"""Tokens per second and time per output token of vLLM with several MLA backends, as JSON and as a chart.

    python examples/engine_bench.py --json engine.json --chart engine.svg
    python examples/engine_bench.py --backends flashlatent FLASHMLA --heads 16 --batch 1 64 --context 1024 --modes graph

The model is a small dense DeepSeek-V3 with real MLA dimensions and random weights, written by this program; nothing is
downloaded. Each backend runs in a process of its own; with --together all of them run in one process, one after the
other, which imports vLLM once. The prompts are in the prefix cache when a measurement begins;
the time per output token is the median time of a step of the engine in which each request gets one of --new tokens.
gpu_ms_per_step is the median time that the GPU took for the step's CUDA graph: all layers with their attention, without
sampling and without what a backend plans before the graph. It is absent in eager mode, and where a step is not one graph.
A step of few layers is mostly the host's time: compare backends by gpu_ms_per_step, and run one engine on a machine.

Needs vLLM, a Hopper GPU, and matplotlib for the chart.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

BACKENDS = ["flashlatent", "FLASHMLA", "TRITON_MLA", "FLASH_ATTN_MLA"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=BACKENDS, metavar="NAME",
                        help=f"vLLM's names, or flashlatent (default: {' '.join(BACKENDS)})")
    parser.add_argument("--heads", nargs="+", type=int, default=[8, 16, 128], help="query heads (default: 8 16 128)")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16, 64], help="requests (default: 1 16 64)")
    parser.add_argument("--context", nargs="+", type=int, default=[1024, 16384],
                        help="prompt tokens (default: 1024 16384)")
    parser.add_argument("--modes", nargs="+", choices=["eager", "graph"], default=["eager", "graph"])
    parser.add_argument("--kv-cache-dtype", default="auto", help="auto, or fp8_ds_mla where a backend takes it")
    parser.add_argument("--block-size", type=int, default=64, help="tokens per page (default: 64)")
    parser.add_argument("--layers", type=int, default=4, help="of the model; with few, a step is mostly the host's time (default: 4)")
    parser.add_argument("--memory", type=float, default=0.8,
                        help="part of the GPU's memory that an engine may take (default: 0.8)")
    parser.add_argument("--new", type=int, default=65, help="tokens a request generates (default: 65)")
    parser.add_argument("--budget", type=float, default=0, metavar="SECONDS",
                        help="start no engine that is not expected to end within so many seconds (default: no bound)")
    parser.add_argument("--together", action="store_true", help="all engines in one process, one after the other")
    parser.add_argument("--json", metavar="FILE", help="where results go (default: standard output)")
    parser.add_argument("--chart", metavar="FILE", help="SVG or PNG")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def model_folder(heads, layers, longest):
    """config.json of a model whose layers are all dense, so that attention is much of what it does."""
    folder = tempfile.mkdtemp(prefix="engine_bench_")
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(dict(
            architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", vocab_size=1024, hidden_size=512,
            intermediate_size=1024, moe_intermediate_size=256, num_hidden_layers=layers, first_k_dense_replace=layers,
            num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=None, kv_lora_rank=512,
            qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=8, num_experts_per_tok=2,
            n_shared_experts=1, n_group=1, topk_group=1, max_position_embeddings=longest, rms_norm_eps=1e-6,
            rope_theta=10000, hidden_act="silu", tie_word_embeddings=False, torch_dtype="bfloat16", bos_token_id=0,
            eos_token_id=1, attention_bias=False, scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True,
            routed_scaling_factor=2.5, moe_layer_freq=1), file)
    return folder


def run_one(settings):
    """All batches and contexts of one engine, a row each, as they are measured."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    backend = settings["backend"]
    if backend == "flashlatent":
        import flashlatent.vllm
        flashlatent.vllm.register()
        backend = flashlatent.vllm.backend_name()
        if backend is None:
            raise RuntimeError("flashlatent did not register with this vLLM; the warning above says why")
    longest = max(settings["context"]) + settings["new"] + 64
    llm = LLM(model=model_folder(settings["heads"], settings["layers"], longest), load_format="dummy",
              skip_tokenizer_init=True, attention_backend=backend, block_size=settings["block_size"],
              kv_cache_dtype=settings["kv_cache_dtype"], enforce_eager=settings["mode"] == "eager",
              max_model_len=longest, max_num_seqs=max(settings["batch"]), seed=0,
              gpu_memory_utilization=settings["memory"], enable_prefix_caching=True,
              compilation_config=None if settings["mode"] == "eager" else dict(
                  cudagraph_capture_sizes=sorted(set(settings["batch"])), cudagraph_mode="FULL_DECODE_ONLY", mode=0))
    # A longer prompt begins with the shorter ones, so that what they left in the prefix cache is not computed again.
    rows = torch.randint(2, 1024, (max(settings["batch"]), max(settings["context"])),
                         generator=torch.Generator().manual_seed(0)).tolist()
    new = settings["new"]
    for context in sorted(settings["context"]):
        for batch in settings["batch"]:
            prompts = [dict(prompt_token_ids=row[:context]) for row in rows[:batch]]
            llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False),
                         use_tqdm=False)  # fills the cache
            step, gpu = step_times(llm.llm_engine, prompts, SamplingParams(
                temperature=0, max_tokens=new, ignore_eos=True, detokenize=False,
                output_kind=RequestOutputKind.DELTA))
            yield dict(
                backend=settings["backend"], heads=settings["heads"], batch=batch, context=context,
                mode=settings["mode"], kv_cache_dtype=settings["kv_cache_dtype"], block_size=settings["block_size"],
                layers=settings["layers"], ms_per_output_token=round(step * 1e3, 4),
                **({} if gpu is None else dict(gpu_ms_per_step=round(gpu, 4))),
                tokens_per_second=round(batch / step, 1))
    llm.llm_engine.engine_core.shutdown()


def in_this_process(settings):
    """(rows, an error or None) of one engine, whose memory the next engine finds free."""
    rows, error = [], None
    try:
        rows.extend(run_one(settings))  # extend() keeps the rows that came before an error
    except Exception as raised:  # the engines after it still run
        error = f"{type(raised).__name__}: {raised}".splitlines()[0]
    free_engine()
    return rows, error


def free_engine():
    """Frees what the last engine of this process held: its memory and its process groups."""
    import gc

    import torch
    from vllm.distributed import cleanup_dist_env_and_memory

    gc.collect()
    cleanup_dist_env_and_memory()
    gc.collect()
    torch.cuda.empty_cache()


def in_a_process(settings, seconds):
    """The same in a process of its own, which is ended after so many seconds; None is no bound."""
    try:
        done = subprocess.run([sys.executable, __file__, "--one", json.dumps(settings)], capture_output=True, text=True,
                              timeout=seconds)
        output, status, errors = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as expired:
        output, status, errors = (expired.stdout or b"").decode(), 124, "no time left"
    rows = [json.loads(line[7:]) for line in output.splitlines() if line.startswith("RESULT ")]
    lines = [line for line in errors.splitlines() if line.strip()]
    return rows, (lines[-1] if lines else f"exit status {status}") if status else None


class GraphTimes:
    """While entered, notes two events around each CUDA graph that this process replays."""

    def __init__(self, cuda):
        self.cuda, self.events = cuda, []

    def __enter__(self):
        self.replay = replay = self.cuda.CUDAGraph.replay

        def timed(graph):
            begin, end = (self.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            replay(graph)
            end.record()
            self.events.append((begin, end))

        self.cuda.CUDAGraph.replay = timed
        return self

    def __exit__(self, *error):
        self.cuda.CUDAGraph.replay = self.replay

    def median(self, steps):
        """Milliseconds, or None where graphs are not one for a step, the first steps (prompts) left out."""
        if not steps // 2 < len(self.events) < steps * 3 // 2:
            return None
        try:
            self.cuda.synchronize()
            return statistics.median(begin.elapsed_time(end) for begin, end in self.events[2:])
        except RuntimeError as error:  # the wall time stands without it
            print(f"engine_bench: no GPU times: {error}", file=sys.stderr)
            return None


def step_times(engine, prompts, sampling):
    """Medians of the steps in which every request gets one token: seconds, and the GPU's milliseconds or None."""
    import torch
    for i, prompt in enumerate(prompts):
        engine.add_request(f"{i}", prompt, sampling)
    times, before = [], time.perf_counter()
    with GraphTimes(torch.cuda) as graphs:
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            if len(outputs) == len(prompts) and all(len(o.outputs[0].token_ids) == 1 for o in outputs):
                times.append(now - before)
            before = now
    return statistics.median(times[2:]), graphs.median(len(times))


def machine():
    import importlib.metadata

    import torch

    import flashlatent
    return dict(gpu=torch.cuda.get_device_name(0), torch=torch.__version__, vllm=importlib.metadata.version("vllm"),
                flashlatent=flashlatent.__version__, source_tree=flashlatent.info()["source_tree"],
                host=platform.node())


def draw(results, path):
    """A panel for each number of heads and context; a group of bars for each batch."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    mode = "graph" if any(r["mode"] == "graph" for r in results) else "eager"
    results = [r for r in results if r["mode"] == mode]
    heads = sorted({r["heads"] for r in results})
    contexts = sorted({r["context"] for r in results})
    batches = sorted({r["batch"] for r in results})
    names = list(dict.fromkeys(r["backend"] for r in results))
    figure, axes = plt.subplots(len(contexts), len(heads), figsize=(3.6 * len(heads), 2.6 * len(contexts)),
                                squeeze=False, layout="constrained")
    for i, context in enumerate(contexts):
        for j, count in enumerate(heads):
            axis = axes[i][j]
            for k, name in enumerate(names):
                found = {r["batch"]: r["ms_per_output_token"] for r in results
                         if (r["heads"], r["context"], r["backend"]) == (count, context, name)}
                axis.bar([x + (k - (len(names) - 1) / 2) * 0.8 / len(names) for x in range(len(batches))],
                         [found.get(b, 0) for b in batches], 0.8 / len(names), label=name)
                on_gpu = {r["batch"]: r["gpu_ms_per_step"] for r in results if "gpu_ms_per_step" in r
                          and (r["heads"], r["context"], r["backend"]) == (count, context, name)}
                axis.hlines([on_gpu[b] for b in on_gpu],
                            [batches.index(b) + (k - len(names) / 2) * 0.8 / len(names) for b in on_gpu],
                            [batches.index(b) + (k + 1 - len(names) / 2) * 0.8 / len(names) for b in on_gpu],
                            colors="black", linewidth=1.5)
            axis.set_xticks(range(len(batches)), [str(b) for b in batches])
            axis.set_title(f"{count} heads, {context} tokens", fontsize=9)
            if j == 0:
                axis.set_ylabel("ms a token")
            if i == len(contexts) - 1:
                axis.set_xlabel("requests")
    axes[0][0].legend(fontsize=7)
    figure.suptitle(f"Time per output token, {mode}" + (
        "; black lines: the GPU's part" if any("gpu_ms_per_step" in r for r in results) else ""), fontsize=10)
    figure.savefig(path)


def main():
    options = arguments()
    if options.one:
        for row in run_one(json.loads(options.one)):
            print("RESULT " + json.dumps(row), flush=True)
        return
    results, failed, started, longest = [], [], time.monotonic(), 0.0
    cases = [(heads, mode, backend) for heads in options.heads for mode in options.modes
             for backend in options.backends]
    for heads, mode, backend in cases:
        left = options.budget - (time.monotonic() - started)
        name = f"{backend}, {heads} heads, {mode}"
        if options.budget and left < longest:
            failed.append(f"{name}: no time left")
            continue
        begun = time.monotonic()
        settings = dict(backend=backend, heads=heads, mode=mode, batch=options.batch, context=options.context,
                        layers=options.layers, new=options.new, block_size=options.block_size,
                        kv_cache_dtype=options.kv_cache_dtype, memory=options.memory)
        if options.together:
            found, error = in_this_process(settings)
        else:
            found, error = in_a_process(settings, left if options.budget else None)
        results += found
        if error:
            failed.append(f"{name}: {error}")
        longest = max(longest, time.monotonic() - begun)
        print(f"{name}: {len(found)} results in {time.monotonic() - begun:.0f} s{' FAILED' if error else ''}",
              file=sys.stderr, flush=True)
        if options.json:
            write(options.json, results, failed)  # what is there so far stays, should a later engine end the process
    if options.json:
        write(options.json, results, failed)
    else:
        print(as_text(results, failed))
    if options.chart and results:
        draw(results, options.chart)
    sys.exit(0 if results else 1)


def as_text(results, failed):
    """The result as JSON, a case a line."""
    rows = ",".join("\n  " + json.dumps(row) for row in results)
    text = json.dumps(dict(machine=machine(), command=" ".join(sys.argv), failed=failed), indent=1)
    return text.removesuffix("\n}") + f',\n "results": [{rows}\n ]\n}}'


def write(path, results, failed):
    with open(path, "w", encoding="utf-8") as file:
        file.write(as_text(results, failed) + "\n")


if __name__ == "__main__":
    main()
