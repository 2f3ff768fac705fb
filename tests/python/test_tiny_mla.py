"""examples/tiny_mla in miniature: a model is trained, saved, loaded, compared, and continues a text."""

import json
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "tiny_mla"


def run(script, *options):
    done = subprocess.run([sys.executable, FOLDER / script, *map(str, options)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny_mla") / "model"
    run("train.py", "--out", folder, "--device", "cpu", "--hidden", 64, "--layers", 1, "--heads", 2, "--steps", 12,
        "--batch", 4, "--length", 64, "--text", 1)
    return folder


def test_the_tokenizer_is_bytes(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("def f(x):\n    return x", " two  spaces ", "naïve Ā 日本\t\r\n"):
        ids = tokenizer(text).input_ids
        assert ids == list(text.encode()) and tokenizer.decode(ids) == text


def test_training_and_comparison(folder, tmp_path):
    training = json.loads((folder / "training.json").read_text())
    assert training["steps"] == 12 and training["held_out_bits_per_byte"] < 8
    run("compare.py", "--model", folder, "--device", "cpu", "--rows", 2, "--length", 64, "--chunk", 8, "--prompts", 2,
        "--prompt-length", 20, "--tokens", 6, "--json", tmp_path / "out" / "result.json")
    rows = {row["cache"]: row for row in json.loads((tmp_path / "out" / "result.json").read_text())["rows"]}
    exact = rows["none"]["perplexity"]
    assert rows["bf16"]["perplexity"] == pytest.approx(exact, rel=0.01)
    assert rows["fp8_656"]["perplexity"] == pytest.approx(exact, rel=0.05)
    assert rows["bf16"]["mean_logprob_error"] < 2 * rows["bf16, expanded each step"]["mean_logprob_error"] + 1e-3


def test_a_text_is_continued(folder):
    prompt = "import os\n"
    for options in ((), ("--kv-format", "fp8_656", "--temperature", 1)):
        out = run("generate.py", "--model", folder, "--device", "cpu", "--prompt", prompt, "--tokens", 5, *options)
        assert out.startswith(prompt)


@pytest.mark.parametrize("script", ["train.py", "compare.py", "generate.py", "generate_vllm.py"])
def test_help(script):
    assert "--model" in run(script, "--help") or script == "train.py"
