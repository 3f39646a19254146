"""`pair.decoder()` inside transformers' `generate`: its text, its distribution, its output class, and what it refuses."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from test_generation_api_torch import PROMPT, loaded, torch, transformers, two
from vocabularies import REAL

import omnidraft
from omnidraft import OmnidraftError, sampling_torch
from omnidraft.exactness import distribution_of, total_variation
from omnidraft.pairs import transformers_decoder
from omnidraft.stopping import FixedLength

GREEDY = {"do_sample": False, "max_new_tokens": 24}


def asked(kind: str = "bytes", prompt: str = PROMPT, **more):
    """The target and its inputs."""
    model, tokenizer = loaded(kind, 2)
    return model, dict(tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)) | more


@pytest.mark.parametrize("how", [
    {}, {"repetition_penalty": 1.8}, {"no_repeat_ngram_size": 2, "min_new_tokens": 9}, {"bad_words_ids": [[0], [1, 1]]},
    {"eos_token_id": [2, 3]}, {"eos_token_id": None}, {"max_time": 1e9, "suppress_tokens": [1]}])
def test_greedy_text_is_that_of_plain_generate(how):
    for target, draft in (("bytes", "pieces"), ("pieces", "bytes")):
        model, inputs = asked(target, pad_token_id=0, **GREEDY, **how)
        wanted = model.generate(**inputs)
        assert model.generate(**inputs, custom_generate=two(draft, target).decoder()).tolist() == wanted.tolist()


def test_a_state_space_model_rereads_the_text():
    tokenizer = loaded("bytes", 2)[1]
    torch.manual_seed(0)
    model = transformers.MambaForCausalLM(transformers.MambaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, state_size=4, initializer_range=0.4)).double().eval()
    inputs = dict(tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False), pad_token_id=0, **GREEDY)
    pair, wanted = omnidraft.pair(loaded("pieces", 1), (model, tokenizer)), model.generate(**inputs).tolist()
    assert model.generate(**inputs, custom_generate=pair.decoder()).tolist() == wanted == [pair.generate(
        PROMPT, max_new_tokens=GREEDY["max_new_tokens"]).sequences]


def test_a_model_without_a_cache_rereads_the_text_also_if_transformers_makes_one():
    tokenizer = loaded("bytes", 2)[1]
    torch.manual_seed(2)
    model = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(
        vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.4)).double().eval()
    inputs = dict(tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False), pad_token_id=0, **GREEDY)
    decoder, wanted = omnidraft.pair(loaded("pieces", 1), (model, tokenizer)).decoder(), model.generate(**inputs).tolist()
    assert model.generate(**inputs, custom_generate=decoder).tolist() == wanted
    assert model.generate(**inputs, custom_generate=decoder, return_dict_in_generate=True).sequences.tolist() == wanted


def test_the_cache_that_transformers_made_is_used_under_each_of_its_names():
    """transformers 5.24 calls it `cache`; the text is read once, and the cache comes back with it."""
    tokenizer, lengths = loaded("bytes", 2)[1], []
    torch.manual_seed(3)
    model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, initializer_range=0.4)).double().eval()
    decoder = omnidraft.pair(loaded("pieces", 1), (model, tokenizer)).decoder(stop=FixedLength(2))
    inputs = dict(tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False), pad_token_id=0, **GREEDY)
    wanted = model.generate(**inputs, return_dict_in_generate=True)
    model.get_input_embeddings().register_forward_pre_hook(lambda _, ids: lengths.append(ids[0].shape[1]))
    made = model.generate(**inputs, custom_generate=decoder, return_dict_in_generate=True)
    assert made.keys() == wanted.keys() and made.sequences.tolist() == wanted.sequences.tolist()
    assert max(lengths[1:]) <= 3


@pytest.mark.parametrize("more", [{"guidance_scale": 1.5}, {"watermarking_config": transformers.WatermarkingConfig()}])
def test_processors_of_transformers_that_keep_state_write_plain_greedy_text(more):
    model, inputs = asked(pad_token_id=0, **GREEDY, **more)
    assert model.generate(**inputs, custom_generate=two().decoder()).tolist() == model.generate(**inputs).tolist()


def test_a_watermark_works_above_temperature_0():
    mark = transformers.WatermarkingConfig()
    model, inputs = asked(pad_token_id=0, do_sample=True, max_new_tokens=6, watermarking_config=mark)
    assert model.generate(**inputs, custom_generate=two().decoder()).shape[1] > inputs["input_ids"].shape[1]


def test_a_streamer_that_was_given_to_generate_gets_the_text_as_from_plain_generate():
    model, inputs = asked(pad_token_id=0, **GREEDY)
    seen = {}
    for how in ({}, {"custom_generate": two().decoder()}):
        ids = seen[len(how)] = []
        streamer = type("", (), {"put": lambda _, new, ids=ids: ids.extend(new.flatten().tolist()),
                                 "end": lambda _, ids=ids: ids.append(None)})()
        model.generate(**inputs, streamer=streamer, **how)
    assert seen[0] == seen[1] and seen[1][-1] is None


def test_criteria_padding_and_streamers_are_honoured():
    model, inputs = asked(pad_token_id=0, **GREEDY)
    inputs["stopping_criteria"] = [transformers.MaxLengthCriteria(inputs["input_ids"].shape[1] + 5)]
    assert model.generate(**inputs, custom_generate=two().decoder()).tolist() == model.generate(**inputs).tolist()
    seen, text = [], model.generate(**inputs)[0].tolist()
    streamer = type("", (), {"put": lambda _, ids: seen.extend(ids.flatten().tolist()), "end": lambda _: seen.append(None)})()
    model.generate(**inputs, custom_generate=two().decoder(streamer=streamer))
    assert seen == [*text, None]
    inputs = inputs | {"input_ids": torch.nn.functional.pad(inputs["input_ids"], (3, 0)), "repetition_penalty": 1.5,
                       "attention_mask": torch.nn.functional.pad(inputs["attention_mask"], (3, 0)), "stopping_criteria": None}
    assert model.generate(**inputs, custom_generate=two().decoder()).tolist() == model.generate(**inputs).tolist()


def test_the_output_class_its_scores_and_its_cache():
    model, inputs = asked(pad_token_id=0, return_dict_in_generate=True, output_scores=True, **GREEDY)
    inputs["stopping_criteria"] = [transformers.MaxLengthCriteria(inputs["input_ids"].shape[1] + 7)]
    wanted, made = model.generate(**inputs), model.generate(**inputs, custom_generate=two().decoder())
    assert type(made) is type(wanted) and made.sequences.tolist() == wanted.sequences.tolist()
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(made.scores, wanted.scores, strict=True))
    assert made.past_key_values.get_seq_length() == wanted.past_key_values.get_seq_length()
    longer = torch.cat([made.sequences, inputs["input_ids"]], 1)  # a second turn continues from the cache
    inputs = {"input_ids": longer, "attention_mask": torch.ones_like(longer), "pad_token_id": 0, **GREEDY}
    more = [model.generate(**inputs, past_key_values=one.past_key_values, **how).tolist()
            for one, how in ((wanted, {}), (made, {"custom_generate": two().decoder()}))]
    assert more[0] == more[1] and made.past_key_values.get_seq_length() == len(more[1][0]) - 1


def test_the_returned_cache_holds_nothing_of_what_was_accepted_after_a_stop():
    model, inputs = asked(pad_token_id=0, return_dict_in_generate=True, eos_token_id=None, **GREEDY)
    decoder = omnidraft.pair(loaded("bytes", 2), loaded("bytes", 2)).decoder(stop=FixedLength(4), adaptive=False)
    inputs["stopping_criteria"] = [transformers.MaxLengthCriteria(inputs["input_ids"].shape[1] + 4)]
    made = model.generate(**inputs, custom_generate=decoder)
    assert made.past_key_values.get_seq_length() == made.sequences.shape[1] - 1 == inputs["input_ids"].shape[1] + 3


def test_scores_are_copies_also_with_a_padded_vocabulary():
    """The loop rules out ids that the tokenizer does not have; the scores that it returns keep their logits."""
    model, tokenizer = loaded("bytes", 2)
    model = copy.deepcopy(model).float()  # whose logits need no conversion, which would copy them
    size = len(tokenizer)
    model.resize_token_embeddings(size + 8, mean_resizing=False)
    model.lm_head.weight.data[size:] = 0
    pair = omnidraft.pair(loaded("pieces", 1), (model, tokenizer))
    inputs = asked(pad_token_id=0, return_dict_in_generate=True, output_scores=True, **GREEDY)[1]
    wanted, made = model.generate(**inputs), model.generate(**inputs, custom_generate=pair.decoder())
    assert made.sequences.tolist() == wanted.sequences.tolist() and made.scores[0].shape == (1, size + 8)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(made.scores, wanted.scores, strict=True))


@pytest.mark.parametrize("how", [{}, {"temperature": 0.7, "top_k": 2}, {"repetition_penalty": 2.0, "top_p": 0.9}])
def test_the_distribution_of_two_tokens_is_exact(how, monkeypatch):
    """The distribution over all draws, at T = 1 and with transformers' processors, compared with the chain rule."""
    pair = omnidraft.pair(loaded("small", 1), loaded("small", 2))
    model, inputs = asked("small", "ab", do_sample=True, pad_token_id=0, **{"top_k": 0} | how)
    start = inputs["input_ids"].shape[1]

    def text(draws):
        monkeypatch.setattr(transformers_decoder, "draws_of", lambda generator: draws)
        decoder = pair.decoder(stop=FixedLength(1))
        return tuple(model.generate(**inputs, max_new_tokens=2, custom_generate=decoder)[0, start:].tolist())

    def row(ids):  # what plain generate samples from, according to its own scores
        more = inputs | {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=int)}
        made = model.generate(**more, max_new_tokens=1, return_dict_in_generate=True, output_scores=True)
        return made.scores[0][0].softmax(-1).tolist()

    ids, wanted = inputs["input_ids"][0].tolist(), {}
    for first, p in enumerate(row(ids)):
        ends = first in pair.target.eos_ids
        wanted |= {(first,): p} if ends else {(first, second): p * q for second, q in enumerate(row([*ids, first]))}
    assert total_variation(distribution_of(text), wanted) < 1e-6  # transformers' rows are float32


def test_the_seed_is_that_of_pytorch():
    model, inputs = asked(do_sample=True, min_new_tokens=20, max_new_tokens=20, pad_token_id=0)
    pair, made = two(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(model.generate(**inputs, custom_generate=pair.decoder()).tolist())
        own = pair.decoder(generator=torch.Generator().manual_seed(seed))
        made.append(model.generate(**inputs, custom_generate=own).tolist())
    assert made[0] == made[2] and made[1] == made[3] and len({str(one) for one in made}) > 1


@pytest.mark.parametrize(("more", "why"), [
    ({"num_return_sequences": 2, "do_sample": True}, "one prompt at a time"), ({"num_beams": 2}, "one prompt at a time"),
    ({"output_logits": True}, "only scores are supported"), ({"dola_layers": "low"}, "other decoding methods"),
    ({"guidance_scale": 1.5, "do_sample": True}, "keeps state"), ({"assistant_model": None}, "has its drafter"),
    ({"penalty_alpha": 0.6, "top_k": 4}, "other decoding methods"), ({"prompt_lookup_num_tokens": 3}, "other decoding methods"),
    ({"attention_mask": torch.tensor([[1, 0, 1]])}, "mask may hide only"), ({"inputs_embeds": 1}, "only ids are supported")])
def test_what_it_would_ignore_is_refused(more, why):
    model, inputs = asked(pad_token_id=0, max_new_tokens=4)
    more = {"assistant_model": model} if "assistant_model" in more else more
    more = {"inputs_embeds": model.get_input_embeddings()(inputs["input_ids"])} if "inputs_embeds" in more else more
    with pytest.raises(OmnidraftError, match=why):
        model.generate(**inputs | more, custom_generate=two().decoder())


def test_a_cache_that_holds_more_than_the_ids_is_refused():
    model, inputs = asked(pad_token_id=0, max_new_tokens=4)
    held = model.generate(**inputs, return_dict_in_generate=True).past_key_values
    with pytest.raises(OmnidraftError, match="give all ids"):
        model.generate(**inputs, past_key_values=held, custom_generate=two().decoder())


def test_another_model_and_settings_of_generate_are_refused():
    model, inputs = asked("pieces", max_new_tokens=4)
    with pytest.raises(OmnidraftError, match="use generate of the pair's target"):
        model.generate(**inputs, custom_generate=two().decoder())
    with pytest.raises(OmnidraftError, match="give temperature to generate"):
        two().decoder(temperature=0.5)
    with pytest.raises(OmnidraftError, match="is no transformers model"):
        omnidraft.pair("draft-general", "draft-general").decoder()


@pytest.mark.parametrize("target", ["stories260K", "babyllama-tok361"])
def test_real_pairs_write_what_plain_generate_writes(target):
    folders = [REAL / "models" / one for one in ("stories260K", "babyllama-tok361")]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("no real models here")
    parts = {folder.name: (transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval(),
                           transformers.AutoTokenizer.from_pretrained(folder)) for folder in folders}
    model, tokenizer = parts.pop(target)
    pair = omnidraft.pair(*parts.values(), (model, tokenizer))
    for prompt, how in (("Once upon a time", {}), ("Tom and Lily went to the", {"repetition_penalty": 1.3})):
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        wanted = model.generate(**inputs, do_sample=False, max_new_tokens=32, **how)
        made = model.generate(**inputs, do_sample=False, max_new_tokens=32, custom_generate=pair.decoder(), **how)
        assert made.tolist() == wanted.tolist()


def test_rows_on_a_device_give_what_rows_on_the_host_give(monkeypatch):
    monkeypatch.setattr(sampling_torch, "CpuSampler", sampling_torch.Sampler)
    pair = omnidraft.pair(loaded("pieces", 1), loaded("bytes", 2))
    model, inputs = asked(pad_token_id=0, return_dict_in_generate=True, output_scores=True, repetition_penalty=1.3, **GREEDY)
    wanted, made = model.generate(**inputs), model.generate(**inputs, custom_generate=pair.decoder())
    assert pair.sampler is sampling_torch.Sampler and made.sequences.tolist() == wanted.sequences.tolist()
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(made.scores, wanted.scores, strict=True))


def wrapped(model, kind: str):
    """The model in a wrapper, by PEFT with a random LoRA adapter or by torch.compile."""
    if kind == "compile":
        return torch.compile(model, backend="eager")
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False,
                             task_type="CAUSAL_LM")
    return peft.get_peft_model(copy.deepcopy(model), config).eval()


@pytest.mark.parametrize("kind", ["compile", "LoRA", "LoRA, compile"])
def test_wrapped_models_are_targets_and_drafters(kind):
    (draft, draft_tokenizer), (target, tokenizer) = loaded("pieces", 1), loaded("bytes", 2)
    torch.manual_seed(0)  # not every random adapter changes the text
    for one in kind.split(", "):
        draft, target = wrapped(draft, one), wrapped(target, one)
    inputs = dict(tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False), pad_token_id=0, **GREEDY)
    wanted = target.generate(**inputs).tolist()
    plain = loaded("bytes", 2)[0].generate(**inputs).tolist()
    assert (wanted == plain) == (kind == "compile")  # an adapter changes the text
    pair = omnidraft.pair((draft, draft_tokenizer), (target, tokenizer))
    assert pair.generate(PROMPT, max_new_tokens=GREEDY["max_new_tokens"]).sequences == wanted[0]
    assert target.generate(**inputs, custom_generate=pair.decoder()).tolist() == wanted
    folder = Path(__file__).resolve().parent.parent / "integrations" / "custom_generate"
    made = target.generate(
        **inputs, custom_generate=str(folder), trust_remote_code=True, tokenizer=tokenizer,
        assistant_model=draft, assistant_tokenizer=draft_tokenizer)
    assert made.tolist() == wanted
    again = copy.deepcopy(target)  # the pair that the folder keeps with a model is not copied
    assert not getattr(again, "omnidraft_pair", ()) and again.generate(**inputs).tolist() == wanted


def test_a_prompt_of_vectors_is_refused():
    peft = pytest.importorskip("peft")
    model, tokenizer = loaded("bytes", 2)
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    tuned = peft.get_peft_model(copy.deepcopy(model), config).eval()
    with pytest.raises(OmnidraftError, match="learned vectors before the ids"):
        omnidraft.pair(loaded("pieces", 1), (tuned, tokenizer))
