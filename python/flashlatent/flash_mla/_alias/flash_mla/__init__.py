"""flash_mla, where its folder is on the path: in processes that a program of python -m flashlatent.flash_mla spawns."""

import sys

from flashlatent import flash_mla
from flashlatent.flash_mla import flash_mla_interface, fused_norm_rope_attn_rope_cast

sys.modules["flash_mla"] = flash_mla
sys.modules["flash_mla.flash_mla_interface"] = flash_mla_interface
sys.modules["flash_mla.fused_norm_rope_attn_rope_cast"] = fused_norm_rope_attn_rope_cast
