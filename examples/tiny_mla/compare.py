"""Compares transformers' own attention, FlashLatent with each cache format, and vLLM, on the model of train.py.

    python examples/tiny_mla/compare.py --model tiny_mla --json bench/results/h100/tiny_mla.json
    python examples/tiny_mla/generate_vllm.py --model tiny_mla --json vllm.json     # where vLLM is installed
    python examples/tiny_mla/compare.py --model tiny_mla --vllm vllm.json --json ...

Held-out text goes through the model out of the cache, token by token, and log-probabilities are compared with those of
float32 weights and attention. Then each continues the same prompts greedily.
"""

import argparse
import copy
import json
import math
import pathlib

import torch
import transformers
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from scoring import attention, forced, greedy

FORMATS = ("stock", "bf16", "fp8_656")
PROMPT = 'import os\n\n\ndef read_lines(path):\n    """'


def held_out(folder, rows, length, device):
    """(rows, length) tokens of the text that the model was not trained on."""
    text = (folder / "heldout.txt").read_bytes()
    rows = min(rows, len(text) // length)
    return torch.tensor(list(text[:rows * length]), device=device).view(rows, length)


def summary(scores, wanted):
    """Perplexity a byte, and how far log-probabilities are from those of float32."""
    away = (scores - wanted).abs()
    nats = -scores.mean().item()
    return {"perplexity": round(math.exp(nats), 5), "bits_per_byte": round(nats / math.log(2), 5),
            "mean_logprob_error": round(away.mean().item(), 6), "max_logprob_error": round(away.max().item(), 4)}


def same(text, other):
    """How many tokens two texts have in common before they part."""
    return next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))


def compare(model, folder, options):
    """The rows of the result: what each attention makes of the held-out text, and of prompts from it."""
    device = model.device
    ids = held_out(folder, options.rows, options.length, device)
    prompts = ids[:options.prompts, :options.prompt_length]
    rows, texts = [], {}
    with tqdm(total=(ids.shape[1] - 1) * len(FORMATS), desc="compare", unit="token") as bar:
        exact = copy.deepcopy(model).float()
        with torch.no_grad():
            parts = [exact(part[None, :-1], use_cache=False).logits for part in ids]
        wanted = torch.cat(parts).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        rows.append({"attention": "transformers, float32", "cache": "none", **summary(wanted, wanted)})
        del exact, parts
        for name in FORMATS:
            with attention(model, name) as make_cache:
                scores = forced(model, ids, make_cache, options.first, options.chunk, bar)
                texts[name] = greedy(model, prompts, options.tokens)
            rows.append({"attention": "transformers, bf16" if name == "stock" else "FlashLatent",
                         "cache": "bf16, expanded each step" if name == "stock" else name, **summary(scores, wanted)})
    for row, name in zip(rows[1:], FORMATS):
        row["greedy_tokens_as_stock"] = [same(text, other) for text, other in zip(texts[name], texts["stock"])]
    return rows


def sample(model, tokenizer, prompt, tokens):
    """A continuation of the prompt by FlashLatent, drawn at temperature 0.6 with seed 0."""
    torch.manual_seed(0)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False).to(model.device)
    with attention(model, "bf16"):
        out = model.generate(**inputs, max_new_tokens=tokens, do_sample=True, temperature=0.6)
    return tokenizer.decode(out[0, inputs.input_ids.shape[1]:])


@torch.no_grad()
def compare_vllm(model, made):
    """vLLM's log-probabilities of its own greedy text beside FlashLatent's in transformers, of the same tokens."""
    rows = []
    for run in made["runs"]:
        name = "fp8_656" if run["kv_cache_dtype"].startswith("fp8") else "bf16"
        away, common = [], []
        with attention(model, name) as make_cache:
            for prompt, out in zip(made["prompts"], run["outputs"]):
                ids = torch.tensor([prompt + out["tokens"]], device=model.device)
                scores = forced(model, ids, make_cache, len(prompt), 1)[0, len(prompt) - 1:]
                away.append((scores.cpu() - torch.tensor(out["logprobs"])).abs())
                text = greedy(model, torch.tensor([prompt], device=model.device), len(out["tokens"]))[0]
                common.append(same(text, out["tokens"]))
        away = torch.cat(away)
        rows.append({"engine": f"vLLM {made['vllm']}", "backend": run["backend"], "cache": run["kv_cache_dtype"],
                     "graphs": run["graphs"], "mean_logprob_difference": round(away.mean().item(), 6),
                     "max_logprob_difference": round(away.max().item(), 4), "greedy_tokens_as_transformers": common})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default="tiny_mla", help="folder that train.py wrote")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=32, help="rows of held-out text")
    parser.add_argument("--length", type=int, default=1024, help="bytes per row")
    parser.add_argument("--first", type=int, default=16, help="tokens of the first pass")
    parser.add_argument("--chunk", type=int, default=1, help="tokens of each later pass")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-length", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200, help="tokens to generate")
    parser.add_argument("--vllm", type=pathlib.Path, help="what generate_vllm.py wrote")
    parser.add_argument("--json", type=pathlib.Path, help="file to write")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).to(options.device).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    rows = compare(model, options.model, options)
    vllm = compare_vllm(model, json.loads(options.vllm.read_text())) if options.vllm else []
    result = {
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu",
        "torch": torch.__version__, "transformers": transformers.__version__,
        "training": json.loads((options.model / "training.json").read_text()),
        "held_out": {"rows": options.rows, "bytes_a_row": options.length, "first": options.first,
                     "chunk": options.chunk}, "rows": rows, "vllm": vllm,
        "sample": {"prompt": PROMPT, "text": sample(model, tokenizer, PROMPT, 2 * options.tokens)}}
    text = "{" + ",".join(f"\n {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()) + "\n}"
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
