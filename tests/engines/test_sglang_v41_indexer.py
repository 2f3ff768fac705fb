"""DeepSeek V4.1's indexers in SGLang 0.5.23 with index_topk(), without a GPU: tokens and candidate blocks beside
float32 scores of SGLang's own rounding of queries, of keys read by SGLang's own layout. The same sets but for ties.
FLASHLATENT_SGLANG names the folder to import sglang from."""

import importlib
import os
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
TREE = os.environ.get("FLASHLATENT_SGLANG")
if not TREE or not os.path.isdir(os.path.join(TREE, "sglang/srt/layers/attention/dsv4/v41_indexer")):
    pytest.skip("FLASHLATENT_SGLANG is no SGLang with DeepSeek V4.1; scripts/check engines sets it to one",
                allow_module_level=True)
sys.path.insert(0, os.path.dirname(__file__))

import flashlatent  # noqa: E402
import flashlatent.sglang  # noqa: E402
from flashlatent import _gpu  # noqa: E402
from flashlatent.sglang import _indexer_choice  # noqa: E402
from index_case import check_best  # noqa: E402
from sglang_source import empty_packages, load, never, taken  # noqa: E402

HEADS, DIM, PAGE, INDEX_PAGE, TOPK = 32, 128, 256, 64, 96
BLOCK, BLOCKS = 8, 20
LENGTHS, NEW = [700, 90, 400], [30, 1, 12]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


class Pool:
    """SGLang's pool of index keys, as far as indexers ask; `bytes` by its own layout of a page."""

    page_size = PAGE

    def __init__(self, pages, ratio):
        self.keys = torch.full((pages * (PAGE // ratio // INDEX_PAGE), INDEX_PAGE * 68), 127, dtype=torch.uint8)

    def get_index_k_page_size(self, ratio):
        return INDEX_PAGE

    def get_index_k_with_scale_buffer(self, layer_id):
        return self.keys


@pytest.fixture
def sglang(monkeypatch):
    """SGLang's functions around its indexers, and what its backend's module makes after the plugin."""
    for name in [n for n in sys.modules if n == "sglang" or n.startswith("sglang.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "flashlatent.sglang._v41_indexer", raising=False)
    monkeypatch.delattr(flashlatent.sglang, "_v41_indexer", raising=False)
    before = set(sys.modules)
    dsv4 = "sglang.srt.layers.attention.dsv4"
    empty_packages("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.attention", dsv4,
                   dsv4 + ".v41_indexer", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.quantization")
    load(dsv4 + ".metadata", taken("srt/layers/attention/dsv4/metadata.py", ["expand_index_page_table"]), torch=torch)
    source = taken("srt/layers/attention/dsv4/v41_indexer/dense_blocks.py", ["BlockIds"], {"BlockIds": ["tail"]})
    blocks = load(dsv4 + ".v41_indexer.dense_blocks", source, get_tail_row_indices=lambda **options: options)
    blocks.BlockIds.__init__ = lambda self, blocks, rows_per_request=None: self.__dict__.update(
        blocks=blocks, rows_per_request=rows_per_request)
    tail = dict(torch=torch)
    exec(taken("srt/layers/attention/dsv4/dsv41_sparse.py", ["rope_tail"]), tail)  # noqa: S102
    pool = load("pool", taken("srt/mem_cache/deepseek_v4_memory_pool.py", ["DeepSeekV4IndexerPool"],
                              {"DeepSeekV4IndexerPool": ["get_index_k_fp4"]}), torch=torch)
    module = SimpleNamespace(
        make_candidate_indexer=lambda *, token_to_kv_pool, req_to_token, page_size, candidate_topk_blocks,
        candidate_block_size: ("theirs", "theirs"),
        make_full_topk_indexer=lambda *, token_to_kv_pool, req_to_token: "theirs")
    _indexer_choice._change_v41(module)
    monkeypatch.setattr(_gpu, "on_hopper", lambda: True)
    monkeypatch.setattr(_gpu, "cuda_reason", lambda: "")
    monkeypatch.setenv("FLASHLATENT_INDEXER", "1")
    yield SimpleNamespace(module=module, rope_tail=tail["rope_tail"], read=pool.DeepSeekV4IndexerPool.get_index_k_fp4,
                          rounding=importlib.import_module("sglang.kernels.ops.quantization.fp4_fake_quant"))
    for name in set(sys.modules) - before:
        if name.startswith(("sglang", "flashlatent.sglang._v41_indexer")) or name == "pool":
            del sys.modules[name]


class Case:
    """Requests with index keys of ratio `ratio`, their new tokens, and the scores of each in float32."""

    def __init__(self, sglang, ratio, new=NEW):
        generator = torch.Generator().manual_seed(ratio)
        self.ratio, self.new = ratio, new
        pages = [-(-n // PAGE) for n in LENGTHS]
        self.pool = Pool(sum(pages) + 1, ratio)
        numbers = torch.randperm(sum(pages) + 1, generator=generator).int()
        self.table = torch.zeros(len(LENGTHS), max(pages), dtype=torch.int32)
        self.keys, self.slots = [], []
        for i, n in enumerate(LENGTHS):
            self.table[i, :pages[i]] = numbers[sum(pages[:i]):sum(pages[:i + 1])]
            token = torch.arange(n // ratio)
            size = PAGE // ratio
            slots = self.table[i, token // size].long() * size + token % size
            flashlatent.append_index_keys(torch.randn(len(slots), DIM, generator=generator).bfloat16(), slots,
                                          self.pool.keys, index_format="mxfp4_68", page_size=INDEX_PAGE)
            pool = SimpleNamespace(use_fp4_indexer=True, index_k_with_scale_buffer=[self.pool.keys], start_layer=0,
                                   page_size=INDEX_PAGE)
            codes, scales = sglang.read(pool, 0, slots)
            codes = codes.view(torch.uint8).int()
            codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
            values = E2M1[codes & 7] * (1 - 2 * (codes >> 3))
            scales = torch.exp2(scales.view(-1, 1).view(torch.uint8).float() - 127)
            self.keys.append(values * scales.repeat_interleave(32, 1))
            self.slots.append(slots)
        self.requests = torch.repeat_interleave(torch.arange(len(new)), torch.tensor(new))
        self.positions = torch.cat([torch.arange(n - s, n) for n, s in zip(LENGTHS, new)])
        rows = len(self.positions)
        turns = torch.rand(max(LENGTHS), 32, generator=generator) * 6
        self.freqs = torch.polar(torch.ones_like(turns), turns)
        self.q = torch.randn(rows, HEADS, DIM, generator=generator).bfloat16()
        self.weights = torch.randn(rows, HEADS, generator=generator).bfloat16()
        self.rounded = sglang.rounding.fake_quant_fp4(sglang.rope_tail(self.q, self.freqs[self.positions], 64)).float()
        self.indexer = SimpleNamespace(wq_b=lambda q_lora: (q_lora.flatten(1), None), head_weights_raw=lambda x: x,
                                       n_local_heads=HEADS, index_head_dim=DIM, index_topk=TOPK)

    def scores(self, row):
        seen = (int(self.positions[row]) + 1) // self.ratio
        products = self.rounded[row] @ self.keys[self.requests[row]][:seen].T
        return self.weights[row].float() @ products.relu() * DIM**-0.5 * HEADS**-0.5

    def inputs(self, pages=True, **members):
        rows = len(self.positions)
        raw, slots = (torch.full((rows + 2, TOPK + 32), 77, dtype=torch.int32) for _ in range(2))
        counts = torch.tensor(self.new, dtype=torch.int32)

        def reset():
            raw.fill_(-1)
            slots.fill_(-1)

        expanded = expand(self.table[self.requests], self.ratio)
        return SimpleNamespace(
            indexer=self.indexer, layer_id=0, compress_ratio=self.ratio, freqs_cis=self.freqs, x=self.weights,
            q_lora=self.q, positions=self.positions, req_rows=self.requests, kv_page_table=self.table[self.requests],
            rows_per_request=self.new, rows_per_request_device=counts, out_raw_indices=raw,
            out_page_indices=slots if pages else None, reset_outputs=reset,
            paged_metadata=SimpleNamespace(page_table=expanded, compressed_page_size=INDEX_PAGE), **members)

    def numbers_of(self, row, slots):
        """Numbers within a request of its slots."""
        place = {slot: number for number, slot in enumerate(self.slots[self.requests[row]].tolist())}
        return torch.tensor([place[slot] for slot in slots.tolist() if slot >= 0], dtype=torch.int64)


def expand(table, ratio):
    """A page table of index keys of one of tokens."""
    each = PAGE // ratio // INDEX_PAGE
    return (table[..., None] * each + torch.arange(each)).flatten(1).int()


def made(sglang, case):
    options = dict(token_to_kv_pool=case.pool, req_to_token=None)
    prefill, decode = sglang.module.make_candidate_indexer(page_size=PAGE, candidate_topk_blocks=BLOCKS,
                                                           candidate_block_size=BLOCK, **options)
    return sglang.module.make_full_topk_indexer(**options), prefill, decode


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("pages", [True, False])
@pytest.mark.parametrize("padding", [[], [1, 1]])
def test_prompts_choose_the_best_tokens(sglang, ratio, pages, padding):
    case = Case(sglang, ratio)
    inputs = case.inputs(pages)
    inputs.rows_per_request_device = torch.tensor(NEW + padding, dtype=torch.int32)
    made(sglang, case)[0].topk_prefill(inputs)
    for row in range(len(case.positions)):
        chosen = inputs.out_raw_indices[row]
        check_best(case.scores(row), chosen, TOPK)
        if pages:
            assert torch.equal(case.numbers_of(row, inputs.out_page_indices[row]), chosen[chosen >= 0].long())
    assert (inputs.out_raw_indices[len(case.positions):] == -1).all()


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("new", [[1, 1, 1], [3, 3, 3]])
def test_decode_chooses_the_best_tokens(sglang, ratio, new):
    case = Case(sglang, ratio, new)
    inputs = case.inputs()
    made(sglang, case)[0].topk_decode(inputs)
    for row in range(len(case.positions)):
        check_best(case.scores(row), case.numbers_of(row, inputs.out_page_indices[row]), TOPK)
    assert (inputs.out_page_indices[len(case.positions):] == -1).all()


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("decode", [True, False])
def test_candidates_of_one_layer_bound_the_next(sglang, ratio, decode):
    case = Case(sglang, ratio, [3, 3, 3] if decode else NEW)
    _, prompts, steps = made(sglang, case)
    publish, consume = ((steps.publish_decode, steps.consume_decode) if decode else
                        (prompts.publish_prefill, prompts.consume_prefill))
    inputs, later = case.inputs(), case.inputs()
    published = publish(inputs)
    assert published.blocks.shape == (len(case.positions), BLOCKS)
    assert published.rows_per_request == (None if decode else NEW)
    consume(later, published)
    for row in range(len(case.positions)):
        scores, blocks = case.scores(row), published.blocks[row]
        check_best(scores, case.numbers_of(row, inputs.out_page_indices[row]), TOPK)
        best = torch.stack([part.max() for part in scores.split(BLOCK)])
        best[-1] = float("inf")  # the newest
        check_best(best, blocks, BLOCKS)
        inside = torch.isin(torch.arange(len(scores)) // BLOCK, blocks)
        chosen = case.numbers_of(row, later.out_page_indices[row])
        assert inside[chosen].all()
        check_best(scores[inside], (inside.cumsum(0) - 1)[chosen], TOPK)


def test_nothing_is_chosen_without_rows(sglang):
    case = Case(sglang, 1, [0, 0, 0])
    full, prompts, steps = made(sglang, case)
    inputs = case.inputs()
    full.topk_prefill(inputs)
    assert prompts.publish_prefill(inputs) is steps.publish_decode(inputs) is None
    steps.consume_decode(inputs, None)
    assert (inputs.out_raw_indices == -1).all() and (inputs.out_page_indices == -1).all()


def test_they_are_sglangs_unless_said(sglang, monkeypatch):
    case = Case(sglang, 1)
    monkeypatch.setenv("FLASHLATENT_INDEXER", "0")
    assert made(sglang, case) == ("theirs", "theirs", "theirs")


def test_what_does_not_fit_is_refused(sglang, monkeypatch):
    case = Case(sglang, 1)
    with pytest.raises(ValueError, match=r"prompts are shared out over ranks \(context parallelism\): 0 is expected"):
        inputs = case.inputs()
        inputs.req_rows = None
        made(sglang, case)[0].topk_prefill(inputs)
    monkeypatch.setattr(_gpu, "on_hopper", lambda: False)
    with pytest.raises(ValueError, match="the GPU is not of compute capability 9.0"):
        made(sglang, case)
    module = SimpleNamespace(make_candidate_indexer=lambda pool: None, make_full_topk_indexer=never)
    _indexer_choice._change_v41(module)
    with pytest.raises(ValueError, match=r"is not known: make_candidate_indexer takes \(pool\)"):
        module.make_full_topk_indexer(token_to_kv_pool=None)
