"""Compares what two attention backends make of the same model: greedy tokens and their log-probabilities, asked of an
engine's server, of one backend after the other.

    python examples/compare_servers.py --url http://localhost:8000 --json theirs.json     # served by the engine's own
    python examples/compare_servers.py --url http://localhost:8000 --beside theirs.json --json ours.json

The second run goes on from the first one's text every --step tokens, so that a text that parts counts for one step at
most. Log-probabilities are compared up to there. Beside two runs of one backend a difference says what is normal.
"""

import argparse
import json
import pathlib
import urllib.request

PROMPTS = ("Explain how a page table works in an operating system.",
           "Write a Python function that merges two sorted lists.",
           "List the planets of the solar system with one fact each.",
           "Translate to French: the weather will be better tomorrow.")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def vllm(url, prompt, tokens):
    """(token ids of the prompt, those of a greedy answer, their log-probabilities)."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 0, "return_token_ids": True,
            "ignore_eos": True}
    (choice,) = post(f"{url}/v1/completions", body)["choices"]
    return choice["prompt_token_ids"], choice["token_ids"], choice["logprobs"]["token_logprobs"]


def sglang(url, prompt, tokens):
    given = {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    answer = post(f"{url}/generate", {**given, "sampling_params": sampling, "return_logprob": True,
                                      "logprob_start_len": 0})["meta_info"]
    ids = [token for _, token, *_ in answer["input_token_logprobs"]]
    scores, chosen = zip(*((score, token) for score, token, *_ in answer["output_token_logprobs"]))
    return ids, list(chosen), list(scores)


ENGINES = {"vllm": vllm, "sglang": sglang}


def texts(ask, url, prompts, tokens):
    """One a prompt."""
    made = []
    for prompt in prompts:
        ids, chosen, scores = ask(url, prompt, tokens)
        made.append({"prompt": ids, "tokens": chosen, "logprobs": scores})
    return made


def beside(ask, url, given, step):
    """What the served backend makes of given texts: tokens asked for, the same ones, differences of log-probabilities
    of these."""
    asked, away = 0, []
    for text in given:
        for at in range(0, len(text["tokens"]), step):
            wanted = text["tokens"][at:at + step]
            _, chosen, scores = ask(url, text["prompt"] + text["tokens"][:at], len(wanted))
            asked += len(wanted)
            for token, score, there, before in zip(chosen, scores, wanted, text["logprobs"][at:]):
                if token != there:
                    break
                away.append(abs(score - before))
    return {"tokens": asked, "same": len(away), "mean_difference": sum(away) / max(len(away), 1),
            "largest_difference": max(away, default=0)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    parser.add_argument("--prompts", type=pathlib.Path, help="a prompt a line; four of its own if left out")
    parser.add_argument("--tokens", type=int, default=256, help="of an answer")
    parser.add_argument("--beside", type=pathlib.Path, help="what the first run wrote")
    parser.add_argument("--step", type=int, default=32, help="tokens after which the second run goes on from the "
                        "first one's text")
    parser.add_argument("--json", type=pathlib.Path, required=True, help="file to write")
    options = parser.parse_args()

    ask = ENGINES[options.engine]
    if options.beside:
        result = beside(ask, options.url, json.loads(options.beside.read_text()), options.step)
        print(json.dumps(result))
    else:
        prompts = options.prompts.read_text().splitlines() if options.prompts else PROMPTS
        result = texts(ask, options.url, prompts, options.tokens)
    options.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
