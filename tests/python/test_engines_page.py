"""The code of docs/engines.md for engines of one's own does what the page says, one block after another."""

import math
import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "engines.md"


def test_code_of_the_page():
    torch = pytest.importorskip("torch")
    _, heading, text = PAGE.read_text(encoding="utf-8").partition("\n## Your own engine\n")  # no engine is needed there
    assert heading
    blocks = re.findall(r"^```python .*?\n(.*?)^```", text, flags=re.M | re.S)
    names, after = {}, []
    torch.manual_seed(0)
    for block in blocks:
        exec(block, names)
        assert names["block_table"].tolist() == [[5, 0, 2], [7, -1, -1]]
        after.append({name: names[name] for name in ("q", "out", "lse", "cache_seqlens")})
    step, flash_mla, csr, apart, separate = after
    assert step["out"].shape == (2, 1, 16, 512)
    # The same tokens by another page table, and by the drop-in, which gives the same lse.
    for other in (flash_mla, csr):
        assert torch.equal(other["out"], step["out"]) and torch.equal(other["lse"], step["lse"])
    assert csr["cache_seqlens"].tolist() == [150, 40]
    assert apart["q"].shape == (2, 1, 16, 576) and apart["out"].shape == (2, 1, 16, 512)
    # In base 2, (batch, heads), of HND.
    assert separate["out"].shape == (2, 32, 128) and separate["lse"].shape == (2, 32)
    pages, lengths = names["kv_data"], [150, 40]
    for request, row in enumerate(names["block_table"].tolist()):
        tokens = pages[[page for page in row if page >= 0]].float()  # (pages, 2, heads, page_size, d)
        keys, values = tokens.transpose(0, 1).transpose(2, 3).flatten(1, 2)[:, :lengths[request]]
        scores = torch.einsum("hd,thd->ht", names["q"][request].float(), keys.repeat_interleave(4, 1)) * 128**-0.5
        expected = torch.einsum("ht,thd->hd", scores.softmax(-1), values.repeat_interleave(4, 1))
        torch.testing.assert_close(separate["out"][request].float(), expected, rtol=2**-6, atol=2**-7)
        torch.testing.assert_close(separate["lse"][request], scores.logsumexp(-1) / math.log(2))


def test_views_of_the_page():
    """Each view names the elements that the layout's name says."""
    torch = pytest.importorskip("torch")
    nhd = torch.randn(3, 8, 2, 64)
    assert torch.equal(nhd.transpose(1, 2).contiguous().transpose(1, 2), nhd)
    keys, values = torch.stack([nhd, -nhd], 1).unbind(1)
    assert torch.equal(keys, nhd) and torch.equal(values, -nhd)
    keys, values = torch.cat([nhd, -nhd], -1).transpose(1, 2).contiguous().transpose(1, 2).chunk(2, -1)
    assert torch.equal(keys, nhd) and torch.equal(values, -nhd)
