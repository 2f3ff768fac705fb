"""examples/compare_servers.py, with a server of this file in place of an engine's."""

import http.server
import importlib.util
import json
import pathlib
import sys
import threading

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples/compare_servers.py"


def load():
    spec = importlib.util.spec_from_file_location("compare_servers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Server(http.server.BaseHTTPRequestHandler):
    """An engine whose next token is the number of tokens before it; `odd`: a token that it gets wrong, `shift`: what it
    adds to log-probabilities."""

    odd, shift = None, 0.0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        given = body.get("prompt", body.get("input_ids", body.get("text")))
        prompt = [0] * len(given.split()) if isinstance(given, str) else given
        tokens = []
        for _ in range(body.get("max_tokens", body.get("sampling_params", {}).get("max_new_tokens"))):
            at = len(prompt) + len(tokens)
            tokens.append(-1 if at == self.odd else at)
        scores = [-token / 8 + self.shift for token in tokens]
        if self.path == "/generate":
            answer = {"meta_info": {"input_token_logprobs": [[0, token, None] for token in prompt],
                                    "output_token_logprobs": [[s, t, None] for s, t in zip(scores, tokens)]}}
        else:
            answer = {"choices": [{"prompt_token_ids": prompt, "token_ids": tokens,
                                   "logprobs": {"token_logprobs": scores}}]}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    server = http.server.HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    Server.odd, Server.shift = None, 0.0


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_text_that_parts_counts_for_one_step(url, engine, tmp_path, monkeypatch, capsys):
    script = load()
    (tmp_path / "prompts").write_text("three words here\nand these are five words\n")

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["compare_servers.py", "--url", url, "--engine", engine, *options])
        script.main()

    run("--prompts", str(tmp_path / "prompts"), "--tokens", "20", "--json", str(tmp_path / "theirs.json"))
    made = json.loads((tmp_path / "theirs.json").read_text())
    assert [text["tokens"] for text in made] == [list(range(3, 23)), list(range(5, 25))]
    Server.odd, Server.shift = 9, 0.25
    run("--beside", str(tmp_path / "theirs.json"), "--step", "8", "--json", str(tmp_path / "ours.json"))
    result = json.loads((tmp_path / "ours.json").read_text())
    # Steps begin at 3 and 11, and at 5 and 13: token 9 is wrong, and those behind it up to the next step do not count.
    assert (result["tokens"], result["same"]) == (40, 40 - 2 - 4)
    assert result["mean_difference"] == pytest.approx(0.25) == result["largest_difference"]
    assert json.loads(capsys.readouterr().out) == result
