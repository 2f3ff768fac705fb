"""Continues held-out text greedily with vLLM and FlashLatent (or another backend), and writes tokens and their
log-probabilities for compare.py.

    python examples/tiny_mla/generate_vllm.py --model tiny_mla --backend CUSTOM --json vllm.json
"""

import argparse
import json
import os
import pathlib

# The engine in this process, and nothing asked of the network.
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
               "VLLM_USE_FLASHINFER_SAMPLER": "0"}


def run(options, prompts):
    import vllm

    engine = vllm.LLM(model=str(options.model), skip_tokenizer_init=True, attention_backend=options.backend,
                      kv_cache_dtype=options.kv_cache_dtype, block_size=64, enforce_eager=options.eager,
                      max_model_len=2048, gpu_memory_utilization=0.3, seed=options.seed)
    sampling = vllm.SamplingParams(temperature=0, max_tokens=options.tokens, ignore_eos=True, detokenize=False,
                                   logprobs=0)
    outputs = []
    for answer in engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling):
        tokens = list(answer.outputs[0].token_ids)
        scores = [chosen[token].logprob for token, chosen in zip(tokens, answer.outputs[0].logprobs)]
        outputs.append({"tokens": tokens, "logprobs": scores})
    return vllm.__version__, {"backend": options.backend, "kv_cache_dtype": options.kv_cache_dtype,
                              "graphs": not options.eager, "outputs": outputs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default="tiny_mla", help="folder that train.py wrote")
    parser.add_argument("--backend", default="CUSTOM", help="CUSTOM is FlashLatent's; TRITON_MLA, FLASHMLA, ...")
    parser.add_argument("--kv-cache-dtype", default="auto", help="auto (bf16) or fp8_ds_mla")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-length", type=int, default=200)
    parser.add_argument("--length", type=int, default=1024, help="bytes between the beginnings of two prompts")
    parser.add_argument("--tokens", type=int, default=200, help="tokens to generate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, required=True, help="file to write, or to add this run to")
    options = parser.parse_args()

    text = (options.model / "heldout.txt").read_bytes()
    prompts = [list(text[i * options.length:][:options.prompt_length]) for i in range(options.prompts)]
    version, made = run(options, prompts)
    result = json.loads(options.json.read_text()) if options.json.exists() else {"prompts": prompts, "runs": []}
    result["vllm"] = version
    result["runs"].append(made)
    options.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
