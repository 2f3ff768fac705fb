"""bench/results/README.md: which commit each kept file is of."""

import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "bench/results/README.md"
HEAD = "| source tree | commit | files |\n|---|---|---|\n"
ROW = re.compile(r"\| ([0-9a-f]{7}|unknown)(?:-dirty)? \| (\S+) \| .* \|")


def files_of_trees():
    """{source tree's name in the table: files}, of files that have one."""
    found = {}
    for path in sorted((ROOT / "bench/results").rglob("*.json")):
        tree = json.loads(path.read_text()).get("source_tree")
        if tree:
            name = tree[:7] + "-dirty" * tree.endswith("-dirty")
            found.setdefault(name, []).append(str(path.relative_to(ROOT / "bench/results")))
    return found


def commits():
    """{first 7 digits of a tree: first commit that has it}, as the checkout's history goes."""
    log = subprocess.run(["git", "log", "--format=%h %T"], cwd=ROOT, capture_output=True, text=True).stdout
    return {tree[:7]: commit for commit, tree in (line.split() for line in log.splitlines())}


def known_commits():
    """{first 7 digits of a tree: commit}, as the page has them."""
    return {match[1]: match[2] for match in map(ROW.fullmatch, PAGE.read_text().split("\n")) if match}


def files_in_words(files):
    """Each as a link; of many in one folder the folder."""
    folders = {}
    for file in files:
        folders.setdefault(file.rpartition("/")[0], []).append(file)
    texts = []
    for folder, members in folders.items():
        texts += [f"[{folder}]({folder}): {len(members)} files"] if len(members) > 6 else [f"[{f}]({f})" for f in members]
    return ", ".join(texts)


def rewritten(text, known):
    """The page with its table as the files are. Commits that the page has stay; `known` has those of new files."""
    before, _, rest = text.partition(HEAD)
    lines = rest.split("\n")
    end = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    old = {match[1]: match[2] for match in map(ROW.fullmatch, lines[:end]) if match}
    rows = []
    for name, files in files_of_trees().items():
        tree = name.removesuffix("-dirty")
        commit = old.get(tree, "–")
        rows.append(f"| {name} | {known.get(tree, '–') if commit == '–' else commit} | {files_in_words(files)} |")
    return before + HEAD + "\n".join(rows + lines[end:])


def is_old():
    """Does a kept file lack its row, or a row its files? Asks git nothing: a checkout may have no history."""
    return rewritten(PAGE.read_text(), {}) != PAGE.read_text()


def write():
    PAGE.write_text(rewritten(PAGE.read_text(), commits()))
