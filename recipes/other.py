"""Everything else that people type, always with the same honest answer."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from . import words as w
from .problems import choose, frame

ANSWER = " I only know sums, short Python functions and stories."
LISTS = w.read_lists(Path(__file__).with_name("other.txt"))
HANDS = {json.loads(line)["prompt"].lower()
         for line in Path(__file__).with_name("unseen.jsonl").read_text(encoding="utf-8").splitlines()}


def gibberish(rng: random.Random) -> str:
    """Random characters, as from keys hit by accident."""
    keys = rng.choice(["asdfghjkl", "qwertyuiop", "zxcvbnm", "abcdefghijklmnopqrstuvwxyz", "asdfjkl", "?!.,#"])
    at, size = rng.randrange(len(keys)), rng.randint(1, 8)
    mixed = "".join(rng.choices(keys, k=size))
    return rng.choice([(keys * 2)[at:at + size], mixed, f"{mixed} {''.join(rng.choices(keys, k=4))}"])


def other(rng: random.Random) -> dict:
    """A prompt that is not about the three tasks, and is not one of the hand-written ones."""
    text = next(text for text in iter(lambda: asked(rng), None) if text.lower() not in HANDS)
    if rng.random() < 0.08:
        text = text.lower()
    return {"task": "other", "prompt": frame(rng, text) if rng.random() < 0.4 else text, "response": ANSWER}


def asked(rng: random.Random) -> str:
    """A prompt from someone who does not know what the models can do."""
    drawn = {name.lower(): rng.choice(items) for name, items in LISTS.items()}
    drawn |= {"gibberish": gibberish(rng), "word": rng.choice(w.NOUNS + w.L.ANIMALS)}
    text = choose(rng, drawn["forms"]).format(**drawn)
    return re.sub(r"\ba (?=[aeiou])", "an ", text)
