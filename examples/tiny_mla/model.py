"""The model: DeepSeek-V3's architecture with real MLA dimensions, small everywhere else, over bytes."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import DeepseekV3Config, PreTrainedTokenizerFast

from text import END


def configuration(hidden=512, layers=4, heads=8, length=4096):
    """256 tokens, dense layers only; every cached token has the 512 + 64 elements of DeepSeek-V3."""
    return DeepseekV3Config(
        vocab_size=256, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        first_k_dense_replace=layers,  # no layer has experts
        num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=None, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, max_position_embeddings=length,
        num_nextn_predict_layers=0, moe_intermediate_size=hidden, n_routed_experts=8, num_experts_per_tok=2,
        n_shared_experts=1, n_group=1, topk_group=1, bos_token_id=END, eos_token_id=END, pad_token_id=END,
        tie_word_embeddings=False)


def _letters():
    """The character that stands for each byte in tokenizer files: itself where it can be printed, else a later one."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def tokenizer():
    """Token id = byte. A fast tokenizer without merges, which needs no code of its own to load."""
    made = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(_letters())}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)
