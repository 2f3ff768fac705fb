"""The code of docs/engines.md for engines of one's own runs, one block after another."""

import pathlib

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "engines.md"


def test_code_of_the_page():
    torch = pytest.importorskip("torch")
    _, heading, text = PAGE.read_text(encoding="utf-8").partition("\n## Your own engine\n")  # no engine is needed there
    assert heading
    blocks = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    assert len(blocks) == 2
    names = {}
    torch.manual_seed(0)
    for block in blocks:
        exec(block, names)
    assert names["out"].shape == (2, 1, 16, 512)
    assert names["block_table"].tolist() == [[5, 0, 2], [7, -1, -1]] and names["cache_seqlens"].tolist() == [150, 40]


def test_views_of_the_page():
    """Each view names the elements that the layout's name says."""
    torch = pytest.importorskip("torch")
    nhd = torch.randn(3, 8, 2, 64)
    assert torch.equal(nhd.transpose(1, 2).contiguous().transpose(1, 2), nhd)
    keys, values = torch.stack([nhd, -nhd], 1).unbind(1)
    assert torch.equal(keys, nhd) and torch.equal(values, -nhd)
    keys, values = torch.cat([nhd, -nhd], -1).transpose(1, 2).contiguous().transpose(1, 2).chunk(2, -1)
    assert torch.equal(keys, nhd) and torch.equal(values, -nhd)
