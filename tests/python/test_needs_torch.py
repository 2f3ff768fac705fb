"""Modules that need torch name what is missing; the package itself works without it, and `python -m flashlatent` too."""

import subprocess
import sys

import pytest

WITHOUT = "import sys; sys.modules['torch'] = None"
OLD = ("import sys, types; torch = sys.modules['torch'] = types.ModuleType('torch'); torch.__version__ = '2.3.1'; "
       "torch.library = types.SimpleNamespace()")


def run(text):
    return subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("module", ["torch", "flash_mla", "distributed", "transformers"])
@pytest.mark.parametrize("before,error", [(WITHOUT, "ModuleNotFoundError: torch is not installed; "),
                                          (OLD, "ImportError: torch is 2.3.1; ")])
def test_modules_that_need_torch(module, before, error):
    done = run(f"{before}; import flashlatent.{module}")
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith(error) and "need torch 2.4 or newer" in line, done.stderr


@pytest.mark.parametrize("module", ["__main__", "bench", "simulate_distributed"])
def test_programs_without_torch(module):
    done = run(f"{WITHOUT}; import flashlatent.{module} as program; program.main(['--help'])")
    assert done.returncode == 0 and "usage: " in done.stdout, done.stderr


def test_what_there_is_to_run_on():
    done = run(f"{WITHOUT}; import flashlatent.__main__ as program; program.main([])")
    assert done.returncode == 0, done.stderr
    first = [line for line in done.stdout.splitlines() if line.startswith("backend ")]
    assert first[0] == "backend cpu: available"
    assert first[1] in ("backend cuda: available", "backend cuda: not available")  # why stands on the next line
