"""Short stories about what was asked for: a hero, a wish or a problem, help, and an end.

A plot says what it is about, so that the topic is in the first sentence and in most of the others.
Singular pronouns always mean the hero ("it" for an animal without a name).
"""

from __future__ import annotations

import json
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
HANDS = Path(__file__).with_name("unseen.jsonl").read_text(encoding="utf-8").splitlines()
TYPED = {json.loads(line)["prompt"] for line in HANDS}  # openings that no training story may begin with
PLOTS = {name: plot for name, plot in LISTS.items() if name.startswith("PLOT")}
WEIGHTS = [int(plot[0].split()[0]) for plot in PLOTS.values()]
ON = ("farm", "hill", "mountain", "beach", "plain", "ship", "planet")  # places with "on", not "in"
HEROES = [entry.split(":")[0] for group in ("ANIMALS", "THINGLIKE", "MEN", "WOMEN") for entry in LISTS[group]]
ANYTHING = [noun for noun in LISTS["NOUNS"] + LISTS["THINGS"] + w.L.ANIMALS + w.L.JOBS + w.L.FOOD + LISTS["PLANTS"]
            if " of " not in noun] + HEROES * 2
CUT = re.compile(r"(?=[,.] )|(?<=[,.])(?= )|(?= (?:who|was|were|lived|had|could|sat|went|named|called|woke|looked) )")
PRONOUNS = {"he": ("him", "his"), "she": ("her", "her"), "it": ("it", "its")}


def tidy(text: str) -> str:
    """`text` with "an" where it belongs, and with capitals where sentences begin."""
    text = re.sub(r"  +", " ", text)
    text = re.sub(r"\b([Aa]) (?=[aeiou])(?!one|uni|use)", r"\1n ", text)
    text = re.sub(r"(^|[.?!]\"? \"?|^\")([a-z])", lambda match: match[1] + match[2].upper(), text)
    return re.sub(r"([?!]\" )(Asked|Said|Cried)\b", lambda match: match[1] + match[2].lower(), text)


class Noun(SimpleNamespace):
    """The forms of a noun: when first mentioned (`a`), later (`the`), bare (`n`), in general (`many`)."""

    def __init__(self, noun: str) -> None:
        bare = noun.removeprefix("=").removeprefix("the ")
        first = noun.removeprefix("=") if noun[0] == "=" or bare != noun else f"a {bare}"
        super().__init__(a=first, n=bare, the=bare if noun[0] == "=" else f"the {bare}",
                         many=w.plural(bare) if first == f"a {bare}" else first)


def anything(rng: random.Random) -> Noun:
    """A noun of any kind or an invented word, maybe after another noun or an adjective, maybe with its place."""
    noun = w.made_up(rng) if rng.random() < 0.1 else rng.choice(ANYTHING).replace("_", " ")
    if " " not in noun and rng.random() < 0.2:
        noun = f"{rng.choice(LISTS['STUFFS'])} {noun}"
    look = rng.choice(LISTS["ADJECTIVES"]) + " " if rng.random() < 0.45 else ""
    tail = rng.choice(LISTS["WHERES"] + [f"with {w.article(rng.choice(ANYTHING))}"] * 12)
    found = Noun(noun)
    found.adj, found.full = look, look + found.n
    found.a = f"a {look}{found.n}" + (f" {tail.replace('_', ' ')}" if rng.random() < 0.12 else "")
    return found


def person(rng: random.Random, child: bool, looks: list[str], gendered: bool) -> dict[str, str]:
    """The hero of a story: a child with a name; or anyone, with or without a description and a name."""
    he, group = rng.choice([("he", "MEN"), ("she", "WOMEN")] if child or rng.random() < 0.42 else [
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
    name, (him, his) = rng.choice(names) if rng.random() < 0.9 else w.capital(w.made_up(rng)), PRONOUNS[he]
    coats = [] if group in ("MEN", "WOMEN") else LISTS["COATS"]
    look = rng.choice(LISTS["LOOKS"] + coats) + " " if rng.random() < (0.4, 0.1)[child] else ""
    if looks and rng.random() < 0.5:
        look = rng.choice(looks) + " "
    if 0 < len(look) < 9 and "little" not in look and rng.random() < 0.2:
        look += "little "
    called = f" {rng.choice(['named', 'named', 'called'])} {name}" if named else ""
    return {"A": f"a {look}{kind}{called}", "H": name if named else f"the {kind}", "kind": kind, "look": look,
            "kinds": w.plural(kind), "he": he, "him": him, "his": his, "home": home, "likes": likes, "named": called,
            "the": name if named else f"{rng.choice(['a', 'the', 'the'])} {look}{kind}",
            "home2": re.sub("^an? ", "the ", home), "in": "on" if home.split()[-1] in ON else "in"}


def several(rng: random.Random, sort: str) -> dict[str, str]:
    """The heroes of a story about two or three, of any kinds."""
    if rng.random() < 0.7:
        found = [Noun(hero.replace("_", " ")) for hero in rng.sample(HEROES, 3)]
    else:
        found = [anything(rng) for _ in range(3)]
        for one in found:
            one.a = f"a {one.n}"
    named = [rng.random() < 0.1 for _ in found]
    names = rng.sample(w.L.GIRLS + w.L.BOYS, 3)
    first = [name if is_name else one.a for one, name, is_name in zip(found, names, named, strict=True)]
    then = [name if is_name else f"the {one.n}" for one, name, is_name in zip(found, names, named, strict=True)]
    heroes = {f"H{i}": one for i, one in enumerate(then, 1)} | {"H2b": then[1], "H3b": then[2]}
    if sort == "trio":
        return heroes | {"A": f"{first[0]}, {first[1]} and {first[2]}", "kind": found[0].n}
    return heroes | {"A": f"{first[0]} and {first[1]}", "A2": f"{then[0]} and {then[1]}", "kind": found[0].n}


def request(rng: random.Random, about: str, opening: str, many: str) -> str:
    """A request for a story `about` someone, or for a story with this `opening`."""
    if rng.random() < 0.04:
        return choose(rng, rng.choice(LISTS["ASKING_FOR_ANY"]))
    if not about:
        begins = re.split(r",| there | ?{}|\.", opening)[0]
        begins = begins if begins.startswith("The ") else begins[:1].lower() + begins[1:]
        return choose(rng, rng.choice(LISTS["ASKING_FOR_BEGINNING"])).format(begins)
    if many and rng.random() < 0.06:
        return choose(rng, rng.choice(LISTS["ASKING_FOR_KIN"])).format(many)
    form = choose(rng, rng.choice(LISTS["ASKING"]))
    there = about.replace(" who ", " ", 1) if " who " in about else about
    if "{there}" in form and there == about or " in it" in form and re.search(r" who |'s? ", about):
        form = "Write a story about {}."
    return form.format(about, there=there)


def told(rng: random.Random) -> dict:
    """A request or the first words of a story, and the story."""
    head, *lines = PLOTS[rng.choices(list(PLOTS), WEIGHTS)[0]]
    (_, sort, *looks), *draws = (part.split() for part in head.split("; "))
    child = sort == "child" or "child" in looks
    values: dict = person(rng, child, [] if sort == "any" else looks, "{his}" in "".join(lines))
    for source, *fields in draws:
        entries = [entry for entry in LISTS[source] if values["kind"] not in entry.split(":")]
        values |= dict(zip(fields, rng.choice(entries).replace("_", " ").split(":"), strict=True))
    values["which"] = values.get("which", "").replace("-", "")
    if "thing" in values and values["which"] and rng.random() < 0.3:
        values["which"] = rng.choice(LISTS["ADJECTIVES"]) + " "
    values["dreamt"] = w.past(values.get("dream", "go"))
    if "does" in values:
        values |= {"third": w.third(values["does"]), "past": w.past(values["does"])}
    if values.get("pl", "-") != "-" and not values["place"].startswith("the "):
        values["place"] = values["pl"] + values["place"]
    values |= {name: Noun(values[name]) for name in ("place", "food", "time") if name in values}
    if sort == "any":
        values["x"] = anything(rng)
    if sort in ("pair", "trio"):
        values |= several(rng, sort)
    if sort == "group":
        kind = rng.choice([values["kind"]] * 4 + ["friend", "friend", "brother", "sister"])
        values |= {"kinds": w.plural(kind), "number": rng.choice(LISTS["NUMBERS"])}
    first, rest = choose(rng, lines[-1]).format(**values).split(" // ")
    asked, plain = rng.random() < 0.65, LISTS["OPENINGS"]
    who, _, does = first.partition(" who ")
    scene = bool(does) and rng.random() < (0.06 if asked else 0.6)
    opening = rng.choice(LISTS["SCENES"] if scene else plain[:2] if asked else plain)
    opening = choose(rng, opening).replace("{}'s", rng.choice(w.L.GIRLS) + "'s")
    about = choose(rng, rng.choice([line.removeprefix("about ") for line in lines[:-1]])).format(**values)
    if sort in ("hero", "child", "any") and values["named"] and rng.random() < 0.1:  # "about Tim who wants to fly"
        about = about.replace(values["A"], values["H"])
    if child and first.startswith(values["A"]) and rng.random() < 0.12:  # a hero with a name, and nothing else
        about = values["H"] if rng.random() < 0.3 else values["A"]
    many = values["x"].many if sort == "any" else values["kinds"] if sort == "hero" and about == values["A"] else ""
    ask = request(rng, "" if scene and rng.random() < 0.7 else about, opening, many)
    if " who lived " in first:
        opening = opening.replace(" lived ", " was ")
    if scene:
        first, rest = who, f"{values['H']} {does}. {rest}"
    opening = opening.format(first)
    if sort == "any" and not asked and first.startswith("a ") and first == values["x"].a and rng.random() < 0.5:
        where = rng.choice(LISTS["WHERES"]).replace("_", " ")  # "The old clock on the wall was lonely"
        opening, rest = f"The {values['x'].full} {where} {rest.split(' ', 2 + values['x'].n.count(' '))[-1]}", ""
    if not asked and sort in ("trio", "pair") and rng.random() < 0.3:  # "A hen and a duck lived side by side"
        opening = f"{first} {rng.choice(['lived in one house', 'were neighbors', 'went for a walk'])}."
    if sort in ("group", "trio"):
        opening = re.sub(r"\bwas\b(?=( once)? (?:two|three|four|an? |[A-Z]))", "were", opening)
    drawn = [" ".join(value.__dict__.values()) if isinstance(value, Noun) else value for value in values.values()]
    topics = sorted({word for value in drawn for word in re.findall("[A-Za-z]{2,}", value)} - {"the", "an", "with", "in", "on"})
    text, he = tidy(f"{opening} {rest}".strip()), values["he"] if sort in ("hero", "child", "any") else "they"
    example = {"task": "text", "hero": he, "topics": topics}
    if not asked:
        spoken, size = text.split(" "), rng.choice([3, 4, 4, 5, 6, 7, 8, 10])
        at = len(" ".join(spoken[:size]))
        if rng.random() < 0.5:  # where people stop typing: at a comma, a full stop, before a verb
            at = rng.choice([match.start() for match in CUT.finditer(text, 8)][:rng.choice([1, 2, 3])])
        return example | {"prompt": text[:at].rstrip(), "response": text[at:] if text[at] != '"' else " " + text[at:]}
    ask = tidy(ask)
    if rng.random() < 0.1:
        ask = ask.lower().rstrip("." if rng.random() < 0.5 else " ")
    ask += "\nStory:" if rng.random() < 0.07 else ""
    return example | {"prompt": ask, "response": " " + text}


def story(rng: random.Random) -> dict:
    """A request or the first words of a story, and the story; it never begins like a hand-written opening."""
    while (example := told(rng))["prompt"] in TYPED:
        pass
    return example
