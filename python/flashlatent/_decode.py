"""decode() and decode_kv(): one call for everything; nothing is kept between calls.

Both pass their arguments unchanged to a Step (locals()).
"""

from typing import Any, Optional, Tuple

from ._arguments import named
from ._native import Step

Array = Any  # NumPy's, torch's, CuPy's, JAX's or any with DLPack


@named
def decode(q: Array, kv_cache: Array, block_table: Optional[Array] = None, cache_seqlens: Optional[Array] = None, *,
           softmax_scale: float, v_dim: int = 512, causal: bool = False, indices: Optional[Array] = None,
           topk_length: Optional[Array] = None, cu_seqlens_q: Optional[Array] = None, tokens: Optional[int] = None,
           attn_sink: Optional[Array] = None, batch_invariant: bool = False, empty_lse: float = float("-inf"),
           dtype: Optional[str] = None, out: Optional[Array] = None, lse: Optional[Array] = None,
           workspace: Optional[Array] = None, stream: Any = None, threads: int = 0,
           kernel: str = "", check_inputs: Optional[bool] = None, window: int = 0,
           extra_kv_cache: Optional[Array] = None, extra_indices: Optional[Array] = None,
           extra_topk_length: Optional[Array] = None, extra_block_table: Optional[Array] = None,
           extra_cache_seqlens: Optional[Array] = None, page_size: Optional[int] = None,
           extra_page_size: Optional[int] = None, kv_scale: Optional[Array] = None, q_scale: Optional[Array] = None,
           products: str = "auto", shard: Optional[Tuple[int, int, int]] = None,
           typical_tokens: int = 0, kv_format: Optional[str] = None, scales: Optional[str] = None,
           extra_kv_format: Optional[str] = None, q_rope: Optional[Array] = None, q_norm: float = 0.0,
           q_rotate: Optional[Tuple] = None, out_rotate: Optional[Tuple] = None,
           out_fp8: Optional[Tuple[Array, Array]] = None) -> Tuple[Any, Any]:
    """Attention of a batch of query tokens over a paged KV cache; returns (out, lse).

    For request i with L = cache_seqlens[i] cached tokens, query token t and query head h:
    S = softmax_scale * q . K^T over tokens [0, L), or with causal over [0, L - s_q + t + 1);
    out = softmax(S) . V with V the first v_dim elements of each cached row; lse = ln sum exp S.

    q              bf16 or fp16 (batch, s_q, h_q, qk_dim), or with cu_seqlens_q (total tokens, h_q, qk_dim); with an
                   e4m3 cache also e4m3, as float8_e4m3fn or uint8
    q_rope         the last 64 columns of a query of 576 or 320, if q has the other columns. Both may have any strides,
                   so that an engine's two tensors need no concatenation. Results have the same bits as with one tensor
    kv_cache       q's dtype (pages, page_size, h_kv, qk_dim), or uint8 (pages, page_size, 1, 656): format fp8_656; or
                   uint8 (pages, page_size, 1, 584), format fp8_584 (DeepSeek V4): a view of whole pages, whose strides
                   are (page_bytes, 584, any, 1), or the pages themselves, (pages, page_bytes) with page_size=; or
                   uint8 (pages, page_size, 1, 528 or 288), or pages of these, as kv_format= and scales= say; or
                   uint8 or float8_e4m3fn (pages, page_size, 1, 576 or 512), format e4m3, with kv_scale
    block_table    int32 (batch, max_pages): page numbers; negative: the page's tokens are skipped; entries past a
                   request's pages are never read
    cache_seqlens  int32 (batch): cached tokens, 0 to max_pages * page_size
    softmax_scale  no default: for MLA it is the scale of the head before absorption, 192**-0.5 for DeepSeek-V3
    indices        int32 (batch, s_q, topk), sparse decode, instead of block_table and cache_seqlens:
                   page * page_size + offset; negative ones and those past the cache's end are skipped
    topk_length    int32 (batch), or (batch, s_q) if q is not ragged, sparse: only so many of a request's or query
                   token's indices are read, 0 to topk
    cu_seqlens_q   int32 (batch + 1): request i has query tokens [cu_seqlens_q[i], cu_seqlens_q[i + 1])
    tokens         with cu_seqlens_q: the most query tokens that any request has; all of them if not given
    attn_sink      fp32 (h_q): out is scaled by exp(lse) / (exp(lse) + exp(sink)); lse does not change
    batch_invariant  a request's bits do not depend on its batch-mates
    empty_lse      lse of empty rows: -inf, which counts for nothing in combine(), or +inf
    dtype          'bf16': 16-bit integer arrays hold bf16 (NumPy has none of its own; ml_dtypes.bfloat16 needs no
                   dtype)
    out            q's dtype (bf16 if q is e4m3) and shape, last dimension v_dim; made if not given. 0 for an empty
                   row
    lse            fp32 (batch, h_q, s_q), natural logarithm; made if not given. empty_lse for an empty row
    workspace      uint8, contiguous, Plan.workspace_bytes long, on q's device; made if not given
    stream         CUDA: an integer handle or a stream object; the current one of q's package if not given
    threads        CPU: 0 means all
    kernel         forces one of info()'s kernels: it runs, or UnsupportedError says why it cannot
    check_inputs   look at lengths, page numbers in use, topk_length and cu_seqlens_q first (on the CPU also at
                   kv_scale and q_scale, which must be positive and finite), and raise
                   InvalidArgumentError for a value out of range. None: arrays on the CPU are checked, those on a GPU
                   are not. True on a GPU waits for the stream, and is refused while a CUDA graph is captured. The environment
                   variable FLASHLATENT_CHECK_INPUTS=1 checks every call of the process except captured ones

    window         by page table: a query token sees the last `window` of the tokens that it would see; 0: all of them
    kv_format      the format of a kv_cache whose last dimension leaves it open, or of pages of bytes: 'mxfp8_528',
                   'nvfp4_288' (DeepSeek V4.1), 'fp8_528' (fp8_656 without RoPE); other formats may be named, too
    scales         for mxfp8_528 and nvfp4_288, must be given: 'token', each token's scales follow its data; 'page', a
                   page's scales follow its data, and a cache of four dimensions is a view of whole pages
    extra_kv_cache  a second cache in the same softmax, with its own pages and page size. It has the same format, or
                   extra_kv_format='nvfp4_288' beside mxfp8_528. What names its tokens:
    extra_indices, extra_topk_length  as indices and topk_length, if q is not ragged; or
    extra_block_table, extra_cache_seqlens  as block_table and cache_seqlens: all of the request's tokens, without
                   causal mask or window; lengths are int32 (batch), or (batch, s_q) where query tokens see different
                   numbers of them and q is not ragged
    page_size, extra_page_size  tokens per page of caches given as (pages, page_bytes)
    kv_scale       fp32 (1), for an e4m3 cache: an element of kv_cache (and extra_kv_cache) is e4m3 * scale; 1 if not
                   given
    q_scale        fp32 (1) or (h_q), for e4m3 queries; 1 if not given
    products       for an e4m3 cache: 'bf16', or 'fp8', which may round bf16 queries and P to e4m3; 'auto' is 'fp8' where q
                   is e4m3, else 'bf16'
    shard          (rank, world, run): ranks share the requests' contexts. Token p is held by rank p // run % world, as
                   that rank's token p // (run * world) * run + p % run. cache_seqlens are of whole contexts; kv_cache
                   and block_table hold the rank's own tokens. causal and window go by a token's place in its context.
                   combine() merges (out, lse) of all ranks, and takes attn_sink. In sparse decode, and for an extra
                   cache, indices and lengths are the rank's own; sparse decode takes no shard
    typical_tokens  how long contexts are expected to be, in tokens (whole contexts, with shard); 0: as far as the page
                   table reaches, or topk. The kernel is chosen for requests of this length. Results are right for
                   any lengths and any value; only time depends on it

    q_norm, q_rotate  the query is prepared first, as prepare_queries() does it: an RMS norm over each head by this
                   epsilon (0: none; not with q_rope), and a Rotation, or a tuple (positions, table[, pairs[,
                   table_layout]]). Positions are (batch, s_q), or (total tokens) with cu_seqlens_q; the table's columns
                   are the last ones of a head, beside q_rope those of q_rope
    out_rotate     the output is turned back by this Rotation, as finish_outputs() does it
    out_fp8        (codes, scales), what the output is cast to, as empty_fp8_output() makes them. `out` is then None
                   and not written, unless it is given. Kernels with the cast in their own pass do not round to 16 bits
                   between

    Unchecked, a length below 0 counts as 0, and a length above the page table's reach, max_pages * page_size, counts as
    the reach (a topk_length above topk as topk). Tokens of block_table's pages that the cache does not have are
    skipped. Negative page numbers and sparse indices out of range are legal, and are skipped in any case.

    Runs on q's device; strides are free but for the innermost, which is 1. Raises InvalidArgumentError (a
    ValueError) for arrays that don't fit, UnsupportedError (a NotImplementedError) with the reason where no
    kernel takes the problem, UnavailableError where the device can't be used.
    """
    options = locals()
    return Step(threads=options.pop("threads"), kernel=options.pop("kernel"), calls_per_plan=1).decode(**options)


@named
def decode_kv(q: Array, key_cache: Array, value_cache: Array, block_table: Array, cache_seqlens: Array, *,
              softmax_scale: float, causal: bool = False, window: int = 0, soft_cap: float = 0.0,
              alibi_slopes: Optional[Array] = None, key_scale: Optional[Array] = None,
              value_scale: Optional[Array] = None, cu_seqlens_q: Optional[Array] = None, tokens: Optional[int] = None,
              attn_sink: Optional[Array] = None, batch_invariant: bool = False, empty_lse: float = float("-inf"),
              dtype: Optional[str] = None, out: Optional[Array] = None, lse: Optional[Array] = None,
              workspace: Optional[Array] = None, stream: Any = None, threads: int = 0,
              kernel: str = "", check_inputs: Optional[bool] = None,
              shard: Optional[Tuple[int, int, int]] = None, typical_tokens: int = 0, q_norm: float = 0.0,
              q_rotate: Optional[Tuple] = None, out_rotate: Optional[Tuple] = None,
              out_fp8: Optional[Tuple[Array, Array]] = None) -> Tuple[Any, Any]:
    """Attention over a paged cache of keys and values (MHA, GQA, MQA); returns (out, lse).

    For request i with L = cache_seqlens[i] cached tokens, query token t and query head h of KV head h // (h_q / h_kv):
    S = softmax_scale * q . K^T over tokens [0, L), or with causal over [0, L - s_q + t + 1); then, in this order,
    soft_cap and alibi_slopes; out = softmax(S) . V; lse = ln sum exp S.

    q              bf16 or fp16 (batch, s_q, h_q, d_qk), or with cu_seqlens_q (total tokens, h_q, d_qk)
    key_cache      q's dtype, or bytes that are e4m3 numbers: separate (pages, page_size, h_kv, d_qk), or packed
                   (pages, h_kv, d_qk / x, page_size, x), x elements being 16 bytes (vLLM's)
    value_cache    the same dtype and layout: (pages, page_size, h_kv, d_v), or packed (pages, h_kv, d_v, page_size)
    block_table    int32 (batch, max_pages): page numbers; negative: the page's tokens are skipped; entries past a
                   request's pages are never read
    cache_seqlens  int32 (batch): cached tokens, 0 to max_pages * page_size
    softmax_scale  no default; 1 / sqrt(d_qk) in most models
    window         a query token sees the last `window` of the tokens that it would see; 0: all of them
    soft_cap       s becomes soft_cap * tanh(s / soft_cap); 0: none
    alibi_slopes   fp32 (h_q): slope * (t - (L - 1)) is added to the score of token t
    key_scale      fp32 (1) or (h_kv), e4m3: a key is e4m3 * scale; 1 if not given
    value_scale    as key_scale, for values
    cu_seqlens_q, tokens, attn_sink, batch_invariant, empty_lse, dtype, workspace, stream, threads, kernel, shard,
    check_inputs, typical_tokens, q_norm, q_rotate, out_rotate, out_fp8  as in decode(), which also says how unchecked lengths and page numbers count
    out            q's dtype and shape, last dimension d_v; made if not given. 0 for an empty row
    lse            fp32 (batch, h_q, s_q), natural logarithm; made if not given. empty_lse for an empty row

    Runs on q's device; strides are free but for the innermost, which is 1. Raises as decode() does; on a GPU d_qk
    other than d_v or above 256 is unsupported, and packed values in pages that are no multiple of 16 bytes.
    """
    options = locals()
    return Step(threads=options.pop("threads"), kernel=options.pop("kernel"), calls_per_plan=1).decode_kv(**options)
