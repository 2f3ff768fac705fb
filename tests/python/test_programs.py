"""python -m flashlatent.*: wrong usage and input end with 2 and a line; a closed pipe and ^C end in silence."""

import json
import os
import signal
import subprocess
import sys

import pytest

PROGRAM = [sys.executable, "-m"]


def run(module, *arguments, **options):
    return subprocess.run([*PROGRAM, f"flashlatent{module}", *arguments], stderr=subprocess.PIPE, text=True,
                          **{"stdout": subprocess.PIPE, **options})


def refused(text, module, *arguments):
    done = run(module, *arguments)
    assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("text", ["[]", "3", '{"results": 3}', '{"results": [1]}', '{"results": [{}]}', '{"results": []}',
                                  '{"results": [{"gpus": 1, "name": "x", "ms": "1"}]}', "{", "\xff", "[" * 100000])
def test_files_that_are_no_results(tmp_path, text):
    (tmp_path / "bad.json").write_text(text, encoding="latin-1")
    refused("", ".simulate_distributed", str(tmp_path / "bad.json"))


@pytest.mark.parametrize("text", ['{"results": [1]}', '{"parts": []}', '{"parts": 3, "ideal": 1, "kernel": "mla_16"}',
                                  '{"report": {}, "options": {}}', '{"results": [{"outcome": "right"}]}'])
def test_files_that_cannot_be_drawn(tmp_path, text):
    pytest.importorskip("matplotlib")
    (tmp_path / "bad.json").write_text(text)
    done = refused("bad.json: ", ".report", str(tmp_path / "bad.json"), "--out", str(tmp_path / "pictures"))
    assert done.stderr.count("\n") == 1


def test_options(tmp_path):
    measured = {"name": "1x64 h8", "b": 1, "s_q": 1, "h_q": 8, "s_k": 64}
    rows = [{**measured, "gpus": 1, "exchange": "none", "ms": 1.0},
            {**measured, "gpus": 2, "exchange": "all_to_all", "ms": 1.0, "local_ms": 0.5, "gather_ms": 0.2,
             "exchange_ms": 0.3}]
    good = tmp_path / "good.json"
    good.write_text(json.dumps({"results": rows}))
    for gpus in ("x", "0", "-3", "", "8,", "1.5"):
        refused("whole numbers from 1", ".simulate_distributed", str(good), f"--gpus={gpus}")
    refused("there is no folder '/none'", ".simulate_distributed", str(good), "--json", "/none/x.json")
    refused("is a directory", ".simulate_distributed", str(good), "--json", str(tmp_path))
    refused("--json is ''", ".simulate_distributed", str(good), "--json", "")
    refused("there is no folder '/none'", ".bench", "--json", "/none/x.json")
    refused("with a folder in it", ".report", str(good), "--prefix", "../x", "--out", str(tmp_path))
    refused("unrecognized arguments: bogus", "", "bogus")
    assert "usage: " in run("", "--help").stdout
    assert run(".simulate_distributed", str(good)).returncode == 0


def test_without_torch(tmp_path):
    code = ("import runpy, sys; sys.modules['torch'] = None; sys.argv[0] = sys.argv[1]; del sys.argv[1];"
            "runpy.run_module('flashlatent.' + sys.argv[0], run_name='__main__', alter_sys=False)")
    without = lambda *arguments: subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    done = without("bench_distributed")
    assert done.returncode == 2 and "torch" in done.stderr and "Traceback" not in done.stderr
    done = without("simulate_distributed", str(tmp_path / "none.json"))
    assert done.returncode == 2 and "none.json" in done.stderr


def test_the_drop_ins_program_says_how_it_is_used():
    pytest.importorskip("torch")
    refused("PROGRAM is missing", ".flash_mla")
    refused("PROGRAM is 'none.py'", ".flash_mla", "none.py")
    assert "PROGRAM" in run(".flash_mla", "--help").stdout


def test_a_closed_pipe_ends_in_silence():
    read, write = os.pipe()
    os.close(read)
    done = run("", stdout=write)
    os.close(write)
    assert done.returncode == -signal.SIGPIPE and done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk():
    with open("/dev/full", "w") as full:
        done = run("", stdout=full)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "stdout cannot be written: No space" in done.stderr


def test_a_closed_stdout():
    done = subprocess.run(["sh", "-c", '"$0" -m flashlatent >&-', sys.executable], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "stdout cannot be written" in done.stderr and done.stderr.count("\n") == 1


def test_an_interrupt_ends_in_silence():
    program = subprocess.Popen([*PROGRAM, "flashlatent.bench", "--package", "numpy"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True,
                               # a shell's background jobs ignore it, and so do those that they start
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    program.stdout.readline()  # it runs
    program.send_signal(signal.SIGINT)
    _, error = program.communicate()
    assert program.returncode == -signal.SIGINT and "Traceback" not in error


def test_results_are_a_case_a_line():
    from flashlatent import _program
    document = {"command": "x", "roof": {"read_tbps": 1.5}, "results": [{"name": "a", "l": [1, 2]}, {"name": "b"}],
                "engines": {"a": {"ms": 1}}, "failed": []}
    text = _program.a_case_a_line(document)
    assert json.loads(text) == document
    assert text.splitlines() == [
        "{", ' "command": "x",', ' "roof": {"read_tbps":1.5},', ' "results": [', '  {"name":"a","l":[1,2]},',
        '  {"name":"b"}', ' ],', ' "engines": {', '  "a": {"ms":1}', ' },', ' "failed": []', "}"]
