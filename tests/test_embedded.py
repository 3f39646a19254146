"""The embedded models: the files that ship, and greedy text equal to plain decoding's in float64, token for token."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

import omnidraft
from omnidraft.decoding import plain, speculative
from omnidraft.engine.load import EMBEDDED, folder, load
from omnidraft.learning.adapters import SHIPPED, Adapters, manifest_of, read
from omnidraft.options import Options
from omnidraft.pairs.pair import Pair
from omnidraft.sampling import Uniforms
from omnidraft.stopping import FixedLength
from omnidraft.text.errors import OmnidraftError
from omnidraft.verification import RULES

PACKAGE = Path(omnidraft.__file__).parent
PAIRS = [(draft, target) for draft in ("draft-tasks", "draft-general") for target in ("qwen-like", "llama3-like")]
PAIRS.append(("draft-tasks", "draft-general"))  # both have the same tokenizer


@functools.cache
def model(name: str):
    return load(name, "float64")


@functools.cache
def pair(draft: str, target: str) -> Pair:
    return Pair(model(draft), model(target))


@functools.cache
def held_out(task: str) -> list[dict]:
    return [json.loads(line) for line in (PACKAGE / "data" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()]


@functools.cache
def alone(target: str, task: str) -> list[int]:
    ids = model(target).tokenizer.encode(held_out(task)[0]["prompt"], bos=True)
    return [t for r in plain(model(target), ids, Options(max_new_tokens=16), Uniforms([])) for t in r.emitted]


def test_the_weights_are_small_enough_to_ship():
    assert sum(f.stat().st_size for name in EMBEDDED for f in folder(name).iterdir()) < 60e6


def test_a_card_and_the_licence_come_with_the_models():
    card = (PACKAGE / "engine" / "embedded" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in card for name in (*EMBEDDED, "adapters"))
    for name in EMBEDDED:  # parameters in millions, as in the model card
        [row] = [row for row in card.splitlines() if row.startswith(f"| `{name}`")]
        assert f"| {load(name).parameters / 1e6:.1f} M |" in row
    licence = PACKAGE.parent / "LICENSE"
    assert (PACKAGE / "engine" / "embedded" / "LICENSE").read_bytes() == licence.read_bytes()


@pytest.mark.parametrize("task", ["math", "code", "text"])
def test_held_out_prompts_are_complete(task):
    examples = held_out(task)
    assert len(examples) == 200 and len({e["prompt"] for e in examples}) > 190
    assert {e["seen_template"] for e in examples} == {True, False}


@pytest.mark.parametrize("task", ["math", "code", "text"])
@pytest.mark.parametrize("draft, target", PAIRS)
def test_greedy_text_equals_plain_decoding(draft, target, task):
    for rule in RULES:
        for k in (1, 12):
            options = Options(verify=rule, stop=FixedLength(k), max_new_tokens=16)
            rounds = speculative(pair(draft, target), held_out(task)[0]["prompt"], options, Uniforms([]))
            assert [t for r in rounds for t in r.emitted] == alone(target, task), (rule, k)


def test_one_drafter_serves_many_targets_unchanged():
    drafter = model("draft-tasks")

    def sums():
        parts = [part for layer in drafter.layers for part in layer[:4]]
        return [array.sum() for part in parts for array in (part.panels, part.blocks) if array is not None]

    before = sums()
    for target in ("qwen-like", "llama3-like", "draft-general"):
        assert pair("draft-tasks", target).draft is drafter
    assert sums() == before


def test_the_python_interface_writes_what_the_loop_writes():
    pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")
    made = pair.generate("Once upon a time", max_new_tokens=24, adaptive=False)
    rounds = list(speculative(pair, "Once upon a time", Options.of(max_new_tokens=24), Uniforms([])))
    assert made.tokens == [token for record in rounds for token in record.emitted] and len(made.rounds) == len(rounds)
    assert made.text == pair.target.tokenizer.decode_bytes(made.tokens).decode("utf-8", "replace")
    sampled = [pair.generate("Once", do_sample=True, seed=seed, max_new_tokens=16).text for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert Options(do_sample=True).temperature == 1 and Options(temperature=0.5, do_sample=False).temperature == 0
    assert Options.of(top_k=None, top_p=None, temperature=None, max_new_tokens=None) == Options.of()
    for wrong in ({"max_new_tokens": 2.5}, {"max_new_tokens": "7"}, {"top_p": "x"}, {"draft_length": 2.5}, {"seed": -1}):
        with pytest.raises(OmnidraftError, match="must be a"):
            pair.generate("Once", **wrong)
    with pytest.raises(OmnidraftError, match="unknown option 'num_beams'"):
        pair.generate("Once", num_beams=4)


def test_a_stream_never_cuts_a_character():
    pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")
    prompt, pieces, rounds = "naïve café – ½ 🦊🦊🦊🦊", [], []
    for piece in pair.stream(prompt, do_sample=True, temperature=1.5, seed=3, max_new_tokens=64, rounds=rounds):
        pieces.append(piece)
    data = pair.target.tokenizer.decode_bytes([token for record in rounds for token in record.emitted])
    assert "".join(pieces) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("name", ["qwen05", "qwen15"])
def test_the_adapters_for_published_models_are_small_and_gain(name):
    """They belong to draft-smol; on prompts that they did not learn, the target needed fewer passes beyond chance."""
    place = SHIPPED / f"draft-smol--{name}"
    assert sum(f.stat().st_size for f in place.rglob("*") if f.is_file()) <= 2e6
    drafter = load("draft-smol")
    adapter = read(place, manifest_of(place), draft=drafter)
    gain, error = adapter.statistics.saved("rounds")
    assert adapter.statistics.held_out == 24 and gain > error
    ids = drafter.tokenizer.encode("def is_even(n):", bos=True)
    logits = [one.forward(ids, one.new_cache()) for one in (drafter, adapter.drafter(drafter))]
    assert 0.1 < abs(logits[0] - logits[1]).max() < 30


@pytest.mark.parametrize("target", ["qwen-like", "llama3-like"])
def test_the_adapters_that_ship_know_their_targets(target):
    drafter, goal = load("draft-general"), load(target)
    general = Pair(drafter, goal)
    kept = Adapters(SHIPPED).load(general)
    assert sum(f.stat().st_size for f in Adapters(SHIPPED).folder(general).rglob("*") if f.is_file()) <= 1e6
    adapted, options = Pair(kept.drafter(drafter), goal), Options(max_new_tokens=48)
    for task in ("math", "code", "text"):
        prompt = next(example["prompt"] for example in held_out(task) if example["seen_template"])
        texts = {}
        for pair in (general, adapted):
            rounds = list(speculative(pair, prompt, options, Uniforms([])))
            texts[pair] = [token for r in rounds for token in r.emitted], len(rounds)
        assert texts[adapted][0] == texts[general][0] and texts[adapted][1] < 0.8 * texts[general][1]
