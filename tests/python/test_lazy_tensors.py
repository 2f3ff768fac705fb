"""torch's lazily negated and conjugated tensors: never a result of the wrong sign."""

import pytest

torch = pytest.importorskip("torch")

import flashlatent
import flashlatent.torch

OPTIONS = {"softmax_scale": 0.1, "v_dim": 32}


def arguments():
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator)
    table = torch.tensor([[5, 0, 2], [7, 1, 3]], dtype=torch.int32)
    return [draw(2, 1, 4, 64).half(), draw(8, 16, 1, 64).half(), table, torch.tensor([40, 9], dtype=torch.int32)]


def negated(tensor):
    """Equal to `tensor`, and its memory holds the opposite."""
    lazy = torch._neg_view(-tensor)
    assert lazy.is_neg() and torch.equal(lazy, tensor)
    return lazy


@pytest.mark.parametrize("place, name", [(0, "q"), (1, "kv_cache")])
def test_refused(place, name):
    lazy = arguments()
    lazy[place] = negated(lazy[place])
    with pytest.raises(flashlatent.InvalidArgumentError, match=f"{name} is a lazily negated.*resolve_neg\\({name}\\)"):
        flashlatent.decode(*lazy, **OPTIONS)
    lazy[place] = torch.resolve_neg(lazy[place])
    assert torch.equal(flashlatent.decode(*lazy, **OPTIONS)[0], flashlatent.decode(*arguments(), **OPTIONS)[0])


def test_imaginary_part_of_a_conjugate():
    q, *rest = arguments()
    imaginary = torch.complex(torch.zeros(2, 1, 4, 64), -q.float()).conj().imag
    partial = imaginary[None], torch.zeros(1, 2, 4, 1)
    with pytest.raises(flashlatent.InvalidArgumentError, match="partial_out is a lazily negated"):
        flashlatent.combine(*partial)
    out, _ = flashlatent.torch.combine(*partial)
    torch.testing.assert_close(out, q.float())


def test_outputs():
    out = torch._neg_view(torch.empty(2, 1, 4, 32).half())
    with pytest.raises(flashlatent.InvalidArgumentError, match="out is a lazily negated"):
        flashlatent.decode(*arguments(), out=out, **OPTIONS)
    with pytest.raises(flashlatent.InvalidArgumentError, match="out is a lazily negated"):
        flashlatent.torch.decode_out(*arguments(), out=out, lse=torch.empty(2, 4, 1), **OPTIONS)


@pytest.mark.parametrize("place", [0, 1])
def test_operator(place):
    """torch resolves what an operator gets."""
    lazy = arguments()
    lazy[place] = negated(lazy[place])
    expected = flashlatent.decode(*arguments(), **OPTIONS)[0]
    assert torch.equal(flashlatent.torch.decode(*lazy, **OPTIONS)[0], expected)
    assert torch.equal(torch.ops.flashlatent.decode(*lazy, **OPTIONS)[0], expected)


def test_complex():
    _, *rest = arguments()
    # torch before 2.10 exports no lazily conjugated tensor, and says so.
    with pytest.raises(flashlatent.InvalidArgumentError, match="q has elements of type complex64; bf16 and fp16|q can't be "
                       "read where it is: Can't export tensors with the conjugate bit set"):
        flashlatent.decode(torch.zeros(2, 1, 4, 64, dtype=torch.complex64).conj(), *rest, **OPTIONS)
