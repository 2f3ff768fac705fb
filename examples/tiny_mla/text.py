"""Text for training that is on every machine with Python: sources and their docstrings.

The standard library comes first, then installed packages. Files are taken in the order of a seeded shuffle, each
followed by a zero byte, which no source contains and which serves as the end-of-text token.
"""

import importlib.util
import pathlib
import random
import sysconfig

END = 0  # token id: the byte that ends a file
PACKAGES = ("numpy", "torch", "transformers", "scipy", "matplotlib", "jax", "sympy")


def _folders():
    yield pathlib.Path(sysconfig.get_paths()["stdlib"])
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            yield pathlib.Path(spec.submodule_search_locations[0])


def _files():
    for folder in _folders():
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).parts
            if not {"site-packages", "test", "tests", "idlelib"} & set(inside):
                yield path


def corpus(limit, seed):
    """(training bytes, held-out bytes): at most `limit` bytes of text, 2 % of the files held out."""
    files = list(_files())
    random.Random(seed).shuffle(files)
    parts, size = {True: [], False: []}, 0
    for i, path in enumerate(files):
        text = path.read_bytes()
        if END in text or not 200 <= len(text) <= 200_000:
            continue
        parts[i % 50 == 0].append(text + bytes([END]))
        size += len(text)
        if size >= limit:
            break
    return b"".join(parts[False]), b"".join(parts[True])
