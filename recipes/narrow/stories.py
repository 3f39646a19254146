"""Short stories about what was asked for: someone, a wish or a trouble, help, and an end.

A story is drawn together with its topic, so that the topic's hero, thing, place or wish is in it. Pronouns in the singular
always mean the hero; helpers are called by what they are.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from . import words as w
from .problems import choose

LISTS = w.read_lists(Path(__file__).with_name("stories.txt"))
PLOTS = {"wish": 24, "lost": 14, "found": 12, "fear": 8, "visit": 14, "event": 12, "friends": 16}  # weights


def tidy(text: str) -> str:
    """`text` with "an" where it belongs, and with capitals where sentences begin."""
    text = re.sub(r"\b([Aa]) (?=[aeio])(?!one)", r"\1n ", text)
    text = re.sub(r"(^|[.?!]\"? \"?|^\")([a-z])", lambda match: match[1] + match[2].upper(), text)
    return re.sub(r"([?!]\" )(Asked|Said|He|She)(?= (?:the|said|cried|asked|[A-Z]))",
                  lambda match: match[1] + match[2].lower(), text)


def topics(plot: str, who: str, kind: str, v: dict[str, str]) -> list[str]:
    """What a story of a plot can be said to be about."""
    a_kind, a_helper = w.article(kind), v["a_helper"]
    return {
        "wish": [f"{who} who wants to {v['wish']}", f"{who} who wanted to {v['wish']}"],
        "lost": [f"{who} who lost {v['his']} {v['thing']}", f"{who} who loses {v['his']} {v['thing']}",
                 f"{who} and {v['his']} {v['thing']}", f"a lost {v['thing']}"],
        "found": [f"{who} who finds {v['a_thing']}", v["a_thing"], f"{who} and {v['a_thing']}"],
        "fear": [f"{who} who is afraid of {v['fear']}"],
        "visit": [f"{who} who goes to the {v['goal']}", f"{who} in the {v['goal']}", f"the {v['goal']}",
                  f"a trip to the {v['goal']}"],
        "event": [v["event"], f"{who} and {v['event']}", v["event"]],
        "friends": [f"{who} and {a_helper}", f"{a_kind} and {a_helper}", "two friends",
                    f"the {kind} and the {v['helper']}"],
    }[plot]


def story(rng: random.Random) -> dict:
    """A request or the first words of a story, and the story."""
    girl = rng.random() < 0.5
    creatures, people = LISTS["CREATURES"], LISTS["WOMEN" if girl else "MEN"]
    kind = rng.choice(creatures if rng.random() < 0.65 else people)
    he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
    helper = rng.choice([noun for noun in creatures + LISTS["MEN"] + LISTS["WOMEN"] if noun != kind])
    look, name = rng.choice(LISTS["LOOKS"]), rng.choice(w.GIRLS if girl else w.BOYS)
    named = rng.random() < 0.45
    thing = rng.choice(LISTS["THINGS"])
    place, goal = rng.sample(LISTS["PLACES"], 2)
    wish, found = rng.choice(LISTS["WISHES"]).split("; ")
    event, event_word = rng.choice(LISTS["EVENTS"]).split("; ")
    plot = rng.choices(list(PLOTS), list(PLOTS.values()))[0]
    hero = w.article(kind if rng.random() < 0.2 else f"{look} {kind}")
    which = rng.choice(["", "", "red ", "magic ", "little ", "golden ", "old "])
    values = {
        "H": name if named else f"the {kind}", "he": he, "him": him, "his": his, "helper": helper, "look": look,
        "a_helper": w.article(helper), "thing": thing, "a_thing": w.article(which + thing), "place": place, "goal": goal,
        "wish": wish, "found": found, "event": event, "event_word": event_word, "fear": rng.choice(LISTS["FEARS"]),
        "A": hero + (rng.choice([" named ", " called "]) + name if named else "")}
    ends = LISTS["ENDS"]
    parts = [rng.choice(LISTS["OPENINGS"]), *LISTS[f"PLOT_{plot}"], rng.choice(ends[:6]),
             *rng.sample(ends[6:], rng.randint(0, 1))]
    help_comes = LISTS["HELP"][0]
    told = " ".join(help_comes if part == "HELP!" else part for part in parts)
    text = tidy(choose(rng, told).format(**values))
    if rng.random() < 0.35:
        spoken, size = text.split(" "), rng.choice([3, 4, 4, 5, 6, 7, 8, 10])
        return {"task": "text", "prompt": " ".join(spoken[:size]), "response": " " + " ".join(spoken[size:]), "hero": he}
    who = f"{hero} named {name}" if named and rng.random() < 0.4 else hero
    about = topics(plot, who, kind, values)
    topic = rng.choice([*about, *about, who, w.article(kind)])
    ask = (rng.choice(LISTS["ASKING_FOR_ANY"]) if rng.random() < 0.05 else rng.choice(LISTS["ASKING"]).format(topic))
    if rng.random() < 0.06:
        ask = ask.lower()
    if rng.random() < 0.12:
        ask += "\nStory:"
    return {"task": "text", "prompt": ask, "response": " " + text, "hero": he}
