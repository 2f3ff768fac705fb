"""Why a configuration is refused: a sentence with the option, its value and what would do."""

from typing import Any, Iterable, List, NoReturn, Optional

from .._gpu import cuda_reason

BLOCK = 16  # tokens; vLLM's pages are multiples of it


def joined(sentences: Iterable[Optional[str]]) -> Optional[str]:
    """What supports_combination() returns."""
    return "; ".join(sentence for sentence in sentences if sentence) or None


def common(block_size: Optional[int], capability: Any) -> List[str]:
    """What all backends refuse."""
    sentences = []
    if block_size is not None and block_size % BLOCK:
        sentences.append(f"block_size is {block_size}; a multiple of {BLOCK} is expected")
    major = getattr(capability, "major", None)
    if major != 9:
        found = "unknown" if major is None else f"{major}.{capability.minor}"
        sentences.append(f"compute capability is {found}; 9.0 (NVIDIA Hopper) is expected")
    elif cuda_reason():
        sentences.append(f"flashlatent cannot use the GPU: {cuda_reason()}")
    return sentences


def latent(head_sizes: List[int], fp8: List[str], head_size: int, dtype: Any, kv_cache_dtype: Optional[str],
           block_size: Optional[int], capability: Any) -> List[str]:
    """What the backends of latent caches refuse; fp8: the kv_cache_dtypes with one byte an element that they take."""
    sentences = common(block_size, capability)
    if head_size not in head_sizes:
        sentences.append(f"head_size is {head_size}; {' or '.join(map(str, head_sizes))} is expected: kv_lora_rank and "
                         "a qk_rope_head_dim of 64 together")
    name = str(dtype).rpartition(".")[2]
    if kv_cache_dtype in fp8:
        if head_size != 576:
            sentences.append(f"kv_cache_dtype is {kv_cache_dtype} and head_size is {head_size}; 576 is expected beside "
                             "it")
        if name != "bfloat16":
            sentences.append(f"kv_cache_dtype is {kv_cache_dtype} and dtype is {name}; bfloat16 is expected beside it")
    elif kv_cache_dtype not in (None, "auto", name):
        sentences.append(f"kv_cache_dtype is {kv_cache_dtype} and dtype is {name}; auto, {name} or, with bfloat16, "
                         f"{' or '.join(fp8)} is expected")
    return sentences


def refuse(backend: str, **options: Any) -> None:
    """NotImplementedError for the first option that is set; an impl's constructor calls it."""
    for name, value in options.items():
        if value:
            _raise(f"{name} is {value}; {backend} takes none")


def refuse_attn_type(backend: str, attn_type: Any) -> None:
    value = getattr(attn_type, "value", attn_type)
    if value != "decoder":
        _raise(f"attn_type is {value}; {backend} takes decoder alone")


def _raise(sentence: str) -> NoReturn:
    raise NotImplementedError(f"flashlatent: {sentence}")
