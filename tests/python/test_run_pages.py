"""scripts/run_pages: which blocks of a page are commands."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
loader = importlib.machinery.SourceFileLoader("run_pages", str(ROOT / "scripts/run_pages"))
spec = importlib.util.spec_from_loader("run_pages", loader)
pages = importlib.util.module_from_spec(spec)
loader.exec_module(pages)

PAGE = """# A page
```sh
true
```
- in a list:
  ```sh needs=gpu,time
  flashlatent info
    --option
  ```
```
not a command
```
```python
part()
```
```python run
print(1)
```
```cpp run
int main() {}
```
```text
flashlatent
```
"""


def test_blocks():
    found = pages.blocks("page.md", PAGE)
    assert [(block.line, block.language, block.needs) for block in found] == [
        (3, "sh", ()), (7, "sh", ("gpu", "time")), (17, "python", ()), (20, "cpp", ())]
    assert found[1].text == "flashlatent info\n  --option\n"
    assert str(found[0]) == "page.md:3"


def test_programs_that_go_on():
    page = """
```python run needs=torch
x = 1
```
```python more
print(x)
```
```text prints
1
```
```python more needs=gpu
x = 2
```
```cpp part
f();
```
"""
    run, more, last, part = pages.blocks("page.md", page)
    assert (run.text, more.text, last.text) == ("x = 1\n", "x = 1\nprint(x)\n", "x = 1\nprint(x)\nx = 2\n")
    assert (run.prints, more.prints, last.prints) == ("", "1\n", "")
    assert (run.needs, more.needs, set(last.needs)) == (("torch",), ("torch",), {"torch", "gpu"})
    assert (part.mark, part.text) == ("part", "f();\n")


def test_a_source_file_is_compiled_in_the_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "WORK", tmp_path)
    for number, (text, status) in enumerate([('#include "core/formats/formats.h"\n', 0), ("int f() { return g(); }\n", 1)]):
        block, = pages.blocks("page.md", f"```cpp source\n{text}```\n")
        script = pages.script_of(block, str(number), set())
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode != 0) == status and (status == 0 or "page.md:2" in done.stderr)


def test_parts_are_compiled_together(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "WORK", tmp_path)
    (tmp_path / "prefix").mkdir()
    (tmp_path / "prefix/include").symlink_to(ROOT / "include")
    for name, texts, status in [("right", ["int n = 1;\n", "int n = layers;\n"], 0), ("wrong", ["int n = 1;\n", "m;\n"], 1)]:
        parts = [pages.Block("page.md", 10 * i, "cpp", (), text, "part") for i, text in enumerate(texts, 1)]
        done = subprocess.run(["bash", "-c", pages.script_of_parts(parts, name)], cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode != 0) == status and (status == 0 or "page.md:20" in done.stderr)


def test_what_a_program_prints_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "WORK", tmp_path)
    for number, (prints, status) in enumerate([("1\n", 0), ("2\n", 1), ("0\n1\n", 0)]):
        block = pages.Block("page.md", 1, "python", (), "print(0)\nprint(1)\n", "run", prints)
        script = "set -euo pipefail\n" + pages.script_of(block, str(number), set())
        script = script.replace("python ", f"{sys.executable} ", 1)
        assert subprocess.run(["bash", "-c", script], capture_output=True).returncode == status


@pytest.mark.parametrize("mark, message", [("python more", "no 'python run' stands before"),
                                           ("text prints", "no program stands before")])
def test_nothing_to_go_on_with(mark, message):
    with pytest.raises(ValueError, match=message):
        pages.blocks("page.md", f"\n```sh\ntrue\n```\n```{mark}\n```\n")


def test_lines_that_are_left_out():
    text = "flashlatent info\nbench   # needs a GPU\n\nctest  # takes minutes: all of them\n"
    assert pages.lines_to_run(text, set()) == "flashlatent info\n"
    assert pages.lines_to_run(text, {"gpu"}) == "flashlatent info\nbench   # needs a GPU\n"


@pytest.mark.parametrize("mark", ["sh need=gpu", "sh needs=luck", "sh run", "python runs", "cpp needs=gpu,", "sh gpu", "cpp more", "python run more"])
def test_unknown_marks(mark):
    with pytest.raises(ValueError, match="page.md:2: the fence's mark is"):
        pages.blocks("page.md", f"\n```{mark}\n```\n")


def test_a_fence_without_an_end():
    with pytest.raises(ValueError, match="page.md:1: the fence has no end"):
        pages.blocks("page.md", "```sh\ntrue\n")


def test_marks_of_all_pages():
    for glob in pages.PAGES:
        for path in ROOT.glob(glob):
            pages.blocks(path.name, path.read_text(encoding="utf-8"))
