"""Pictures from bench and plan files; host times."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

import flashlatent
from flashlatent import bench, report

RESULTS = pathlib.Path(__file__).parents[2] / "bench" / "results"


def is_picture(path):
    text = pathlib.Path(path).read_bytes()
    return text.startswith(b"\x89PNG") if path.endswith(".png") else b"<svg" in text[:2000]


@pytest.mark.parametrize("prefix", ["", "h200_"])
def test_bench_and_plan(tmp_path, prefix):
    pytest.importorskip("matplotlib")
    problem = flashlatent.Problem(batch=3, heads=16, max_pages=64, softmax_scale=1)
    plan = tmp_path / "skewed.json"
    plan.write_text(json.dumps(flashlatent.describe_plan(problem, [4096, 64, 0], workers=4)))
    peer = tmp_path / "peer.json"
    cases = report.read(RESULTS / "h200" / "dense.json")["results"]
    peer.write_text(json.dumps({"machine": {"gpu": "NVIDIA H200"}, "library": "Another", "results": cases}))
    files = [RESULTS / "h200" / "dense.json", peer, plan]
    pictures = report.report([str(file) for file in files], str(tmp_path / "out"), prefix)
    names = [pathlib.Path(picture).name for picture in pictures]
    assert names == [f"{prefix}{name}.{ending}" for name in ("roofline", "time", "peers", "skewed_plan")
                     for ending in ("png", "svg")]
    assert all(map(is_picture, pictures))


def test_shapes_beside_others(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"name": f"{kind} {s_q}", "kind": kind, "b": 1, "s_q": s_q, "h_q": 8, "s_k": 100, "lengths": "uniform",
             "ms": 0.01 * s_q, "gbps": 1000.0, "ratio": 0.9 * s_q} for kind in ("latent", "paged") for s_q in (1, 2)]
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps({"results": rows}))
    pictures = report.report([str(file)], str(tmp_path / "out"))
    assert [pathlib.Path(picture).name for picture in pictures] == ["shapes.png", "shapes.svg"]
    assert all(map(is_picture, pictures))
    before = report.digest([{"results": rows}])
    rows[0]["ratio"] = 1.5
    assert report.digest([{"results": rows}]) != before


def test_pictures_say_what_they_show(tmp_path):
    pytest.importorskip("matplotlib")
    document = json.loads((RESULTS / "h200" / "dense.json").read_text())
    file = tmp_path / "dense.json"

    def drawn(folder):
        file.write_text(json.dumps(document))
        svg = next(path for path in report.report([str(file)], str(tmp_path / folder)) if path.endswith("time.svg"))
        return pathlib.Path(svg).read_text()

    first = drawn("first")
    assert report.digest_in(first) == report.digest([document])
    assert drawn("again") == first
    document["source_tree"] = "another"  # which no picture shows
    assert report.digest_in(first) == report.digest([document])
    document["results"][0]["ms"] *= 2
    assert report.digest_in(first) != report.digest([document])
    assert report.digest_in("<svg></svg>") is None


@pytest.fixture
def tables(tmp_path):
    """A copy of what scripts/tables reads and writes; tables() runs it there."""
    root = RESULTS.parents[1]
    parts = ("README.md", "docs", "scripts/tables", "scripts/peers", "scripts/kernel_names.py", "scripts/results_page.py",
             "src/kernel/former_names.h", "bench/results", "python/flashlatent/report", "python/flashlatent/_program.py")
    for part in parts:
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (root / part).is_dir() else shutil.copy)(root / part, tmp_path / part)
    return lambda *arguments: subprocess.run([sys.executable, tmp_path / "scripts/tables", *arguments],
                                             capture_output=True, text=True)


def test_tables_name_the_sources_of_their_files(tmp_path, tables):
    page = tmp_path / "docs/performance.md"
    page.write_text("".join(line for line in page.read_text().splitlines(True) if not line.startswith("| [h200/dense.json]")))
    done = tables("--check")
    assert done.returncode != 0 and "the table of results has no row of h200/dense.json" in done.stderr
    page.write_text(page.read_text().replace("| [h200/sparse.json]", "| [h200/dense.json](../bench/results/h200/dense.json) | | |"
                                             " 9.99 | | – |\n| [h200/sparse.json]"))
    tables()
    assert "| [h200/dense.json](../bench/results/h200/dense.json) | NVIDIA H200 | 4.67 | 940 | 5ae34b0 |" in page.read_text()


def test_a_run_beside_peers_becomes_a_table(tmp_path, tables):
    lines, out = tmp_path / "side.jsonl", tmp_path / "bench/results/peers/h200.json"
    rows = [{"name": "dense b1 sq1 h16 sk4096", "ms": {"ours": 0.2, "flashmla": 0.5}},
            {"name": "dense b1 sq1 h16 sk4096", "ms": {"ours": 0.1, "flashmla": 0.4}, "err": 1e-3},
            {"name": "v4 b2 sq2 h64", "ms": {"ours": 0.3, "flashmla": 0.2}}, {"name": "no_peer b1", "ms": {"ours": 0.1}}]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def peers(*more):
        return subprocess.run([sys.executable, tmp_path / "scripts/peers", lines, "--gpu", "NVIDIA H200", "--tree", "0123456789",
                               "--command", "compare dense v4", "--out", out, *more], capture_output=True, text=True)

    assert "--library is missing for flashmla" in peers().stderr and not out.exists()
    assert peers("--library", "flashmla=FlashMLA 1.0").returncode == 0
    tables()
    page = (tmp_path / "docs/performance.md").read_text()
    assert "one NVIDIA H200, source tree 0123456 (commit –)" in page and "by `compare dense v4`" in page
    assert "dense: 1 of 1 cases are faster; geometric mean 0.250." in page
    assert "| b1 sq1 h16 sk4096 | 0.1000 | 0.4000 | 0.250 |" in page and "v4: 0 of 1" in page and "no_peer" not in page
    page = (tmp_path / "docs/from-flashmla.md").read_text()
    assert "](pictures/h200_suites.svg)" in page and "No such run is kept" not in page
    document = report.read(out)
    assert report.decode.beside_ratios([document]) == {"dense": {"flashmla": [4.0]}, "v4": {"flashmla": [pytest.approx(2 / 3)]}}
    out.write_text(json.dumps({key: value for key, value in document.items() if key != "command"}))
    assert "has no command; scripts/peers writes such files" in tables("--check").stderr
    lines.write_text('{"name": "x", "ms": 1}\n')
    assert "side.jsonl:1: " in peers().stderr


def test_an_old_picture_is_found(tmp_path, tables):
    def check():
        return tables("--check")

    assert check().returncode == 0, check().stdout + check().stderr
    new = tmp_path / "bench/results/h100/new.json"
    new.write_text(json.dumps({"source_tree": "0123456789", "results": []}))
    assert check().returncode == 1 and "bench/results/README.md: not every file has a row" in check().stdout
    new.unlink()
    plan = tmp_path / "bench/results/plans/skewed.json"
    document = json.loads(plan.read_text())
    document["parts"][0]["segments"][0]["blocks"][1] += 1
    plan.write_text(json.dumps(document))
    old = check()
    assert old.returncode == 1 and "skewed_plan show other results" in old.stderr
    (tmp_path / "docs/pictures/h200_time.svg").unlink()
    assert "h200_time, skewed_plan show other results" in check().stderr


def test_series_of_several_libraries():
    own = report.read(RESULTS / "h200" / "dense.json")
    rows = [row | {"ms": row["ms"] * 2} for row in own["results"]]
    series = report.length_series([own, {"machine": own["machine"], "library": "Another", "results": rows}])
    assert set(series[1, 1, 16]) == {"FlashLatent", "Another"}
    assert dict(series[1, 1, 16]["Another"])[4096] == 2 * dict(series[1, 1, 16]["FlashLatent"])[4096]


# What the program writes: a picture for each.
KINDS = {"check": ["check"], "cache": ["cache"], "plan": ["planning"], "sparse": ["roofline", "cases"],
         "paged": ["roofline", "cases"], "python_host_time": ["host"]}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind(tmp_path, name):
    pytest.importorskip("matplotlib")
    pictures = report.report([str(RESULTS / "h200" / f"{name}.json")], str(tmp_path))
    assert [pathlib.Path(picture).stem for picture in pictures[::2]] == KINDS[name]
    assert all(map(is_picture, pictures))


def test_replay(tmp_path):
    pytest.importorskip("matplotlib")
    run = {"machine": {"gpu": "NVIDIA H200"},
           "options": {"trace": "traces/azure_code_2023.csv", "model": "mla", "heads": 16, "kv": "bf16", "batch": 32},
           "report": {"tokens_per_second": 2840.9, "step_ms_p50": 0.25, "step_ms_p99": 5.34, "step_ms_max": 14.33,
                      "pool_used_mean": 0.007, "pool_used_peak": 0.054, "prefix_hit_rate": 0.0}}
    (tmp_path / "replay.json").write_text(json.dumps(run))
    pictures = report.report([str(tmp_path / "replay.json")], str(tmp_path))
    assert [pathlib.Path(picture).stem for picture in pictures[::2]] == ["replay"]
    assert all(map(is_picture, pictures))


def test_numerics(tmp_path):
    pytest.importorskip("matplotlib")
    pictures = report.report([str(RESULTS / "cpu" / "numerics.json")], str(tmp_path))
    assert [pathlib.Path(picture).name for picture in pictures] == ["numerics.png", "numerics.svg"]


def test_distributed(tmp_path):
    pytest.importorskip("matplotlib")
    shape = {"name": "1x131072 h16", "b": 1, "s_q": 1, "h_q": 16, "s_k": 131072, "lengths": "uniform"}
    rows = [shape | {"gpus": 1, "exchange": "none", "ms": 0.06, "roof_ms": 0.05},
            shape | {"gpus": 2, "exchange": "all_to_all", "ms": 0.05, "roof_ms": 0.04, "gather_ms": 0.01,
                     "local_ms": 0.03, "exchange_ms": 0.01},
            {"gpus": 2, "exchange": "one_sided", "refused": "RuntimeError: no peer access"}]
    (tmp_path / "distributed.json").write_text(json.dumps({"machine": {"gpu": "NVIDIA H100 80GB HBM3"}, "results": rows}))
    pictures = report.report([str(tmp_path / "distributed.json")], str(tmp_path))
    assert [pathlib.Path(picture).name for picture in pictures] == ["distributed.png", "distributed.svg"]
    alone, spread = rows[:2]
    assert report.distributed.in_one_unit([alone, spread]) == ([spread], {spread["name"]: 1 / 0.06}, "part of one GPU's time")
    assert report.distributed.in_one_unit([spread]) == ([spread], {spread["name"]: 1000}, "time, µs")


def test_wrong_and_refused_cases_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"name": f"pages/{outcome}", "outcome": outcome, "relative_error": error}
            for outcome, error in (("right", 1e-3), ("wrong", 0.5), ("refused", 0))]
    (tmp_path / "check.json").write_text(json.dumps({"results": rows}))
    assert report.main([str(tmp_path / "check.json"), "--out", str(tmp_path)]) == 0


def test_machines_are_told_apart():
    documents = [report.read(RESULTS / machine / "dense.json") for machine in ("h200", "h100")]
    assert set(report.length_series(documents)[1, 1, 16]) == {"FlashLatent, H200", "FlashLatent, H100"}


def test_peers_on_the_same_machine_alone():
    case = {"name": "b1 s_q1 h16 s_k1024 uniform", "b": 1, "s_q": 1, "h_q": 16, "s_k": 1024, "lengths": "uniform"}
    documents = [{"machine": {"gpu": "NVIDIA H200"}, "results": [case | {"ms": 0.01}]},
                 {"machine": {"gpu": "NVIDIA H200"}, "library": "A", "results": [case | {"ms": 0.02}]},
                 {"machine": {"gpu": "NVIDIA H100"}, "library": "B", "results": [case | {"ms": 0.02}]}]
    assert report.decode.peer_ratios(documents) == {(1, 1, 16): {"A": [2.0]}}


@pytest.mark.parametrize("low, high", [(1, 4096), (0.0053, 0.069), (7, 7), (1e-6, 3e-3), (3, 900), (99.9, 100.1)])
def test_axes_end_with_ticks(low, high):
    ticks = report.style.ladder(low, high)
    assert ticks[0] <= low * 1.001 and ticks[-1] >= high * 0.999 and 2 <= len(ticks) <= 9 and ticks == sorted(set(ticks))
    ticks = report.style.even(0, high)
    assert ticks[0] == 0 and ticks[-1] >= high * 0.999 and 2 <= len(ticks) <= 8
    if low >= 1:
        ticks = report.style.doublings(low, high)
        assert ticks[0] <= low and ticks[-1] >= high and 2 <= len(ticks) <= 9


@pytest.mark.parametrize("kernel, unit", [("cpu_dense", "units of cpu_dense's costs"),
                                          ("mla_16", "µs by the table of costs")])
def test_a_plans_axis_has_its_unit(kernel, unit):
    assert unit in report.schedule.unit({"kernel": kernel})[1]


@pytest.mark.parametrize("text, match", [("{", "bad.json: "), ("[]", "none of 'results', 'report' and 'parts'"),
                                         ('{"results": 1}', "none of 'results', 'report' and 'parts'"),
                                         ('{"results": []}', "nothing to draw")])
def test_bad_files(tmp_path, capsys, text, match):
    pytest.importorskip("matplotlib")
    (tmp_path / "bad.json").write_text(text)
    assert report.main([str(tmp_path / "bad.json"), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert match in error and error.count("\n") == 1


def test_host_time(tmp_path, capsys):
    assert bench.main(["--package", "numpy", "--json", str(tmp_path / "host.json")]) == 0
    assert "Plan.decode" in capsys.readouterr().out
    document = json.loads((tmp_path / "host.json").read_text())
    assert all(0 < row["us_min"] <= row["us"] <= row["us_max"] for row in document["results"])
    assert document["source_tree"] == flashlatent.info()["source_tree"]


def test_host_time_to_stdout(capsys):
    assert bench.main(["--package", "numpy", "--json", "-"]) == 0
    written = capsys.readouterr()
    assert json.loads(written.out)["results"] and "Plan.decode" in written.err


def test_host_time_without_the_device(capsys):
    if flashlatent.info()["backends"]["cuda"]["available"]:
        pytest.skip("there is a GPU")
    assert bench.main(["--device", "cuda"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_layouts_are_the_librarys(tmp_path):
    """What pictures of layouts are drawn from is what the code says now."""
    committed = RESULTS.parents[1] / "docs/pictures/layouts.json"
    assert json.loads(committed.read_text())["formats"] == flashlatent._native._formats()
    pytest.importorskip("torch")
    from flashlatent.report import layout_values
    assert committed.read_text() == layout_values.text()
    pytest.importorskip("matplotlib")
    pictures = report.report([str(committed)], str(tmp_path))
    assert [pathlib.Path(picture).stem for picture in pictures[::2]] == list(report.layouts.PICTURES)
    assert all(map(is_picture, pictures))


def test_steps_of_an_engine(tmp_path):
    pytest.importorskip("matplotlib")
    files = [RESULTS / f"h200/engine_bench_{heads}.json" for heads in ("8_to_64", "128")]
    ratios = report.engines.step_ratios(list(map(report.read, files)))
    assert set(ratios) == {(heads, peer) for heads in (8, 16, 32, 64, 128) for peer in ("FLASHMLA", "FLASH_ATTN_MLA")
                           if (heads, peer) != (32, "FLASHMLA")}
    assert ratios[8, "FLASHMLA"][0] == pytest.approx(0.8007 / 0.9545, abs=1e-3)
    pictures = report.report(list(map(str, files)), str(tmp_path))
    assert [pathlib.Path(picture).name for picture in pictures] == ["steps.png", "steps.svg"]


def test_a_bar_a_suite(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"name": f"{kind} b{b}", "ms": {"ours": 0.1 * b, "flashmla": 0.2, "fa3": 0.15}} for kind in ("dense", "v4")
            for b in (1, 2)]
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"results": rows}))
    pictures = report.report([str(file)], str(tmp_path / "out"))
    assert [pathlib.Path(picture).name for picture in pictures[::2]] == ["beside.png", "suites.png"]
    assert all(map(is_picture, pictures))
