"""Texts with transformers' argument names: prompts, processors, stops, results (in NumPy)."""

import dataclasses
import json
import re
import sys

import numpy as np
import pytest
import tokenizers
from fakes import FakeModel, byte_level, sentence_piece
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from vocabularies import REAL

from omnidraft import Adapters, Options, Pair, Tokenizer, pair
from omnidraft.decoding import plain
from omnidraft.exactness import distribution_of, total_variation
from omnidraft.sampling import Uniforms, process
from omnidraft.serving.control import Control, forbid, penalise
from omnidraft.serving.generation import Text
from omnidraft.serving.prompts import ids_of, split
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
    masked = {"input_ids": [[3, *ids]], "attention_mask": [[0, *[1] * len(ids)]]}
    for prompt in (ids, tuple(ids), np.array(ids), np.array([ids]), list(np.array(ids)), {"input_ids": ids}, masked):
        found = one.generate(prompt, max_new_tokens=12)
        assert found.tokens == wanted.tokens and found.text == wanted.text and found.prompt_tokens == ids
    for inputs in (masked, {"input_ids": np.array([ids]), "token_type_ids": np.array([[0] * len(ids)])}):  # as for transformers
        assert one.generate(**inputs, max_new_tokens=12).sequences == wanted.sequences
        assert "".join(one.stream(**inputs, max_new_tokens=12)) == wanted.text
    mask = masked["attention_mask"]
    assert one.generate(masked["input_ids"], attention_mask=mask, max_new_tokens=12).sequences == wanted.sequences
    for wrong in ({"prompt": ids, "input_ids": ids}, {"prompt": PROMPT, "attention_mask": mask}, {"attention_mask": mask}, {}):
        with pytest.raises(OmnidraftError, match="input_ids|is not a prompt"):
            one.generate(**wrong)


@pytest.mark.parametrize("kind", ["text", "ids", "chat"])
def test_a_prompt_goes_one_way_until_both_models_have_read_it(kind):
    """A prompt enters each part of the package at most twice: as a text or chat, and as its ids.

    `options` does not count: `as_ids` there only says whether ids are ids, and gives them back.
    """
    both, ids = made(), BYTES.encode(PROMPT, bos=True)
    prompt = {"text": PROMPT, "ids": ids, "chat": [{"role": "user", "content": PROMPT}]}[kind]
    same, rooms = [prompt, *ids_of(both, prompt)], []

    def enter(frame, event, _) -> None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if event == "call" and module.startswith("omnidraft."):
            given = [frame.f_locals.get(name) for name in code.co_varnames[:code.co_argcount]]
            held = [type(one) in (str, list) and {*map(type, one)} <= {str, int, dict} and one in same for one in given]
            if any(held) and module not in (*rooms[-1:], "omnidraft.options"):
                rooms.append(module)
            if code.co_name == "draft":
                sys.setprofile(None)

    sys.setprofile(enter)
    try:
        both.generate(prompt, temperature=1.0, max_new_tokens=4)
    finally:
        sys.setprofile(None)
    assert rooms[0] == "omnidraft.serving.generation" and rooms.count("omnidraft.drafting") > 0
    assert max(rooms.count(module) for module in rooms) <= 2, rooms


def test_a_list_of_prompts_is_a_batch_in_order():
    one, prompts = made(), ["ab a", "b", "a b"]
    wanted = [one.generate(prompt, max_new_tokens=9).text for prompt in prompts]
    assert [found.text for found in one.generate(prompts, max_new_tokens=9)] == wanted
    ids = [BYTES.encode(prompt, bos=True) for prompt in prompts]
    assert [found.text for found in one.generate(ids, max_new_tokens=9)] == wanted
    same = np.array([ids[0], ids[0]])
    assert [found.text for found in one.generate(same, max_new_tokens=9)] == [wanted[0]] * 2
    assert [found.text for found in one.generate([prompts[0]], max_new_tokens=9)] == wanted[:1]
    longest = max(map(len, ids))
    table = {"input_ids": np.array([[0] * (longest - len(one)) + one for one in ids]),
             "attention_mask": np.array([[0] * (longest - len(one)) + [1] * len(one) for one in ids])}
    assert [found.text for found in one.generate(table, max_new_tokens=9)] == wanted


@pytest.mark.parametrize("prompt", [
    [], [1, "a"], [[1, 2], "a"], 3, None, 1.5, [1.5], [True], np.array([[0.5]]), np.zeros((1, 1, 1), int), {"role": "user"},
    ["a", [{"role": "user", "content": "b"}]], [{"role": "user"}], [[]], [["a"]], b"ab"])
def test_what_is_no_prompt_is_refused_in_a_line(prompt):
    with pytest.raises(OmnidraftError, match="a list of prompts of one kind is a batch"):
        made().generate(prompt)


def test_padding_without_a_mask_is_refused():
    raw = tokenizers.Tokenizer.from_str(BYTES.raw.to_str())
    raw.add_special_tokens([AddedToken("<pad>", special=True)])
    padded = Tokenizer(raw, "padded", {"eos_token": "<|endoftext|>", "pad_token": "<pad>"})
    one, [pad] = made(target=padded), padded.roles["pad"]
    with pytest.raises(OmnidraftError, match="attention_mask"):
        one.generate(np.array([[0, 1, 0], [0, 1, pad]]))
    with pytest.raises(OmnidraftError, match="one text"):
        list(one.stream(["a", "b"]))
    for mask in ([[1, 1, 1]], [[0, 0]], [[1], [1]]):
        with pytest.raises(OmnidraftError, match="attention_mask does not fit the ids, or hides a whole prompt"):
            one.generate({"input_ids": [[0, 1]], "attention_mask": mask})
    for mask in ([1, 1], 1):
        with pytest.raises(OmnidraftError, match="attention_mask does not fit the ids"):
            one.generate([[0, 1]], attention_mask=mask)
    with pytest.raises(OmnidraftError, match="the ids are padded"):
        one.generate([[0, 1, 0], [0, 1, pad]])
    for lists in ([[0, 1, pad]], [[0, 1], [1, 0, pad]], [[0, pad, 1], [0, 1, 2]]):  # these were not padded
        assert split(lists, [pad]) == (lists, True)


def test_padding_may_be_the_token_with_which_every_text_begins():
    """GPT-2's <|endoftext|> begins a text, ends it, and pads it; a row that it only begins is not padded."""
    raw = tokenizers.Tokenizer.from_str(BYTES.raw.to_str())
    one = made(target=Tokenizer(raw, "one", dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")))
    [all_of_it], text = one.target.tokenizer.roles["pad"], BYTES.encode("the")
    wanted = one.generate([all_of_it, *text], max_new_tokens=3)
    assert one.generate(np.array([[all_of_it, *text]]), max_new_tokens=3).tokens == wanted.tokens
    assert [text.tokens for text in one.generate([[all_of_it, *text]] * 2, max_new_tokens=3)] == [wanted.tokens] * 2
    assert one.generate(np.array([[all_of_it]]), max_new_tokens=3).prompt_tokens == [all_of_it]
    for padded in ([[all_of_it, *text], [0, *text]], [[all_of_it, all_of_it, *text]], [[all_of_it, *text, all_of_it]]):
        with pytest.raises(OmnidraftError, match="the ids are padded"):
            one.generate(np.array(padded))


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
    (None, "</s>", {}, [4]), (None, "</s>", {"add_bos_token": False}, []), (None, None, {}, [])])
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


@pytest.mark.parametrize("rule", ["lifted", "slem", "tli"])
def test_the_text_has_the_distribution_of_the_processed_target(rule):
    small = byte_level([("a", "b")], "ab")
    control = {"logits_processor": [remembering], "repetition_penalty": 1.7, "bad_words_ids": [[0, 1], [2]]}
    settings = {"temperature": 0.8, "top_p": 0.97, "min_p": 0.02, "max_new_tokens": 3}
    pieces = sentence_piece([("a", "b")], "ab")
    for seed, (draft, target) in enumerate([(pieces, small), (small, pieces)]):
        both, ids = made(seed, draft, target), target.encode("ab", bos=True)
        options = Options(stop=FixedLength(2), verify=rule, **settings)

        def text(draws, both=both, options=options, ids=ids):
            found = Text(both, ids_of(both, "ab"), options, Control(**control), draws)
            list(found)
            return tuple(found.ids[len(ids):len(ids) + 2])

        def row(before, both=both):
            logits = both.target.row(before).copy()
            for token in {*before}:
                logits[token] *= 1.7 if logits[token] < 0 else 1 / 1.7
            logits[[1] * (before[-1] == 0) + [2] * (2 not in both.target.eos_ids)] = -np.inf  # an end token must stay possible
            return process(remembering(np.array([before]), logits[None])[0], 0.8, 0, 0.97, 0.02)

        wanted = {}
        for first, p in enumerate(row(ids)):
            for second, q in enumerate(row([*ids, first])) if p and first not in both.target.eos_ids else [(None, 1.0)]:
                if p * q:
                    wanted[tuple(t for t in (first, second) if t is not None)] = p * q
        assert total_variation(distribution_of(text), wanted) < 1e-9
        alone = Options(temperature=0.8, max_new_tokens=2)
        raw = distribution_of(lambda draws, both=both, ids=ids, alone=alone: tuple(
            token for r in plain(both.target, ids, alone, draws) for token in r.emitted))
        assert total_variation(wanted, raw) > 0.05  # the processors change the target


def test_greedy_text_of_a_processed_target_is_the_plain_one():
    for seed in range(6):
        one = made(seed)
        found = one.generate(PROMPT, max_new_tokens=30, repetition_penalty=1.4, draft_length=6, threshold=0.0)
        ids = BYTES.encode(PROMPT, bos=True)
        while len(ids) < len(found.sequences):
            row = penalise(ids, one.target.row(ids), 1.4)
            ids.append(int(row.argmax()))
        assert found.sequences == ids


def test_penalty_and_bad_words_by_hand():
    assert penalise([0, 1, 0, 9], np.array([2.0, -1.0, 1.0, -np.inf]), 2.0).tolist() == [1, -2, 1, -np.inf]
    words = [[2], [1, 0], [5, 1, 3], [4, 1, 1], [7, 7, 7, 0]]
    assert forbid([5, 1], np.zeros(4), words).tolist() == [-np.inf, 0, -np.inf, -np.inf]
    assert process(np.log([0.5, 0.3, 0.15, 0.05]), min_p=0.4) == pytest.approx([0.625, 0.375, 0, 0])
    [end] = BYTES.roles["eos"]  # transformers also keeps the end token possible
    assert made().generate("a", bad_words_ids=[[end]], max_new_tokens=3).tokens == made().generate("a", max_new_tokens=3).tokens


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_strings_and_criteria_end_the_text_where_they_are_met(temperature):
    one = made(4, end=-30.0)
    how = {"temperature": temperature, "seed": 5, "max_new_tokens": 60, "draft_length": 6, "threshold": 0.0}
    whole = one.generate(PROMPT, **how)
    for string in ("aba", "b a", ["bb", "aba"], "<|endoftext|>"):
        found = one.generate(PROMPT, stop_strings=string, **how)
        strings, texts = [string] if isinstance(string, str) else string, [
            BYTES.decode(whole.sequences[:len(whole.prompt_tokens) + count]) for count in range(61)]
        wanted = next((count for count in range(1, 61) if any(
            texts[count].count(one) > texts[count - 1].count(one) for one in strings)), 60)
        assert found.tokens == whole.tokens[:wanted]
        assert found.finish_reason == ("stop" if wanted < 60 else "length")
        last = found.rounds[-1]
        assert last.done and len(last.kinds) == len(last.emitted) >= last.accepted >= 0
        assert "".join(one.stream(PROMPT, stop_strings=string, **how)) == found.text
    start = BYTES.decode(whole.tokens[:1])  # as in transformers, a stop string may begin in the prompt, but not end there
    assert one.generate(PROMPT, stop_strings=PROMPT[-2:] + start, **how).tokens == whole.tokens[:1]
    assert len(one.generate(PROMPT, stop_strings=PROMPT, **how | {"max_new_tokens": 1}).tokens) == 1
    seen = []
    for met in (bool, np.array, int, lambda found: re.search("True", str(found))):  # one value, or one per text
        found = one.generate(PROMPT, stopping_criteria=lambda ids, scores, met=met: (
            seen.append(ids.shape), met(ids.shape[1] % 11 == 0))[1], **how)
        assert found.finish_reason == "stop" and len(found.sequences) == 11 and found.tokens == whole.tokens[:len(found.tokens)]
    assert seen[:2] == [(1, len(whole.prompt_tokens) + 1), (1, len(whole.prompt_tokens) + 2)]


def test_criteria_read_the_scores():
    one, seen = made(end=-30.0), []

    def criterion(ids, scores):
        seen.append([row.copy() for row in scores])
        return len(scores) == 9

    how = {"stopping_criteria": criterion, "draft_length": 5, "threshold": 0.0}
    found = one.generate(PROMPT, max_new_tokens=25, output_scores=True, **how)
    assert [len(rows) for rows in seen] == [*range(1, 10)] and len(found.tokens) == 9 and found.finish_reason == "stop"
    for rows in seen:
        assert all(row.shape == (1, len(wanted)) and (row[0] == wanted).all()
                   for row, wanted in zip(rows, found.scores, strict=False))
    one.generate(PROMPT, max_new_tokens=3, stopping_criteria=lambda ids, scores: scores is not None and 1 / 0)


# Results

def test_results_are_json_and_their_scores_are_the_rows_that_the_tokens_were_taken_from():
    one = made(end=-30.0)
    found = one.generate(PROMPT, max_new_tokens=25, output_scores=True, repetition_penalty=1.3, draft_length=5, threshold=0.0,
                         adaptive=False)
    assert len(found.scores) == 25 and any(len(r.proposals) > r.accepted for r in found.rounds)
    for place, (row, token) in enumerate(zip(found.scores, found.tokens, strict=True)):
        before = found.sequences[:len(found.prompt_tokens) + place]
        assert row[:BYTES.size] == pytest.approx(penalise(before, one.target.row(before), 1.3)) and row.argmax() == token
    table = json.loads(json.dumps(found.to_dict()))
    assert table["text"] == found.text and table["tokens"] == found.tokens and table["finish_reason"] == "length"
    assert "scores" not in table and table["rounds"][0]["emitted"] == found.rounds[0].emitted
    assert repr(found) == f"Generation(text={found.text!r}, tokens={found.tokens}, finish_reason='length')"
    assert repr(one) == "Pair(draft='fake-0', target='fake-1')"
    assert repr(BYTES) == f"Tokenizer({BYTES.name!r}: {BYTES.size} tokens)" and repr(Adapters("here")) == "Adapters('here')"
    ids = one.generate(PROMPT, max_new_tokens=3, return_dict_in_generate=False)
    assert ids == BYTES.encode(PROMPT) + one.generate(PROMPT, max_new_tokens=3).tokens


def test_several_sequences_and_generators():
    one, how = made(end=-30.0), {"do_sample": True, "max_new_tokens": 12}
    three = one.generate(PROMPT, num_return_sequences=3, seed=1, **how)
    assert three[0].text == one.generate(PROMPT, seed=1, **how).text and len({found.text for found in three}) == 3
    same = one.generate(PROMPT, num_return_sequences=3, generator=np.random.default_rng(1), **how)
    assert [found.text for found in same] == [found.text for found in three]
    assert len(one.generate(["a", "b"], num_return_sequences=2, **how)) == 4
    with pytest.raises(OmnidraftError, match="num_return_sequences"):
        one.generate(PROMPT, num_return_sequences=2)


def test_a_streamer_gets_prompt_and_tokens():
    class Streamer:
        got, ended = (), 0

        def put(self, ids):
            self.got += (ids,)

        def end(self):
            self.ended += 1

    one, streamer = made(), Streamer()
    found = one.generate(PROMPT, max_new_tokens=9, streamer=streamer)
    assert streamer.got[0].tolist() == [found.prompt_tokens] and streamer.ended == 1
    assert [token for ids in streamer.got[1:] for token in ids.tolist()] == found.tokens
    assert len(streamer.got) == 1 + len(found.rounds)
    with pytest.raises(OmnidraftError, match="one text"):
        one.generate(["a", "b"], streamer=streamer)


@pytest.mark.parametrize(("wrong", "says"), [
    ({"stop": ["."]}, "stop_strings"), ({"stop_strings": [""]}, "stop_strings"), ({"stop_strings": 3}, "stop_strings"),
    ({"repetition_penalty": 0}, "above 0"), ({"bad_words_ids": [3]}, "lists of ids"), ({"bad_words_ids": [[]]}, "lists of ids"),
    ({"min_p": 2.0}, "min-p"), ({"eos_token_id": "."}, "eos_token_id"), ({"generator": 3}, "generator"), ({"seed": -1}, "seed"),
    ({"num_return_sequences": 0}, "num_return_sequences"), ({"max_length": 3}, "unknown option"),
    ({"logits_processor": lambda ids, row: row[0]}, r"shape \(1, "), ({"options": Options(), "top_p": 0.5}, "top_p"),
    ({"logits_processor": 3}, "logits_processor is 3"), ({"stopping_criteria": [3]}, "must be callable"),
    ({"streamer": 3}, "`put` and `end`"), ({"threshold": "a"}, "threshold is 'a'"),
    ({"options": PROMPT}, "several prompts go into one list"),
    ({"stop_string": "."}, "did you mean 'stop_strings'"), ({"logits_processors": []}, "did you mean 'logits_processor'"),
    ({"bad_words_ids": [[10**9]]}, "does not have"), ({"bad_words_ids": [[-1]]}, "does not have")])
def test_a_wrong_setting_is_one_clear_line(wrong, says):
    with pytest.raises(OmnidraftError, match=says) as caught:
        made().generate(PROMPT, **wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", [{}, {"do_sample": True}, {"do_sample": True, "verify": "slem"}, {"draft_length": 0}], ids=str)
def test_processors_that_rule_out_every_token_are_named(how):
    with pytest.raises(OmnidraftError) as caught:
        made().generate(PROMPT, logits_processor=[lambda ids, row: row, lambda ids, row: row - np.inf], **how)
    assert str(caught.value) == "the logits processors ruled out every token: let them allow at least one"


@pytest.mark.parametrize("how", [{}, {"do_sample": True}, {"do_sample": True, "verify": "slem"}, {"draft_length": 0}], ids=str)
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_processors_that_give_no_numbers_are_named_before_the_weights(how, broken):
    with pytest.raises(OmnidraftError) as caught:
        made().generate(PROMPT, logits_processor=lambda ids, row: row + broken, **how)
    assert str(caught.value) == "logits are NaN or infinite: check any logits processors, the weights and the dtype"


def grammar(start: int, allowed: tuple[int, ...]):
    """A processor that allows a few tokens, and none after a text that has any other from `start` on."""
    def run(ids, row):
        possible = (np.isin(range(row.shape[1]), allowed) & bool(np.isin(ids[0, start:], allowed).all()))[None]
        return row * possible + np.where(possible, 0.0, -np.inf)
    return run


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_may_leave_nothing_after_a_proposal_that_is_not_kept(rule, temperature):
    for seed in range(3):
        one, ids = made(seed, end=-30.0), BYTES.encode(PROMPT, bos=True)
        how = {"verify": rule, "temperature": temperature, "logits_processor": grammar(len(ids), (4, 5, 6)), "threshold": 0.0,
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
        with pytest.raises(OmnidraftError, match="unknown backend 'jax': choose numpy, torch or llamacpp"):
            pair(one, other, backend="jax")
    with pytest.raises(OmnidraftError, match="unknown backend 'jax': choose numpy, torch or llamacpp"):
        pair("draft-tasks", model, draft_backend="jax")
    assert pair(model, model, backend="torch").target is model  # a loaded model is used as it is
