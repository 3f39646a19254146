"""The embedded pairs write the same as before: same seeds, same drafts, same texts.

tests/golden.json holds the draft tokens and emitted tokens of every round, in float64. It is recorded again only when weights
change, or when the draws are changed on purpose:

    python -m tests.test_golden tests/golden.json
"""

import json
import sys
from pathlib import Path

import pytest

import omnidraft

GOLDEN = Path(__file__).parent / "golden.json"
PROMPTS = {
    "math": ("Question: Ann has 3 boxes of 12 pens. How many pens does she have?\nAnswer:", {}),
    "code": ("Write a Python function that adds two numbers.\n", {"top_k": 50}),
    "text": ("Once upon a time, a little fox", {"top_p": 0.95}),
}
RULES = {"draft-tasks": ("lossless", "omnidraft", "slem", "tli"), "draft-general": ("lossless",)}


def write(draft: str, target: str) -> dict[str, list]:
    """The rounds of every rule, prompt and temperature: draft tokens and emitted tokens."""
    pair = omnidraft.pair(draft, target, dtype="float64")
    written = {}
    for rule in RULES[draft]:
        for task, (prompt, filters) in PROMPTS.items():
            for temperature in (0.0, 1.0):
                settings = filters if temperature else {}
                rounds = pair.generate(prompt, seed=7, max_new_tokens=40, verify=rule, adaptive=False,
                                       temperature=temperature, **settings).rounds
                written[f"{rule} {task} T={temperature:.0f}"] = [
                    [list(map(int, r.draft_tokens)), list(map(int, r.emitted))] for r in rounds]
    return written


def pairs() -> list[tuple[str, str]]:
    return [*((draft, target) for draft in RULES for target in ("qwen-like", "llama3-like")),
            ("draft-tasks", "draft-general")]  # both have the same tokenizer


@pytest.mark.parametrize(("draft", "target"), pairs())
def test_texts_and_drafts_are_the_recorded_ones(draft, target):
    recorded = json.loads(GOLDEN.read_text())[f"{draft} {target}"]
    assert write(draft, target) == recorded


if __name__ == "__main__":
    recorded = {f"{draft} {target}": write(draft, target) for draft, target in pairs()}
    Path(sys.argv[1]).write_text(json.dumps(recorded, separators=(",", ":")).replace('],"', '],\n"') + "\n")
