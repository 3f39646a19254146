"""Texts with transformers' argument names: prompts, processors, stops, results (in NumPy)."""

import dataclasses
import sys

import numpy as np
import pytest
import tokenizers
from fakes import FakeModel, byte_level, sentence_piece
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from vocabularies import REAL

from omnidraft import Options, Pair, Tokenizer, pair
from omnidraft.decoding import plain
from omnidraft.pairs.prompts import ids_of
from omnidraft.sampling import Uniforms
from omnidraft.stopping import FixedLength
from omnidraft.text.errors import OmnidraftError
from omnidraft.verification import RULES

BYTES = byte_level([("a", "b"), ("b", "a"), ("ab", "a")])
PIECES = sentence_piece([("a", "a"), ("▁", "a"), ("▁a", "b")])
PROMPT = "ab a"


def made(seed: int = 0, draft=PIECES, target=BYTES, **how) -> Pair:
    return Pair(FakeModel(draft, seed, **how), FakeModel(target, seed + 1, **how))


# Prompts

def test_a_prompt_is_a_text_ids_or_arrays_of_them_and_all_give_the_same_text():
    one, ids = made(), BYTES.encode(PROMPT, bos=True)
    wanted = one.generate(PROMPT, max_new_tokens=12)
    assert wanted.prompt_tokens == ids and wanted.sequences == ids + wanted.tokens
    for prompt in (ids, tuple(ids), np.array(ids), list(np.array(ids))):
        found = one.generate(prompt, max_new_tokens=12)
        assert found.tokens == wanted.tokens and found.text == wanted.text and found.prompt_tokens == ids


@pytest.mark.parametrize("kind", ["text", "ids", "chat"])
def test_a_prompt_goes_one_way_until_both_models_have_read_it(kind):
    """A prompt enters each part of the package at most twice: as a text or chat, and as its ids.

    `options` does not count: `as_ids` there only says whether ids are ids, and gives them back. Nor does the tokenizer,
    which both models may have.
    """
    both, ids = made(), BYTES.encode(PROMPT, bos=True)
    prompt = {"text": PROMPT, "ids": ids, "chat": [{"role": "user", "content": PROMPT}]}[kind]
    same, rooms = [prompt, *ids_of(both, prompt)], []

    def enter(frame, event, _) -> None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if event == "call" and module.startswith("omnidraft."):
            given = [frame.f_locals.get(name) for name in code.co_varnames[:code.co_argcount]]
            held = [type(one) in (str, list) and {*map(type, one)} <= {str, int, dict} and one in same for one in given]
            if any(held) and module not in (*rooms[-1:], "omnidraft.options", "omnidraft.text.tokenizer"):
                rooms.append(module)
            if code.co_name == "draft" and module == "omnidraft.drafting":
                sys.setprofile(None)

    sys.setprofile(enter)
    try:
        both.generate(prompt, temperature=1.0, max_new_tokens=4)
    finally:
        sys.setprofile(None)
    assert rooms[0] == "omnidraft.pairs.pair" and rooms.count("omnidraft.drafting") > 0
    assert max(rooms.count(module) for module in rooms) <= 2, rooms




@pytest.mark.parametrize("prompt", [
    [], [1, "a"], [[1, 2], "a"], 3, None, 1.5, [1.5], [True], np.array([[0.5]]), np.zeros((1, 1, 1), int), {"role": "user"},
    ["a", [{"role": "user", "content": "b"}]], [{"role": "user"}], [[]], [["a"]], b"ab"])
def test_what_is_no_prompt_is_refused_in_a_line(prompt):
    with pytest.raises(OmnidraftError, match="prompt|ids|decode"):
        made().generate(prompt)






# How ids begin

def family(post, bos: str | None, config=None) -> Tokenizer:
    """A byte-level tokenizer with the post-processor and begin token of some model family."""
    raw = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "Ġ": 2}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True) for token in ("<|endoftext|>", "</s>", "<|begin_of_text|>")])
    if post is not None:
        raw.post_processor = post
    return Tokenizer(raw, "family", {"bos_token": bos, "eos_token": "<|endoftext|>", **(config or {})})


@pytest.mark.parametrize(("post", "bos", "config", "begin"), [
    (processors.ByteLevel(), "<|endoftext|>", {}, []),  # GPT-2 and Qwen: a begin token that is never added
    (processors.TemplateProcessing("$A", "$A $B"), "<|endoftext|>", {}, []),  # Pythia
    (processors.TemplateProcessing("</s> $A", "</s> $A $B", [("</s>", 4)]), "</s>", {}, [4]),  # OPT
    # Llama 3
    (processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        "<|begin_of_text|> $A", "<|begin_of_text|> $A $B", [("<|begin_of_text|>", 5)])]), "<|begin_of_text|>", {}, [5]),
    (processors.TemplateProcessing("</s> $A <|endoftext|>", "$A $B", [("</s>", 4), ("<|endoftext|>", 3)]), None, {}, [4]),
    (None, "</s>", {}, []), (None, "</s>", {"add_bos_token": True}, [4]), (None, None, {}, [])])
def test_ids_begin_as_the_post_processor_says(post, bos, config, begin):
    tokenizer = family(post, bos, config)
    assert tokenizer.encode("ab", bos=True) == [*begin, 0, 1] and tokenizer.encode("ab") == [0, 1]
    assert tokenizer.encode("", bos=True) == begin


@pytest.mark.parametrize("name", ["gpt2-50k", "llama2-32k", "llama3-128k", "qwen2-151k", "tok512"])
def test_real_tokenizers_begin_as_the_library_has_it(name):
    if not (folder := REAL / "tokenizers" / name).is_dir():
        pytest.skip(f"{name} is not here")
    tokenizer = Tokenizer.load(folder)
    tokenizer.raw.encode_special_tokens = False
    assert tokenizer.encode("Once upon", bos=True) == tokenizer.raw.encode("Once upon").ids


# One vocabulary

@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_drafts_for_itself_keeps_k_of_k(rule, temperature):
    if rule == "slem":
        pytest.skip("slem proposes the text as the target's tokenizer spells it")
    for tokenizer in (BYTES, PIECES):
        model = FakeModel(tokenizer, 3, end=-30.0)
        twin = FakeModel(Tokenizer(tokenizer.raw, "again", tokenizer.config), 3, end=-30.0)
        for prompt in (PROMPT, tokenizer.encode("a b", bos=True), [3, 4, 3, 3, 4]):
            found = Pair(twin, model).generate(prompt, stop=FixedLength(5), verify=rule, temperature=temperature,
                                               max_new_tokens=60, adaptive=False)
            assert all(len(r.emitted) == len(r.draft_tokens) + 1 and r.draft_kept == len(r.draft_tokens) for r in found.rounds)
            assert max(len(r.draft_tokens) for r in found.rounds) == 5
            assert tokenizer.encode(found.text) != found.tokens  # tokenizing the text again gives other ids


# Processors

def remembering(ids, logits):
    """A processor with transformers' arguments; its rows depend on all ids before."""
    assert ids.shape[0] == logits.shape[0] == 1 and logits.ndim == 2
    return logits * (1 + ids.sum() % 3) - 2.0 * (np.arange(logits.shape[1]) == ids[0, -1])








# Ends

def test_every_text_says_why_it_ended():
    one = made(end=-30.0)
    whole = one.generate(PROMPT, max_new_tokens=20)
    assert whole.finish_reason == "length" and len(whole.tokens) == 20 and whole.rounds[-1].done
    ends = one.generate(PROMPT, max_new_tokens=20, eos_token_id=whole.tokens[4])
    assert ends.finish_reason == "eos" and ends.tokens == whole.tokens[:whole.tokens.index(whole.tokens[4]) + 1]
    for same in ([whole.tokens[4]], np.array(whole.tokens[4]), np.array(whole.tokens[4:5])):
        assert one.generate(PROMPT, max_new_tokens=20, eos_token_id=same).tokens == ends.tokens
    short = made(end=-30.0, context_size=20).generate(PROMPT, max_new_tokens=500)
    assert short.finish_reason == "context" and len(short.sequences) == 20
    ready = made(2, end=6.0)
    assert ready.generate(PROMPT, max_new_tokens=50).finish_reason == "eos"
    assert ready.generate(PROMPT, max_new_tokens=50, eos_token_id=()).finish_reason == "length"






# Results







@pytest.mark.parametrize(("wrong", "says"), [
    ({"stop": ["."]}, "stop_strings"), ({"stop_strings": [""]}, "stop_strings"), ({"stop_strings": 3}, "stop_strings"),
    ({"repetition_penalty": 0}, "unknown option"), ({"bad_words_ids": [3]}, "unknown option"),
    ({"min_p": 2.0}, "min-p"), ({"eos_token_id": "."}, "eos_token_id"), ({"generator": 3}, "generator is 3"),
    ({"seed": -1}, "seed"),
    ({"num_return_sequences": 0}, "unknown option"), ({"max_length": 3}, "unknown option"),
    ({"options": Options(), "top_p": 0.5}, "top_p"),
    ({"threshold": "a"}, "threshold is 'a'"),
    ({"options": PROMPT}, "not both"),
    ({"stop_string": "."}, "unknown option")])
def test_a_wrong_setting_is_one_clear_line(wrong, says):
    with pytest.raises(OmnidraftError, match=says) as caught:
        made().generate(PROMPT, **wrong)
    assert "\n" not in str(caught.value)






def grammar(start: int, allowed: tuple[int, ...]):
    """A processor that allows a few tokens, and none after a text that has any other from `start` on."""
    def run(ids, row):
        possible = np.isin(range(len(row)), allowed) & bool(np.isin(ids[start:], allowed).all())
        return row * possible + np.where(possible, 0.0, -np.inf)
    return run


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_may_leave_nothing_after_a_proposal_that_is_not_kept(rule, temperature):
    for seed in range(3):
        one, ids = made(seed, end=-30.0), BYTES.encode(PROMPT, bos=True)
        how = {"verify": rule, "temperature": temperature, "processor": grammar(len(ids), (4, 5, 6)), "threshold": 0.0,
               "adaptive": False}
        found = one.generate(PROMPT, max_new_tokens=12, **how)
        assert {*found.tokens} <= {4, 5, 6} and any(record.proposals for record in found.rounds)
        if not temperature:
            assert found.tokens == one.generate(PROMPT, max_new_tokens=12, **how | {"draft_length": 0}).tokens


def test_settings_and_options_mean_the_same():
    one = made(end=-30.0)
    options = Options.of(max_new_tokens=7, min_p=0.1, do_sample=True)
    assert one.generate(PROMPT, options).text == one.generate(PROMPT, max_new_tokens=7, min_p=0.1, do_sample=True).text
    taken = []
    own = dataclasses.replace(options, processor=lambda ids, row: taken.append(len(ids)) or row)
    assert one.generate(PROMPT, own).text == one.generate(PROMPT, options).text and taken
    uniforms = Uniforms(np.random.default_rng(0))
    alone = [r.emitted[0] for r in plain(one.target, PROMPT, dataclasses.replace(own, temperature=0.0), uniforms)]
    assert alone == one.generate(PROMPT, max_new_tokens=7).tokens


# What `omnidraft.pair` accepts

def test_models_and_names_are_mixed_and_anything_else_is_refused():
    model = FakeModel(BYTES, 0)
    assert pair(model, FakeModel(PIECES, 1)).draft is model
    for wrong, says in (((3, model), "int is not a causal"), ((model, None), "NoneType"), (((model, BYTES, 1), model), "tuple"),
                        (((model, BYTES), model), "has a tokenizer"),
                        (("draft-tasks", model, "numpy", BYTES), "has a tokenizer")):
        with pytest.raises(OmnidraftError, match=says):
            pair(*wrong)
    with pytest.raises(OmnidraftError, match="dtype is for loading, but both models are loaded"):
        pair(model, model, dtype="float64")
    with pytest.raises(OmnidraftError, match="backend 'jax' is for loading, but both models are loaded"):
        pair(model, model, backend="jax")
    for how in ({"draft_model": "draft-tasks", "target_model": "qwen-like"}, {"model": model}, {"drafter": model}):
        with pytest.raises(OmnidraftError, match="unknown option '.*': give the models as draft and target"):
            pair(**how)
    for one, other in ((model, "qwen-like"), ("draft-tasks", model)):
        with pytest.raises(OmnidraftError, match="unknown backend 'jax': choose numpy or torch"):
            pair(one, other, backend="jax")
    with pytest.raises(OmnidraftError, match="unknown backend 'jax': choose numpy or torch"):
        pair("draft-tasks", model, draft_backend="jax")
    assert pair(model, model, backend="torch").target is model  # a loaded model is used as it is
