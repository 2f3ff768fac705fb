"""The arithmetic of flashlatent.simulate_distributed, on rows that are made up by the model itself."""

import json

import pytest

pytest.importorskip("torch")
from flashlatent import simulate_distributed as simulation


def row(gpus, s_k, b=1, heads=128, exchange="all_to_all"):
    local = 0.01 + 1e-6 * s_k / gpus
    made = {"name": f"{b}x{s_k} h{heads}", "gpus": gpus, "exchange": exchange if gpus > 1 else "none", "b": b, "s_q": 1,
            "h_q": heads, "s_k": s_k}
    if gpus == 1:
        return {**made, "ms": local}
    gather = 0.006 + 1e-8 * simulation.received(made, gpus, simulation.DIM)
    passed = 0.007 + 2e-8 * simulation.received(made, gpus, simulation.V_DIM)
    return {**made, "local_ms": local, "gather_ms": gather, "exchange_ms": passed, "ms": local + gather + passed}


ROWS = [row(gpus, s_k, b, heads) for gpus in (1, 2, 4) for s_k in (131072, 1048576) for b in (1, 8)
        for heads in (16, 128)]


def test_what_was_measured_comes_out():
    for result in simulation.simulate(ROWS, "all_to_all", [8]):
        for world, ms in result["measured_ms"].items():
            assert result["simulated_ms"][world] == pytest.approx(ms)


def test_more_gpus_follow_the_parts():
    wanted = row(8, 1048576, 8)
    results = simulation.simulate(ROWS, "all_to_all", [8])
    found = next(result for result in results if result["name"] == wanted["name"])
    assert found["simulated_ms"][8] == pytest.approx(wanted["ms"])


def test_a_way_is_judged_by_its_own_parts():
    others = [{**r, "exchange": "one_sided", "gather_ms": 0.001, "exchange_ms": 0.001} for r in ROWS if r["gpus"] > 1]
    alone, beside = (simulation.simulate(rows, "all_to_all", [8]) for rows in (ROWS, ROWS + others))
    assert beside == alone


def test_files_are_read_and_written(tmp_path, capsys):
    path, out = tmp_path / "measured.json", tmp_path / "simulated.json"
    path.write_text(json.dumps({"results": ROWS + [{"gpus": 2, "exchange": "one_sided", "refused": "no peers"}]}))
    assert simulation.main([str(path), "--gpus", "8,16", "--json", str(out)]) == 0
    assert "16 GPUs" in capsys.readouterr().out
    assert len(json.loads(out.read_text())["results"]) == 8
    assert simulation.main([str(path), "--exchange", "all_gather"]) == 2
    assert simulation.main([str(tmp_path / "none.json")]) == 2
