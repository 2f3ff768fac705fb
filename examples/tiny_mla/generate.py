"""Continues a prompt with transformers and FlashLatent, on the CPU or a GPU.

    python examples/tiny_mla/generate.py --model tiny_mla --prompt "def fibonacci(n):" [--kv-format fp8_656]
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import flashlatent.transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny_mla", help="folder that train.py wrote")
    parser.add_argument("--prompt", default='import os\n\n\ndef read_file(path):\n    """')
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--kv-format", default="bf16", choices=["bf16", "fp8_656"], help="of the cache")
    parser.add_argument("--tokens", type=int, default=300, help="most tokens to generate")
    parser.add_argument("--temperature", type=float, default=0, help="0: the likeliest token each time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).to(options.device).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    flashlatent.transformers.enable(model, kv_format=options.kv_format)
    inputs = tokenizer(options.prompt, return_tensors="pt").to(options.device)
    sampling = {"do_sample": True, "temperature": options.temperature} if options.temperature else {"do_sample": False}
    out = model.generate(inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=options.tokens,
                         **sampling)
    print(tokenizer.decode(out[0]))


if __name__ == "__main__":
    main()
