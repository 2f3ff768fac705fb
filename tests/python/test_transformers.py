"""flashlatent.transformers: small random models with real MLA dimensions beside transformers' own attention.

The yardstick is the same model in float32 with transformers' attention, given the same tokens. Two greedy texts may
part only where the reference's two best tokens are nearer than the errors allow.
"""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import flashlatent  # noqa: E402
import flashlatent.transformers as latent  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
VOCABULARY = 64
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
         "first_k_dense_replace": 1, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "n_group": 1, "topk_group": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 512,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 2048,
         "initializer_range": 0.1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.7,
        "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Models this small are no faster with more, and much slower where cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(architecture="v3", dtype=torch.float32, device="cpu", **sizes):
    torch.manual_seed(3)
    if architecture == "v2":
        config = transformers.DeepseekV2Config(**SIZES | {"q_lora_rank": 96} | sizes)
        model = transformers.DeepseekV2ForCausalLM(config)
    else:
        config = transformers.DeepseekV3Config(**SIZES | {"q_lora_rank": None} | sizes)
        model = transformers.DeepseekV3ForCausalLM(config)
    model.generation_config.pad_token_id = 0
    return model.to(device=device, dtype=dtype).eval()


def prompts(rows, length, padding=(), device="cpu", seed=0):
    """(token ids, mask), rows padded on the left by so many."""
    ids = torch.randint(2, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row, count in enumerate(padding):
        ids[row, :count], mask[row, :count] = 0, 0
    return ids.to(device), mask.to(device)


@torch.no_grad()
def reference_of(model, ids, mask):
    """float32 log-probabilities (rows, tokens, vocabulary) by transformers' own attention, without a cache."""
    plain = latent.disable(copy.deepcopy(model)).float()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return plain(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits.log_softmax(-1)


@torch.no_grad()
def forced(model, ids, mask, first, chunk=1, cache=None):
    """Log-probabilities of given tokens through a cache: `first` tokens in one pass, then `chunk` a pass."""
    cache = latent.LatentCache(model) if cache is None else cache
    positions, logits, begin = (mask.cumsum(1) - 1).clamp(min=0), [], 0
    while begin < ids.shape[1]:
        end = min(ids.shape[1], begin + (chunk if begin else first))
        logits.append(model(ids[:, begin:end], attention_mask=mask[:, :end], position_ids=positions[:, begin:end],
                            past_key_values=cache).logits)
        begin = end
    return torch.cat(logits, 1).float().log_softmax(-1)


def error_of(got, wanted, mask):
    return (got - wanted).abs()[mask.bool()].mean().item()


def check_greedy(model, prompt, generated, tolerance):
    """Each generated token is the reference's best, or nearer to it than `tolerance`."""
    ids = torch.tensor([prompt + generated], device=model.device)
    scores = reference_of(model, ids, torch.ones_like(ids))[0, len(prompt) - 1:-1]
    lost = scores.amax(-1) - scores.gather(-1, ids[0, len(prompt):, None])[:, 0]
    assert lost.max().item() <= tolerance


# Mean error of log-probabilities in float32 models, of which only queries and caches are rounded: twice the measured
# ones, 1.9e-3 (bf16), 2.2e-4 (fp16) and 1.9e-2 (fp8_656), where log-probabilities spread by 0.77.
ROUNDED = {"bf16": 4e-3, "fp16": 5e-4, "fp8_656": 4e-2}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kv_format", ROUNDED)
@pytest.mark.parametrize("architecture", ["v2", "v3"])
def test_decode_gives_the_models_log_probabilities(architecture, kv_format, device):
    model = make(architecture, device=device)
    ids, mask = prompts(3, 40, padding=(0, 11, 3), device=device)
    wanted = reference_of(model, ids, mask)
    latent.enable(model, kv_format=kv_format, page_size=16)
    for first, chunk in ((20, 1), (16, 5), (1, 39)):
        assert error_of(forced(model, ids, mask, first, chunk), wanted, mask) < ROUNDED[kv_format]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_as_the_models_own_attention(dtype, device):
    model = make(dtype=dtype, device=device)
    ids, mask = prompts(2, 60, device=device)
    wanted = reference_of(model, ids, mask)
    with torch.no_grad():
        own = error_of(model(ids).logits.float().log_softmax(-1), wanted, mask)
    latent.enable(model)
    assert error_of(forced(model, ids, mask, 10), wanted, mask) < 1.5 * own


@pytest.mark.parametrize("sizes", [{"rope_interleave": False}, {"rope_parameters": YARN}, {"q_lora_rank": 96},
                                   {"attention_bias": True}, {"kv_lora_rank": 256}, {"num_attention_heads": 1,
                                                                                      "num_key_value_heads": 1}])
def test_variants_of_the_architecture(sizes):
    model = make(**sizes)
    ids, mask = prompts(2, 24, padding=(0, 4))
    wanted = reference_of(model, ids, mask)
    latent.enable(model, kv_format="fp16")
    assert error_of(forced(model, ids, mask, 12), wanted, mask) < ROUNDED["fp16"]


@pytest.mark.parametrize("kv_format", ["fp16", "fp8_656"])
def test_many_tokens_after_a_cached_prefix(kv_format):
    """Above 170 new tokens keys and values are expanded from gathered latents, below they are not."""
    model = make()
    ids, mask = prompts(2, 420, padding=(0, 30))
    wanted = reference_of(model, ids, mask)
    latent.enable(model, kv_format=kv_format)
    for first, chunk in ((50, 170), (50, 200), (210, 210)):
        assert error_of(forced(model, ids, mask, first, chunk), wanted, mask) < ROUNDED[kv_format]


def test_tokens_may_be_left_out_anywhere():
    """Right padding, holes, and a row without any token in a pass."""
    model = make()
    ids, mask = prompts(3, 30)
    mask[0, 20:], mask[1, 5:9], mask[2, :12] = 0, 0, 0
    wanted = reference_of(model, ids, mask)
    latent.enable(model, kv_format="fp16", page_size=4)
    assert error_of(forced(model, ids, mask, 10, 4), wanted, mask) < ROUNDED["fp16"]


@pytest.mark.parametrize("device", DEVICES)
def test_generate_and_generate_batch_give_the_greedy_text(device):
    model = make(device=device)
    ids, mask = prompts(3, 33, padding=(0, 20, 5), device=device)
    rows = [row[kept.bool()].tolist() for row, kept in zip(ids, mask)]
    latent.enable(model, kv_format="fp16", page_size=16)
    text = model.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False)[:, 33:].tolist()
    batch = batched(model, rows, max_new_tokens=20)
    for row, one, other in zip(rows, text, batch):
        check_greedy(model, row, one, 20 * ROUNDED["fp16"])
        check_greedy(model, row, other, 20 * ROUNDED["fp16"])
    assert model.config._attn_implementation == "sdpa"


def batched(model, rows, max_new_tokens, persistent=False, sequences=1, **config):
    config = transformers.ContinuousBatchingConfig(**{"block_size": 16, "num_blocks": 64} | config)
    # Several sequences need sampling; at a temperature near 0 it is greedy.
    sampling = {"do_sample": True, "temperature": 1e-6, "num_return_sequences": sequences} if sequences > 1 else {
        "do_sample": False}
    greedy = transformers.GenerationConfig(eos_token_id=-1, **sampling)
    results = model.generate_batch(rows, max_new_tokens=max_new_tokens, continuous_batching_config=config,
                                   generation_config=greedy, persistent_manager=persistent)
    assert all(result.error is None for result in results.values())
    return [result.generated_tokens for result in results.values()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kv_format", ["bf16", "fp8_656"])
def test_continuous_batching_with_chunks_and_shared_prefixes(kv_format, device):
    """More prompts than a pass takes, chunks of prompts beside decoding requests, a prefix whose blocks are shared."""
    model = make(device=device)
    common = prompts(1, 48, seed=5)[0][0].tolist()
    rows = [common + prompts(1, length, seed=length)[0][0].tolist() for length in (1, 9, 30)] + [[7], common[:31]]
    latent.enable(model, kv_format=kv_format)
    texts = batched(model, rows, 12, max_batch_tokens=40, max_requests_per_batch=3)
    for row, text in zip(rows, texts):
        check_greedy(model, row, text, 20 * ROUNDED[kv_format])


def test_continuous_batching_again_and_with_several_sequences():
    """A prompt whose blocks are kept from before, or forked, is computed in another way: near ties may part texts."""
    plain = make(dtype=torch.bfloat16)
    model = latent.enable(copy.deepcopy(plain))
    rows = [prompts(1, length, seed=length)[0][0].tolist() for length in (3, 40)]
    assert batched(model, rows, 8) == batched(model, rows, 8)
    for persistent in (True, True):
        for row, text in zip(rows, batched(model, rows, 8, persistent)):
            check_greedy(plain, row, text, 20 * ROUNDED["bf16"])
    assert model.config._attn_implementation == "sdpa"
    latent.enable(model)  # the manager that was kept has gone
    # Two sequences are forked from the first; transformers 5.17 waits for all and returns that one.
    check_greedy(plain, rows[0], batched(model, rows[:1], 8, sequences=3)[0], 20 * ROUNDED["bf16"])


def test_beams_sampling_and_several_sequences():
    model = make()
    ids, mask = prompts(2, 18, padding=(3, 0))
    beams = {"attention_mask": mask, "max_new_tokens": 10, "num_beams": 3, "num_return_sequences": 2,
             "do_sample": False}
    wanted = model.generate(ids, **beams)
    latent.enable(model, kv_format="fp16", page_size=4)
    assert torch.equal(model.generate(ids, **beams), wanted)

    torch.manual_seed(1)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=True, num_return_sequences=3,
                         output_logits=True, return_dict_in_generate=True)
    everything = torch.cat([mask.repeat_interleave(3, 0), torch.ones(6, 12, dtype=mask.dtype)], 1)
    expected = reference_of(model, out.sequences, everything)[:, 17:-1]
    got = torch.stack(out.logits, 1).log_softmax(-1)
    assert (got - expected).abs().mean() < ROUNDED["fp16"]
    pool = out.past_key_values._rows.pages.pool
    pool.check_invariants()
    # 15 + 11 and 18 + 11 tokens in pages of 4, three rows each, which share the full pages of their prompts.
    assert pool.stats["used"] == 3 * (7 + 8) - 2 * (3 + 4)


def test_prompts_that_are_cached_are_not_computed_again():
    model = make()
    latent.enable(model, kv_format="fp16", page_size=8, pages=64)
    passes = []
    model.model.embed_tokens.register_forward_pre_hook(lambda module, args: passes.append(args[0].shape[1]))
    ids, mask = prompts(2, 30)
    greedy = {"max_new_tokens": 6, "do_sample": False}
    first = model.generate(ids, attention_mask=mask, **greedy)
    assert passes == [30, 1, 1, 1, 1, 1]
    passes.clear()
    assert torch.equal(model.generate(ids, attention_mask=mask, **greedy), first)
    assert passes == [30 - 24, 1, 1, 1, 1, 1]
    passes.clear()
    longer = torch.cat([first, ids[:, :5]], 1)  # the answers are part of the next prompt
    second = model.generate(longer, attention_mask=torch.ones_like(longer), **greedy)
    assert passes[0] == 41 - 32
    for row, text in zip(longer, second):
        check_greedy(model, row.tolist(), text[41:].tolist(), 20 * ROUNDED["fp16"])
    pool = model._flashlatent.shared_pages().pool
    assert pool.stats["used"] == 0 and pool.stats["hits"] > 0
    passes.clear()
    ids[1, 3] = 2 + (ids[1, 3] + 1) % 60  # other tokens in one row: that row has nothing
    model.generate(ids, attention_mask=mask, **greedy)
    assert passes[0] == 30


def test_positions_of_the_callers_own_are_not_shared():
    model = make()
    latent.enable(model, kv_format="fp16", page_size=8, pages=64)
    ids, mask = prompts(1, 17)
    with torch.no_grad():
        cache = latent.LatentCache(model)
        model(ids, past_key_values=cache, position_ids=torch.arange(17)[None] + 3)
        cache.release()
    assert model._flashlatent.shared_pages().pool.stats["cached"] == 0


def test_a_pass_that_fails_leaves_nothing_for_others():
    model = make()
    latent.enable(model, kv_format="fp16", page_size=8, pages=64)
    ids, mask = prompts(1, 20)
    cache = latent.LatentCache(model)

    def fail(module, args):
        raise KeyboardInterrupt

    hook = model.model.layers[0].mlp.register_forward_pre_hook(fail)
    with torch.no_grad():
        with pytest.raises(KeyboardInterrupt):
            model(ids, past_key_values=cache)
        hook.remove()
        with pytest.raises(flashlatent.InvalidArgumentError, match="last pass did not reach the last layer"):
            model(ids[:, :1], past_key_values=cache)
        cache.reset()
        assert model._flashlatent.shared_pages().pool.stats["cached"] == 0
        model(ids, past_key_values=cache)
        cache.reset()
        assert model._flashlatent.shared_pages().pool.stats["cached"] == 2


def test_pages_run_out_and_caches_grow():
    model = make()
    ids, mask = prompts(2, 20)
    wanted = reference_of(model, ids, mask)
    latent.enable(model, kv_format="fp16", page_size=4, pages=9)
    cache = latent.LatentCache(model)
    with pytest.raises(flashlatent.ExhaustedError, match="pages is 9 in enable.*needs 2 more"):
        forced(model, ids, mask, 16, 2, cache)
    assert cache.get_seq_length() == 16  # nothing has changed
    latent.enable(model, kv_format="fp16", page_size=4)
    cache = latent.LatentCache(model)
    assert error_of(forced(model, ids, mask, 2, 3, cache), wanted, mask) < ROUNDED["fp16"]
    cache._rows.pages.pool.check_invariants()
    assert cache._rows.pages.pool.stats["used"] == 10


def page_positions(pages, rows):
    """What layer 0 holds for each row, in order of its tokens."""
    return [pages.caches[0][pages.pool.pages(row)].flatten(0, 1)[:pages.pool.length(row)] for row in rows]


@pytest.mark.parametrize("shared, beams, more", [(1, 8, 1), (4, 4, 1), (16, 8, 70), (0, 3, 5), (3, 1, 300)])
def test_growing_keeps_shared_pages_shared(shared, beams, more):
    from flashlatent.transformers._layout import Layout
    from flashlatent.transformers._pages import Pages
    layout = Layout("bf16", 2, 2, 512, 64, 64, torch.bfloat16, torch.bfloat16, 576, torch.device("cpu"))
    pages = Pages(layout, shared + 1, grows=True)
    for cache in pages.caches:
        cache.copy_(torch.arange(cache.numel()).view(cache.shape) % 251)
    first, _ = pages.pool.create([], 64 * shared)
    rows = [pages.pool.fork(first) for _ in range(beams)]
    pages.pool.release(first)
    before = page_positions(pages, rows)
    rows = pages.append(rows, [more] * beams)
    assert [pages.pool.length(row) for row in rows] == [64 * shared + more] * beams
    assert all(torch.equal(now[:64 * shared], then) for now, then in zip(page_positions(pages, rows), before))
    fresh = -(-more // 64)
    assert pages.pool.stats["used"] == shared + beams * fresh  # the shared ones once
    assert all(len(cache) == pages.pool.stats["pages"] for cache in pages.caches)
    pages.pool.check_invariants()


def test_a_cache_that_cannot_grow_stays_whole(monkeypatch):
    model = make()
    ids, mask = prompts(2, 30)
    wanted = reference_of(model, ids, mask)
    latent.enable(model, kv_format="fp16", page_size=4)
    cache = latent.LatentCache(model)
    first = forced(model, ids[:, :8], mask[:, :8], 8, 1, cache)
    pages, empty, calls = cache._rows.pages, torch.empty, []
    held = [cache_.clone() for cache_ in pages.caches], pages.pool.stats

    def fails_at_the_second_layer(*shape, **options):
        if shape[1:] == (4, 1, 576):
            calls.append(shape)
            if len(calls) == 2:
                raise torch.OutOfMemoryError("no memory")
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", fails_at_the_second_layer)
    with pytest.raises(torch.OutOfMemoryError), torch.no_grad():
        model(ids[:, 8:], past_key_values=cache)
    monkeypatch.undo()
    assert len(calls) == 2 and cache.get_seq_length() == 8 and pages.pool.stats == held[1]
    assert all(torch.equal(now[:len(then)].view(torch.uint8), then.view(torch.uint8))  # of whatever was in memory
               for now, then in zip(pages.caches, held[0]))
    with torch.no_grad():
        rest = model(ids[:, 8:], past_key_values=cache).logits.float().log_softmax(-1)
    assert error_of(torch.cat([first, rest], 1), wanted, mask) < ROUNDED["fp16"]
    pages.pool.check_invariants()


def test_continuations_of_one_prompt_in_a_cache_that_grows():
    model = make()
    latent.enable(model, kv_format="fp16", page_size=16)
    prompt, _ = prompts(1, 100)
    more, _ = prompts(8, 40, seed=1)
    whole = torch.cat([prompt.expand(8, -1), more], 1)
    wanted = reference_of(model, whole, torch.ones_like(whole))[:, 100:]
    cache = latent.LatentCache(model)
    cache.batch_repeat_interleave(3)  # nothing in it yet
    with torch.no_grad():
        model(prompt, past_key_values=cache)
        cache.batch_repeat_interleave(8)
        parts = [model(part, past_key_values=cache).logits for part in more.split([3, 30, 7], 1)]
    got = torch.cat(parts, 1).float().log_softmax(-1)
    assert error_of(got, wanted, torch.ones_like(more)) < ROUNDED["fp16"]
    pool = cache._rows.pages.pool
    assert pool.stats["used"] == 6 + 8 * 3  # full pages of the prompt are shared
    pool.check_invariants()


def test_many_beams_of_many_tokens_grow():
    model = make(num_attention_heads=2, num_key_value_heads=2, vocab_size=VOCABULARY)
    latent.enable(model, kv_format="fp16", page_size=8)
    ids, mask = prompts(1, 20)
    options = {"attention_mask": mask, "num_beams": 8, "do_sample": False, "max_new_tokens": 60}
    text = model.generate(ids, **options)
    assert text.shape == (1, 80)
    latent.enable(model, kv_format="fp16", page_size=8, pages=200)
    assert torch.equal(model.generate(ids, **options), text)


def test_a_batch_of_no_rows():
    model = make()
    ids = prompts(2, 12)[0]
    with torch.no_grad():
        latent.enable(model, kv_format="fp16", page_size=4)
        cache = latent.LatentCache(model)
        assert model(ids[:0], past_key_values=cache).logits.shape == (0, 12, VOCABULARY)
        assert model(ids[:0, :1], past_key_values=cache).logits.shape == (0, 1, VOCABULARY)
        assert cache.get_seq_length() == 13 and cache.batch_size == 0
        cache = latent.LatentCache(model)
        model(ids, past_key_values=cache)
        cache.batch_select_indices(torch.zeros(0, dtype=torch.int64))
        assert model(ids[:0, :1], past_key_values=cache).logits.shape == (0, 1, VOCABULARY)
        assert cache._rows.pages.pool.stats["used"] == 0


@pytest.mark.parametrize("indices", [[0, -1], [2], [1, 0, -5]])
def test_rows_that_a_cache_does_not_have(indices):
    model = make()
    latent.enable(model, kv_format="fp16", page_size=4)
    cache = latent.LatentCache(model)
    with torch.no_grad():
        model(prompts(2, 12)[0], past_key_values=cache)
    before = cache._rows.pages.pool.stats
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"indices has -?\d; rows of this cache are 0 to 1"):
        cache.batch_select_indices(torch.tensor(indices))
    assert cache._rows.pages.pool.stats == before


def test_pages_kept_for_a_row_are_not_given_up_for_another():
    """A pool so full of kept pages that to look for more of one prompt's would cost another prompt's."""
    model = make()
    latent.enable(model, kv_format="fp16", page_size=4, pages=8)
    ids, mask = prompts(3, 17)
    cache = latent.LatentCache(model)
    with torch.no_grad():
        for row in ids[:2]:
            model(row[None], past_key_values=(cache := latent.LatentCache(model)))
            cache.release()
        pool = model._flashlatent.shared_pages().pool
        before = pool.stats
        latent.LatentCache(model).reuse(ids[1:])
    assert pool.stats == before


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_cache_is_not_copied(way):
    model = make()
    latent.enable(model, kv_format="fp16")
    with pytest.raises(TypeError, match=r"LatentCache can be neither copied nor pickled.*batch_repeat_interleave\(\)"):
        way(latent.LatentCache(model))


def test_a_cache_of_the_callers_own_goes_on():
    model = make()
    latent.enable(model, kv_format="fp16")
    ids, mask = prompts(2, 12)
    cache = latent.LatentCache(model)
    options = {"max_new_tokens": 5, "do_sample": False, "past_key_values": cache}
    once = model.generate(ids, attention_mask=mask, **options)
    twice = model.generate(once, attention_mask=torch.ones_like(once), **options)
    assert cache.get_seq_length() == 12 + 10 - 1
    for row in twice.tolist():
        check_greedy(model, row[:12], row[12:], 20 * ROUNDED["fp16"])


def test_chunked_prefill():
    model = make()
    latent.enable(model, kv_format="fp16")
    ids, mask = prompts(2, 40, padding=(9, 0))
    text = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, prefill_chunk_size=16)
    for row, kept, generated in zip(ids, mask.bool(), text[:, 40:].tolist()):
        check_greedy(model, row[kept].tolist(), generated, 20 * ROUNDED["fp16"])


def test_without_a_cache_the_model_is_its_own():
    model = make()
    ids, mask = prompts(2, 12, padding=(2, 0))
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
    own = [type(module) for module in model.modules()]
    latent.enable(model, kv_format="bf16")
    with torch.no_grad():
        assert torch.equal(model(ids, attention_mask=mask).logits, wanted)
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    assert all(layer.self_attn.kv_b_proj.weight.grad is not None for layer in model.model.layers)
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"gradients are enabled.*torch\.no_grad"):
        model(ids, past_key_values=latent.LatentCache(model))
    assert latent.disable(model) is model
    assert [type(module) for module in model.modules()] == own
    assert latent.disable(model) is model  # once more does nothing
    stock = model.generate(ids, attention_mask=mask, max_new_tokens=3, return_dict_in_generate=True, do_sample=False)
    assert isinstance(stock.past_key_values, transformers.DynamicCache)


def test_copies_and_saved_models(tmp_path):
    model = make()
    latent.enable(model, kv_format="fp16", pages=16)
    ids, mask = prompts(1, 9)
    greedy = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    text = model.generate(ids, **greedy)
    assert torch.equal(copy.deepcopy(model).generate(ids, **greedy), text)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is transformers.DeepseekV3ForCausalLM and loaded.config.architectures == [
        "DeepseekV3ForCausalLM"]
    assert torch.equal(latent.enable(loaded, kv_format="fp16").generate(ids, **greedy), text)


def test_enable_twice_changes_the_settings():
    model = make()
    latent.enable(model, kv_format="bf16")
    latent.enable(model, kv_format="fp8_656", page_size=32)
    assert model._flashlatent.layout.kv_format == "fp8_656" and model._flashlatent.layout.page_size == 32
    latent.disable(model)
    assert type(model.model.layers[0].self_attn).__name__ == "DeepseekV3Attention"


@pytest.mark.parametrize("options, message", [
    ({}, r"model\.dtype is torch\.float32; kv_format='bf16', 'fp16', 'fp8_656'"),
    ({"kv_format": "int8"}, r"kv_format is 'int8'; 'bf16', 'fp16', 'fp8_656' or None"),
    ({"kv_format": "fp8_ds_mla"}, r"kv_format is 'fp8_ds_mla'; .*; 'fp8_ds_mla' is fp8_656 here"),
    ({"kv_format": ["bf16"]}, r"kv_format is \['bf16'\]; 'bf16'"),
    ({"kv_format": "bf16", "page_size": 0}, "page_size is 0; 1 to"),
    ({"kv_format": "bf16", "page_size": 2.5}, r"page_size is 2\.5"),
    ({"kv_format": "bf16", "pages": -1}, "pages is -1; 1 to"),
])
def test_wrong_arguments(options, message):
    model = make()
    with pytest.raises(flashlatent.InvalidArgumentError, match=message):
        latent.enable(model, **options)
    assert not hasattr(model, "_flashlatent")


def test_models_that_are_refused():
    small = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
             "num_attention_heads": 4}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small)).bfloat16()
    with pytest.raises(flashlatent.InvalidArgumentError, match="model is a LlamaForCausalLM.*'llama'.*deepseek_v3"):
        latent.enable(llama)
    with pytest.raises(flashlatent.InvalidArgumentError, match="model is a Linear; a model of transformers that generates"):
        latent.enable(torch.nn.Linear(2, 2))
    with pytest.raises(flashlatent.InvalidArgumentError, match="kv_format is 'fp8_656'.*256 \\+ 64"):
        latent.enable(make(kv_lora_rank=256), kv_format="fp8_656")
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"model\.dtype is torch\.float64"):
        latent.enable(make(dtype=torch.float64), kv_format="bf16")
    adapted = make()
    adapted.model.layers[1].self_attn.kv_b_proj = torch.nn.Sequential(adapted.model.layers[1].self_attn.kv_b_proj)
    adapted.model.layers[1].self_attn.kv_b_proj.weight = adapted.model.layers[1].self_attn.kv_b_proj[0].weight
    with pytest.raises(flashlatent.InvalidArgumentError, match="layer 1 has a kv_b_proj that is a Sequential"):
        latent.enable(adapted, kv_format="bf16")
    hooked = make()
    hooked.model.layers[0].self_attn.forward = hooked.model.layers[0].self_attn.forward
    with pytest.raises(flashlatent.InvalidArgumentError, match=r"layer 0 has a forward\(\) of its own"):
        latent.enable(hooked, kv_format="bf16")
    with pytest.raises(flashlatent.InvalidArgumentError, match="model is a DeepseekV3ForCausalLM that is not enabled"):
        latent.LatentCache(make())


def test_other_versions_of_transformers_are_refused(monkeypatch):
    version = flashlatent.transformers._enable.importlib.metadata.version
    monkeypatch.setattr(flashlatent.transformers._enable.importlib.metadata, "version",
                        lambda name: "6.1.0" if name == "transformers" else version(name))
    model = make()
    with pytest.raises(flashlatent.UnavailableError, match="transformers is 6.1.0; .* tested with 5.17 and newer"):
        latent.enable(model, kv_format="bf16")
    latent.enable(model, kv_format="bf16", any_version=True)


def test_wrong_calls():
    model = make()
    latent.enable(model, kv_format="bf16")
    ids, mask = prompts(2, 8)
    with torch.no_grad():
        cache = latent.LatentCache(model)
        with pytest.raises(flashlatent.InvalidArgumentError, match=r"attention_mask is \(2, 7\); \(2, 8\) is expected"):
            model(ids, attention_mask=mask[:, 1:], past_key_values=cache)
        model(ids, attention_mask=mask, past_key_values=cache)
        with pytest.raises(flashlatent.InvalidArgumentError, match="input_ids has 1 rows and past_key_values 2"):
            model(ids[:1], past_key_values=cache)
        other = torch.ones(2, 9, dtype=torch.long)
        other[1, 4] = 0
        with pytest.raises(flashlatent.InvalidArgumentError, match="attention_mask of row 1 is another"):
            model(ids[:, :1], attention_mask=other, past_key_values=cache)
        with pytest.raises(flashlatent.InvalidArgumentError, match="input is on meta and the model was on cpu"):
            cache.begin(ids.to("meta"), None, None, None)
        with pytest.raises(flashlatent.InvalidArgumentError, match="tokens_to_remove is -2"):
            cache.crop(-2)
        with pytest.raises(flashlatent.InvalidArgumentError, match="past_key_values is a LatentCache"):
            make()(ids, past_key_values=latent.LatentCache(model))
    with pytest.raises(flashlatent.InvalidArgumentError, match="cache_implementation is 'static'"):
        model.generate(ids, attention_mask=mask, max_new_tokens=2, cache_implementation="static")
    with pytest.raises(ValueError, match="past_key_values"):  # transformers' own; what they hold would be lost
        model.generate(ids, attention_mask=mask, max_new_tokens=2, past_key_values=((ids, ids),))
    for name, value in (("use_cuda_graph", True), ("default_compile_level", 1), ("cpu_offload_space", 1.0)):
        config = transformers.ContinuousBatchingConfig(**{name: value})
        with pytest.raises(flashlatent.UnsupportedError, match=f"continuous_batching_config.{name} is {value}"):
            model.generate_batch([[3, 4]], max_new_tokens=2, continuous_batching_config=config)
    assert model.config._attn_implementation == "sdpa"
