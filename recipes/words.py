"""Words and their forms: the lists of words.txt, plurals, articles, verbs, numbers."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace


def words(text: str) -> list[str]:
    """The words of `text`; an underscore stands for a space inside one."""
    return [word.replace("_", " ") for word in text.split()]


def read_lists(file: Path) -> dict[str, list[str]]:
    """Named lists of a file: "NAME: words", or a line "NAME" and then one item per line; indented lines continue."""
    lists: dict[str, list[str]] = {}
    for line in re.sub(r"\n +", " ", file.read_text(encoding="utf-8")).splitlines():
        if match := re.fullmatch(r"([A-Z]{2,}\w*)(?:: (.*))?", line):
            name = match[1]
            lists[name] = words(match[2] or "")
        elif line and not line.startswith("#"):
            lists[name].append(line)
    return lists


L = SimpleNamespace(**read_lists(Path(__file__).with_name("words.txt")))
NOUNS = L.FOOD + L.THINGS
PLURALS, PASTS = (dict(entry.split(":") for entry in entries) for entries in (L.PLURALS, L.PASTS))


def plural(noun: str) -> str:
    """Plural of a noun or of a compound: plural("slice of pizza") == "slices of pizza"."""
    if " of " in noun:
        head, rest = noun.split(" of ", 1)
        return f"{plural(head)} of {rest}"
    head, _, last = noun.rpartition(" ")
    if last in PLURALS:
        last = PLURALS[last]
    elif last.endswith("y") and last[-2] not in "aeiou":
        last = last[:-1] + "ies"
    else:
        last += "es" if last.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{head} {last}" if head else last


def singular(noun: str) -> str:
    """Singular of a unit or another simple plural: singular("pages") == "page"."""
    special = {"feet": "foot", "inches": "inch", "glasses": "glass", "people": "person", "children": "child"}
    return special.get(noun) or (noun if noun.endswith(("ss", "us")) else noun.removesuffix("s"))


def article(noun: str) -> str:
    """`noun` after its "a" or "an"."""
    vowel = noun[0] in "aeiouAEIO" and not noun.startswith(("uni", "use", "one", "eu"))
    return ("an " if vowel or noun.startswith(("hour", "honest")) else "a ") + noun


def third(verb: str) -> str:
    """Third person singular of the present: third("carry on") == "carries on"."""
    verb, _, rest = verb.partition(" ")
    if verb in ("have", "be"):
        form = {"have": "has", "be": "is"}[verb]
    elif verb.endswith("y") and verb[-2] not in "aeiou":
        form = verb[:-1] + "ies"
    else:
        form = verb + ("es" if verb.endswith(("s", "x", "ch", "sh", "o", "z")) else "s")
    return f"{form} {rest}" if rest else form


def past(verb: str) -> str:
    """Past tense: past("give away") == "gave away"."""
    verb, _, rest = verb.partition(" ")
    form = PASTS.get(verb)
    if form is None and verb.endswith("y") and verb[-2] not in "aeiou":
        form = verb[:-1] + "ied"
    elif form is None and verb in L.DOUBLED:
        form = verb + verb[-1] + "ed"
    elif form is None:
        form = verb + ("d" if verb.endswith("e") else "ed")
    return f"{form} {rest}" if rest else form


def number_word(n: int) -> str:
    """A number below 1,000 in words."""
    if n < 20:
        return L.ONES[n]
    if n >= 100:
        return f"{L.ONES[n // 100]} hundred" + (f" and {number_word(n % 100)}" if n % 100 else "")
    return L.TENS[n // 10 - 1] + ("-" + L.ONES[n % 10] if n % 10 else "")


def capital(text: str) -> str:
    """`text` with a capital first letter."""
    return text[:1].upper() + text[1:]


def made_up(rng: random.Random) -> str:
    """An invented word: "tabbo", "lirim"."""
    return "".join(rng.choice("bdfghklmnprstvwz") + rng.choice("aaeeiioou") for _ in range(rng.choice([1, 2, 2, 3]))
                   ) + rng.choice(["", "", "bo", "n", "rim", "lk", "llo", "nd", "rp", "sy"])
