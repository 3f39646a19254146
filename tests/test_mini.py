"""tutorials/mini.py: short, NumPy only, exact, and with the package's method: it writes the same tokens."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_cli import embedded

from omnidraft import Options, Pair, Uniforms, load, speculative
from omnidraft.ngram_cache import NGramCache
from omnidraft.stopping import FixedLength

FILE = Path(__file__).resolve().parent.parent / "tutorials" / "mini.py"


@pytest.fixture(scope="module")
def mini():
    spec = importlib.util.spec_from_file_location("mini", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_one_short_file_of_numpy():
    text = FILE.read_text(encoding="utf-8")
    imported = {alias.name for node in ast.parse(text).body if isinstance(node, ast.Import) for alias in node.names}
    assert len(text.splitlines()) <= 250 and imported == {"numpy", "re", "sys"}


def test_an_unknown_word_on_its_line_is_refused():
    done = subprocess.run([sys.executable, FILE, "--embeded"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "usage: python tutorials/mini.py [--embedded]\n")


def test_every_outcome_together_is_the_targets_distribution(mini, capsys):
    mini.tables()
    assert capsys.readouterr().out.count("total variation") == 3


@pytest.mark.parametrize("fault", ["by_target", "by_drafter"])
def test_the_proof_sees_a_fault(mini, monkeypatch, fault):
    right = getattr(mini.Trie, fault)

    def sharper(self, *given):  # at temperature 0 it changes nothing
        row = right(self, *given)
        return row ** 2 * row.sum() / (row ** 2).sum()
    monkeypatch.setattr(mini.Trie, fault, sharper)
    with pytest.raises(AssertionError):
        mini.tables(new=2)


@embedded
def test_it_writes_the_tokens_of_the_package_from_the_same_draws(mini):
    models = [load(name, "float64") for name in ("draft-tasks", "qwen-like")]
    draft, target, trie, *_ = mini.embedded()
    cache = NGramCache()
    for split, token in trie.token.items():
        if len(split) > 1:
            cache.insert(split, token)
    pair = Pair(*models, cache=cache)  # the package's prefill leaves out a few n-grams, with parts of characters or spaces
    assert pair.lifting.splits == {token: split for split, token in trie.token.items()}
    assert [path or () for path in pair.lifting.paths] == [trie.paths[d] for d in range(len(draft.spell))]
    for temperature, prompt in ((0, "Once upon a time"), (1, "Once upon a time"), (1, "The windows of the shop")):
        options = Options(stop=FixedLength(4), temperature=temperature, max_new_tokens=40, heal=False)
        written = [r.emitted for r in speculative(pair, prompt, options, Uniforms(np.random.default_rng(0)))]
        own, ids = (model.tokenizer.encode(prompt, bos=True) for model in models)
        draws = mini.Draws(iter(np.random.default_rng(0).random, None))
        rounds = list(mini.speculate(draft, target, trie, own, ids, 4, 40, temperature, draws))
        assert sum(rounds, []) == sum(written, [])
        assert temperature == 0 or rounds == written  # at temperature 0 the package proposes the target's own spelling
