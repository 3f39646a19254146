"""The folder for transformers' `custom_generate`: exact by enumeration, and used in `model.generate`."""

import dataclasses
import functools
import importlib.util
import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from vocabularies import REAL

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FOLDER = Path(__file__).parent.parent / "integrations" / "custom_generate"
PAIRS = [("stories260K", "babyllama-tok361"), ("babyllama-tok361", "stories260K")]


@pytest.fixture(scope="module")
def code():
    found = importlib.util.spec_from_file_location("custom_generate", FOLDER / "custom_generate" / "generate.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Forks:
    """Runs a function once for each outcome of its random decisions, with the outcome's probability."""

    def __init__(self, code, monkeypatch):
        monkeypatch.setattr(code, "accept", lambda probability, *_: bool(self.decide([1 - probability, probability])))
        monkeypatch.setattr(code, "choose", lambda weights, *_: self.decide((weights / weights.sum()).tolist()))

    def decide(self, probabilities):
        if len(self.taken) == len(self.script):
            self.script.append([pair for pair in enumerate(probabilities) if pair[1] > 0])
        choice, probability = self.script[len(self.taken)][0]
        self.taken.append(probability)
        return choice

    def outcomes(self, function):
        self.script = []
        while True:
            self.taken = []
            result = function()
            yield result, float(torch.tensor(self.taken, dtype=torch.float64).prod())
            while self.script and len(self.script[-1]) == 1:
                self.script.pop()
            if not self.script:
                return
            self.script[-1] = self.script[-1][1:]


def vocabulary(rng, size):
    """A fake vocabulary: byte strings over {a, b}, with or without "a" and "b"; one string may occur twice."""
    strings = [b"".join(s) for n in (1, 2, 3) for s in itertools.product([b"a", b"b"], repeat=n)]
    chosen = rng.sample(strings, size)
    chosen += [rng.choice(chosen)] * (rng.random() < 0.3)

    def split(data):  # longest match
        ids = []
        while data:
            fits = [i for i, s in enumerate(chosen) if data.startswith(s)]
            if not fits:
                return ()
            ids.append(max(fits, key=lambda i: (len(chosen[i]), -i)))
            data = data[len(chosen[ids[-1]]):]
        return tuple(ids)

    return SimpleNamespace(bytes=chosen, fallback={}, split=split)


def rows(seed, size):
    """A distribution for every context, with some zeros."""
    def row(context):
        rng = random.Random(f"{seed}{context}")
        weights = torch.tensor([rng.random() ** 3 * (rng.random() > 0.2) for _ in range(size)], dtype=torch.float64)
        weights[rng.randrange(size)] += 0.1
        return weights / weights.sum()
    return row


@pytest.mark.parametrize("seed", range(40))
def test_verification_is_exact_by_enumeration(code, monkeypatch, seed):
    rng = random.Random(seed)
    target, draft = vocabulary(rng, rng.randint(3, 6)), vocabulary(rng, rng.randint(2, 5))
    ends = [[0], [0]] if seed % 3 == 1 else [[], []]  # end tokens may have bytes, such as a line break
    lifting = code.Lifting(target, draft, *ends, "cpu")
    p, q = rows((seed, "p"), len(target.bytes)), rows((seed, "q"), len(draft.bytes))
    k, limit, forks = rng.randint(1, 2), rng.choice([1, 2, 9]), Forks(code, monkeypatch)

    def one_round():
        drafted, q_rows = [], []
        for _ in range(k):
            q_rows.append(q(tuple(drafted)))
            drafted.append(code.choose(q_rows[-1], None))
        proposed = lifting.walk(lifting.reveal(drafted)[0])[:limit]
        p_rows = torch.stack([p(tuple(proposed[:i])) for i in range(len(proposed) + 1)])
        written = tuple(code.verify(drafted, q_rows, p_rows, lifting, limit, None))
        assert len(written) <= limit + 1
        return written

    found = {}
    for written, probability in forks.outcomes(one_round):
        if probability:
            found[written] = found.get(written, 0.0) + probability
    assert sum(found.values()) == pytest.approx(1)
    two = {}  # probabilities of the first two tokens; if a round wrote one, the target draws the other
    for written, probability in found.items():
        seconds = {written[1]: 1.0} if len(written) > 1 else dict(enumerate(p(written[:1]).tolist()))
        for second, share in seconds.items():
            two[written[0], second] = two.get((written[0], second), 0.0) + probability * share
    wanted = {(a, b): float(p(())[a] * p((a,))[b]) for a in range(len(target.bytes)) for b in range(len(target.bytes))}
    assert max(abs(two.get(pair, 0.0) - share) for pair, share in wanted.items()) < 1e-12


def test_enumeration_sees_a_fault(code, monkeypatch):
    """The likeliest mistake, a block whose residuals ignore the tokens before them, is detected."""
    compare, failed = code.compare, 0

    def forgets(*args):
        steps, ratio = compare(*args)
        return [dataclasses.replace(step, ratio=1.0) for step in steps], ratio

    monkeypatch.setattr(code, "compare", forgets)
    for seed in range(40):
        with pytest.MonkeyPatch.context() as patch:
            try:
                test_verification_is_exact_by_enumeration(code, patch, seed)
            except AssertionError:
                failed += 1
    assert failed > 2


def load(name):
    folder = REAL / "models" / name
    if not folder.is_dir():
        pytest.skip("no published models here")
    return (transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval(),
            transformers.AutoTokenizer.from_pretrained(folder))


def arguments(draft, target):
    (assistant, assistant_tokenizer), (model, tokenizer) = load(draft), load(target)
    return model, {"custom_generate": str(FOLDER), "trust_remote_code": True, "tokenizer": tokenizer,
                   "assistant_model": assistant, "assistant_tokenizer": assistant_tokenizer}


@pytest.mark.parametrize(("draft", "target"), PAIRS)
def test_greedy_text_is_that_of_plain_generate(draft, target):
    model, how = arguments(draft, target)
    for prompt in ("Once upon a time", "Tom and Lily went to the"):
        inputs = how["tokenizer"](prompt, return_tensors="pt")
        for settings in ({}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 3}, {"stop_strings": ["."]}):
            plain = dict(settings, tokenizer=how["tokenizer"]) if "stop_strings" in settings else settings
            wanted = model.generate(**inputs, do_sample=False, max_new_tokens=40, **plain)
            made = model.generate(**inputs, do_sample=False, max_new_tokens=40, **settings, **how)
            assert made.tolist() == wanted.tolist(), settings


def test_with_one_vocabulary_the_assistant_reads_the_ids_as_they_are():
    """A model that drafts for itself keeps every token, though the prompt's ids are not those of its text."""
    assistant, tokenizer = load("stories260K")
    model, passes = load("stories260K")[0], []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    text = tokenizer("Once upon a time, ")["input_ids"]
    ids = torch.tensor([[*text, *(tokenizer.convert_tokens_to_ids(c) for c in "there"), tokenizer.eos_token_id, *text]])
    wanted = model.generate(ids, do_sample=False, max_new_tokens=40, eos_token_id=None)
    passes.clear()
    made = model.generate(ids, do_sample=False, max_new_tokens=40, eos_token_id=None, custom_generate=str(FOLDER),
                          trust_remote_code=True, tokenizer=tokenizer, assistant_model=assistant, assistant_tokenizer=tokenizer,
                          num_assistant_tokens=4, assistant_confidence_threshold=0.0)
    assert made.tolist() == wanted.tolist() and len(passes) == 8


def test_output_class_scores_and_streamer():
    model, how = arguments(*PAIRS[0])
    inputs, seen = how["tokenizer"]("Once upon a time", return_tensors="pt"), []
    streamer = SimpleNamespace(put=lambda ids: seen.extend(ids.flatten().tolist()), end=lambda: seen.append(None))
    wanted = model.generate(**inputs, do_sample=False, max_new_tokens=12, return_dict_in_generate=True, output_scores=True)
    made = model.generate(**inputs, do_sample=False, max_new_tokens=12, return_dict_in_generate=True, output_scores=True,
                          streamer=streamer, **how)
    assert type(made) is type(wanted) and made.sequences.tolist() == wanted.sequences.tolist()
    assert len(made.scores) == 12 and all(torch.allclose(a, b, atol=1e-4)
                                          for a, b in zip(made.scores, wanted.scores, strict=True))
    assert seen == [*made.sequences[0].tolist(), None]


def test_scores_are_kept_only_if_they_are_asked_for():
    """Criteria then get None, as in plain generate; a row per token would fill the memory."""
    model, how = arguments(*PAIRS[0])
    inputs, given = how["tokenizer"]("Once upon a time", return_tensors="pt"), []

    def never(ids, scores, **_):
        given.append(None if scores is None else len(scores))
        return torch.zeros(len(ids), dtype=torch.bool)

    more = {"do_sample": False, "max_new_tokens": 5, "stopping_criteria": [never], **how}
    model.generate(**inputs, **more)
    model.generate(**inputs, **more, return_dict_in_generate=True)
    assert given == 10 * [None]
    model.generate(**inputs, **more, return_dict_in_generate=True, output_scores=True)
    assert given[10:] == [1, 2, 3, 4, 5]


def test_both_models_read_the_text_once():
    """Under each name that transformers has given to the argument of a cache."""
    assistant, tokenizer = load("stories260K")
    torch.manual_seed(0)
    model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, eos_token_id=None)).double().eval()
    inputs = tokenizer("Once upon a time there was", return_tensors="pt", return_token_type_ids=False)
    how = {"do_sample": False, "max_new_tokens": 12, "return_dict_in_generate": True}
    wanted, lengths = model.generate(**inputs, **how), {model: [], assistant: []}
    for one in lengths:
        one.get_input_embeddings().register_forward_pre_hook(lambda _, ids, one=one: lengths[one].append(ids[0].shape[1]))
    made = model.generate(**inputs, **how, custom_generate=str(FOLDER), trust_remote_code=True, tokenizer=tokenizer,
                          assistant_model=assistant, assistant_tokenizer=tokenizer)
    assert made.keys() == wanted.keys() and made.sequences.tolist() == wanted.sequences.tolist()
    assert all(max(each[1:]) < 20 for each in lengths.values()) and len(lengths[model]) > 1


def test_positions_are_those_of_plain_generate():
    """RoBERTa by itself counts from behind its padding, `generate` from 0."""
    assistant, tokenizer = load("stories260K")
    torch.manual_seed(0)
    model = transformers.RobertaForCausalLM(transformers.RobertaConfig(
        vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.4,
        max_position_embeddings=130, eos_token_id=None, is_decoder=True)).double().eval()
    inputs = dict(tokenizer("Once upon a time there was", return_tensors="pt", return_token_type_ids=False), do_sample=False)
    made = model.generate(**inputs, max_new_tokens=20, custom_generate=str(FOLDER), trust_remote_code=True, tokenizer=tokenizer,
                          assistant_model=assistant, assistant_tokenizer=tokenizer)
    assert made.tolist() == model.generate(**inputs, max_new_tokens=20).tolist()


@pytest.mark.parametrize("settings", [{}, {"use_cache": False}])
@pytest.mark.parametrize("own", [True, False])
def test_a_sliding_window_may_be_full(own, settings):
    """Text longer than the window of the target, and of the assistant if it drafts for itself."""
    assistant, tokenizer = load("stories260K")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.MistralForCausalLM(transformers.MistralConfig(
        **sizes, vocab_size=512, num_key_value_heads=2, sliding_window=6, eos_token_id=None)).double().eval()
    inputs = tokenizer("Once upon a time there was", return_tensors="pt", return_token_type_ids=False)
    how = {"custom_generate": str(FOLDER), "trust_remote_code": True, "tokenizer": tokenizer, **settings,
           "assistant_model": model if own else assistant, "assistant_tokenizer": tokenizer}
    wanted = model.generate(**inputs, do_sample=False, max_new_tokens=30)
    made = model.generate(**inputs, do_sample=False, max_new_tokens=30, return_dict_in_generate=True, **how)
    assert made.sequences.tolist() == wanted.tolist()
    more = {"input_ids": torch.cat([wanted, wanted[:, :3]], 1), "do_sample": False, "max_new_tokens": 9}
    assert model.generate(**more, past_key_values=made.past_key_values, **how).tolist() == model.generate(**more).tolist()


def test_what_only_the_target_pads_is_not_read_by_the_assistant():
    (assistant, tokenizer), model = load("stories260K"), load("stories260K")[0]
    model.resize_token_embeddings(520)
    how = {"do_sample": False, "max_new_tokens": 6, "sequence_bias": [[[513], 1e3]]}  # such an id is written
    ids = tokenizer("Once upon a time", return_tensors="pt")
    made = model.generate(**ids, **how, custom_generate=str(FOLDER), trust_remote_code=True, tokenizer=tokenizer,
                          assistant_model=assistant, assistant_tokenizer=tokenizer)
    assert made.tolist() == model.generate(**ids, **how).tolist() and made[0, -1] == 513


def test_what_it_cannot_do_is_said():
    model, how = arguments(*PAIRS[0])
    ids = how["tokenizer"](["Once upon a time"] * 2, return_tensors="pt")
    with pytest.raises(ValueError, match="one at a time"):
        model.generate(**ids, max_new_tokens=4, **how)
    one = {name: part[:1] for name, part in ids.items()}
    for wrong, says in (({"guidance_scale": 1.5, "do_sample": True}, "keeps state"),
                        ({"dola_layers": "low"}, "other decoding methods"),
                        *(({"return_dict_in_generate": True, f"output_{what}": True}, "only scores are supported")
                          for what in ("logits", "attentions", "hidden_states"))):
        with pytest.raises(ValueError, match=says):
            model.generate(**one, max_new_tokens=4, **wrong, **how)
    vectors = {"inputs_embeds": model.get_input_embeddings()(one["input_ids"]), "attention_mask": one["attention_mask"]}
    held = model.generate(**one, max_new_tokens=4, return_dict_in_generate=True).past_key_values
    for wrong in (vectors, one | vectors, one | {"past_key_values": held}):
        with pytest.raises(ValueError, match="give all ids and no other input"):
            model.generate(**wrong, max_new_tokens=4, **how)
    padded = {name: torch.cat([part * (name == "input_ids"), part], 1) for name, part in one.items()}
    with pytest.raises(ValueError, match="without padding"):
        model.generate(**padded, max_new_tokens=4, **how)
    state = transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=512, hidden_size=8, num_hidden_layers=1))
    none = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(vocab_size=512, n_embd=8, n_layer=1, n_head=1))
    for other in (state, none):  # `none` has no cache at all
        with pytest.raises(ValueError, match="can be shortened"):
            model.generate(**one, max_new_tokens=4, **(how | {"assistant_model": other}))
    steps = transformers.ProphetNetForCausalLM(transformers.ProphetNetConfig(
        vocab_size=512, hidden_size=16, decoder_ffn_dim=24, num_decoder_layers=1, num_decoder_attention_heads=2,
        is_decoder=True, is_encoder_decoder=False, add_cross_attention=False, num_buckets=4, relative_max_distance=8)).eval()
    for models in ((model, steps), (steps, how["assistant_model"])):  # with a cache it takes one token at a time
        with pytest.raises(ValueError, match="ProphetNet.* does not read several tokens at once, which drafting needs"):
            models[0].generate(**one, max_new_tokens=20, eos_token_id=None, **(how | {"assistant_model": models[1]}),
                               assistant_confidence_threshold=0.0)
    with pytest.raises(ValueError, match="assistant_tokenizer is missing"):
        model.generate(**ids, max_new_tokens=4, **(how | {"assistant_tokenizer": None}))
    for name, says in (("tokenizer", "must be a fast tokenizer"), ("assistant_tokenizer", "must be a fast tokenizer"),
                       ("assistant_model", "must be a causal language model"), ("streamer", "needs `put` and `end`"),
                       ("generator", "must be a torch.Generator"), ("stop_strings", "must be text or a list")):
        for odd in (5, [1], object(), torch.zeros(3, 3), *["x"] * (name != "stop_strings")):
            with pytest.raises(ValueError, match=f"{name} is .*{says}") as caught:
                model.generate(**one, max_new_tokens=4, **(how | {name: odd}))
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_a_broken_row_is_an_error():
    """transformers' own greedy decoding writes token 0."""
    model, how = arguments(*PAIRS[0])
    ids = how["tokenizer"]("Once upon a time", return_tensors="pt")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="logits are NaN or infinite"):
        model.generate(**ids, do_sample=False, max_new_tokens=4, **how)


@pytest.mark.parametrize(("draft", "target"), PAIRS)
def test_two_tokens_at_temperature_one(draft, target, code, monkeypatch):
    """20,000 sampled rounds of a published pair against the exact distribution: chi-squared, p > 0.01."""
    model, how = arguments(draft, target)
    tokenizer, assistant, generator = how["tokenizer"], how["assistant_model"], torch.Generator().manual_seed(1)
    lifting = code.Lifting(code.Vocabulary(tokenizer, model.config.vocab_size),
                           code.Vocabulary(how["assistant_tokenizer"], assistant.config.vocab_size), [], [], "cpu")

    def rows_of(some, prompt):
        @functools.cache
        def row(context):
            with torch.no_grad():
                return some(torch.tensor([[*prompt, *context]])).logits[0, -1].softmax(-1)
        return row

    p = rows_of(model, tokenizer("Once upon a")["input_ids"])
    q = rows_of(assistant, how["assistant_tokenizer"]("Once upon a")["input_ids"])
    compare = code.compare

    @functools.cache
    def given(drafted):
        """What depends only on the draft: the rows of both models, and the comparisons."""
        atoms, drawn = lifting.reveal(drafted)
        proposed = lifting.walk(atoms)
        q_rows, p_rows = [q(drafted[:i]) for i in range(3)], [p(tuple(proposed[:i])) for i in range(len(proposed) + 1)]
        return q_rows, torch.stack(p_rows), compare(atoms, drawn, q_rows, torch.stack(p_rows), lifting, 9)

    draws, counts = 20_000, {}
    for _ in range(draws):
        drafted = ()
        for _ in range(3):
            drafted += code.choose(q(drafted), generator),
        q_rows, p_rows, compared = given(drafted)
        monkeypatch.setattr(code, "compare", lambda *_, compared=compared: compared)
        written = code.verify(drafted, q_rows, p_rows, lifting, 9, generator)
        if len(written) == 1:
            written.append(code.choose(p(tuple(written)), generator))
        counts[tuple(written[:2])] = counts.get(tuple(written[:2]), 0) + 1
    expected = {(a, b): draws * float(p(())[a] * share) for a in (p(()) > 1e-3).nonzero().flatten().tolist()
                for b, share in enumerate(p((a,)).tolist())}
    often = [pair for pair, number in expected.items() if number >= 5]
    seen, wanted = [counts.get(pair, 0) for pair in often], [expected[pair] for pair in often]
    seen, wanted = [*seen, draws - sum(seen)], [*wanted, draws - sum(wanted)]
    statistic = sum((s - e) ** 2 / e for s, e in zip(seen, wanted, strict=True))
    tail = torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2.0), torch.tensor(statistic / 2))
    assert float(tail) > 0.01, (statistic, len(seen))
