"""The folder for transformers' `custom_generate`, used in `model.generate`; test_decoder.py enumerates what it calls."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from vocabularies import REAL

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FOLDER = Path(__file__).parent.parent / "integrations" / "custom_generate"
PAIRS = [("stories260K", "babyllama-tok361"), ("babyllama-tok361", "stories260K")]


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
    model = load("stories260K")[0]
    text = tokenizer("Once upon a time, ")["input_ids"]
    ids = torch.tensor([[*text, *(tokenizer.convert_tokens_to_ids(c) for c in "there"), tokenizer.eos_token_id, *text]])
    wanted = model.generate(ids, do_sample=False, max_new_tokens=40, eos_token_id=None)
    made = model.generate(ids, do_sample=False, max_new_tokens=40, eos_token_id=None, custom_generate=str(FOLDER),
                          trust_remote_code=True, tokenizer=tokenizer, assistant_model=assistant, assistant_tokenizer=tokenizer,
                          num_assistant_tokens=4, assistant_confidence_threshold=0.0)
    assert made.tolist() == wanted.tolist() and model.omnidraft_pair[1].one_vocabulary


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


def test_what_it_cannot_do_is_said():
    model, how = arguments(*PAIRS[0])
    ids = how["tokenizer"](["Once upon a time"] * 2, return_tensors="pt")
    with pytest.raises(ValueError, match="one prompt at a time"):
        model.generate(**ids, max_new_tokens=4, **how)
    one = {name: part[:1] for name, part in ids.items()}
    for wrong, says in (({"guidance_scale": 1.5, "do_sample": True}, "keeps state"),
                        ({"dola_layers": "low"}, "other decoding methods"),
                        *(({"return_dict_in_generate": True, f"output_{what}": True}, "only scores are supported")
                          for what in ("logits", "attentions", "hidden_states"))):
        with pytest.raises(ValueError, match=says):
            model.generate(**one, max_new_tokens=4, **wrong, **how)
    vectors = {"inputs_embeds": model.get_input_embeddings()(one["input_ids"]), "attention_mask": one["attention_mask"]}
    with pytest.raises(ValueError):
        model.generate(**vectors, max_new_tokens=4, **how)
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
