"""Modules that need torch import this one first: if torch is missing or too old, the error says so."""


def _check():
    wanted = "flashlatent.torch, .flash_mla, .distributed and .transformers need torch 2.4 or newer"
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":  # torch is installed, but something that it imports is not
            raise
        raise ModuleNotFoundError(f"torch is not installed; {wanted} (pip install torch). The functions of flashlatent "
                                  "itself take NumPy's arrays without it", name="torch") from None
    if not hasattr(torch.library, "register_fake"):  # since 2.4
        raise ImportError(f"torch is {torch.__version__}; {wanted}. The functions of flashlatent itself take its tensors")


_check()
