"""Texts written many at a time equal those that the model writes one at a time."""

from __future__ import annotations

import numpy as np
import pytest

from omnidraft import load
from omnidraft.sampling import Uniforms, mask, process
from recipes import batch
from recipes.adapters import fresh_prompts
from recipes.batch import write


@pytest.mark.parametrize("kind", [batch.Batch, batch.Caches])
@pytest.mark.parametrize(("name", "size"), [("draft-tasks", 3), ("qwen-like", 8)])
def test_texts_written_many_at_a_time_are_the_models_own(name: str, size: int, kind: type, monkeypatch):
    monkeypatch.setattr(batch, "Batch", kind)
    model, tokens = load(name), 40
    prompts = [model.tokenizer.encode(prompt, bos=True) for prompt in fresh_prompts(10, 0)]
    asked = ((ids, i % 2 == 1) for i, ids in enumerate(prompts))
    texts = list(write(model, asked, Uniforms(np.random.default_rng(0)), tokens, size))
    assert sorted(number for number, _, _ in texts) == list(range(10))  # each once, in the order in which they end
    for number, written, probs in texts:
        rows = model.forward(prompts[number] + written[:-1], model.new_cache(), len(written))
        law = process(mask(rows, model.tokenizer.size))
        assert np.abs(law - probs).max() < 1e-4  # whatever the other slots held, and the same slot before
        if number % 2 == 0:
            assert [int(token) for token in law.argmax(-1)] == written
        ends = [token in model.eos_ids for token in written]
        assert not any(ends[:-1]) and (ends[-1] or len(written) == tokens)


def test_draws_at_temperature_one_have_the_models_law():
    model = load("draft-tasks")
    prompt = model.tokenizer.encode("Question: Tom has 3 apples", bos=True)
    law = process(mask(model.forward(prompt, model.new_cache()), model.tokenizer.size))[0]
    texts = write(model, ((prompt, True) for _ in range(400)), Uniforms(np.random.default_rng(1)), 1, 8)
    counts = np.bincount([ids[0] for _, ids, _ in texts], minlength=len(law))
    often = law > 0.02
    spread = np.sqrt(law * (1 - law) * 400)
    assert often.any() and (np.abs(counts - 400 * law)[often] < 4 * spread[often]).all() and not counts[law == 0].any()


@pytest.mark.parametrize("kind", [batch.Batch, batch.Caches])
def test_a_text_ends_with_the_context(kind: type, monkeypatch):
    monkeypatch.setattr(batch, "Batch", kind)
    model = load("draft-tasks")
    room = 5
    ids = [model.tokenizer.encode("a", bos=True)[-1]] * (model.context_size - room)
    (_, written, _), = write(model, [(ids, False)], Uniforms([]), 50, 2)
    assert len(written) <= room
