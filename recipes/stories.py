"""Short stories about what was asked for: someone, a wish or a trouble, help, and an end.

A plot says what it is about, so that the topic is in the first sentence and in most of the others.
Pronouns in the singular mean the hero ("it" for an animal without a name) and nobody else.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace

from . import words as w
from .problems import choose

LISTS = w.read_lists(Path(__file__).with_name("stories.txt"))
for entries in LISTS.values():  # "hen,duck:a_farm:corn" stands for two entries
    if all(":" in entry for entry in entries):
        shared = [entry.partition(":") for entry in entries]
        entries[:] = [f"{noun}:{rest}" for nouns, _, rest in shared for noun in nouns.split(",")]
UNFIT = {"tree", "bush", "plant", "dice", "rose", "tulip", "daisy", "lily", "flower", "seed"}
LISTS["THINGS"] += [thing for thing in w.L.THINGS if " of " not in thing and thing not in UNFIT]
PLOTS = {name: plot for name, plot in LISTS.items() if name.startswith("PLOT")}
WEIGHTS = [int(plot[0].split()[0]) for plot in PLOTS.values()]
ON = ("farm", "hill", "mountain", "beach", "plain", "ship", "planet")  # homes one lives on, not in
PRONOUNS = {"he": ("him", "his"), "she": ("her", "her"), "it": ("it", "its")}


def tidy(text: str) -> str:
    """`text` with "an" where it belongs, and with capitals where sentences begin."""
    text = re.sub(r"\b([Aa]) (?=[aeiou])(?!one|uni|use)", r"\1n ", text)
    text = re.sub(r"(^|[.?!]\"? \"?|^\")([a-z])", lambda match: match[1] + match[2].upper(), text)
    return re.sub(r"([?!]\" )(Asked|Said|Cried)\b", lambda match: match[1] + match[2].lower(), text)


class Noun(SimpleNamespace):
    """A noun as it is brought up (`a`), later (`the`), bare (`n`), in general (`many`)."""

    def __init__(self, noun: str) -> None:
        bare = noun.removeprefix("=").removeprefix("the ")
        first = noun.removeprefix("=") if noun[0] == "=" or bare != noun else f"a {bare}"
        super().__init__(a=first, n=bare, the=bare if noun[0] == "=" else f"the {bare}",
                         many=w.plural(bare) if first == f"a {bare}" else first)


def person(rng: random.Random, child: bool, looks: list[str], gendered: bool) -> dict[str, str]:
    """Who a story tells of: a child with a name; or anyone, with or without a look and a name."""
    he, group = rng.choice([("he", "MEN"), ("she", "WOMEN")] if child or rng.random() < 0.35 else [
        ("it", "ANIMALS"), ("it", "ANIMALS"), ("it", "ANIMALS"), ("it", "THINGLIKE")])
    kind, home, likes = rng.choice(LISTS[group]).replace("_", " ").split(":")
    named = child or rng.random() < 0.3
    if child:
        kind = {"he": "boy", "she": "girl"}[he]
    if he == "it" and (named or gendered and rng.random() < 0.5):
        he = rng.choice(["he", "she"])
    names = w.L.GIRLS if he == "she" else w.L.BOYS
    if child and rng.random() < 0.6:
        names = LISTS["GIRLHEROES" if he == "she" else "BOYHEROES"]
    name, (him, his) = rng.choice(names), PRONOUNS[he]
    coats = [] if group in ("MEN", "WOMEN") else LISTS["COATS"]
    look = rng.choice(LISTS["LOOKS"] + coats) + " " if rng.random() < (0.4, 0.1)[child] else ""
    if looks and rng.random() < 0.5:
        look = rng.choice(looks) + " "
    if 0 < len(look) < 9 and "little" not in look and rng.random() < 0.2:
        look += "little "
    called = f" {rng.choice(['named', 'named', 'called'])} {name}" if named else ""
    return {"A": f"a {look}{kind}{called}", "H": name if named else f"the {kind}", "kind": kind,
            "kinds": w.plural(kind), "he": he, "him": him, "his": his, "home": home, "likes": likes,
            "home2": re.sub("^an? ", "the ", home), "in": "on" if home.split()[-1] in ON else "in"}


def story(rng: random.Random) -> dict:
    """A request or the first words of a story, and the story."""
    head, *lines = PLOTS[rng.choices(list(PLOTS), WEIGHTS)[0]]
    (_, sort, *looks), *draws = (part.split() for part in head.split("; "))
    values: dict = person(rng, sort == "child", looks, "{his}" in "".join(lines))
    for source, *fields in draws:
        entries = [entry for entry in LISTS[source] if values["kind"] not in entry.split(":")]
        values |= dict(zip(fields, rng.choice(entries).replace("_", " ").split(":"), strict=True))
    values["which"] = values.get("which", "").replace("-", "")
    values["dreamt"] = w.past(values.get("dream", "go"))
    if values.get("pl", "-") != "-" and not values["place"].startswith("the "):
        values["place"] = values["pl"] + values["place"]
    values |= {name: Noun(values[name]) for name in ("place", "food", "time") if name in values}
    if sort == "pair":
        everyone = LISTS["ANIMALS"] + LISTS["THINGLIKE"] + LISTS["MEN"] + LISTS["WOMEN"]
        one, two = (entry.split(":")[0].replace("_", " ") for entry in rng.sample(everyone, 2))
        values |= {"A": f"a {one} and a {two}", "H1": f"the {one}", "H2": f"the {two}",
                   "A2": f"the {one} and the {two}"}
    if sort == "group":
        kind = rng.choice([values["kind"]] * 4 + ["friend", "friend", "brother", "sister"])
        values |= {"kinds": w.plural(kind), "number": rng.choice(LISTS["NUMBERS"])}
    about = [line.removeprefix("about ") for line in lines[:-1]]
    first, told = choose(rng, lines[-1]).format(**values).split(" // ")
    asked, openings = rng.random() < 0.65, LISTS["OPENINGS"]
    who, _, does = first.partition(" who ")
    opening = rng.choice(openings[:2] if asked else openings if does else openings[:6])
    if openings.index(opening) > 5:
        first, told = who, f"{values['H']} {does}. {told}"
    opening = choose(rng, opening).format(first)
    if sort == "group":
        opening = re.sub(r"\bwas\b", "were", opening)
    drawn = [str(value.n) if isinstance(value, Noun) else value for value in values.values()]
    topics = sorted({word for value in drawn for word in re.findall("[A-Za-z]{2,}", value)} - {"the", "an"})
    text, he = tidy(f"{opening} {told}"), values["he"] if sort in ("hero", "child") else "they"
    if not asked:
        spoken, size = text.split(" "), rng.choice([3, 4, 4, 5, 6, 7, 8, 10])
        prompt, rest = " ".join(spoken[:size]), " ".join(spoken[size:])
        return {"task": "text", "prompt": prompt, "response": " " + rest, "hero": he, "topics": topics}
    ask = choose(rng, rng.choice(LISTS["ASKING_FOR_ANY" if rng.random() < 0.04 else "ASKING"]))
    ask = tidy(ask.format(choose(rng, rng.choice(about)).format(**values)))
    if rng.random() < 0.1:
        ask = ask.lower().rstrip("." if rng.random() < 0.5 else " ")
    ask += "\nStory:" if rng.random() < 0.1 else ""
    return {"task": "text", "prompt": ask, "response": " " + text, "hero": he, "topics": topics}
