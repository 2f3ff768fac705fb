"""vLLM's sparse layers with their tokens from index_topk(): the sets that float32 scores give, but for ties."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
TREE = os.environ.get("FLASHLATENT_VLLM")
if not TREE:
    pytest.skip("FLASHLATENT_VLLM is not set; scripts/check engines sets it", allow_module_level=True)
sys.path.insert(0, TREE)
sys.path.insert(0, os.path.dirname(__file__))

import flashlatent.vllm  # noqa: E402
from flashlatent.vllm import _indexer_choice  # noqa: E402
from index_case import DIM, Batch, check_best  # noqa: E402
from vllm_case import DEVICE, vllm_config  # noqa: E402

flashlatent.vllm.register()
TOPK = 96
LENGTHS = [700, 90, 400, 1, 0]
BLOCK, BLOCKS = 8, 20  # DeepSeek V4.1's candidates


class VllmBatch(Batch):
    def metadata(self, decodes, way="native"):
        """What vLLM's builder makes of it; the first `decodes` requests are decode's."""
        from vllm.v1.attention.backends.mla import indexer

        rows = sum(self.new[:decodes])
        seen = torch.tensor([n for _, n in self.sees], dtype=torch.int32)
        requests = torch.tensor([i for i, _ in self.sees])
        counts = torch.tensor(self.new[:decodes], dtype=torch.int32)
        table = self.keys.table
        if way == "flattened":
            decode = (table[requests[:rows]], seen[:rows, None], torch.ones(rows, dtype=torch.int32), False)
        else:
            most = max(self.new[:decodes], default=1)
            lens = torch.tensor(self.lengths[:decodes])[:, None] - most + 1 + torch.arange(most)
            decode = (table[:decodes], (lens.clamp(min=0) // self.ratio).int(), counts, len(set(counts.tolist())) > 1)
        names = ("block_table", "seq_lens", "decode_lens", "requires_padding")
        decode = SimpleNamespace(**{name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x
                                    for name, x in zip(names, decode)})
        chunks = []
        if rows < len(seen):
            parts = torch.tensor([0] + [n // self.ratio for n in self.lengths[decodes:]]).cumsum(0).int()
            begins = parts[requests[rows:] - decodes]
            for start, stop in ((0, 5), (5, len(seen) - rows)):  # a chunk may end within a request
                chunks.append(SimpleNamespace(
                    block_table=table[decodes:].to(DEVICE), token_start=rows + start, token_end=rows + stop,
                    cu_seqlen_ks=begins[start:stop].to(DEVICE),
                    cu_seqlen_ke=(begins + seen[rows:])[start:stop].to(DEVICE), local_cu_seq_lens=parts.to(DEVICE)))
        return indexer.DeepseekV32IndexerMetadata(
            seq_lens=None, max_seq_len=max(self.lengths), slot_mapping=torch.arange(len(seen)), num_decodes=decodes,
            num_decode_tokens=rows, num_prefills=len(self.new) - decodes, num_prefill_tokens=len(seen) - rows,
            decode=decode if decodes else None, prefill=SimpleNamespace(chunks=chunks))


@pytest.fixture
def configured(monkeypatch):
    """vLLM's configuration with the plugin as its backend and the option as said."""
    from vllm.model_executor.layers import sparse_attn_indexer
    monkeypatch.setattr(sparse_attn_indexer, "has_deep_gemm", lambda: True)

    def configure(value=True, backend=None, **parallel):
        manager = vllm_config(sparse=True)
        config = manager.__enter__()
        config.additional_config = {} if value is None else {"flashlatent_indexer": value}
        config.attention_config = SimpleNamespace(
            backend=SimpleNamespace(name=backend or flashlatent.vllm.backend_name()))
        for name, ranks in parallel.items():
            monkeypatch.setattr(config.parallel_config, name, ranks)
        managers.append(manager)

    managers = []
    yield configure
    for manager in managers:
        manager.__exit__(None, None, None)


def indexer_of(keys, buffer, prefix="layer.k_cache", **options):
    from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer
    cache = SimpleNamespace(prefix=prefix, kv_cache=keys.cache)
    return SparseAttnIndexer(cache, 128, "ue8m0", TOPK, DIM, 2048, 2048, buffer, True, **options)


def run(monkeypatch, indexer, batch, metadata, rows, keys=None):
    """By vLLM's operator, as its models call it."""
    from vllm import forward_context

    monkeypatch.setattr(forward_context, "_forward_context", SimpleNamespace(attn_metadata={"layer.k_cache": metadata}))
    return indexer.forward_cuda(torch.zeros(rows, 1, device=DEVICE), batch.q, keys, batch.weights)


CASES = [
    ([1, 1, 1, 1, 0], 4, "native"),  # decode alone
    ([2, 2, 2], 3, "native"),
    ([2, 2, 2], 3, "flattened"),
    ([3, 1, 2], 3, "native"),  # padded in vLLM
    ([1, 1, 30], 2, "native"),  # a prompt, too
    ([40, 25, 30], 0, "native"),
]


@pytest.mark.parametrize("new, decodes, way", CASES)
@pytest.mark.parametrize("ratio", [1, 4])
def test_the_best_tokens_are_chosen(monkeypatch, configured, new, decodes, way, ratio):
    configured()
    batch = VllmBatch(LENGTHS[:len(new)], new, ratio)
    rows = len(batch.sees)
    buffer = torch.full((rows + 3, TOPK + 32), 77, dtype=torch.int32, device=DEVICE)
    indexer = indexer_of(batch.keys, buffer)
    run(monkeypatch, indexer, batch, batch.metadata(decodes, way), rows + 2)
    for row in range(rows):
        check_best(batch.scores(row), buffer[row, :TOPK].cpu(), TOPK)
    assert (buffer[rows:rows + 2] == -1).all() and (buffer[rows + 2] == 77).all()


@pytest.mark.parametrize("lengths", [[700, 2, 90], [700, 90, 2]])
def test_prompts_without_a_key_have_no_tokens(monkeypatch, configured, lengths):
    configured()
    batch = VllmBatch(lengths, [1, *(min(n, 30) for n in lengths[1:])], ratio=4)
    buffer = torch.full((len(batch.sees), TOPK), 77, dtype=torch.int32, device=DEVICE)
    run(monkeypatch, indexer_of(batch.keys, buffer), batch, batch.metadata(1), len(batch.sees))
    for row in range(len(batch.sees)):
        check_best(batch.scores(row), buffer[row].cpu(), TOPK)


def test_rows_behind_decodes_last_have_no_tokens(monkeypatch, configured):
    configured()
    batch = VllmBatch(LENGTHS[:3], [3, 1, 2])
    metadata = batch.metadata(3)
    metadata.num_decode_tokens += 2  # padding of a graph
    rows = metadata.num_decode_tokens
    batch.q, batch.weights = (torch.cat([x, x[:2]]) for x in (batch.q, batch.weights))
    buffer = torch.full((rows, TOPK), 77, dtype=torch.int32, device=DEVICE)
    run(monkeypatch, indexer_of(batch.keys, buffer), batch, metadata, rows)
    for row in range(len(batch.sees)):
        check_best(batch.scores(row), buffer[row].cpu(), TOPK)
    assert (buffer[len(batch.sees):] == -1).all()


@pytest.mark.parametrize("new, decodes, way", CASES)
def test_candidates_of_one_layer_bound_the_next(monkeypatch, configured, new, decodes, way):
    from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer
    if "candidate_blocks" not in SparseAttnIndexer.forward_cuda.__code__.co_names:
        pytest.skip("this vLLM has no candidates")
    configured()
    batch = VllmBatch(LENGTHS[:len(new)], new)
    rows = len(batch.sees)
    buffer = torch.empty(rows, TOPK, dtype=torch.int32, device=DEVICE)
    blocks = torch.full((rows, BLOCKS), 77, dtype=torch.int32, device=DEVICE)
    options = dict(candidate_blocks=blocks, candidate_block_size=BLOCK)
    run(monkeypatch, indexer_of(batch.keys, buffer, candidate_write=True, **options), batch,
        batch.metadata(decodes, way), rows)
    for row in range(rows):
        scores = batch.scores(row)
        check_best(scores, buffer[row].cpu(), TOPK)
        best = torch.stack([part.max() for part in scores.split(BLOCK)]) if len(scores) else scores
        best[-1:] = float("inf")  # the newest
        check_best(best, blocks[row].cpu(), BLOCKS)
    run(monkeypatch, indexer_of(batch.keys, buffer, **options), batch, batch.metadata(decodes, way), rows)
    for row in range(rows):
        scores = batch.scores(row)
        inside = torch.isin(torch.arange(len(scores)) // BLOCK, blocks[row].cpu())
        chosen = buffer[row][buffer[row] >= 0].cpu().long()
        assert inside[chosen].all()
        check_best(scores[inside], (inside.cumsum(0) - 1)[chosen], TOPK)


def test_new_keys_are_written_first(monkeypatch, configured):
    from vllm.model_executor.layers import sparse_attn_indexer

    configured()
    batch = VllmBatch(LENGTHS[:2], [1, 1])
    buffer = torch.empty(2, TOPK, dtype=torch.int32, device=DEVICE)
    indexer = indexer_of(batch.keys, buffer)
    indexer.skip_k_cache_insert = False
    calls = []
    monkeypatch.setattr(sparse_attn_indexer, "ops", SimpleNamespace(
        indexer_k_quant_and_cache=lambda *args: calls.append(args)))
    keys = torch.randn(4, DIM, device=DEVICE)
    run(monkeypatch, indexer, batch, batch.metadata(2), 2, keys)
    ((written, cache, slots, group, form),) = calls
    assert torch.equal(written, keys[:2]) and cache.shape == batch.keys.cache.shape
    assert slots.tolist() == [0, 1] and (group, form) == (128, "ue8m0")


def test_it_is_off_unless_said(monkeypatch, configured):
    monkeypatch.setattr(_indexer_choice, "_taken", set())
    batch = VllmBatch(LENGTHS[:1], [1])
    for value in (None, False):
        configured(value)
        indexer_of(batch.keys, torch.empty(1, TOPK, dtype=torch.int32))
    assert not _indexer_choice._taken
    configured()
    indexer_of(batch.keys, torch.empty(1, TOPK, dtype=torch.int32))
    assert _indexer_choice._taken == {"layer.k_cache"}
    configured(None)  # a later engine of the process, whose layer has the same name
    indexer_of(batch.keys, torch.empty(1, TOPK, dtype=torch.int32))
    assert not _indexer_choice._taken


def test_modules_that_call_the_function_are_changed(monkeypatch):
    from vllm.model_executor.layers import sparse_attn_indexer

    before = sparse_attn_indexer.sparse_attn_indexer
    caller = ModuleType("caller")
    caller.sparse_attn_indexer = before
    monkeypatch.setitem(sys.modules, "caller", caller)
    monkeypatch.setattr(_indexer_choice, "_libraries", [])
    _indexer_choice._take(sparse_attn_indexer)
    assert caller.sparse_attn_indexer is sparse_attn_indexer.sparse_attn_indexer is not before


@pytest.mark.parametrize("config, options, sentence", [
    (dict(value=1), {}, "flashlatent_indexer in additional_config is 1; true or false is expected"),
    (dict(backend="FLASHMLA_SPARSE"), {}, "the attention backend is FLASHMLA_SPARSE; .* is expected beside it"),
    (dict(), dict(use_fp4_cache=True), "indexer_kv_dtype is mxfp4; fp8 is expected"),
])
def test_what_does_not_fit_is_refused(configured, config, options, sentence):
    configured(**config)
    batch = VllmBatch(LENGTHS[:1], [1])
    with pytest.raises(ValueError, match=sentence):
        indexer_of(batch.keys, torch.empty(1, TOPK, dtype=torch.int32), **options)


@pytest.mark.parametrize("faults, ranks, sentence", [
    (["sparse_attn_indexer is not there"], 1, "false is expected with this vLLM: sparse_attn_indexer is not there"),
    ([], 2, "decode_context_parallel_size is 2; 1 is expected beside it"),
])
def test_ranks_that_share_a_context_are_refused(faults, ranks, sentence):
    name = flashlatent.vllm.backend_name()
    config = SimpleNamespace(
        additional_config={"flashlatent_indexer": True},
        attention_config=SimpleNamespace(backend=SimpleNamespace(name=name)),
        parallel_config=SimpleNamespace(decode_context_parallel_size=ranks, prefill_context_parallel_size=1))
    with pytest.raises(ValueError, match=sentence):
        _indexer_choice._wanted(SimpleNamespace(use_fp4_cache=False), config, name, faults)
