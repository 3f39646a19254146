"""docs/upstream: the reported error of transformers is in the installed release, and the proposed fix removes it."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
from test_cli import embedded

pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers.generation import candidate_generator  # noqa: E402

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "upstream"


@pytest.fixture
def translator(monkeypatch):
    """A function that applies fix.diff to transformers' class; undone after the test."""
    name = "AssistantToTargetTranslator"
    monkeypatch.setattr(candidate_generator, name, getattr(candidate_generator, name))

    def fix() -> None:
        source = inspect.getsource(getattr(candidate_generator, name))
        for hunk in (FOLDER / "fix.diff").read_text().split("\n@@ ")[1:]:
            lines = hunk.splitlines()[1:]
            before, after = ("".join(f"{line[1:]}\n" for line in lines if line[0] != left_out) for left_out in "+-")
            assert source.count(before) == 1
            source = source.replace(before, after)
        exec(source, vars(candidate_generator))

    return fix


def outcome() -> dict[str, bool]:
    """The cases of the proposed test, and whether each passes."""
    spec = importlib.util.spec_from_file_location("proposed", FOLDER / "test_sampling_distribution.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result, cases = unittest.TestResult(), [*unittest.defaultTestLoader.loadTestsFromModule(module)._tests[0]]
    unittest.TestSuite(cases).run(result)
    failed = {getattr(case, "test_case", case).id() for case, _ in result.failures + result.errors}
    return {case.id().rpartition(".")[2]: case.id() not in failed for case in cases if case}


def test_the_proposed_test_fails_as_released_and_passes_with_the_fix(translator):
    names = {"test_sampled_tokens_have_target_distribution", "test_target_logits_match_target_ids",
             "test_assistant_vocabulary_is_subset_of_target_vocabulary"}
    assert outcome() == dict.fromkeys(names, False)
    translator()
    assert outcome() == dict.fromkeys(names, True)


def test_the_reproduction_shows_the_distance_and_the_fixed_class_has_none():
    draws = 300  # for exact draws the total variation is 0.10 on average, and above 0.16 in one run of a thousand
    done = subprocess.run([sys.executable, "reproduction.py", str(draws)], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [re.fullmatch(r"(.*), assistant '(.*)': (.*)", line) for line in done.stdout.splitlines()[1:]]
    (wrong, error), (right, subset) = [[match[3] for match in found if match[1] == state]
                                       for state in ("as released", "with the two fixes")]
    assert float(wrong.split(",")[0]) > 0.18 and "AttributeError" in error and "assistant_overlap_token_ids" in error
    assert float(right.split(",")[0]) < 0.16 and float(subset.split(",")[0]) < 0.16


def test_the_reproduction_is_short_and_needs_only_transformers():
    source = (FOLDER / "reproduction.py").read_text()
    assert source.count("\n") <= 60 and not re.search(r"omnidraft|from_pretrained", source)
    assert set(re.findall(r"^(?:import|from) (\w+)", source, re.M)) == {"inspect", "sys", "tokenizers", "torch", "transformers"}


@embedded
def test_the_benchmark_measures_that_distance(translator):
    import omnidraft
    from benchmarks.against_transformers import distance

    pair = omnidraft.pair("draft-tasks", "qwen-like", backend="torch", draft_backend="torch", device="cpu")
    prompts = ["Once upon a time there was a", "Ann has 3 boxes of 12 pens."]
    found = distance(pair, prompts, 1.0)
    low, high = found["first_token_distance_range"]
    assert 0 < low <= found["first_token_distance"] <= high <= 1 and high > 0.05
    translator()
    assert distance(pair, prompts, 1.0)["first_token_distance"] < 1e-6


@embedded
def test_a_drafter_within_the_target_is_no_figure(capsys):
    import omnidraft
    from benchmarks.against_transformers import distance

    pair = omnidraft.pair("draft-tasks", "draft-general", backend="torch", draft_backend="torch", device="cpu")
    assert distance(pair, ["Once"], 1.0) == {}
    assert "assistant_overlap_token_ids" in capsys.readouterr().err
