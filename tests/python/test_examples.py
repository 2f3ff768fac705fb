"""The examples run and say that they are right."""

import pathlib
import subprocess
import sys

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


def test_mla_layer():
    pytest.importorskip("torch")
    done = run("mla_layer.py", "--tokens", "30")  # over a page's end
    assert done.returncode == 0, done.stdout + done.stderr


def test_cuda_graph_decode():
    pytest.importorskip("torch")
    done = run("cuda_graph_decode.py", "--steps", "70")
    if flashlatent.info()["backends"]["cuda"]["available"]:
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert done.returncode == 1 and done.stderr.startswith("cuda_graph_decode: it needs a GPU: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_first_call_of_the_docs(page):
    text = (EXAMPLES.parent / page).read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    names = {}
    exec(code, names)
    assert names["out"].shape == (2, 1, 16, 512) and names["lse"].shape == (2, 16, 1)
