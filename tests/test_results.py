"""Result files of the benchmarks: what is added later does not relabel what was measured before."""

import json
import re
import subprocess
from statistics import median
from types import SimpleNamespace

import pytest

from benchmarks import common, learning, report
from benchmarks.paper import alignment, stop_rules
from omnidraft import pair
from omnidraft.engine.load import folder


@pytest.fixture
def now(monkeypatch):
    """How figures are measured now; tests change it."""
    found = {"commit": "new", "machine": {"cpu": "fast", "cores": 2}, "models": {"draft-tasks": "v2"}}
    monkeypatch.setattr(common, "commit", lambda: found["commit"])
    monkeypatch.setattr(common, "machine", lambda: dict(found["machine"]))
    monkeypatch.setattr(common, "models", lambda *_: dict(found["models"]))
    return found


def written(path, content: dict) -> dict:
    path.write_text(json.dumps(content))
    return content


OLD = {"cells": {"a": {"mean": 1}}, "machine": {"cpu": "slow", "cores": 1}, "models": {"draft-tasks": "v1"},
       "settings": {"prompts": 16}}


def test_a_partial_rerun_keeps_old_entries_and_their_origin(tmp_path, now):
    path = tmp_path / "figures.json"
    old = written(path, OLD)
    settings = {"prompts": 24}
    results = common.start(path, settings, cells={})
    common.run_all(path, results, {("cells", "b"): lambda: {"mean": 2}}, settings)
    found = json.loads(path.read_text())
    measured = found.pop("measured")
    assert found == old | {"cells": {"a": {"mean": 1}, "b": {"mean": 2}}}
    assert measured == {"cells / b": now | {"settings": settings}}
    [(name, entry, origin), (_, rest, head)] = common.parts_of(found | {"measured": measured})
    assert (name, entry, origin["settings"], origin["commit"]) == ("cells / b", {"mean": 2}, settings, "new")
    assert rest == {"cells": {"a": {"mean": 1}}} and head["settings"] == {"prompts": 16} and "commit" not in head
    assert found["cells"]["b"] == {"mean": 2}  # parts_of copies


def test_an_entry_measured_again_has_the_newest_origin(tmp_path, now):
    path, settings = tmp_path / "figures.json", {"prompts": 24}
    results = common.start(None, settings, cells={})
    assert "measured" not in results and results["commit"] == "new" and results["settings"] == settings
    common.add(results, ("cells", "a"), {"mean": 1}, settings)
    assert "measured" not in results
    now["commit"] = "newer"
    common.add(results, ("cells", "a"), {"mean": 2}, settings)
    assert results["measured"] == {"cells / a": {"commit": "newer"}}
    now["commit"] = "new"
    common.add(results, ("cells", "a"), {"mean": 3}, settings)
    assert results["measured"] == {} and results["cells"]["a"] == {"mean": 3}
    assert not path.exists()


def test_only_what_is_asked_for_must_have_been_measured_in_the_same_way(tmp_path, now):
    path, other = tmp_path / "figures.json", {"prompts": 24, "more": 1}
    written(path, OLD)
    with pytest.raises(SystemExit, match=r"cells / a was measured with prompts 16: delete this entry"):
        common.run_all(path, common.start(path, other), {("cells", "a"): dict, ("cells", "b"): dict}, other)
    assert json.loads(path.read_text()) == OLD
    same = {"prompts": 16, "more": 1}  # a setting that the old script did not write
    common.run_all(path, common.start(path, same), {("cells", "a"): pytest.fail}, same)
    common.run_all(path, common.start(path, other), {("cells", "b"): lambda: {"mean": 2}}, other)
    common.run_all(path, common.start(path, other), {("cells", "b"): pytest.fail}, other)


def test_other_weights_are_noticed_for_the_entry_that_they_decide(now):
    figures = {**OLD, "cells": {"draft-tasks, math": {"mean": 1}}}
    assert common.earlier(figures)
    assert not common.earlier({**OLD})  # no entry names the model
    common.add(figures, ("cells", "draft-tasks, math"), {"mean": 2})
    assert not common.earlier(figures)
    common.add(figures, ("pairs", "draft-tasks:b", "math", "T=0"), {"mean": 3})
    assert not common.earlier(figures)  # though the group of this new entry is named after the model
    now["models"] = {"draft-tasks": "v3"}
    assert common.earlier(figures)


def test_a_table_says_which_entries_were_measured_otherwise(now, monkeypatch):
    monkeypatch.setattr(report, "machine", lambda found: f"{found['cpu']}, {found['cores']} cores")
    figures = json.loads(json.dumps(OLD))
    common.add(figures, ("cells", "b -> c"), {"mean": 2}, {"prompts": 24})
    assert report.origin(figures) == (
        "Measured otherwise: b → c (commit new; fast, 2 cores; prompts = 24; other weights of draft-tasks).")


def test_published_models_are_measured_where_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(common, "REAL", tmp_path)
    assert common.folders_of("draft-tasks:qwen-like") == ["draft-tasks", "qwen-like"]
    assert common.folders_of("real:one:two") == []
    assert capsys.readouterr().err == (
        "real:one:two is not measured: set OMNIDRAFT_REAL_DATA to a folder with the models and data\n")
    for name in ("models/one", "models/two", "data"):
        (tmp_path / name).mkdir(parents=True)
    assert common.folders_of("real:one:two") == [str(tmp_path / "models" / name) for name in ("one", "two")]


def test_the_table_of_vllm_has_a_column_for_each_number_of_streams(monkeypatch):
    monkeypatch.setattr(report.tables, "machine_line", lambda figures: "Measured here")
    cell = {"plain": 35.2, "drafted": 66.4, "wall": 1.886, "same_texts": 8, "texts": 8}
    figures = {"settings": {"vllm": "0.32.0", "prompts": 8, "tokens": 64, "repeats": 3},
               "pairs": {"draft-smol -> smollm2, float32": {"1": cell, "4": cell | {"wall": 1.2, "same_texts": 7}}}}
    made = report.tables.vllm(figures)
    assert "| streams: 1 | streams: 4 | same texts |" in made and "35.2 → 66.4 (**1.89×**)" in made and "15 of 16" in made


def test_a_warm_start_is_timed_without_weights():
    found = alignment.warm_start([folder("draft-general"), folder("qwen-like")], 1)
    assert found["library"] > 0 and set(found) == {"library", "ours"}


def test_what_a_stop_rule_is_counted_on():
    """At each of the places in a greedy text, a draft of n tokens writes at least one token, and at most n of its own."""
    [places] = stop_rules.at_zero(pair("draft-tasks", "qwen-like"), ["Once upon a time"], 4)
    assert len(places) == 4 and all(1 <= written <= n + 1 for one in places for n, written in enumerate(one.tokens))
    assert max(written for one in places for written in one.tokens) > 1


def test_learning_by_the_clock_says_when_it_has_paid(monkeypatch):
    monkeypatch.setattr(learning, "CLOCK", {"prompts": 1, "tokens": 4, "repeats": 1, "replay": 1})
    args = SimpleNamespace(draft="draft-general", yardstick="draft-tasks", texts=2)
    row = learning.clock(args, "qwen-like", "math", seed=0)
    assert row["updates"] == 1 and 0 < row["learning_share"] < 1
    assert {"plain", "before", "after", "yardstick", "pays_against_plain_after"} < set(row)


def test_figures_older_than_the_code_are_listed(tmp_path, monkeypatch):
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True,
                              capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "omnidraft" / "cli").mkdir(parents=True)
    commits = []
    steps = [("decoding", "a = 1"), ("lifting", "a = 1"), ("cli/demo", "a = 1"), ("lifting", '"""A."""\na = 1  # b'),
             ("lifting", "a = 2")]
    for changed, code in steps:
        (tmp_path / "omnidraft" / f"{changed}.py").write_text(code)
        git("add", ".")
        git("commit", "--quiet", "--message", changed)
        commits.append(git("rev-parse", "HEAD")[:12])
    monkeypatch.setattr(report, "ROOT", tmp_path)
    figures = {"commit": commits[1], "cells": {"a": {"mean": 1}, "b": {"mean": 2}},
               "measured": {"cells / b": {"commit": commits[0]}}}
    changed = "changed since: omnidraft/lifting.py"
    assert report.older("speed", figures) == (f"speed: cells / b at commit {commits[0]}, {changed}\n"
                                                f"speed: the file at commit {commits[1]}, {changed}")
    del figures["measured"]
    assert report.older("speed", figures) == f"speed: the file at commit {commits[1]}, {changed}"
    git("reset", "--quiet", "--hard", commits[3])
    assert report.older("speed", figures) == ""  # the command line is not measured, nor are words
    assert report.older("demo", {"tasks": {"math": 1}}) == "demo: the file at commit unknown, changed since: unknown"


def test_no_figure_is_older_than_the_code_but_those_that_are_listed():
    """Measure them again with `make bench`, or say in benchmarks/report.py why they are older."""
    done = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=common.ROOT, capture_output=True, text=True)
    if done.stdout.strip() != "false":
        pytest.skip("this is no repository")
    stale = {name for name in (path.stem for path in common.RESULTS.glob("*.json")) if report.older(name, stored(name))}
    assert stale == set(report.OLDER)


def stored(name: str) -> dict:
    return json.loads((common.ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def prose(lesson: str) -> str:
    [path] = (common.ROOT / "tutorials").glob(f"{lesson}_*.py")
    return re.sub(r"\n# +", " ", path.read_text(encoding="utf-8"))


def test_what_lesson_8_says_of_the_head_is_what_the_results_say():
    text, cells = prose("08"), [one for tasks in stored("stop_rules")["pairs"].values() for one in tasks.values()]
    assert len(cells) == 12 and "over 12 combinations of two models and a task" in text
    for at, said in ("T=0", "3 % slower than q with a tuned threshold at temperature 0"), ("T=1", "1 % faster at 1"):
        ratios = [one[at]["head"]["tuned"] / one[at]["confidence"]["tuned"] for one in cells]
        percent = round(100 * (sum(ratios) / len(ratios) - 1))
        assert said in text and said.startswith(f"{abs(percent)} % {'faster' if percent > 0 else 'slower'}")


def test_what_lesson_7_says_of_the_losses_is_what_the_results_say():
    runs, text = stored("learning")["runs"], prose("07")
    shares = {}
    for loss, name in ("lifted", "lifted, forward, rank 32"), ("hybrid", "hybrid, rank 32"), ("dm", "dm, rank 32"):
        for task in ("code", "math"):
            seeds = [run["omnidraft T=0.01"]["acceptance_proposed"] for key, run in runs.items()
                     if key.startswith(f"draft-general -> qwen-like, {task}, seed") and key.endswith(f": {name}")]
            shares[loss, task] = f"{median(seeds):.0%}".replace("%", " %")
    assert f"accepts {shares['lifted', 'code']} of the proposals for code and {shares['lifted', 'math']} for math" in text
    for loss in ("hybrid", "dm"):
        code, math = (shares[loss, task] for task in ("code", "math"))
        assert f"with `{loss}` {code[:2]} and {math}" in text


def test_what_lesson_10_says_of_held_out_prompts_is_what_the_results_say():
    speeds = [cell["T=0"]["speedup"] for name, cell in stored("real_llm")["cells"].items()
              if name.startswith("draft-smol -> smollm2, ") and ", before, " in name]
    assert len(speeds) == 4
    assert f"with SmolLM2, held-out prompts reach speedups of {min(speeds):.1f} to {max(speeds):.1f}" in prose("10")
