"""Logits processors that keep state, through every entrance: plain greedy text."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_cli import embedded
from vocabularies import REAL

import omnidraft
from omnidraft.decoding import plain
from omnidraft.options import Options
from omnidraft.sampling import Uniforms
from omnidraft.stopping import FixedLength


class Log:
    """Keeps no state that matters; notes the ids of each call."""

    def __init__(self):
        self.seen = []

    def __call__(self, ids, rows):
        self.seen.append([int(token) for token in ids[0]])
        return rows


class Count(Log):
    """Forces the token that is named by the number of calls so far."""

    def __call__(self, ids, rows):
        rows = super().__call__(ids, rows)
        rows[:, 300 + len(self.seen)] += 99
        return rows


class Incremental(Log):
    """Penalises what the text holds, reading only what is new since its last call, as grammar processors do."""

    def __init__(self):
        super().__init__()
        self.held, self.at = set(), 0

    def __call__(self, ids, rows):
        rows = super().__call__(ids, rows)
        new = [int(token) for token in ids[0, self.at:]]
        self.held, self.at = self.held | set(new), ids.shape[1]
        rows[:, [*self.held]] -= 2 + len(self.held) / 8
        return rows


class Grammar(Log):
    """Accepts one token per call, and breaks when it is called for another text."""

    def __call__(self, ids, rows):
        assert not self.seen or len(ids[0]) == len(self.seen[-1]) + 1
        return super().__call__(ids, rows)


def row_by_row(processor):
    """A processor of transformers, (1, n) and (1, V), as `Options.processor` takes one: ids and logits (V,)."""
    return lambda ids, row: processor(np.array([ids]), row[None])[0]


KINDS = (Log, Count, Incremental, Grammar)


@embedded
@pytest.mark.parametrize("verify", ["lifted", "slem", "tli", "omnidraft"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_that_of_plain_decoding_and_each_call_is_made_once(kind, verify):
    pair = omnidraft.pair("draft-tasks", "qwen-like")
    how = dict(max_new_tokens=24, eos_token_id=(), stop=FixedLength(4), verify=verify)
    texts = []
    for run in ("plain", "drafted"):
        processor = kind()
        if run == "plain":
            options = Options(**how, processor=row_by_row(processor))
            rounds = plain(pair.target, "Once upon a time", options, Uniforms([]))
            ids = [token for one in rounds for token in one.emitted]
        else:
            ids = pair.generate("Once upon a time", processor=row_by_row(processor), **how).tokens
        begin = len(processor.seen[0])
        assert [len(seen) - begin for seen in processor.seen] == [*range(24)]  # once per token, in order
        assert all(seen[begin:] == ids[:len(seen) - begin] for seen in processor.seen)  # with ids that stay
        texts.append(ids)
    assert texts[0] == texts[1]


@embedded
def test_no_call_is_made_for_what_follows_an_end_token():
    pair, log = omnidraft.pair("draft-tasks", "qwen-like"), Log()
    text = pair.generate("Once upon a time", max_new_tokens=24, eos_token_id=())
    for end in set(text.tokens[3:]):
        log.seen.clear()
        made = pair.generate("Once upon a time", max_new_tokens=24, eos_token_id=end, processor=row_by_row(log))
        assert len(log.seen) == len(made.tokens) == text.tokens.index(end) + 1


@embedded
@pytest.mark.parametrize("kind", KINDS[1:])
def test_above_temperature_0_slem_asks_in_order_too(kind):
    pair = omnidraft.pair("draft-tasks", "qwen-like")
    how = dict(max_new_tokens=24, do_sample=True, eos_token_id=(), verify="slem")  # its choices are compared in order
    assert len(pair.generate("Once upon a time", processor=row_by_row(kind()), **how).tokens) == 24


@pytest.mark.parametrize("kind", KINDS)
def test_the_three_entrances_agree(kind):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folders = [REAL / "models" / name for name in ("stories260K", "babyllama-tok361")]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("no published models here")
    draft, (model, tokenizer) = ((transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval(),
                                  transformers.AutoTokenizer.from_pretrained(folder)) for folder in folders)
    pair = omnidraft.pair(draft, (model, tokenizer))
    inputs = tokenizer("Once upon a time, there was", return_tensors="pt", return_token_type_ids=False)
    folder = {"custom_generate": "integrations/custom_generate", "trust_remote_code": True, "tokenizer": tokenizer,
              "assistant_model": draft[0], "assistant_tokenizer": draft[1]}

    class Here(kind):
        def __call__(self, ids, rows):
            if kind is Count:  # the vocabulary is small
                self.seen.append(ids[0].tolist())
                rows[:, 40 + len(self.seen)] += 99
                return rows
            return super().__call__(ids, rows)

    def generate(processor, **how):
        return model.generate(**inputs, max_new_tokens=24, logits_processor=[processor], pad_token_id=0, **how)[0].tolist()

    def tensors(processor):
        return lambda ids, row: processor(torch.tensor([ids]), torch.as_tensor(row)[None])[0]

    found = {}
    for name, run in {
            "plain": lambda one: generate(one, do_sample=False),
            "decoder": lambda one: generate(one, do_sample=False, custom_generate=pair.decoder(stop=FixedLength(4))),
            "folder": lambda one: generate(one, do_sample=False, **folder),
            "pair": lambda one: pair.generate(inputs.input_ids[0], max_new_tokens=24, processor=tensors(one)).sequences,
            }.items():
        processor = Here()
        found[name] = json.dumps([run(processor), processor.seen])
    assert len(set(found.values())) == 1, found
    if kind is Log:
        return
    for run in (lambda one: generate(one, do_sample=True, custom_generate=pair.decoder()),
                lambda one: generate(one, do_sample=True, **folder)):
        with pytest.raises(ValueError, match="(keeps state|failed: AssertionError).*do_sample=False"):
            run(Here())


