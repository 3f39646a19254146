"""Tokenizers as bytes: worked examples by hand, properties, and every available real tokenizer."""

from __future__ import annotations

import json
import os
import struct
from base64 import b64encode
from contextlib import nullcontext

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models
from vocabularies import REAL, REAL_TOKENIZERS, byte_level, real, sentencepiece, snow_drafter, snow_target

from omnidraft.text import tokenizer as tokenizer_module
from omnidraft.text.errors import OmnidraftError
from omnidraft.text.tokenizer import BYTE_TO_CHARACTER, Tokenizer, in_one_line

TEXTS = ["Snow", " leading", "  two  spaces   three    ", "def f(x):\n    return x + 1\n\n\n\t\tpass  \n", "héllo ñ ß",
         "中文字 日本語 한국어", "emoji 😀👩‍👩‍👧 x🇩🇪", "\n\n\n", "", "</s><|im_end|><|endoftext|> <s>", "<0x41>",
         "1234567 3.14", "\x00\x01\r\n", "it's we'll", "[bold]", "   ", "ĠĊ", "𝔘𝔫𝔦"]
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SMALL = {"prepend": snow_drafter(), "metaspace": snow_drafter(metaspace=True), "bytes": snow_target()}


def spelled(tokenizer: Tokenizer, ids: list[int]) -> list[bytes | None]:
    return [tokenizer.token_bytes[i] for i in ids]


def test_stand_in_characters_are_a_bijection():
    assert len(set(BYTE_TO_CHARACTER)) == 256
    assert [BYTE_TO_CHARACTER[b] for b in b" \nA~\xad"] == ["Ġ", "Ċ", "A", "~", "Ń"]


def test_snowflake_by_hand():
    drafter, target = snow_drafter(), snow_target()
    assert spelled(drafter, drafter.encode("Snowflake")) == [b" Snow", b"f", b"la", b"ke"]
    assert spelled(drafter, drafter.encode_continuation("Snowflake"))[1:] == [b"f", b"la", b"ke"]
    assert drafter.decode(drafter.encode("Snowflake")) == "Snowflake"
    assert drafter.decode_bytes(drafter.encode("Snowflake")) == b" Snowflake"
    assert spelled(target, target.encode("Snowflake")) == [b"Snow", b"flake"]
    assert drafter.prefix_space and not target.prefix_space
    assert drafter.split(b"flake") == tuple(drafter.encode_continuation("flake"))
    assert drafter.split(b" Snow") == (drafter.raw.token_to_id("▁Snow"),)


def test_byte_fallback_and_the_piece_character():
    drafter, target = snow_drafter(), snow_target()
    newline = drafter.raw.token_to_id("<0x0A>")
    assert drafter.token_of_byte[10] == newline and newline in drafter.fallback
    assert drafter.token_bytes[newline] == b"\n"
    assert drafter.encode_continuation("▁") == [drafter.token_of_byte[b] for b in "▁".encode()]  # not a space
    assert drafter.decode_bytes(drafter.encode("▁")) == b"  "  # the library itself does not distinguish them
    assert drafter.split(b"\xe4\xbd") == (drafter.token_of_byte[0xE4], drafter.token_of_byte[0xBD])
    assert drafter.split(b" \xe4") == (drafter.raw.token_to_id("▁"), drafter.token_of_byte[0xE4])
    assert target.token_of_byte[10] == 10 and 10 not in target.fallback and len(target.token_of_byte) == 256


def test_vocabulary_without_byte_fallback():
    letters = sentencepiece("▁ab", fallback=False)
    assert letters.token_of_byte == {} and letters.split("é".encode()) is None and letters.split(b"ab") is not None
    assert letters.encode_continuation("ac") == [letters.raw.token_to_id("a"), letters.roles["unk"][0]]
    assert letters.decode(letters.encode("a b")) == "a b"


def test_plain_character_vocabulary_keeps_its_spaces():
    raw = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("ab ▁")}, merges=[]))
    plain = Tokenizer(raw)
    assert plain.encode("a ▁b") == plain.encode_continuation("a ▁b") == [0, 2, 3, 1]
    assert plain.decode([0, 2, 3, 1]) == "a ▁b" and plain.split("▁".encode()) == (3,)
    assert plain.split(b"ac") is None  # "c" is dropped by a model without unknown token


def test_empty_token_unused_ids_and_added_tokens():
    odd = sentencepiece("▁a", extra=("",))
    assert odd.token_bytes[odd.raw.token_to_id("")] == b"" and odd.split(b"") is None
    gaps = byte_level("a b, ab c", added=("<think>", "é "), gap=9)
    assert gaps.token_bytes[256] == b"ab" and gaps.token_bytes[257] is None
    assert gaps.token_bytes[266] == b"abc" and gaps.token_bytes[261:266] == [None] * 5
    assert gaps.strings[257] is None and gaps.size == len(gaps.token_bytes) == max(gaps.raw.get_vocab().values()) + 1
    think = gaps.raw.token_to_id("<think>")
    assert gaps.token_bytes[think] == b"<think>" and gaps.token_bytes[gaps.raw.token_to_id("é ")] == "é ".encode()
    assert gaps.encode_continuation("a<think>b") == [97, think, 98]


def test_special_tokens_in_text_are_text_unless_asked_for():
    target = snow_target()
    end = target.roles["eos"][0]
    assert end not in target.encode("x<|endoftext|>") and end not in target.encode_continuation("x<|endoftext|>")
    assert target.encode("x<|endoftext|>", specials=True) == [120, end]
    assert target.encode("x<|endoftext|>") == target.encode("x<|endoftext|>", specials=False)
    assert target.token_bytes[end] is None and target.decode_bytes([120, end]) == b"x"


def test_roles():
    drafter = snow_drafter()
    assert drafter.roles == {"bos": (1,), "eos": (2,), "pad": (), "unk": (0,)}
    assert drafter.encode("Snow", bos=True)[0] == 1
    chat = byte_level(specials=("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|im_start|>"),
                      config={"eos_token": {"content": "<|eot_id|>"}, "bos_token": None})
    assert chat.roles["eos"] == (258, 257) and chat.roles["bos"] == () and chat.encode("a", bos=True) == [97]
    assert chat.token_bytes[256:] == [None] * 4
    html = byte_level("< s, <s >", specials=())  # "<s>" merged from ordinary text is not a special token
    assert html.roles["bos"] == () and html.token_bytes[257] == b"<s>"


def test_end_tokens_of_the_model_configuration(tmp_path):
    snow_target(specials=("<|a|>", "<|b|>")).raw.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 265}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [264, 265, 9999]}')
    loaded = Tokenizer.load(tmp_path)
    assert loaded.roles["eos"] == (264, 265) and loaded.name == tmp_path.name


def test_truncation_and_padding_are_switched_off(tmp_path):
    raw = snow_target().raw
    raw.enable_truncation(2)
    raw.enable_padding(length=7)
    raw.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).decode_bytes(Tokenizer.load(tmp_path).encode("a b c d")) == b"a b c d"
    assert Tokenizer.load(tmp_path).fingerprint == snow_target().fingerprint != snow_drafter().fingerprint


def test_normalizers_do_not_change_a_continuation():
    raw = snow_target().raw
    raw.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.NFC(), tokenizers.normalizers.Lowercase()])
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = Tokenizer(raw)
    assert tokenizer.prefix_space and tokenizer.decode_bytes(tokenizer.encode("E\u0301")) == " é".encode()
    assert tokenizer.decode_bytes(tokenizer.encode_continuation("E\u0301")) == "E\u0301".encode()


@pytest.mark.parametrize("files, reason", [
    ({}, "no tokenizer.json"),
    ({"tokenizer.json": "{"}, "not a readable tokenizer.json"),
    ({"tokenizer.json": "ok", "config.json": "{"}, "not readable JSON"),
    ({"tokenizer.json": "ok", "tokenizer_config.json": "[" * 100_000}, "not readable JSON"),
    ({"tokenizer.json": "[" * 100_000}, "not a readable tokenizer.json"),
])
def test_broken_folders_are_one_clear_line(tmp_path, files, reason):
    for name, content in files.items():
        (tmp_path / name).write_text(snow_target().raw.to_str() if content == "ok" else content)
    with pytest.raises(OmnidraftError, match=reason) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_unsupported_input_is_refused():
    with pytest.raises(OmnidraftError, match="WordPiece"):
        Tokenizer(tokenizers.Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]")))
    with pytest.raises(OmnidraftError, match="negative"):
        snow_target().decode_bytes([-1])
    with pytest.raises(OmnidraftError, match="not valid Unicode"):
        snow_target().encode("\udcff")
    assert snow_target().decode_bytes([97, 10**6]) == b"a"  # an id of padded logits


def changed(**parts):
    """The file of `snow_target` with some parts replaced; those of "model" one by one."""
    content = json.loads(snow_target().raw.to_str())
    content["model"] |= parts.pop("model", {})
    return json.dumps(content | parts)


@pytest.mark.parametrize("highest", [3_000_000, 4_294_967_295])
def test_ids_far_above_the_number_of_tokens_take_no_memory(tmp_path, highest):
    vocabulary = json.loads(changed())["model"]["vocab"]
    (tmp_path / "tokenizer.json").write_text(changed(model={"vocab": vocabulary | {"zzz": highest}}))
    with pytest.raises(OmnidraftError, match=f"266 tokens but ids up to {highest}"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_pipes_and_huge_files_are_not_read(tmp_path, name):
    (tmp_path / "tokenizer.json").write_text(changed())
    path = tmp_path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(OmnidraftError, match="not an ordinary file"):
        Tokenizer.load(tmp_path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(2**28)  # a sparse file: uses no space on disk
    with pytest.raises(OmnidraftError, match="268,435,456 bytes"):
        Tokenizer.load(tmp_path)


def test_panics_of_the_library_are_one_line(tmp_path):
    """They are not Exceptions: `except Exception` does not catch them."""
    path = tmp_path / "tokenizer.json"
    path.write_text(changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}))
    with pytest.raises(OmnidraftError, match="not a readable tokenizer.json.*charsmap"):
        Tokenizer.load(tmp_path)
    path.write_text(changed(pre_tokenizer={"type": "FixedLength", "length": 0}))
    with pytest.raises(OmnidraftError, match="cannot encode"):
        Tokenizer.load(tmp_path).encode("text")
    path.write_text(json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}}))
    with pytest.raises(OmnidraftError, match="cannot encode"):
        Tokenizer.load(tmp_path).encode("text")


def test_an_interrupt_inside_the_library_is_no_error_of_the_tokenizer():
    inside = in_one_line.__wrapped__("what")
    next(inside)
    inside.close()  # what Python does if Ctrl-C comes just after it was entered
    assert inside.gi_frame is None  # closed, and no OmnidraftError was raised


def test_dropout_is_switched_off(tmp_path):
    (tmp_path / "tokenizer.json").write_text(changed(model={"dropout": 0.5}))
    loaded = Tokenizer.load(tmp_path)
    for text in ("Snowflake" * 9, " Snow"):
        assert loaded.encode(text) == snow_target().encode(text)
        assert loaded.encode_continuation(text) == snow_target().encode_continuation(text)
    assert loaded.split(b"flake") == snow_target().split(b"flake")
    assert loaded.fingerprint == snow_target().fingerprint


@pytest.mark.parametrize("contents", [["A" * 1000], ["AA"] * 20])
def test_normalizers_that_bloat_a_text_are_refused(tmp_path, contents):
    parts = [{"type": "Replace", "pattern": {"String": "A"}, "content": text} for text in contents]
    (tmp_path / "tokenizer.json").write_text(
        changed(normalizer={"type": "Sequence", "normalizers": parts}))
    with pytest.raises(OmnidraftError, match="64 times longer"):
        Tokenizer.load(tmp_path)


def test_a_character_map_that_bloats_a_text_is_refused(tmp_path):
    """It holds a trie of 32-bit units and the texts that they point to; this one only has "a"."""
    units = [0] * 512
    units[0], units[256 ^ 97], units[511] = 256 << 10, 97 | 1 << 8 | (256 ^ 97 ^ 511) << 10, 0
    for size, refused in ((60, False), (100, True)):
        data = struct.pack("<I512I", 2048, *units) + b"A" * size + b"\0"
        normalizer = {"type": "Precompiled", "precompiled_charsmap": b64encode(data).decode()}
        (tmp_path / "tokenizer.json").write_text(changed(normalizer=normalizer))
        with pytest.raises(OmnidraftError, match="64 times longer") if refused else nullcontext():
            assert len(Tokenizer.load(tmp_path).encode("xax")) == size + 2


def test_a_post_processor_that_adds_many_tokens_is_refused(tmp_path):
    """A file of 50 kB that puts a million tokens before every text."""
    begin = {"SpecialToken": {"id": "B", "type_id": 0}}
    processor = {"type": "TemplateProcessing", "single": [begin] * 1000 + [{"Sequence": {"id": "A", "type_id": 0}}],
                 "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
                 "special_tokens": {"B": {"id": "B", "ids": [0] * 1000, "tokens": ["x"] * 1000}}}
    (tmp_path / "tokenizer.json").write_text(changed(post_processor=processor))
    with pytest.raises(OmnidraftError, match="64 times longer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", SMALL)
@settings(max_examples=60, deadline=None)
@given(text=UNICODE)
def test_bytes_are_conserved(kind, text):
    tokenizer = SMALL[kind]
    assert tokenizer.decode_bytes(tokenizer.encode_continuation(text)) == text.encode()
    if "▁" not in text:  # a dummy space is put before it, but Metaspace takes a space at the start for that one
        dummy = b" " if kind == "prepend" and text or kind == "metaspace" and text[:1].strip(" ") else b""
        assert tokenizer.decode_bytes(tokenizer.encode(text)) == dummy + text.encode()


@pytest.mark.parametrize("kind", SMALL)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(min_size=1, max_size=12))
def test_split_spells_any_bytes(kind, data):
    tokenizer = SMALL[kind]
    assert tokenizer.decode_bytes(tokenizer.split(data)) == data


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_real_tokenizers_conserve_bytes(name):
    tokenizer = real(name)
    for text in TEXTS + real_texts():
        space = b" " if tokenizer.prefix_space and text else b""
        assert tokenizer.decode_bytes(tokenizer.encode(text)) == space + text.encode()
        assert tokenizer.decode(tokenizer.encode(text)) == text
        for start in (0, len(text) // 3, len(text) - 1):
            part = text[max(start, 0):]
            assert tokenizer.decode_bytes(tokenizer.encode_continuation(part)) == part.encode()
    for text in ("a▁b ▁", "e\u0301"):  # changed by SentencePiece's "▁" and by Qwen's NFC, but not in a continuation
        assert tokenizer.decode_bytes(tokenizer.encode_continuation(text)) == text.encode()


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_real_tokens_split_into_themselves_bytewise(name):
    tokenizer = real(name)
    step = max(1, tokenizer.size // 3000)
    for data in filter(None, tokenizer.token_bytes[::step]):
        assert tokenizer.decode_bytes(tokenizer.split(data)) == data


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_real_ids_are_those_of_the_library(name):
    tokenizer = real(name)
    library = tokenizers.Tokenizer.from_file(str(REAL / name / "tokenizer.json"))
    for text in TEXTS[:8] + real_texts():
        assert tokenizer.encode(text, specials=True) == library.encode(text, add_special_tokens=False).ids


def test_real_snowflake():
    llama2 = real("tokenizers/llama2-32k")
    assert spelled(llama2, llama2.encode("Snowflake")) == [b" Snow", b"f", b"la", b"ke"]
    assert real("tokenizers/llama3-128k").roles["eos"] == (128001, 128009, 128008)
    assert real("tokenizers/qwen2-151k").roles == {"bos": (), "eos": (151643, 151645), "pad": (151643,), "unk": ()}


def real_texts() -> list[str]:
    texts = []
    for name in ("gsm8k_train1000", "humaneval164", "alpaca_train1000"):
        path = REAL / "data" / f"{name}.jsonl"
        if path.exists():
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:10]]
            texts += [value for row in rows for value in row.values() if isinstance(value, str)]
    return texts


def test_the_key_is_that_of_the_file_and_quickly_found(tmp_path):
    """The library always writes a tokenizer in the same way (`fingerprint`); its file may differ (`key`)."""
    written = snow_target().raw.to_str()
    for name, text in (("as written", written), ("again", written), ("spaced", json.dumps(json.loads(written), indent=1))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(text, encoding="utf-8")
    one, again, spaced = (Tokenizer.load(tmp_path / name) for name in ("as written", "again", "spaced"))
    assert one.fingerprint == spaced.fingerprint == snow_target().key and one.key == again.key != spaced.key
    assert one.token_bytes == spaced.token_bytes == snow_target().token_bytes


CONTINUATIONS = [*TEXTS, "flake", " flake", "\udce9t\u00e9", "\u2581x", "\ufffd"]


@pytest.mark.parametrize("make", [snow_drafter, snow_target, lambda: byte_level("a b", added=("  ", "<tag>")),
                                  lambda: sentencepiece("abc def", "a b, ab c")])
def test_many_continuations_at_once_are_those_of_one_at_a_time(make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenizer_module, "BATCH", 5)
    tokenizer = make()
    found = list(tokenizer.encode_continuations(CONTINUATIONS))
    assert [ids for ids, _ in found] == [tokenizer.encode_continuation(text) for text in CONTINUATIONS]
    for text, (ids, in_one_piece) in zip(CONTINUATIONS, found, strict=True):
        if in_one_piece and tokenizer.decode_bytes(ids) == text.encode():
            assert tokenizer.split(text.encode()) == tuple(ids)


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_many_continuations_at_once_with_real_tokenizers(name: str):
    tokenizer = real(name)
    texts = [data.decode(errors="replace") for data in tokenizer.token_bytes[:4000] if data]
    found = list(tokenizer.encode_continuations(texts))
    assert [ids for ids, _ in found] == [tokenizer.encode_continuation(text) for text in texts]
    assert all(tokenizer.split(text.encode()) == tuple(ids) for text, (ids, in_one_piece) in zip(texts, found, strict=True)
               if in_one_piece and tokenizer.decode_bytes(ids) == text.encode())


def test_added_tokens_of_both_kinds_keep_their_ids():
    """They are added again in runs of one kind, since each call of the library takes as long as all of them."""
    raw = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    for start in range(0, 60, 3):
        raw.add_special_tokens([f"<s{start}>"])
        raw.add_tokens([f"plain{start}", f"plain{start + 1}"])
    tokenizer = Tokenizer(raw)
    for content, i in raw.get_vocab(with_added_tokens=True).items():
        expected = [i] if content.startswith("plain") else tokenizer.encode(content)
        assert tokenizer.encode_continuation(content) == expected, content
