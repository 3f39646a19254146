"""Word problems from the schemas of two text files, and bare sums (sums without a story).

A schema says how a kind of problem is solved (`a*b r-c`: multiply, then subtract from the result), what the answer is, and
how the problem may be worded. Its language:

- `[red|blue]` is a choice, a word in capitals is a shorthand defined at the top of the file;
- `{a}`, `{b}`, `{n}` ... are numbers; `{b$}` money, `{b times}` "twice", `{b half}` "a third"; `r` is the last result and `R`
  the first;
- `{o+}` is a noun in the plural (singular after 1), `{@m}` one with its article; `o` is what the problem is about;
- `{S}` is the subject (a name, I, we, my sister, the baker, ...), `{he}` `{him}` `{his}` stand for it, `{T}` and `{U}`
  are other people;
- `<give away>` is a verb that agrees with the subject in the tense of the problem, `<give away:T>` with a third person,
  `<fly away:N>` with the number before it; `<be!>` is in the present; `{did}` is in the tense, `{does}` in the present.

Answers address the person who asks: "I have 5 apples ..." is answered by "You have ...".
"""

from __future__ import annotations

import lzma
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from . import words as w
from .words import L

OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}
CHOICE = re.compile(r"\[([^\[\]]*)\]")
TOKEN = re.compile(r"\{([^{}]+)\}|<([^<>]+)>")
LIMIT, HIGH_LIMIT, HIGH_SHARE = 100, 200, 0.3

MAKERS, BODIES, HALLS, SEXES, STATES = ([tuple(entry.split(":")) for entry in entries]
                                        for entries in (L.MAKERS, L.BODIES, L.HALLS, L.SEXES, L.STATES))
POOLS = {"any": w.NOUNS, "food": L.FOOD, "row": L.ROW_THINGS, "plant": L.PLANTS, "house": L.ROOMS, "people": L.PEOPLE,
         "animal": L.ANIMALS}
OTHER_NOUNS = {"x": L.BOXES, "y": L.SHARERS, "g": L.GROUPS, "p": L.PEOPLE, "m": L.PRICED, "w": L.PRICED, "q": w.NOUNS,
               "plant": L.PLANTS, "animal": L.ANIMALS, "string": L.STRINGS, "job": L.JOBS, "place": L.PLACES,
               "every": L.EVERY, "task_one": L.TASKS}
ON_PLACES = "|".join(L.ON_PLACES)
AFTER_ONE = {"are": "is", "were": "was", "have": "has"}
PLAIN_WORDS = {"len": L.LENGTHS, "weight": L.WEIGHTS, "vol": L.VOLUMES, "time": L.TIMES, "hobby": L.HOBBIES, "pair": L.PAIRS}


@dataclass(frozen=True)
class Schema:
    """One kind of problem: steps such as `a*b`, settings, and wordings with their answers."""

    steps: tuple[str, ...]
    settings: dict[str, str]
    wordings: tuple[tuple[str, str], ...]


def read_schemas(text: str) -> list[Schema]:
    """The schemas of a file such as schemas.txt; an indented line continues the line before it."""
    shorthands: dict[str, str] = {}
    schemas: list[Schema] = []
    for line in re.findall(r"^[^#\n].*", re.sub(r"\n +", " ", text), re.MULTILINE):
        if line.startswith("@"):
            head, default = line[1:].split(" | ")
            steps, _, settings = head.partition(";")
            pairs = dict(item.partition("=")[::2] for item in settings.split())
            schemas.append(Schema(tuple(steps.split()), pairs, ()))
        elif re.match(r"[A-Z]+ = ", line):
            name, _, value = line.partition(" = ")
            shorthands[name] = value
        else:
            wording, _, own = line.partition(" => ")
            for name in sorted(shorthands, key=len, reverse=True) * 2:  # twice, because shorthands use other shorthands
                if name in wording:
                    wording = re.sub(rf"(?<![A-Z]){name}(?![A-Z])", lambda _, name=name: shorthands[name], wording)
            last = schemas[-1]
            schemas[-1] = Schema(last.steps, last.settings, (*last.wordings, (wording, own or default)))
    return schemas


def more_schemas() -> str:
    """The text of schemas_more.txt, which is stored compressed (a quarter of its size); FileNotFoundError without it."""
    path = Path(__file__).with_name("schemas_more.txt.xz")
    if not path.exists():
        raise FileNotFoundError(f"{path} is only in the repository, not in the source distribution: copy it from there")
    return lzma.decompress(path.read_bytes()).decode("utf-8")


PLAIN = Path(__file__).with_name("schemas.txt").read_text(encoding="utf-8")
PLAIN_COUNT = len(read_schemas(PLAIN))
SCHEMAS = read_schemas(PLAIN + more_schemas())
# The usual kinds have the most wordings, and those of schemas.txt are the plainest: a model that saw them seldom was no longer
# sure of them. Most problems that people ask have one step: a model that has seen more of two adds a step to them.
SHARES = [len(schema.wordings) * int(schema.settings.get("more", 1)) * (1.5 if len(schema.steps) == 1 else 1)
          * (2.5 if number < PLAIN_COUNT else 1) for number, schema in enumerate(SCHEMAS)]


def choose(rng: random.Random, text: str) -> str:
    """`text` with every `[a|b]` replaced by one of its options, from the inside out."""
    while "[" in text:
        text = CHOICE.sub(lambda match: rng.choice(match[1].split("|")), text)
    return text


# ---- numbers

def is_hard(x: int, operation: str, y: int) -> bool:
    """Whether a sum carries to the tens, or a difference borrows from them."""
    return x % 10 + y % 10 > 9 if operation == "+" else y % 10 > x % 10


def compute(steps: tuple[str, ...], values: dict[str, int], limit: int) -> list[tuple[int, str, int, int]] | None:
    """The equations of `steps`, or None if one does not divide evenly, is below 1 (0 at the end) or exceeds `limit`."""
    equations: list[tuple[int, str, int, int]] = []
    for step in steps:
        left, operation, right = re.fullmatch(r"(\w+)([-+*/])(\w+)", step).groups()
        x, y = (equations[-1][3] if name == "r" else equations[0][3] if name == "R" else
                int(name) if name.isdigit() else values[name] for name in (left, right))
        if operation == "/" and x % y:
            return None
        result = OPERATIONS[operation](x, y)
        if not (0 if step == steps[-1] else 1) <= result <= limit:
            return None
        equations.append((x, operation, y, result))
    return equations


def draw_numbers(rng: random.Random, schema: Schema) -> tuple[dict[str, int], list[tuple[int, str, int, int]]]:
    """Numbers that fit a schema, and the equations that they lead to."""
    limit = HIGH_LIMIT if rng.random() < HIGH_SHARE else LIMIT
    # small numbers are added and subtracted as often as multiplied: their size must not show the operation
    small_limit = rng.choice([limit, limit, limit, 50, 30, 20, 12, 12, 10, 10])
    least = 0 if len(schema.steps) == 1 and schema.steps[0][1] == "-" else 1
    names = sorted(set(re.findall(r"[abcdn]", " ".join(schema.steps))))
    factors = set(re.findall(r"[abcd]", " ".join(re.findall(r"\w\*\w|/\w", " ".join(schema.steps)))))
    while True:
        values = {}
        for name in names:
            if name in schema.settings:
                low, _, high = schema.settings[name].partition("..")
                values[name] = rng.randint(int(low), int(high or low))
            elif name in factors:
                values[name] = rng.randint(2, 12) if rng.random() < 0.65 else rng.randint(2, 30)
            else:
                values[name] = rng.randint(1 if name in "bc" and rng.random() < 0.1 else 2, small_limit)
        if "rest" in schema.settings:  # the problem does not say how many times b goes into n
            values["n"] = values["b"] * values["d"] + rng.randint(1, values["b"] - 1)
        elif schema.steps[0][:2] == "n/":
            values["n"] = values.get("b", 2) * (rng.randint(2, 12) if rng.random() < 0.75 else rng.randint(2, 50))
        elif schema.steps[-1] == "n-r" and rng.random() < 0.4:
            values["n"] = rng.choice([10, 20, 30, 40, 50, 60, 80, 100])
        equations = compute(schema.steps, values, limit)
        if equations is None or values.get("n", 0) > limit or equations[-1][3] < int(schema.settings.get("r", str(least))[:1]):
            continue
        x, operation, y, _ = equations[0]
        if operation == "-" and x > 20 and not is_hard(x, "-", y) and rng.random() < 0.4:
            continue  # draw again: harder ones should be more frequent
        return values, equations


# ---- people

@dataclass(frozen=True)
class Subject:
    """Who a problem is about: name and pronouns, and whether verbs are in the third person, in problem and answer."""

    name: str
    he: str
    him: str
    his: str
    third: bool
    answer: str
    answer_third: bool


def draw_subject(rng: random.Random) -> Subject:
    """A name, I, we, you, two names, a family member or someone with a profession."""
    kind = rng.choices(["name", "I", "we", "you", "two", "kin", "friend", "job"], [60, 13, 5, 5, 3, 6, 3, 5])[0]
    girl = rng.random() < 0.5
    he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
    if kind == "name" and rng.random() < 0.06:
        return Subject(w.made_up(rng).capitalize(), he, him, his, True, he, True)
    if kind == "name":
        return Subject(rng.choice(L.GIRLS if girl else L.BOYS), he, him, his, True, he, True)
    if kind in ("I", "we", "you"):
        him, his = {"I": ("me", "my"), "we": ("us", "our"), "you": ("you", "your")}[kind]
        return Subject(kind, kind, him, his, False, "you", False)
    if kind == "two":
        first, second = rng.sample(L.GIRLS + L.BOYS, 2)
        return Subject(f"{first} and {second}", "they", "them", "their", False, "they", False)
    if kind == "kin":
        return Subject("my " + rng.choice(L.SISTERS if girl else L.BROTHERS), he, him, his, True, he, True)
    if kind == "friend":
        noun = rng.choice(L.FRIENDS)
        return Subject("my " + noun, he, him, his, True, "your " + noun, True)
    noun = rng.choice(L.JOBS)
    if noun in ("boy", "girl"):
        he, him, his = ("she", "her", "her") if noun == "girl" else ("he", "him", "his")
    return Subject(rng.choice([w.article(noun), "the " + noun]), he, him, his, True, "the " + noun, True)


# ---- wording

class Telling:
    """One problem in words: who, what and when are drawn once, and used in both prompt and answer."""

    def __init__(self, rng: random.Random, schema: Schema, wording: str, values: dict[str, int], result: int) -> None:
        self.rng, self.wording, self.values, self.result = rng, wording, values, result
        self.subject = draw_subject(rng)
        self.past = rng.random() < 0.45
        self.spelled = rng.random() < 0.2  # write small numbers as words
        self.money = rng.choices(["${}", "{} dollar", "{} euro", "{} cent", "{} coin"], [60, 20, 10, 6, 4])[0]
        names = rng.sample(L.GIRLS + L.BOYS, 3)
        self.others = [name for name in names if name not in self.subject.name]
        self.relative = rng.choice(L.SISTERS + L.BROTHERS + L.FRIENDS) if rng.random() < 0.2 and wording[:3] != "{T}" else None
        self.nouns = {name: rng.choice(pool) for name, pool in OTHER_NOUNS.items()}
        self.plain = {name: rng.choice(pool) for name, pool in PLAIN_WORDS.items()}
        pool = schema.settings.get("o", "any")
        self.nouns["o"] = noun = rng.choice(POOLS[pool])
        plain = " of " in noun or "{color" in wording or "{state" in wording
        if pool == "any" and not plain and rng.random() < 0.08:
            self.nouns["o"] = noun = w.made_up(rng)
        if pool in ("any", "food") and not plain and rng.random() < 0.12:
            looks = L.LOOKS[:8] if noun in L.FOOD else L.LOOKS
            self.nouns["o"] = f"{rng.choice(looks)} {noun}"
        if noun in L.FOOD or noun in L.BULKY:  # the container of such a thing
            self.nouns["x"] = rng.choice(L.FOOD_BOXES if noun in L.FOOD else L.BIG_BOXES)
        for name, same in (("animal", "o"), ("plant", "o"), ("q", "o"), ("w", "m")):
            while self.nouns[name] == self.nouns[same]:
                self.nouns[name] = rng.choice(OTHER_NOUNS[name])
        if re.search("walk|run |ride|drive|car |train|bus|boat|road|trip|path|race|lake", wording):
            self.plain["len"] = rng.choice(L.WAYS)
        self.nouns["maker"], self.plain["prod"] = rng.choice(MAKERS)
        if "body" in schema.settings:
            self.nouns["o"], parts, self.plain["part"] = rng.choice(BODIES)
            values["b"] = int(parts)
        if "hall" in schema.settings:
            self.plain["hall"], self.nouns["o"], self.plain["taken"], self.plain["free"] = rng.choice(HALLS)
        self.nouns["g1"], self.nouns["g2"], self.plain["total"] = rng.choice(SEXES)
        self.plain["state"], self.plain["state2"] = rng.choice(STATES)
        self.plain["color"], self.plain["color2"] = rng.sample(L.COLORS, 2)
        self.plain["day"], self.plain["day2"] = rng.sample(L.DAYS[:-1], 2)  # some wordings end with Sunday

    def tell(self, text: str, answering: bool = False) -> str:
        """`text` with its tokens replaced and its sentences capitalised."""
        done, at, self.last_number, subject = "", 0, 0, self.subject
        for match in TOKEN.finditer(text):
            done += text[at:match.start()]
            done += self._verb(match[2], answering) if match[2] else self._token(match[1], answering, done)
            at = match.end()
        done = re.sub(r"\b([Aa]) (?=[aeio]|hour)(?!one)", r"\1n ", done + text[at:])
        done = re.sub(r"\b(than|as|to|with|for|from|gives?|gave) (I|we)\b", lambda m: f"{m[1]} {subject.him}", done)
        if subject.name in ("I", "we", "you") and "{T}" in self.wording:  # they and I together are "we"
            us = "you" if answering or subject.name == "you" else "we"
            done = re.sub(r"\b([Tt]hey) (?=have|share|put|need)",
                          lambda match: (us.capitalize() if match[1] == "They" else us) + " ", done)
            done = re.sub(r"\bI and ((?:my )?\w+)", r"\1 and I", done)
        if answering and self.result == 1:
            done = re.sub(r"\b1 ((?:good|more) )?(?!is\b|was\b)(\w+s|feet|people|children)\b",
                          lambda m: f"1 {m[1] or ''}{w.singular(m[2])}", done.replace("There are 1", "There is 1"))
            done = re.sub(r"^(\$?1\b[\w -]*?) (are|were|have)\b", lambda m: f"{m[1]} {AFTER_ONE[m[2]]}", done)
        done = re.sub(rf"\b(in|at) (an? |the )(?={ON_PLACES})", r"on \2", done)
        done = re.sub(r"\bin (a|the) (?=party|concert)", r"at \1 ", done)
        done = re.sub(r" +", " ", done).replace(" .", ".").replace(" ,", ",").replace(" ?", "?").strip()
        return re.sub(r"(^|[.?!:] )([a-z])", lambda match: match[1] + match[2].upper(), done)

    def _token(self, token: str, answering: bool, before: str) -> str:
        subject = self.subject
        name = token.strip("@+$").split(" ")[0]
        if name in self.values or name == "r":
            return self._number(token, self.result if name == "r" else self.values[name], answering)
        if name == "S":
            return subject.answer if answering else subject.name
        if name in ("he", "him", "his"):
            return getattr(subject, name)
        if name == "T" and self.relative and "your" not in subject.his:
            return ("your" if answering and not subject.answer_third and subject.his in ("my", "our") else subject.his) \
                + " " + self.relative
        if name in ("T", "U"):
            return self.others[0 if name == "T" else 1]
        third = subject.answer_third if answering else subject.third
        if name == "are":
            return ("is" if self.result == 1 else "are") if answering else "were" if self.past else "are"
        if name in ("does", "do", "did", "has", "was"):
            now = {"was": "was" if third or (subject.name == "I" and not answering) else "were",
                   "has": "has" if third else "have"}
            return now.get(name) or ("did" if name == "did" and self.past and self.rng.random() < 0.5
                                     else "does" if third else "do")
        if name == "task":
            return self._noun(self.nouns["task_one"], True, before)
        if name in self.plain:
            return self.plain[name]
        noun = self.nouns[name]
        return w.article(noun) if token[0] == "@" else self._noun(noun, token[-1] == "+", before)

    @staticmethod
    def _noun(noun: str, many: bool, before: str) -> str:
        return w.plural(noun) if many and not re.search(r"\b(1|one)( more| fewer)? $", before, re.IGNORECASE) else noun

    def _number(self, token: str, n: int, answering: bool) -> str:
        self.last_number = n
        if token.endswith("times"):
            return "twice" if n == 2 else f"{w.number_word(n)} times"
        if token.endswith("half"):
            return {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}[n]
        if token.endswith("$"):
            return self.money.format(n) + ("s" if n != 1 and self.money[0] != "$" else "")
        return w.number_word(n) if self.spelled and n <= 12 and not answering else str(n)

    def _verb(self, verb: str, answering: bool) -> str:
        subject = self.subject
        verb, _, agrees = verb.partition(":")
        past = self.past and not answering and not verb.endswith("!")
        verb = verb.rstrip("!")
        third = {"T": True, "N": self.last_number == 1}.get(agrees, subject.answer_third if answering else subject.third)
        if verb.split()[0] == "be":
            who = "you" if answering else subject.name
            form = ("was" if third or who == "I" else "were") if past else "is" if third else "am" if who == "I" else "are"
            return form + verb[2:]
        return w.past(verb) if past else w.third(verb) if third else verb


FRAMES = [("{}", 56), ("Question: {}\nAnswer:", 27), ("Q: {}\nA:", 4), ("Problem: {}\nSolution:", 2), ("Solve: {}", 2),
          ("{}\n", 3), ("Please help me: {}", 1), ("{} Answer:", 2)]


def misspelled(rng: random.Random, prompt: str) -> str:
    """The prompt with one wrong letter in a longer word: missing, doubled, replaced, or swapped with the next."""
    word = rng.choice([*re.finditer(r"\b[a-z]{5,}\b", prompt)] or [None])
    if not word or word[0].removesuffix("teen") in L.ONES or word[0] in L.TENS:
        return prompt
    at = rng.randrange(word.start() + 1, word.end() - 1)
    new = rng.choice(["", prompt[at] * 2, rng.choice("aeiourstln"), prompt[at + 1] + prompt[at]])
    return prompt[:at] + new + prompt[at + 1 + (len(new) == 2 and new[1] == prompt[at] != new[0]):]


def frame(rng: random.Random, prompt: str, led: bool = False) -> str:
    """A prompt as people write it: bare, with "Question:", sometimes in small letters or without a question mark.

    `led`: now and then with an irrelevant sentence before it, which may contain a number.
    """
    if led and rng.random() < 0.04:
        names = {"day": rng.choice(L.DAYS), "name": rng.choice(L.GIRLS + L.BOYS), "age": rng.randint(5, 15)}
        prompt = f"{rng.choice(L.LEADS).format(**names)} {prompt}"
    if led and rng.random() < 0.07:  # an irrelevant place or time
        prompt = re.sub(r"(?<=[a-z])\. ", f" {rng.choice(L.TAILS)}. ", prompt, count=1)
    if led and rng.random() < 0.05:
        prompt = misspelled(rng, prompt)
    luck = rng.random()
    if luck < 0.07:
        prompt = prompt.lower()
    if 0.05 < luck < 0.12:
        prompt = prompt.rstrip("?.")
    forms, weights = zip(*FRAMES, strict=True)
    return rng.choices(forms, weights)[0].format(prompt)


def one_is_fine(wording: str, values: dict[str, int]) -> bool:
    """Whether the wording is right where a number is 1 ("1 more" is, "1 fly away" is not)."""
    fine = r"(\$|\}\.|\},| more| of (them|these)|\} to| from| \{o\+\}|\} and| back|\?| years? (old|younger|older))"
    return all(re.match(fine, match[2]) or re.match(fine, "}" + match[2])
               for match in re.finditer(r"\{(\w)\$?\}(?=(.*))", wording) if values.get(match[1]) == 1) \
        and not any(values.get(name) == 1 and re.search(rf"\{{{name}\}} (years|more <|more \w+ed)", wording) for name in "abcn")


def problem(rng: random.Random, schema: Schema | None = None) -> dict:
    """A word problem with its worked answer: `prompt`, `response`, `answer`."""
    while True:
        chosen = schema or rng.choices(SCHEMAS, SHARES)[0]
        wording, answer = rng.choice(chosen.wordings)
        wording = choose(rng, wording)
        values, equations = draw_numbers(rng, chosen)
        result = equations[-1][3]
        if 1 in values.values() and not one_is_fine(wording, values):
            continue
        telling = Telling(rng, chosen, wording, values, result)
        if "body" in chosen.settings:  # the body part decides the second number
            if values["a"] * values["b"] > LIMIT:
                continue
            equations = compute(chosen.steps, values, LIMIT)
            telling.result = result = equations[-1][3]
        prompt, said = telling.tell(wording), telling.tell(answer, answering=True)
        sums = " ".join(f"{x} {operation} {y} = {z}." for x, operation, y, z in equations)
        response = f" {sums} {said}\n#### {result}"
        return {"task": "math", "prompt": frame(rng, prompt, led=True), "response": response, "answer": result}


# Words that say how much: an invented word in their place would leave nothing to understand.
QUANTITY = re.compile("|".join("""
    half halv doubl tripl twi thr four fi six sev eigh nine ten eleven hundred quart dozen pair coupl few less more least
    most each every per score tri week month year day hour minute second cent foot feet inch once both exce beside apart
    left rest remain total sum differ togeth spar extra equal even split shar divid miss short long tall high low old
    young heav light fast slow before after than only none nobody nothing not dime nickel penn euro dollar coin kilo
    met""".split()))
COUNTED = Counter(word for schema in SCHEMAS for wording, _ in schema.wordings for word in {*re.findall("[a-z]+", wording)})
NAMING = re.compile(r"(?:\b(?:the|an?|his|her|our|my|of|in|and|two)|\d) ([a-z]{4,})(?![\w'-])")


def unfamiliar(rng: random.Random, example: dict) -> dict:
    """The example with invented words in place of up to three nouns or adjectives that are in few wordings."""
    words = {word for word in NAMING.findall(example["prompt"]) if COUNTED[word] < 60 and not QUANTITY.match(word)
             and not re.search(rf"\b(?!{word}\b){word[:3]}", example["response"])}  # its plural, say
    for word in rng.sample(sorted(words), min(len(words), rng.choice([1, 1, 2, 3]))):
        new = w.made_up(rng) + re.search("(s|ed|ing|er|y|)$", word)[1]
        example |= {key: re.sub(rf"\b{word}\b", new, example[key]) for key in ("prompt", "response")}
    return example


# ---- bare sums

SUM_FORMS = {"+": L.PLUS, "-": L.MINUS, "*": L.MULTIPLIED, "/": L.OVER}


def draw_sum(rng: random.Random) -> tuple[int, str, int, int]:
    """One equation; carrying and borrowing are twice as frequent as by chance."""
    while True:
        operation = rng.choices("+-*/", [30, 38, 20, 12])[0]
        limit = HIGH_LIMIT if rng.random() < HIGH_SHARE else LIMIT
        if operation in "+-":
            big = rng.randint(5, limit)
            y = rng.randint(1, big - 1)
            x = big - y if operation == "+" else big
            if not is_hard(x, operation, y) and rng.random() < 0.5:
                continue
            return x, operation, y, big if operation == "+" else x - y
        x, y = rng.randint(2, 12), rng.randint(2, 12) if rng.random() < 0.7 else rng.randint(2, 50)
        if x * y > limit:
            continue
        if rng.random() < 0.5:
            x, y = y, x
        return (x, "*", y, x * y) if operation == "*" else (x * y, "/", y, x)


def bare_sum(rng: random.Random) -> dict:
    """A sum without a story; now and then a division with a remainder."""
    if rng.random() < 0.12:
        y, times = rng.randint(3, 12), rng.randint(1, 16)
        rest = rng.randint(1, y - 1)
        n = y * times + rest
        if n <= LIMIT:
            prompt = frame(rng, rng.choice(L.REST).format(x=n, y=y))
            return {"task": "math", "prompt": prompt, "answer": rest,
                    "response": f" {y} * {times} = {y * times}. {n} - {y * times} = {rest}.\n#### {rest}"}
    x, operation, y, z = draw_sum(rng)
    if rng.random() < 0.7:
        text = f"{x} {operation} {y}" if rng.random() < 0.85 else f"{x}{operation}{y}"
    else:
        text = rng.choice(SUM_FORMS[operation]).format(x=x, y=y)
    prompt = frame(rng, w.capital(rng.choice(L.ASKED).format(text)))
    return {"task": "math", "prompt": prompt, "response": f" {x} {operation} {y} = {z}.\n#### {z}", "answer": z}


def many_sums(rng: random.Random) -> dict:
    """Several sums in one answer: arithmetic practice with few tokens."""
    sums = "".join(" {} {} {} = {}.".format(*draw_sum(rng)) for _ in range(8))
    return {"task": "math", "prompt": "Sums:", "answer": None, "response": sums}
