"""transformers' loaded models, processors and tokenizers: the same texts as its `generate`."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from fakes import byte_level, sentence_piece
from tokenizers import processors
from vocabularies import REAL

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import omnidraft  # noqa: E402
from omnidraft import OmnidraftError, Options, sampling_torch  # noqa: E402
from omnidraft.decoding import speculative  # noqa: E402
from omnidraft.exactness import distribution_of, total_variation  # noqa: E402
from omnidraft.pairs.conversation import Conversation  # noqa: E402
from omnidraft.pairs.prompts import ids_of  # noqa: E402
from omnidraft.sampling import process  # noqa: E402
from omnidraft.stopping import FixedLength  # noqa: E402

BYTES = byte_level([("a", "b"), ("b", "a"), ("ab", "a")], "abcdef ")  # transformers' stop strings need these letters
PIECES = sentence_piece([("a", "a"), ("▁", "a"), ("▁a", "b")], "abcdef▁")
SMALL = byte_level([("a", "b")], "ab")
PROMPT = "ab a"


def fast(tokenizer, begin: str | None = None):
    """The tokenizer as a transformers object."""
    raw = tokenizer.raw.from_str(tokenizer.raw.to_str())
    if begin:
        raw.post_processor = processors.TemplateProcessing(f"{begin} $A", f"{begin} $A $B", [(begin, raw.token_to_id(begin))])
    names = {f"{role}_token": tokenizer.strings[ids[0]] for role, ids in tokenizer.roles.items() if ids}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **names)


@functools.cache
def loaded(kind: str = "bytes", seed: int = 0):
    """A random Llama with peaked rows, and its tokenizer."""
    torch.manual_seed(seed)
    tokenizer = fast(PIECES, "<s>") if kind == "pieces" else fast({"bytes": BYTES, "small": SMALL}[kind])
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, initializer_range=0.4,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id)
    model = transformers.LlamaForCausalLM(config).double().eval()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


@functools.cache
def two(draft: str = "pieces", target: str = "bytes"):
    return omnidraft.pair(loaded(draft, 1), loaded(target, 2))


def theirs(kind: str, **how):
    """What transformers writes, without the prompt."""
    model, tokenizer = loaded(kind, 2)
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    made = model.generate(**inputs, do_sample=False, max_new_tokens=24, pad_token_id=0, **how)
    return made[0, inputs["input_ids"].shape[1]:].tolist()


@pytest.mark.parametrize("target", ["bytes", "pieces"])
def test_loaded_models_are_paired_as_they_are_and_write_what_transformers_writes(target):
    draft = {"bytes": "pieces", "pieces": "bytes"}[target]
    (small, small_tokenizer), (large, tokenizer) = loaded(draft, 1), loaded(target, 2)
    before = tokenizer.backend_tokenizer.to_str(), tokenizer(PROMPT)["input_ids"]
    for pair in (omnidraft.pair(small, large, draft_tokenizer=small_tokenizer, target_tokenizer=tokenizer), two(draft, target)):
        ids = tokenizer(PROMPT, return_tensors="pt")
        for prompt in (PROMPT, ids["input_ids"][0], ids["input_ids"][0].tolist()):
            found = pair.generate(prompt, max_new_tokens=24)
            assert found.tokens == theirs(target) and found.prompt_tokens == ids["input_ids"][0].tolist()
    assert (tokenizer.backend_tokenizer.to_str(), tokenizer(PROMPT)["input_ids"]) == before
    batch = pair.generate(["ab a", "b"], max_new_tokens=5)
    assert [one.text for one in batch] == [pair.generate(prompt, max_new_tokens=5).text for prompt in ("ab a", "b")]


@pytest.mark.parametrize("strings", [["b b", "aab"], "ba a", "ab aa", "ab ab", PROMPT])  # some begin or end in the prompt
def test_stop_strings_mean_what_they_mean_to_transformers(strings):
    for target, draft in (("bytes", "pieces"), ("pieces", "bytes")):
        wanted = theirs(target, stop_strings=strings, tokenizer=loaded(target, 2)[1])
        assert two(draft, target).generate(PROMPT, max_new_tokens=24, stop_strings=strings).tokens == wanted


def row_by_row(processor):
    """A processor of transformers, (1, n) and (1, V), as `Options.processor` takes one: ids and logits (V,)."""
    def process_row(ids, row):
        made = processor(torch.tensor([ids]), torch.as_tensor(row)[None])[0]
        return made if isinstance(row, torch.Tensor) else made.numpy()

    return process_row


def test_filters_equal_those_of_transformers():
    rng = np.random.default_rng(0)
    for _ in range(50):
        row, ids = 3 * rng.standard_normal(12), rng.integers(0, 12, 9).tolist()
        batch, rows = torch.tensor([ids]), torch.tensor(row)[None]
        warped = rows / 0.7
        for warper in (transformers.TopKLogitsWarper(8), transformers.TopPLogitsWarper(0.9),
                       transformers.MinPLogitsWarper(0.15)):
            warped = warper(batch, warped)
        for made in (process(row, 0.7, 8, 0.9, 0.15), sampling_torch.process(rows[0], 0.7, 8, 0.9, 0.15).numpy()):
            assert made == pytest.approx(warped.softmax(-1)[0].numpy(), abs=1e-12)


def test_a_processor_of_tensors_keeps_the_distribution_exact():
    """A penalty of transformers on the target's rows: the distribution of the first two tokens over all draws."""
    pair, target = omnidraft.pair(loaded("small", 1), loaded("small", 2)), loaded("small", 2)[0]
    penalty, ids = transformers.RepetitionPenaltyLogitsProcessor(2.0), SMALL.encode("ab", bos=True)
    options = Options(stop=FixedLength(1), temperature=0.9, max_new_tokens=2, processor=row_by_row(penalty))

    def text(draws):
        rounds = speculative(pair, ids_of(pair, "ab"), options, draws)
        return tuple(token for one in rounds for token in one.emitted)

    def row(before):
        batch = torch.tensor([before])
        return process(penalty(batch, target(batch).logits[:, -1].detach())[0].numpy(), 0.9)

    wanted = {}
    for first, p in enumerate(row(ids)):
        ends = first in pair.target.eos_ids
        wanted |= {(first,): p} if ends else {(first, second): p * q for second, q in enumerate(row([*ids, first]))}
    assert total_variation(distribution_of(text), wanted) < 1e-6  # transformers computes rotations in float32


def test_rows_on_a_device_are_processed_as_those_on_the_host(monkeypatch):
    def write():
        pair = omnidraft.pair(loaded("pieces", 1), loaded("bytes", 2))
        how = {"processor": row_by_row(lists), "max_new_tokens": 30, "seed": 3, "min_p": 0.05}
        found = [pair.generate(PROMPT, temperature=temperature, **how) for temperature in (0.0, 1.0)]
        return pair.sampler, [one.tokens for one in found], [one.to_dict()["finish_reason"] for one in found]

    lists = transformers.LogitsProcessorList([
        transformers.NoRepeatNGramLogitsProcessor(3), transformers.RepetitionPenaltyLogitsProcessor(1.4),
        lambda ids, row: row - (torch.arange(row.shape[1]) == ids[0, -1]) * 1.0])
    sampler, *host = write()
    monkeypatch.setattr(sampling_torch, "CpuSampler", sampling_torch.Sampler)
    other, *device = write()
    assert sampler is not other is sampling_torch.Sampler and host == device


@pytest.mark.parametrize("how", [{}, {"do_sample": True}, {"do_sample": True, "verify": "slem"}], ids=str)
@pytest.mark.parametrize("place", ["host", "device"])
def test_a_processor_may_leave_nothing_after_a_proposal_that_is_not_kept(place, how, monkeypatch):
    if place == "device":
        monkeypatch.setattr(sampling_torch, "CpuSampler", sampling_torch.Sampler)
    pair = omnidraft.pair(loaded("pieces", 1), loaded("bytes", 2))
    start, allowed = len(BYTES.encode(PROMPT, bos=True)), [4, 5, 6]

    def grammar(ids, row):  # allows a few tokens, and none after a text that has any other
        possible = torch.zeros_like(row, dtype=torch.bool)
        possible[:, allowed] = bool(torch.isin(ids[0, start:], torch.tensor(allowed)).all())
        return row.masked_fill(~possible, -torch.inf)

    for seed in range(3):
        found = pair.generate(PROMPT, max_new_tokens=12, threshold=0.0, processor=row_by_row(grammar), seed=seed,
                              adaptive=False, **how)
        assert {*found.tokens} <= {*allowed} and any(record.proposals for record in found.rounds)


@pytest.mark.parametrize("how", [{}, {"do_sample": True}, {"do_sample": True, "verify": "slem"}], ids=str)
@pytest.mark.parametrize("place", ["host", "device"])
def test_processors_that_rule_out_every_token_are_named(place, how, monkeypatch):
    if place == "device":
        monkeypatch.setattr(sampling_torch, "CpuSampler", sampling_torch.Sampler)
    pair = omnidraft.pair(loaded("pieces", 1), loaded("bytes", 2))
    with pytest.raises(OmnidraftError, match="the logits processors ruled out every token: let them allow at least one$"):
        pair.generate(PROMPT, processor=lambda ids, row: row - float("inf"), **how)


def test_a_chat_is_read_by_the_tokenizers_template():
    small, (model, _) = loaded("pieces", 1), loaded("bytes", 2)
    messages = [{"role": "user", "content": "ab a"}]
    for pair in (two(), omnidraft.pair("draft-general", "draft-general")):  # without a template: read as in a conversation
        wanted = [ids for _, ids in Conversation(pair).read(messages)]
        found = pair.generate(messages, max_new_tokens=8)
        assert found.prompt_tokens == wanted[0] and b"ab a" in pair.target.tokenizer.decode_bytes(wanted[0])
        assert found.tokens == pair.generate(wanted[0], max_new_tokens=8).tokens
    template = ("{% for one in messages %}{{ one.role[:1] }} {{ one.content }}b{% endfor %}"
                "{% if add_generation_prompt %} a{% endif %}")
    speaking = fast(BYTES)
    speaking.chat_template = template
    pair = omnidraft.pair(small, (model, speaking))
    ids = speaking.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    wanted = pair.generate(ids, max_new_tokens=8)
    assert pair.generate(messages, max_new_tokens=8).sequences == wanted.sequences and wanted.prompt_tokens == ids
    assert [one.tokens for one in pair.generate([messages, messages], max_new_tokens=8)] == [wanted.tokens] * 2


def test_a_text_that_names_a_special_token_is_refused_where_transformers_would_read_one():
    pair, end = two(), loaded("bytes", 2)[1].eos_token
    with pytest.raises(OmnidraftError, match="a special token in transformers, but plain text here"):
        pair.generate(f"{PROMPT}{end}{PROMPT}")
    ids = loaded("bytes", 2)[1](f"{PROMPT}{end}{PROMPT}")["input_ids"]
    assert pair.generate(ids, max_new_tokens=4).prompt_tokens == ids and pair.target.eos_ids[0] in ids
    named = omnidraft.pair("draft-tasks", "draft-tasks").generate("a </s> b", max_new_tokens=1)  # as plain text
    assert not {*named.prompt_tokens} & {*pair.target.tokenizer.special.ids}


def test_a_generator_gives_the_draws():
    pair, how = two(), {"do_sample": True, "max_new_tokens": 16, "eos_token_id": ()}
    one, same, other = (pair.generate(PROMPT, generator=np.random.default_rng(seed), **how).tokens for seed in (1, 1, 2))
    assert one == same != other
    for wrong in (torch.Generator(), torch.tensor(3)):
        with pytest.raises(OmnidraftError, match="must be a NumPy generator"):
            pair.generate(PROMPT, generator=wrong, **how)


def test_a_loaded_model_drafts_for_itself_and_keeps_k_of_k():
    pair = omnidraft.pair(loaded("pieces", 2), loaded("pieces", 2))
    for temperature in (0.0, 1.0):
        found = pair.generate(PROMPT, stop=FixedLength(5), temperature=temperature, max_new_tokens=40, eos_token_id=(),
                              adaptive=False)
        assert all(len(r.emitted) == len(r.draft_tokens) + 1 for r in found.rounds) and len(found.tokens) == 40


def test_mixed_pairs_and_what_is_refused():
    model, tokenizer = loaded("bytes", 2)
    with pytest.raises(OmnidraftError, match="needs its tokenizer"):
        omnidraft.pair(model, model)
    with pytest.raises(OmnidraftError, match="has no tokenizer.json"):
        omnidraft.pair((model, "gpt2"), (model, tokenizer))
    training = transformers.LlamaForCausalLM(model.config).train()
    with pytest.raises(OmnidraftError, match="training mode"):
        omnidraft.pair((training, tokenizer), (model, tokenizer))
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 99}
    translator = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    with pytest.raises(OmnidraftError, match="T5ForConditionalGeneration is not a causal language model"):
        omnidraft.pair((model, tokenizer), (translator, tokenizer))
    with pytest.raises(OmnidraftError, match="must be one or more ids"):
        two().generate(torch.tensor([[0.5]]))
    mixed = omnidraft.pair("draft-general", (model, tokenizer))
    assert mixed.generate(PROMPT, max_new_tokens=24).tokens == theirs("bytes")


@pytest.mark.parametrize("name", ["stories260K", "babyllama-tok361"])
def test_real_models_as_they_are_loaded(name):
    folders = [REAL / "models" / one for one in ("stories260K", "babyllama-tok361")]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("no real models here")
    parts = {folder.name: (transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval(),
                           transformers.AutoTokenizer.from_pretrained(folder)) for folder in folders}
    draft = next(one for one in parts if one != name)
    model, tokenizer = parts[name]
    inputs = tokenizer("Once upon a time", return_tensors="pt", return_token_type_ids=False)
    made = model.generate(**inputs, do_sample=False, max_new_tokens=40, pad_token_id=0)[0].tolist()
    pair = omnidraft.pair(parts[draft], parts[name])
    assert pair.generate("Once upon a time", max_new_tokens=40).sequences == made
    stops = {"stop_strings": ["was a", "!"], "max_new_tokens": 40}
    ended = model.generate(**inputs, do_sample=False, pad_token_id=0, tokenizer=tokenizer, **stops)
    found = pair.generate("Once upon a time", **stops)
    assert found.sequences == ended[0].tolist() and found.finish_reason == "stop"
