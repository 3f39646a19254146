"""Several threads may use one tokenizer, and one pair, at the same time."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_cli import own_caches  # noqa: F401 (a fixture)
from test_learning import PROMPTS, folders, paired  # noqa: F401 (a fixture)
from vocabularies import byte_level, sentencepiece

from omnidraft.options import Options
from omnidraft.stopping import FixedLength
from omnidraft.verification import RULES

LETTERS = "▁abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(autouse=True)
def often():
    """Threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("kind", ["byte-level", "pieces"])
def test_special_tokens_in_a_text_are_tokens_only_for_the_thread_that_asks(kind):
    made = sentencepiece(LETTERS, "▁ t, h e")
    if kind == "byte-level":
        made = byte_level("Ġ t, h e", specials=("<|end|>", "<|user|>"))
    names = "".join(made.strings[token] for token in sorted(made.special.ids))
    text = f"say {names} now" + " the thing" * 20
    expected = {specials: made.encode(text, specials=specials) for specials in (False, True)}
    assert set(expected[True]) & made.special.ids and not set(expected[False]) & made.special.ids

    def run(specials: bool) -> int:
        return sum(made.encode(text, specials=specials) != expected[specials] for _ in range(2000))

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(run, [False, True, False, True])) == 0


@pytest.mark.parametrize("rule", RULES)
def test_threads_that_share_a_pair_write_what_one_alone_writes(folders, rule):  # noqa: F811
    pair = paired(folders)
    how = Options(verify=rule, stop=FixedLength(4), max_new_tokens=40, temperature=1.0)
    expected = {prompt: pair.generate(prompt, how, seed=3).tokens for prompt in PROMPTS}
    with ThreadPoolExecutor(4) as threads:
        written = threads.map(lambda prompt: pair.generate(prompt, how, seed=3).tokens, PROMPTS * 4)
        assert [*written] == [expected[prompt] for prompt in PROMPTS * 4]
