"""Values of the wrong kind, as people type them in Python: one clear line says what it is and what it must be."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from test_cli import own_caches  # noqa: F401 (a fixture)
from test_learning import folders, learner_of, paired  # noqa: F401 (a fixture)
from vocabularies import byte_level

import omnidraft
from omnidraft import Adapters, Learner, OmnidraftError, Options, Pair, Uniforms, learn, plain, speculative
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.ngram_cache import NGramCache
from omnidraft.pairs.conversation import Conversation
from omnidraft.stopping import AcceptanceHead, Confidence

BYTES = byte_level("Ġ t, h e", name="bytes")
ODD = [5, 1.5, b"x", object(), [1], {"a": 1}, 1 + 2j, np.arange(9.0).reshape(3, 3)]
HOW, RNG = Options.of(max_new_tokens=3), np.random.default_rng(0)


def told(call, words: str = "") -> str:
    """The line that an OmnidraftError says."""
    with pytest.raises(OmnidraftError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    return str(caught.value)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: Options.of(draft_length=None), "draft length is None, but must be a whole number"),
    (lambda: Options.of(threshold=None), "threshold is None, but must be a number"),
    (lambda: Options(stop=Confidence(threshold=-1)), "threshold is -1, but must be a number from 0"),
    (lambda: Options(stop=Confidence(threshold="x")), "threshold is 'x', but must be a number"),
    (lambda: Options(stop=Confidence(threshold=float("nan"))), "threshold is nan, but must be a number from 0"),
    (lambda: Recipe(loss=[]), r"unknown loss \[\]: choose one of"),
    (lambda: Recipe(divergence={}), r"unknown divergence \{\}: choose one of"),
    (lambda: Uniforms(5), "draws are made by a NumPy generator, not by 5: give np.random.default_rng"),
    (lambda: Uniforms(None), "draws are made by a NumPy generator, not by None"),
    (lambda: Adapters(5), "the folder of adapters is 5, but must be a path"),
    *((lambda odd=odd: Options(stop=Confidence(head=odd)), "head is .*, but must be an Acceptance") for odd in (5, "x", {})),
    *((lambda odd=odd: NGramCache(odd), "capacity is .*, but must be a whole number from 1")
      for odd in ("x", 1.5, [4], float("nan"), 0)),
    *((lambda odd=odd: NGramCache().insert(*odd), "cannot cache .*: an entry is two or more draft ids")
      for odd in ((5, 3), (["a", "b"], 3), ((1.0, 2), 3), (None, 3), ((1, 2), "x"), ((1, 2), None))),
    *((lambda odd=odd: NGramCache().insert(odd, 3), "an entry is two or more draft ids")
      for odd in ((), (1,), (1, -2), (1, 2**31))),
    *((lambda odd=odd: AcceptanceHead(odd), "width is .*, but must be a whole number from 1")
      for odd in (0, -3, "x", 1.5, None, [4])),
    *((lambda odd=odd: BYTES.decode(odd), "cannot decode this: give a list of ids, none negative")
      for odd in (None, 5, "abc", [1.5], ["a"], [None], np.ones((2, 2)), np.arange(3.0), iter([1]), [3, -1], [-(10**9)])),
    (lambda: NGramCache(None, "lru"), "capacity is None, but must be a whole number from 1"),
    (lambda: omnidraft.load([]), r"unknown model '\[\]'")])
def test_values_that_people_type_are_told_in_one_line(call, words):
    line = told(call, words)
    assert line[0].islower() and not line.endswith(".")  # as every line that the program says


def test_what_learn_takes(folders):  # noqa: F811
    pair = paired(folders)
    learner, uniforms = learner_of(pair), Uniforms(RNG)
    for odd in ODD:
        told(lambda odd=odd: [*learn(odd, ["the"], HOW, uniforms)], "learner is .*, but must be a Learner")
        told(lambda odd=odd: [*learn(learner, ["the"], odd, uniforms)], "options is .*, but must be Options")
        told(lambda odd=odd: [*learn(learner, ["the"], HOW, odd)], "uniforms is .*, but must be Uniforms.np.random")
        told(lambda odd=odd: Learner(pair, learner.trainer, odd), "rng is .*, but must be a NumPy generator")
        told(lambda odd=odd: Learner(pair, learner.trainer, RNG, odd), "schedule is .*, but must be a Schedule")
        told(lambda odd=odd: Learner(pair, learner.trainer, RNG, Schedule(), odd), "head is .*, but must be an Acc")
        told(lambda odd=odd: Trainer(pair.draft, odd, RNG), "recipe is .*, but must be a Recipe")
        told(lambda odd=odd: Trainer(pair.draft, Recipe(), odd), "rng is .*, but must be a NumPy generator")
    for odd in ("the thing", b"x", None, 5):
        told(lambda odd=odd: [*learn(learner, odd, HOW, uniforms)], "prompts is .*, but must be a list of prompts")
    ids = pair.target.tokenizer.encode("the")
    prompts = ["the", 5, None, object(), [], {"a": 1}, ids, (ids, ids), "the"]
    notes = [one.note for one in learn(learner, prompts, HOW, uniforms)]
    assert [note.partition(":")[0] for note in notes] == [""] + ["prompt skipped"] * 5 + ["", "", ""]
    assert notes[1] == "prompt skipped: 5 is not a prompt: give a text, ids, or a chat"


def test_what_the_loop_takes(folders):  # noqa: F811
    pair = paired(folders)
    for odd in (None, 5, b"the", [1, 2, 3], [[1], [2]]):
        told(lambda odd=odd: [*speculative(pair, odd, HOW, Uniforms(RNG))], "prompt is .*, but must be a text, or a tuple")
    for odd in (None, 1.5, ["the"], {"a": 1}, np.arange(9.0)):
        told(lambda odd=odd: [*plain(pair.target, odd, HOW, Uniforms(RNG))], "the prompt is .*, but must be one or more ids")
        told(lambda odd=odd: [*speculative(pair, (odd, odd), HOW, Uniforms(RNG))], "the prompt is .*, but must be one or")
    for odd in (*ODD, None):  # before anything is written, also at temperature 0, where nothing is drawn
        told(lambda odd=odd: speculative(odd, "the", HOW, Uniforms(RNG)), "pair is .*, but must be a pair")
        told(lambda odd=odd: plain(odd, "the", HOW, Uniforms(RNG)), "model is .*, but must be a model")
        for write in (partial(speculative, pair, "the"), partial(plain, pair.target, "the")):
            told(lambda odd=odd, write=write: write(odd, Uniforms(RNG)), "options is .*, but must be Options")
            told(lambda odd=odd, write=write: write(HOW, odd), "uniforms is .*, but must be Uniforms")
        told(lambda odd=odd: Pair(odd, pair.target), "draft is .*, but must be a model")
        told(lambda odd=odd: Pair(pair.draft, odd), "target is .*, but must be a model")
    for odd in ODD:
        told(lambda odd=odd: speculative(pair, "the", HOW, Uniforms(RNG), learner=odd), "learner is .*, but must be a Learner")
        told(lambda odd=odd: speculative(pair, "the", HOW, Uniforms(RNG), text=odd), "text is .*, but must be a Text")
        told(lambda odd=odd: plain(pair.target, "the", HOW, Uniforms(RNG), odd), "text is .*, but must be a Text")
        told(lambda odd=odd: Pair(pair.draft, pair.target, odd), "cache is .*, but must be an NGramCache")
    array = np.array(pair.target.tokenizer.encode("the", bos=True))
    assert [*plain(pair.target, array, HOW, Uniforms(RNG))]
    ids = [side.tokenizer.encode("the", bos=True) for side in (pair.target, pair.draft)]
    written = [[token for one in speculative(pair, prompt, Options(max_new_tokens=3), Uniforms(RNG)) for token in one.emitted]
               for prompt in ("the", tuple(ids))]
    assert written[0] == written[1] and len(written[0]) == 3  # what it takes, it writes from


def test_what_a_conversation_takes(folders):  # noqa: F811
    talk, uniforms = Conversation(paired(folders)), Uniforms(RNG)
    for odd in ODD:
        told(lambda odd=odd: Conversation(odd), "pair is .*, but must be a pair or a model")
        told(lambda odd=odd: Conversation(talk.pair, odd), "system is .*, but must be a text")
        told(lambda odd=odd: Conversation(talk.pair, None, odd), "template is .*, but must be a Jinja source")
        told(lambda odd=odd: talk.ask(odd, HOW, uniforms), "message is .*, but must be a text")
        told(lambda odd=odd: talk.ask("the", odd, uniforms), "options is .*, but must be Options")
        told(lambda odd=odd: talk.ask("the", HOW, odd), "uniforms is .*, but must be Uniforms")
    assert talk.messages == [] and [*talk.ask("the", HOW, uniforms)]


class OnlyPut:
    def put(self, ids) -> None:
        pass


def test_what_generate_takes(folders):  # noqa: F811
    pair = paired(folders)
    for name in ("streamer", "stopping_criteria", "logits_processor", "bad_words_ids", "repetition_penalty"):
        for call in (pair.generate, lambda *args, **given: [*pair.stream(*args, **given)]):
            told(lambda name=name, call=call: call("the", max_new_tokens=3, **{name: 5}),
                 rf"unknown option '{name}': .*generate\(custom_generate=pair.decoder\(\)\)")
    for odd in ODD:
        told(lambda odd=odd: pair.generate("the", max_new_tokens=3, processor=odd),
             "processor is .*, but must be a function of ids and logits")
    for odd in (5, "no", np.arange(2)):
        for name in ("do_sample", "heal", "learn", "adaptive"):
            told(lambda odd=odd, name=name: pair.generate("the", **{name: odd}), f"{name} is .*, but must be True or False")
        if type(odd) is not str:
            told(lambda odd=odd: pair.generate("the", stop_strings=odd), "stop_strings is .*, but must be texts")
    told(lambda: pair.generate("the", verify=["tli"]), "verify is .*, but must be the name of a rule")
    told(lambda: pair.generate(("the", "thing")), "the drafter's prompt is 'thing', but must be one or more ids")
    ids = pair.target.tokenizer.encode("he")[:2]
    assert pair.generate(tuple(ids), max_new_tokens=np.int64(3)).tokens == pair.generate(ids, max_new_tokens=3).tokens
    for odd in (5, {}, ()):
        told(lambda odd=odd: [*pair.stream("the", max_new_tokens=3, rounds=odd)], "rounds is .*, but must be a list")
    for odd in (None, 5, "x", np.zeros(3), [1.0]):
        for heat in (0.0, 1.0):
            told(lambda odd=odd, heat=heat: pair.generate(
                "the", max_new_tokens=3, temperature=heat, processor=lambda ids, row: odd),
                "the logits processor <lambda> returned .*, but must return logits of shape")


def test_what_a_decoder_takes():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from test_decoder import asked, two
    from transformers import LogitsProcessorList

    pair = two("pieces", "bytes")
    for odd in (5, np.float32(1), OnlyPut()):
        told(lambda odd=odd: pair.decoder(streamer=odd), "streamer is .*, but needs `put` and `end`")
    for sampled in (False, True):
        model, inputs = asked(max_new_tokens=4, do_sample=sampled, pad_token_id=0)
        for odd in (None, 5, "x"):
            chosen = LogitsProcessorList([lambda ids, row, odd=odd: odd])
            told(lambda inputs=inputs, model=model, chosen=chosen: model.generate(
                **inputs, logits_processor=chosen, custom_generate=pair.decoder()),
                "logits processor .*failed" if sampled else "returned .*, but must return logits of shape")
        same = LogitsProcessorList([lambda ids, row: row])
        made = model.generate(**inputs, logits_processor=same, custom_generate=pair.decoder())
        assert made.shape[1] > inputs["input_ids"].shape[1]  # after all that was refused, it writes
        assert sampled or made.tolist() == model.generate(**inputs).tolist()
