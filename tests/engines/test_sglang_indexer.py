"""SGLang's DSA layers (DeepSeek V3.2, GLM-5) with their tokens from index_topk(), without a GPU: beside SGLang's own
indexer with float32 products in place of DeepGEMM's, and torch's top-k. The same sets but for ties.
FLASHLATENT_SGLANG names the folder to import sglang from."""

import abc
import contextlib
import dataclasses
import enum
import importlib
import os
import sys
import typing
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
TREE = os.environ.get("FLASHLATENT_SGLANG")
if not TREE:
    pytest.skip("FLASHLATENT_SGLANG is not set; scripts/check engines sets it", allow_module_level=True)
sys.path.insert(0, os.path.dirname(__file__))

import flashlatent.sglang  # noqa: E402
from flashlatent import _gpu  # noqa: E402
from flashlatent.sglang import _indexer_choice  # noqa: E402
from index_case import DIM, HEADS, PAGE, Batch, check_best  # noqa: E402
from sglang_source import empty_packages, load, never, taken  # noqa: E402

DSA = "srt/layers/attention/dsa/"
TOPK = 96
LENGTHS = [700, 90, 400, 1]


class Mode(enum.Enum):
    EXTEND = 1
    DECODE = 2
    VERIFY = 3

    def is_extend_without_speculative(self):
        return self is Mode.EXTEND

    def is_target_verify(self):
        return self is Mode.VERIFY

    def is_draft_extend_v2(self):
        return False


class Pool:
    """SGLang's pool, as far as indexers ask."""

    page_size = index_page_size = PAGE

    def __init__(self, keys):
        self.keys = keys

    def get_index_k_with_scale_buffer(self, layer_id):
        return self.keys.cache.flatten(1)

    def get_index_k_scale_buffer(self, layer_id, lengths, pages, total, longest):
        parts = [parts_of(self.keys.cache, table, n) for table, n in zip(pages, lengths.tolist())]
        values, scales = (torch.cat(part) for part in zip(*parts))
        return values.view(torch.uint8), scales.view(torch.uint8)


def parts_of(cache, pages, n):
    """A request's first n keys: e4m3 (n, DIM), scales (n, 1)."""
    raw = cache[pages.long()].flatten(1)
    values, scales = raw[:, :PAGE * DIM].contiguous(), raw[:, PAGE * DIM:].contiguous()
    return values.view(torch.float8_e4m3fn).view(-1, DIM)[:n], scales.view(torch.float32).view(-1, 1)[:n]


def scores_of(q, keys, weights):
    return torch.einsum("rh,rhk->rk", weights, torch.einsum("rhd,kd->rhk", q.float(), keys).relu())


def contiguous_scores(q, keys, weights, ks, ke, clean_logits):
    """DeepGEMM's fp8_mqa_logits()."""
    return scores_of(q, keys[0].float() * keys[1][:, None], weights)


def paged_scores(q, cache, weights, lengths, pages, schedule, longest, clean_logits):
    """DeepGEMM's fp8_paged_mqa_logits()."""
    q = q.flatten(0, 1)
    out = torch.zeros(len(q), longest)
    each = len(q) // len(pages)
    for row in range(len(q)):
        values, scales = parts_of(cache, pages[row // each], longest)
        out[row] = scores_of(q[row:row + 1], values.float() * scales, weights[row:row + 1])[0]
    return out


@pytest.fixture
def sglang(monkeypatch):
    """SGLang's indexer twice: `theirs` as it is, `ours` after the plugin; and settings to change."""
    for name in [n for n in sys.modules if n == "sglang" or n.startswith("sglang.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "flashlatent.sglang._indexer", raising=False)
    monkeypatch.delattr(flashlatent.sglang, "_indexer", raising=False)
    before = set(sys.modules)
    empty_packages("sglang", "sglang.srt", "sglang.srt.model_executor", "sglang.kernels", "sglang.kernels.ops",
                   "sglang.kernels.ops.attention", "sglang.kernels.ops.attention.dsa")
    settings = SimpleNamespace(fuse=False, pool=None)
    envs = SimpleNamespace(SGLANG_DSA_FUSE_TOPK=SimpleNamespace(get=lambda: settings.fuse),
                           SGLANG_OPT_USE_TOPK_V2=SimpleNamespace(get=lambda: False))
    common = dict(torch=torch, envs=envs, dataclass=dataclasses.dataclass, ABC=abc.ABC,
                  abstractmethod=abc.abstractmethod, Enum=enum.Enum, IntEnum=enum.IntEnum, auto=enum.auto,
                  get_token_to_kv_pool=lambda: settings.pool)
    common.update({name: getattr(typing, name) for name in ("Optional", "Tuple", "List", "Dict", "Callable",
                                                            "TYPE_CHECKING")})
    load("sglang.srt.environ", "", envs=envs)
    load("sglang.srt.model_executor.forward_context", "", get_token_to_kv_pool=lambda: settings.pool)
    topk = load("topk", taken(DSA + "dsa_topk_backend.py", ["TopkTransformMethod", "DSATopKBackend", "_topk_unfused"]),
                **common)
    metadata = load("metadata", taken(DSA + "dsa_indexer_metadata.py", ["BaseIndexerMetadata", "DSAIndexerMetadata"]),
                    DSATopKBackend=topk.DSATopKBackend, TopkTransformMethod=topk.TopkTransformMethod, **common)
    source = taken(DSA + "dsa_indexer.py", ["Indexer"], {"Indexer": [
        "_get_topk_paged", "_get_topk_ragged", "_get_index_k_read_buffer", "_mask_init_and_local_tokens",
        "_pad_heads_for_deep_gemm"]}).replace("assert device_index is not None", "assert device_index is None")
    wrappers = importlib.import_module("sglang.kernels.ops.attention.dsa.paged_mqa_logits")
    common.update({name: value for name, value in vars(wrappers).items() if name.startswith("deepgemm_")})
    common.update(
        _is_cuda=True, _is_hip=False, _is_xpu=False, _use_aiter_preshuffle=False, _is_fp8_fnuz=False,
        pick_dsl_expand=never,
        deep_gemm=SimpleNamespace(fp8_mqa_logits=contiguous_scores, fp8_paged_mqa_logits=paged_scores,
                                  get_paged_mqa_logits_metadata=lambda *_: None),
        resolve_fp8_mqa_logits_fn=lambda: contiguous_scores, resolve_fp8_paged_mqa_logits_fn=lambda: paged_scores,
        resolve_paged_mqa_logits_metadata_fn=lambda: lambda *_: None, mqa_logits_should_chunk=lambda **_: (False, 0))

    def indexers(module):
        load(module, source, **common)
        made = sys.modules[module].Indexer
        defaults = dict(
            index_topk=TOPK, n_heads=HEADS, num_init_tokens=0, num_local_tokens=0, dsa_enable_prefill_cp=False,
            sm_count=132, paged_mqa_logits_backend=SimpleNamespace(is_cutedsl=lambda: False, is_aiter=lambda: False),
            _with_real_sm_count=contextlib.nullcontext, _should_chunk_mqa_logits=lambda *_: (False, 0))
        made.__init__ = lambda self, **members: self.__dict__.update({**defaults, **members})
        return sys.modules[module]

    theirs, ours = indexers("theirs"), indexers("ours")
    _indexer_choice._change(ours)
    monkeypatch.setattr(_gpu, "on_hopper", lambda: True)
    monkeypatch.setattr(_gpu, "cuda_reason", lambda: "")
    monkeypatch.setenv("FLASHLATENT_INDEXER", "1")
    yield SimpleNamespace(theirs=theirs.Indexer, ours=ours.Indexer, settings=settings, topk=topk, metadata=metadata)
    for name in set(sys.modules) - before:
        if name.startswith(("sglang", "flashlatent.sglang._indexer")) or name in ("topk", "metadata", "theirs", "ours"):
            del sys.modules[name]


def metadata_of(sglang, batch, mode, method="PAGED"):
    """What SGLang's backend makes of a batch."""
    requests = torch.tensor([i for i, _ in batch.sees], dtype=torch.int32)
    seen = torch.tensor([n for _, n in batch.sees], dtype=torch.int32)
    lengths = torch.tensor(batch.lengths, dtype=torch.int32)
    begins = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()])[:-1][requests.long()]
    table = batch.keys.table
    members = dict(
        page_size=PAGE, cache_seqlens_int32=lengths, dsa_extend_seq_lens_list=list(batch.new),
        dsa_seqlens_expanded=seen, real_page_table=table if mode is Mode.EXTEND else table[requests.long()],
        indexer_k_start_end=(begins, begins + seen),
        indexer_seq_lens=lengths, indexer_seq_lens_cpu=lengths, token_to_batch_idx=requests, cu_seqlens_q=None,
        topk_indices_offset=begins if method == "RAGGED" else None, indexer_logical_page_table=None)
    return sglang.metadata.DSAIndexerMetadata(
        SimpleNamespace(**members), sglang.topk.TopkTransformMethod[method], sglang.topk.DSATopKBackend.TORCH)


def run(sglang, indexer, batch, mode, method="PAGED", padding=0, into=None):
    """Tokens of each row, as SGLang's layers ask for them."""
    sglang.settings.pool = Pool(batch.keys)
    metadata = metadata_of(sglang, batch, mode, method)
    q = torch.cat([batch.q, batch.q[:padding]])
    weights = torch.cat([batch.weights, batch.weights[:padding]]).unsqueeze(-1)
    forward_batch = SimpleNamespace(forward_mode=mode, seq_lens_cpu=1, extend_seq_lens_cpu=1)
    if mode is Mode.EXTEND:
        return indexer._get_topk_ragged(False, forward_batch, 3, q, weights, metadata, into)
    return indexer._get_topk_paged(forward_batch, 3, q, weights, metadata)


def batch_of(new):
    return Batch(LENGTHS[:len(new)], new, gap=0)


CASES = [(Mode.DECODE, [1, 1, 1, 1]), (Mode.VERIFY, [3, 3, 3]), (Mode.EXTEND, [40, 25, 30, 1])]


@pytest.mark.parametrize("mode, new", CASES)
def test_sets_are_those_of_sglangs_indexer(sglang, mode, new):
    batch = batch_of(new)
    ours = run(sglang, sglang.ours(), batch, mode, padding=3)
    theirs = run(sglang, sglang.theirs(), batch, mode, padding=3)
    assert ours.dtype == theirs.dtype == torch.int32 and ours.shape == theirs.shape
    assert (ours[len(batch.sees):] == -1).all() and (theirs[len(batch.sees):] == -1).all()
    for row in range(len(batch.sees)):
        scores = batch.scores(row)
        check_best(scores, ours[row], TOPK)
        mine, other = ({t for t in chosen.tolist() if t >= 0} for chosen in (ours[row], theirs[row]))
        apart = torch.tensor(sorted(mine ^ other), dtype=torch.int64)
        assert len(mine) == len(other) and (scores[apart] - scores[sorted(mine)].min()).abs().le(1e-4).all()


@pytest.mark.parametrize("mode, new", CASES)
@pytest.mark.parametrize("method", ["PAGED", "RAGGED"])
def test_attention_gets_the_places_that_it_asks_for(sglang, mode, new, method):
    if method == "RAGGED" and mode is not Mode.EXTEND:
        pytest.skip("decode reads pages")
    batch = batch_of(new)
    numbers = run(sglang, sglang.ours(), batch, mode, method)
    sglang.settings.fuse = True
    into = torch.full((len(batch.sees) + 2, TOPK), -1, dtype=torch.int32) if mode is Mode.EXTEND else None
    places = run(sglang, sglang.ours(), batch, mode, method, into=into)
    assert into is None or places is into and (into[len(batch.sees):] == -1).all()
    begins = torch.tensor(batch.lengths).cumsum(0) - torch.tensor(batch.lengths)
    for row, (request, _) in enumerate(batch.sees):
        chosen = numbers[row][numbers[row] >= 0].long()
        expected = begins[request] + chosen
        if method == "PAGED":
            expected = batch.keys.table[request, chosen // PAGE] * PAGE + chosen % PAGE
        assert places[row][:len(chosen)].tolist() == expected.tolist() and (places[row][len(chosen):] == -1).all()


def test_nothing_is_asked_of_an_empty_batch(sglang):
    batch = batch_of([1])
    batch.new, batch.sees = [], []
    for mode in (Mode.DECODE, Mode.EXTEND):
        assert (run(sglang, sglang.ours(), batch, mode) == -1).all()


@pytest.mark.parametrize("value, taken_over", [(None, False), ("0", False), ("1", True)])
def test_it_is_off_unless_said(sglang, monkeypatch, value, taken_over):
    if value is None:
        monkeypatch.delenv("FLASHLATENT_INDEXER")
    else:
        monkeypatch.setenv("FLASHLATENT_INDEXER", value)
    before = sglang.ours._get_topk_paged, sglang.ours._get_topk_ragged
    sglang.ours()
    assert ((sglang.ours._get_topk_paged, sglang.ours._get_topk_ragged) != before) == taken_over


@pytest.mark.parametrize("change, members, sentence", [
    (lambda patch: patch.setenv("FLASHLATENT_INDEXER", "yes"), {}, "FLASHLATENT_INDEXER is 'yes'; 0 or 1 is expected"),
    (lambda patch: patch.setattr(_gpu, "on_hopper", lambda: False), {}, "is 1 and the GPU is not .*: 0 is expected"),
    (lambda patch: patch.setattr(_gpu, "cuda_reason", lambda: "no driver"), {}, "cannot use the GPU: no driver"),
    (lambda patch: None, dict(num_local_tokens=4), "num_local_tokens of the model's indexer is 4, not 0"),
    (lambda patch: None, dict(dsa_enable_prefill_cp=True), r"shared out over ranks \(context parallelism\)"),
])
def test_what_does_not_fit_is_refused(sglang, monkeypatch, change, members, sentence):
    change(monkeypatch)
    with pytest.raises(ValueError, match=sentence):
        sglang.ours(**members)


def test_an_unknown_interface_is_refused(sglang):
    module = SimpleNamespace(Indexer=type("Indexer", (), {"_get_topk_paged": lambda self: None}))
    _indexer_choice._change(module)
    with pytest.raises(ValueError, match=r"not known: _get_topk_paged takes \(self\); .*_get_topk_ragged is missing"):
        module.Indexer()


def test_other_indexers_are_refused(sglang, monkeypatch):
    module = SimpleNamespace(C4Indexer=type("C4Indexer", (), {}))
    _indexer_choice._refuse_other("C4Indexer", module)
    with pytest.raises(ValueError, match="the model's indexer is SGLang's C4Indexer"):
        module.C4Indexer()
    monkeypatch.setenv("FLASHLATENT_INDEXER", "0")
    module.C4Indexer()


def test_keys_that_ranks_share_are_refused(sglang):
    batch = batch_of([1, 1])
    sglang.settings.pool = Pool(batch.keys)
    metadata = metadata_of(sglang, batch, Mode.DECODE)
    metadata.attn_metadata.page_size = 2 * PAGE
    with pytest.raises(ValueError, match="index keys are shared out over ranks: 0 is expected"):
        sglang.ours()._get_topk_paged(SimpleNamespace(forward_mode=Mode.DECODE), 0, batch.q,
                                      batch.weights.unsqueeze(-1), metadata)
