"""Whether the plugins of engines can use this process's GPU."""

import torch

import flashlatent


def cuda_reason() -> str:
    """Why the CUDA backend cannot be used in this process; empty where it can."""
    return flashlatent.info()["backends"]["cuda"]["reason"]


def on_hopper() -> bool:
    return torch.version.cuda is not None and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
