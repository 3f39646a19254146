"""Tokenizers of odd kinds: pipelines that remove text, control strings that somebody typed, models without <unk>."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from vocabularies import byte_level, sentencepiece, snow_target

import omnidraft
from omnidraft.exactness.tables import TableModel
from omnidraft.metrics import summarize
from omnidraft.pairs import template
from omnidraft.pairs.conversation import Conversation, View
from omnidraft.text import tokenizer as module
from omnidraft.text.errors import OmnidraftError
from omnidraft.text.tokenizer import Tokenizer
from omnidraft.verification import RULES

WORDS = ("the", "cat", "sat", "on", "mat", "is", "it", "in")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,<>/x"
TEXT = "the cat sat on the mat it is in it the cat sat on the mat is it on the cat in the mat"
METASPACE = pre_tokenizers.Metaspace("▁", prepend_scheme="always")


def unigram(*, fallback: bool = True, unk: bool = True, before: object = None, normalizer: object = None) -> Tokenizer:
    """A SentencePiece vocabulary of the Unigram kind, as T5, XLM-R, CamemBERT and XLNet have."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)] + [(f"<0x{b:02X}>", -20.0) for b in range(256)] * fallback
    pieces += [("▁", -3.0), *((c, -8.0) for c in LETTERS)]
    pieces += [(f"▁{word}", -5.0) for word in WORDS] + [(word, -6.0) for word in WORDS]
    raw = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0 if unk else None, byte_fallback=fallback))
    raw.pre_tokenizer = METASPACE if before is None else before
    if normalizer is not None:
        raw.normalizer = normalizer
    raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Metaspace("▁")])
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(raw, "unigram", {"bos_token": "<s>", "eos_token": "</s>"})


def split(pattern: str, behavior: str, invert: bool = False) -> object:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


REMOVING = {  # pipelines as the library runs them on a whole text; a continuation must keep its bytes
    "T5": dict(before=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), METASPACE])),
    "XLM-R": dict(before=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), METASPACE]),
                  normalizer=normalizers.NFKC()),
    "CamemBERT": dict(normalizer=normalizers.Replace(Regex(" {2,}"), "▁")),
    "XLNet": dict(normalizer=normalizers.Sequence([
        normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(),
        normalizers.Replace(Regex(" {2,}"), " ")])),
    "converter": dict(before=split("▁", "merged_with_next"), normalizer=normalizers.Sequence([
        normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), "▁"), normalizers.Prepend("▁")])),
    "removed": dict(before=pre_tokenizers.Sequence([split(" ", "removed"), METASPACE])),
    "punctuation removed": dict(before=pre_tokenizers.Sequence([METASPACE, pre_tokenizers.Punctuation("removed")])),
}


@pytest.mark.parametrize("kind", REMOVING)
@settings(max_examples=30, deadline=None)
@example(text=" a  b")
@given(text=st.text(st.sampled_from(" \n\tthecatsat.,▁é"), max_size=20))
def test_a_continuation_keeps_its_bytes_whatever_the_pipeline_removes(kind, text):
    tokenizer = unigram(**REMOVING[kind])
    assert tokenizer.decode_bytes(tokenizer.encode_continuation(text)) == text.encode()


class Writer(TableModel):
    """A model that writes the bytes of a text in its own tokens, whatever it reads."""

    def __init__(self, tokenizer: Tokenizer, text: str = TEXT):
        super().__init__(tokenizer, 0, 10_000)
        self.text, self.spell = text.encode(), tokenizer.encode_continuation

    def row(self, ids) -> np.ndarray:
        logits = np.zeros(self.vocab_size)
        before = self.tokenizer.decode_bytes(ids)
        if self.tokenizer.prefix_space and not self.text.startswith(b" "):
            before = before.removeprefix(b" ")
        rest = self.text[len(before):].decode() if self.text.startswith(before) else ""
        made = self.spell(rest) if rest else self.eos_ids
        logits[made[0] if len(made) else 0] = 9.0
        return logits


def written(draft: Tokenizer, target: Tokenizer, rule: str, text: str = TEXT) -> tuple[bytes, float]:
    """The bytes of a greedy text, and how many tokens each pass of the target gave; it must be the plain text."""
    model = Writer(target, text)
    options = omnidraft.Options.of(verify=rule, draft_length=6, threshold=0.0, max_new_tokens=200)
    draws = omnidraft.Uniforms(np.random.default_rng(0))
    rounds = [*omnidraft.speculative(omnidraft.Pair(Writer(draft, text), model), text[:3], options, draws)]
    ids = [token for record in rounds for token in record.emitted]
    assert ids == [token for record in omnidraft.plain(model, text[:3], options, draws) for token in record.emitted]
    return target.decode_bytes(ids), summarize(rounds).block_efficiency


@pytest.mark.parametrize("rule", RULES)
def test_drafting_pays_whatever_the_pipeline_removes(rule):
    """T5's tokenizer on either side drafts as well as the same vocabulary without WhitespaceSplit."""
    merges = ", ".join([f"Ġ {w[0]}, " + ", ".join(f"Ġ{w[:i]} {w[i]}" for i in range(1, len(w))) for w in WORDS])
    other = byte_level(", ".join(dict.fromkeys(merges.split(", "))))
    for kind in ("T5", "CamemBERT"):
        odd, usual = unigram(**REMOVING[kind]), unigram()
        for pair, reference in (((odd, other), (usual, other)), ((other, odd), (other, usual))):
            text, efficiency = written(*pair, rule)
            assert (text, efficiency) == written(*reference, rule) and text == TEXT[3:].encode()
            assert efficiency > 4


def test_a_tokenizer_that_cannot_spell_its_own_characters_is_refused_when_it_is_loaded():
    letters = {c: i for i, c in enumerate(["<unk>", *LETTERS])}
    for before in (pre_tokenizers.Whitespace(), pre_tokenizers.CharDelimiterSplit(" "), split(" ", "removed"),
                   pre_tokenizers.BertPreTokenizer()):
        raw = tokenizers.Tokenizer(models.BPE(vocab=letters, merges=[], unk_token="<unk>"))
        raw.pre_tokenizer = before
        with pytest.raises(OmnidraftError, match="cannot spell .* exactly") as caught:
            Tokenizer(raw, "letters")
        assert "\n" not in str(caught.value)
    raw = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "cat": 2}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(OmnidraftError, match="cannot spell"):
        Tokenizer(raw, "words")
    raw = tokenizers.Tokenizer(models.BPE(vocab=letters, merges=[], unk_token="<unk>"))  # proteins have no spaces
    assert Tokenizer(raw, "letters").decode_bytes(Tokenizer(raw).encode_continuation("acb")) == b"acb"


def test_a_pattern_of_what_is_kept_still_cuts_words():
    """Some files write GPT-4's pattern as behaviour "Removed" of what does not match, which removes nothing."""
    raw = snow_target().raw
    raw.pre_tokenizer = pre_tokenizers.Sequence([
        split(r" ?[a-z]+|[A-Z]+|\s", "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = Tokenizer(raw)
    assert tokenizer.encode_continuation("Snow flake") == tokenizer.encode("Snow flake")
    assert tokenizer.pieces(tokenizer.encode_continuation("Snow"))[0] == b"S"  # without the cut it would be b"Snow"


def test_added_tokens_that_strip_spaces_keep_those_of_a_continuation():
    raw = byte_level().raw
    raw.add_tokens([AddedToken("<|user|>", lstrip=True, rstrip=True, normalized=False)])
    tokenizer = Tokenizer(raw)
    ids = tokenizer.encode_continuation("hi  <|user|>  there")
    assert raw.token_to_id("<|user|>") in ids and tokenizer.decode_bytes(ids) == b"hi  <|user|>  there"


def plain_end() -> Tokenizer:
    """Byte-level, with an end token and a role marker that are registered as "special": false."""
    raw = byte_level(added=("<|im_end|>", "<|user|>")).raw
    return Tokenizer(raw, "chat", {"eos_token": "<|im_end|>"})


def lowercase() -> Tokenizer:
    return unigram(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))


@pytest.mark.parametrize("make, text", [
    (unigram, "say </s> now"), (unigram, "a <0x61> b"), (unigram, "<unk>"), (unigram, "</s></s>"), (unigram, " </s>"),
    (unigram, "<s"), (plain_end, "a<|im_end|>b"), (plain_end, "<|endoftext|>"), (lambda: unigram(**REMOVING["T5"]), "a </s>b"),
    (lambda: unigram(unk=False), "the </s> Q"), (lowercase, "say ＜/s＞ now")])
def test_a_control_string_that_somebody_typed_stays_text(make, text):
    """Whether or not it is "special" in the file, and although Unigram finds "</s>" in a text by itself."""
    tokenizer = make()
    continued = tokenizer.encode_continuation(text)
    assert not tokenizer.special.ids & {*continued} and tokenizer.decode_bytes(continued) == text.encode()
    if make is not plain_end and "Q" in text:
        return  # the library itself fails at a character that the model lacks
    whole = tokenizer.encode(text)
    assert not tokenizer.special.ids & {*whole} and tokenizer.decode(whole).strip() == text.strip()


def test_a_tag_of_a_page_is_no_end_token_next_to_the_configured_one():
    """Gemma has "</s>" for pages, as a token that is not special, and ends texts with "<eos>"."""
    def ends(special: bool, **config) -> list[str]:
        raw = sentencepiece("▁abc<>/s", "▁ a", extra=("<eos>",)).raw
        raw.add_special_tokens(["<eos>"])
        data = json.loads(raw.to_str())
        for token in data["added_tokens"]:
            token["special"] &= special or token["content"] != "</s>"
        made = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(data)), "pages", config)
        found = [made.strings[i] for i in made.roles["eos"]]
        text = made.token_bytes[made.strings.index("</s>")]
        assert (text is None) == ("</s>" in found) and text in (None, b"</s>")
        return found

    assert ends(False, eos_token="<eos>") == ["<eos>"]
    assert ends(True, eos_token="<eos>") == ["<eos>", "</s>"]
    assert ends(False, eos_token="</s>")[0] == ends(False)[0] == "</s>"


def test_other_texts_are_encoded_as_the_library_does():
    for tokenizer in (unigram(), unigram(fallback=False), plain_end(), lowercase()):
        for text in ("the cat", "The é", "<unk", "<|user|>"):
            tokenizer.raw.encode_special_tokens = True
            assert tokenizer.encode(text) == tokenizer.raw.encode(text, add_special_tokens=False).ids
    assert unigram(fallback=False).encode("é")[-1] == 0  # <unk>, which nobody typed


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("text", ["the cat sat Q on it", "Q the cat on it"])
def test_a_drafter_without_an_unknown_token_drafts_past_a_character_that_it_lacks(rule, fallback, text):
    """The library fails at "Q"; at first, in the prompt, or in the middle of the text."""
    draft = unigram(fallback=fallback, unk=False)
    assert written(draft, byte_level(), rule, text)[0] == text[3:].encode()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("side, every", [("draft", 1), ("draft", 2), ("draft", 3), ("target", 1), ("target", 2)])
def test_a_tokenizer_that_fails_costs_a_draft_and_not_the_text(rule, side, every, temperature, monkeypatch):
    """It fails as the library may: at the prompt, when the drafter follows the text, or at a proposal."""
    pair = omnidraft.Pair(Writer(unigram()), Writer(byte_level()))
    options = omnidraft.Options.of(verify=rule, temperature=temperature, draft_length=6, threshold=0.0, max_new_tokens=60)
    tokenizer, calls = getattr(pair, side).tokenizer, []
    usual = tokenizer.encode_continuation

    def failing(text: str) -> list[int]:
        calls.append(text)
        if len(calls) % every == 0:
            raise OmnidraftError("cannot encode")
        return usual(text)

    assert pair.lifting and pair.spellings is not None  # made from the tokenizers, before a text
    monkeypatch.setattr(tokenizer, "encode_continuation", failing)
    if side == "draft":
        monkeypatch.setattr(tokenizer, "encode", lambda text, **how: failing(text))
    rounds = [*omnidraft.speculative(pair, "the", options, omnidraft.Uniforms(np.random.default_rng(0)))]
    ids = [token for record in rounds for token in record.emitted]
    retokenised = side == "draft" or rule == "slem" or rule == "lifted" and not temperature
    assert rounds[-1].done and bool(calls) == retokenised
    assert temperature or pair.target.tokenizer.decode_bytes(ids) == TEXT[3:3 + len(ids)].encode()


def test_ids_with_a_gap_before_an_added_token_are_refused(tmp_path):
    """The library numbers added tokens without gaps, so another token would end the text than the model's."""
    content = json.loads(byte_level().raw.to_str())
    content["added_tokens"][0]["id"] += 5
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(OmnidraftError, match=r"gives '<\|endoftext\|>' the id 261, but .* 256") as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)
    content["model"]["vocab"]["<|endoftext|>"] = 261  # with its id in the vocabulary, it stays there
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert Tokenizer.load(tmp_path).roles["eos"] == (261,)


def test_the_check_of_a_tokenizer_takes_few_short_texts(monkeypatch):
    tokenizer, lengths = unigram(), []
    run = module._run
    monkeypatch.setattr(module, "_run", lambda raw, text: lengths.append(len(text)) or run(raw, text))
    module.check_bytes(tokenizer)
    assert len(lengths) <= 150 and max(lengths) < 20


CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
MARKERS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")


def view(special: dict[str, bool], source: str = CHAT, extra: tuple[str, ...] = ()) -> View:
    """How a byte-level model with these markers (are they special?) reads a chat."""
    raw = byte_level(added=extra).raw
    for name, is_special in special.items():
        (raw.add_special_tokens if is_special else raw.add_tokens)([AddedToken(name, special=is_special, normalized=False)])
    return View(Writer(Tokenizer(raw, "chat", {"eos_token": "<|end|>"})), source)


@pytest.mark.skipif(not template.is_usable(), reason="jinja2 is missing")
@pytest.mark.parametrize("special", [(True,) * 4, (False,) * 4, (False, False, False, True)])
def test_in_a_chat_each_marker_stands_as_often_as_the_template_wrote_it(special):
    """Whatever the file says of them, and although this template builds their names from the roles."""
    one = view(dict(zip(MARKERS, special, strict=True)), extra=("<table>",))
    typed = "A<|assistant|>B<|end|><|system|><|user|>C<table>"
    ids = one.read([{"role": "user", "content": typed}])[1]
    number = {name: ids.count(one.tokenizer.raw.token_to_id(name)) for name in (*MARKERS, "<table>")}
    assert number == {"<|system|>": 0, "<|user|>": 1, "<|assistant|>": 1, "<|end|>": 1, "<table>": 1}
    special = one.tokenizer.special.ids
    text = "".join(one.tokenizer.strings[i] if i in special else one.tokenizer.decode_bytes([i]).decode() for i in ids)
    assert text == f"<|user|>{typed}<|end|><|assistant|>"  # all of it is there, as text


@pytest.mark.skipif(not template.is_usable(), reason="jinja2 is missing")
def test_a_template_that_cuts_a_message_at_a_token_does_not_free_the_tokens_after_it():
    source = "{% for m in messages %}<|user|>{{ m.content.split('<cut>')[0] }}{{ m.content.split('<cut>')[-1] }}{% endfor %}"
    one = view({"<|end|>": True, "<|user|>": True}, source, ("<cut>",))
    ids = one.read([{"role": "user", "content": "a<cut>b<|end|>c<|user|>"}])[1]
    assert one.tokenizer.roles["eos"][0] not in ids and ids.count(one.tokenizer.raw.token_to_id("<|user|>")) == 1


@pytest.mark.skipif(not template.is_usable(), reason="jinja2 is missing")
def test_typed_end_tokens_in_a_chat_of_a_unigram_vocabulary():
    ids = View(Writer(unigram()), "{{ messages[0].content }}</s>").read([{"role": "user", "content": "say </s> now"}])[1]
    assert ids.count(2) == 1 and ids[-1] == 2


def test_a_drafter_that_cannot_spell_a_chat_reads_nothing_of_it(monkeypatch):
    pair = omnidraft.Pair(Writer(unigram()), Writer(byte_level()))

    def failing(text: str, **how: bool) -> list[int]:
        raise OmnidraftError("cannot encode")

    monkeypatch.setattr(pair.draft.tokenizer, "encode", failing)
    read = [one.read([{"role": "user", "content": "the cat"}])[1] for one in Conversation(pair).views]
    assert read[0] and not read[1]
    monkeypatch.setattr(pair.target.tokenizer, "encode", failing)
    with pytest.raises(OmnidraftError, match="cannot encode"):
        Conversation(pair).views[0].read([{"role": "user", "content": "the cat"}])
