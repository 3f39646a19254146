"""`omnidraft check`: coverage and translation of two tokenizers, counted by hand; a trial of two models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_cli import check_refused, embedded, ok, own_caches, run, write_model  # noqa: F401 (a fixture)
from vocabularies import byte_level, sentencepiece, snow_drafter, snow_target

from omnidraft import OmnidraftError, Round, Tokenizer
from omnidraft.cli import inspect
from omnidraft.pairs import fit

TEXT = ["Snowflake"]


def side(tokenizer: Tokenizer) -> SimpleNamespace:
    return SimpleNamespace(tokenizer=tokenizer, vocab_size=tokenizer.size, name=tokenizer.name)


def save(tokenizer: Tokenizer, folder: Path) -> str:
    folder.mkdir()
    tokenizer.raw.save(str(folder / "tokenizer.json"))
    return str(folder)


def test_coverage_both_ways():
    draft = sentencepiece("abc", "a b, b c", name="draft")  # <unk> <s> </s>, 256 bytes, a b c, ab bc
    target = byte_level("a b, ab c", name="target")  # 256 bytes, ab abc, <|endoftext|>
    found = fit.fit(side(draft), side(target), ["abc"])
    # all draft tokens but the three special ones and bc, which the target spells as b and c; </s> has a partner by its role
    assert found["draft"] == {"name": "draft", "entries": 264, "same": 256 + 3 + 1, "spelled": 256 + 3 + 1 + 1 + 1}
    # abc is not a draft token, but an n-gram; the end token has a partner
    assert found["target"] == {"name": "target", "entries": 259, "same": 257, "spelled": 257 + 1 + 1}


@pytest.mark.parametrize(("draft", "target", "text", "expected"), [
    (snow_drafter(), snow_drafter(), "Snow flake", {"direct": 5}),  # S|n|o|w is "Snow", then ▁ f la ke
    (snow_drafter(), snow_target(), "flake", {"merge": 3}),  # f la ke is one target token
    (snow_target(), snow_drafter(), "flake", {"expansion": 1}),
    (sentencepiece("ab", "a b"), sentencepiece("a", fallback=False), "aab", {"direct": 1, "none": 1}),
    (byte_level("a b"), byte_level(""), "ab", {"expansion": 1}),
    (byte_level(""), byte_level("a b"), "cabc", {"direct": 2, "merge": 2})])
def test_how_a_text_translates(draft, target, text, expected):
    found = fit.fit(side(draft), side(target), [text])
    total = sum(expected.values())
    assert found["tokens"] == total and "expected" not in found
    assert found["of_tokens"] == {way: pytest.approx(expected.get(way, 0) / total) for way in fit.WAYS}
    assert sum(found["of_bytes"].values()) == pytest.approx(1)


def test_bytes_and_tokens_are_weighed_apart():
    found = fit.fit(side(byte_level("a b, ab c, abc d")), side(byte_level("")), ["abcde"])
    assert found["of_tokens"]["expansion"] == 0.5 and found["of_bytes"]["expansion"] == 0.8


def test_rank_tries_all_drafters_and_lists_the_fastest_first(tmp_path, monkeypatch):
    target = str(write_model(tmp_path / "target", byte_level("a b", name="target"), 1))
    given = str(write_model(tmp_path / "given", byte_level("a b", name="target"), 1))  # the target's twin
    here = str(write_model(tmp_path / "here", sentencepiece("▁abcdefghijklmnopqrstuvwxyz", "a b", name="here"), 2))
    monkeypatch.setattr(inspect, "EMBEDDED", (here, target, str(tmp_path / "none")))
    found = json.loads(ok("check", "--rank", target, given, "--json").stdout)
    speedups = [one["tokens_per_pass"] / one["needed"] for one in found.values()]
    assert found.keys() == {here, given} and speedups == sorted(speedups, reverse=True)
    monkeypatch.setattr(inspect, "expected", lambda pair, texts: {"tokens_per_pass": len(pair.draft.name), "needed": 2.0})
    shown = ok("check", "--rank", target, given)
    assert "none is left out: unknown model" in shown.stderr
    header, *lines = shown.stdout.splitlines()
    assert header.split("  ")[0] == "drafter" and [line.split() for line in lines] == [
        [given, "5.00", "2.00", "2.50x"], [here, "4.00", "2.00", "2.00x"]]


def test_two_tokenizers_are_enough_by_folder_or_file(tmp_path):
    draft, target = save(snow_drafter(), tmp_path / "draft"), save(snow_target(), tmp_path / "target")
    lines = tmp_path / "lines.txt"
    lines.write_text("flake\n")
    for names in ((draft, target), (f"{draft}/tokenizer.json", f"{target}/tokenizer.json")):
        shown = ok("check", *names, "--text", str(lines))
        assert re.search("merged with others into one +100.0% +100.0%", shown.stdout) and "ms per token" not in shown.stdout
        assert "costs are not measured" in shown.stderr
    found = json.loads(ok("check", draft, target, "--text", str(lines), "--json").stdout)
    assert found["of_tokens"]["merge"] == 1 and found["tokens"] == 3


def test_models_at_hand_are_measured(tmp_path):
    more = {"model_type": "llama", "num_key_value_heads": 2, "eos_token_id": None}
    pair = [str(write_model(tmp_path / name, tokenizer, 1, **more))
            for name, tokenizer in (("one", byte_level("a b", name="one")), ("two", byte_level("b c", name="two")))]
    found = json.loads(ok("check", *pair, "--text", "text", "--json").stdout)
    assert found["expected"]["step_ms"] > 0
    assert found["expected"]["pays"] == (found["expected"]["tokens_per_pass"] > found["expected"]["needed"] > 0)
    shown = ok("check", *pair, "--text", "text").stdout
    assert "ms per token" in shown and "drafting is" in shown.splitlines()[-1]


@pytest.mark.parametrize(("draft", "likely"), [(0.1, True), (3.0, False)])
def test_whether_drafting_is_expected_to_pay(monkeypatch, draft, likely):
    def rounds(kind, cost):
        return lambda *_: iter([Round([0] * 2 * kind, [0] * 2 * kind, [1] * 2 * kind, kind, [0] * (1 + kind),
                                      costs={"draft": cost, "target": 1.0 + 0.5 * kind, "other": 0.0})] * 8)

    monkeypatch.setattr(fit, "plain", rounds(0, 0.0))
    monkeypatch.setattr(fit, "speculative", rounds(1, draft))
    found = fit.expected(SimpleNamespace(target=None), ["a", "b", "c", "d"])
    assert found == {"step_ms": 1000.0, "tokens_per_pass": 2.0, "needed": pytest.approx(1.5 + draft), "pays": likely}


@embedded
def test_the_embedded_pair_from_its_own_prompts():
    found = json.loads(ok("check", "draft-tasks", "qwen-like", "--json").stdout)
    assert found["of_tokens"]["none"] < 0.01 < found["of_tokens"]["merge"] < found["of_tokens"]["direct"]


@pytest.mark.parametrize(("arguments", "expected"), [
    (["gpt-5", "qwen-like"], "gpt-5"), (["draft-tasks", "no/tokenizer.json"], "no/"),
    (["draft-tasks", "qwen-like", "--text", "no/such.txt"], "no/such.txt")])
def test_bad_input_is_one_line(arguments, expected):
    check_refused(run("check", *arguments), expected)


def test_nothing_in_common_and_nothing_to_translate_are_errors():
    letters, digits = (side(sentencepiece(some, fallback=False)) for some in ("ab", "12"))
    with pytest.raises(OmnidraftError, match="nothing in common"):
        fit.fit(letters, digits, ["ab"])
    with pytest.raises(OmnidraftError, match="no token to translate"):
        fit.fit(letters, letters, [""])


def test_help_ends_with_an_example():
    assert "omnidraft check draft-tasks qwen-like" in ok("check", "-h").output.split("Examples:")[1]
