"""What `flashlatent plan` is asked for, to estimate a row of bench results again."""


def arguments(row):
    """The options that say a row's shape, for the kernels of CUDA."""
    out = ["--backend", "cuda", "--heads", row["h_q"], "--kv-heads", row["h_kv"], "--query-tokens", row["s_q"],
           "--page-size", row["page_size"], "--dtype", row["dtype"]]
    if isinstance(row["lengths"], list):
        out += ["--length-list", ",".join(str(x) for x in row["lengths"])]
    else:
        out += ["--batch", row["b"], "--tokens", row["s_k"], "--lengths", row["lengths"]]
    out += ["--kv", row["kv"] if row["kv"] in ("fp8_656", "e4m3") else "plain"]
    if "layout" in row:
        out += ["--dim", row["d_qk"], "--layout", row["layout"]]
    if "topk" in row:
        out += ["--topk", row["topk"]]
    elif "reach" in row:
        out += ["--reach", row["reach"]]
    if "typical_tokens" in row:
        out += ["--typical-tokens", row["typical_tokens"]]
    return [str(x) for x in out]
