"""One version everywhere."""

import importlib.metadata
import pathlib
import re

import flashlatent

ROOT = pathlib.Path(__file__).parents[2]


def found(file, pattern):
    match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.M)
    assert match, f"{file} has no {pattern}"
    return match[1]


def test_version():
    version = found("include/flashlatent/version.h", r'#define FLASHLATENT_VERSION "(.*)"')
    minor = version.rpartition(".")[0]
    parts = [found("include/flashlatent/version.h", rf"#define FLASHLATENT_VERSION_{part} (\d+)") for part in
             ("MAJOR", "MINOR", "PATCH")]
    assert ".".join(parts) == version
    assert flashlatent.__version__ == importlib.metadata.version("flashlatent") == version
    assert found("CITATION.cff", r"^version: (.*)") == version
    assert found("CHANGELOG.md", r"^## (\S+)") == version  # the newest section
    assert found("examples/CMakeLists.txt", r"find_package\(flashlatent (\S+)") == minor
    assert found("tests/consumer/CMakeLists.txt", r"WANTED_VERSION (\S+)") == minor


def test_the_changelog_is_short():
    for release in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        assert len(release.split()) <= 2000, release.splitlines()[0]
