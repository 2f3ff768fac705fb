"""Trains a byte-level language model of DeepSeek-V3's architecture on Python sources, and saves it.

    python examples/tiny_mla/train.py --out tiny_mla --seconds 100            # one GPU
    python examples/tiny_mla/train.py --out mini --hidden 128 --layers 1 --heads 2 --steps 40 --batch 4 --length 128

Writes safetensors, configuration, tokenizer, heldout.txt (text that was not trained on) and training.json.
"""

import argparse
import json
import math
import pathlib
import time

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import DeepseekV3ForCausalLM

from model import configuration, tokenizer
from text import corpus


def batches(text, batch, length, device, seed):
    """Endless (batch, length + 1) of bytes from random places."""
    places = np.random.default_rng(seed)
    text = np.frombuffer(text, np.uint8)
    while True:
        starts = places.integers(0, len(text) - length - 1, batch)
        rows = np.stack([text[start:start + length + 1] for start in starts])
        yield torch.from_numpy(rows).to(device, non_blocking=True).long()


def loss_of(model, rows):
    with torch.autocast(rows.device.type, torch.bfloat16):
        logits = model(rows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model, text, length, device, rows=64):
    """Mean loss (nats a byte) over the first rows of the held-out text."""
    rows = min(rows, len(text) // (length + 1))
    text = torch.from_numpy(np.frombuffer(text, np.uint8)[:rows * (length + 1)].copy()).view(rows, -1)
    losses = [loss_of(model, part.to(device).long()).item() * len(part) for part in text.split(16)]
    return sum(losses) / rows


def train(model, text, options):
    """Trains for so many seconds or steps; returns (steps, smoothed loss). The learning rate rises, then falls to 0."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=options.rate, betas=(0.9, 0.95), fused=True)
    rows = batches(text, options.batch, options.length, options.device, options.seed)
    loss, step, begin = float("nan"), 0, time.monotonic()
    with tqdm(total=100, unit="%", desc="train", mininterval=1) as bar:
        while True:
            part = step / options.steps if options.steps else (time.monotonic() - begin) / options.seconds
            if part >= 1:
                break
            rate = options.rate * min(1, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * part))
            for group in optimizer.param_groups:
                group["lr"] = rate
            now = loss_of(model, next(rows))
            optimizer.zero_grad(set_to_none=True)
            now.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 20 == 0:  # reading the loss waits for the device
                loss = now.item() if math.isnan(loss) else 0.8 * loss + 0.2 * now.item()
                bar.set_postfix(step=step, loss=f"{loss:.3f}", refresh=False)
            bar.update(max(0, int(100 * part) - bar.n))
        bar.update(100 - bar.n)
    return step, loss


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default="tiny_mla", help="folder for the model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=100, help="how long to train")
    parser.add_argument("--steps", type=int, default=0, help="how many steps to train, instead of --seconds")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64, help="rows a step")
    parser.add_argument("--length", type=int, default=1024, help="bytes per row")
    parser.add_argument("--rate", type=float, default=2e-3, help="the highest learning rate")
    parser.add_argument("--text", type=int, default=128, help="most megabytes of text to read")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    text, held_out = corpus(options.text << 20, options.seed)
    model = DeepseekV3ForCausalLM(configuration(options.hidden, options.layers, options.heads)).to(options.device)
    steps, loss = train(model, text, options)
    held_out_nats = held_out_loss(model.eval(), held_out, options.length, options.device)

    options.out.mkdir(parents=True, exist_ok=True)
    model.generation_config.do_sample = False
    model.to(torch.bfloat16).save_pretrained(options.out, max_shard_size="13MB")
    tokenizer().save_pretrained(options.out)
    (options.out / "heldout.txt").write_bytes(held_out[:1 << 18])
    result = {
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu",
        "parameters": sum(p.numel() for p in model.parameters()), "hidden": options.hidden, "layers": options.layers,
        "heads": options.heads, "text_bytes": len(text), "steps": steps, "trained_bytes": steps * options.batch *
        options.length, "seconds": options.seconds if not options.steps else None, "seed": options.seed,
        "train_loss": round(loss, 4), "held_out_loss": round(held_out_nats, 4),
        "held_out_bits_per_byte": round(held_out_nats / math.log(2), 4)}
    (options.out / "training.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
