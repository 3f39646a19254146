"""Grade-school word problems with worked solutions, drawn without end from 43 templates.

``generate(rng)`` gives one training example, ``generate(rng, held_out=True)`` one that training never sees:
half of those come from templates that training never uses, half from training templates whose prompt falls into
the held-out sixteenth by its checksum. Every answer is right by construction: a template states its steps, and
the numbers in the text are computed from them.

The little language of the patterns: ``[a|b|c]`` is one of several wordings (they nest); ``{x}`` is a number or a
word; ``{x#it}`` a number with its thing ("1 pen", "3 pens"); ``{it+}`` the plural, ``{it@}`` the thing with a/an;
``{p.he}``, ``{p.him}``, ``{p.his}`` the pronouns of person p; ``{=}`` the equation of a step.
"""

# ruff: noqa: E501 (a sentence and its wordings stay on one line)
from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from .wording import FAVOURITE, favour

GIRLS = """Anna Maria Sofia Emma Olivia Mia Ava Lily Grace Chloe Zoe Ella Nora Ruby Alice Hannah Lucy Clara Eva Julia
Leila Amina Fatima Zara Priya Anika Meera Yuki Hana Mei Lin Aiko Sakura Ingrid Freya Astrid Elsa Greta Heidi Petra
Katya Olga Irina Natasha Daria Vera Lena Tanya Rosa Carmen Lucia Elena Paula Marta Ines Camila Valeria Daniela Gabriela
Isabel Teresa Nadia Yasmin Salma Layla Aisha Khadija Abena Zuri Imani Nia Adaeze Thandi Wanjiru Molly Abby Jane Kate
Beth Susan Diana Helen Rachel Sarah Megan Amy Wendy Holly Ivy Hazel Daisy Violet Stella Penny""".split()
BOYS = """Ben Tom Sam Max Leo Jack Noah Liam Ethan Lucas Oliver Henry Oscar Felix Hugo Theo Adam Daniel David Peter
Paul Mark Simon Martin Robert George Edward Arthur Walter Frank Omar Hassan Karim Ali Yusuf Tariq Ravi Arjun Rohan
Vikram Sanjay Kenji Hiro Takeshi Wei Jun Chen Minh Anders Lars Erik Sven Nils Bjorn Ivan Dmitri Pavel Boris Sergei
Mateo Diego Carlos Luis Javier Pablo Miguel Andres Rafael Marco Luca Paolo Giorgio Kofi Kwame Tunde Chidi Jabari Sipho
Themba Juma Aaron Caleb Isaac Jacob Logan Mason Dylan Connor Ryan Kevin Brian Victor Gavin Harvey""".split()

FRUIT = """apple pear peach plum orange lemon lime mango banana apricot cherry strawberry fig kiwi melon tomato carrot
potato onion cucumber pumpkin turnip radish pepper avocado walnut chestnut olive grapefruit coconut""".split()
BAKED = """cookie muffin cupcake bagel donut brownie pancake waffle croissant biscuit scone tart pretzel dumpling sandwich
pie bun roll pastry cracker taco samosa""".split()
SCHOOL = """pencil pen eraser notebook ruler crayon marker folder sticker book stamp card paintbrush envelope poster magazine
postcard bookmark badge calendar comic map""".split()
TOYS = """marble doll kite balloon puzzle robot drum whistle block ball puppet bracelet bead seashell button coin medal
ribbon lantern candle magnet flag feather pebble bell mask domino crystal necklace toy_car teddy_bear key_ring paper_plane
jigsaw_piece trading_card glass_bead model_train toy_boat water_bottle""".replace("\n", " ").split()
PLANTS = """tulip rose daisy lily sunflower seedling bush shrub cactus fern orchid daffodil poppy violet tomato_plant
bean_plant pine_tree apple_tree cherry_tree cabbage""".split()
CLOTHES = """shirt hat scarf sweater jacket cap belt sock dress skirt T-shirt tie coat apron""".split()
GEAR = """lamp chair mug plate bowl spoon cup cushion towel blanket basket flowerpot vase clock mirror backpack umbrella
suitcase helmet bicycle tent rope bucket shovel hammer brush broom ladder""".split()
BOXES = "box bag basket crate jar tray packet carton bin sack case bundle drawer tin tub".split()
ANIMALS4 = "cow sheep goat horse pig donkey dog cat rabbit llama pony camel".split()
ANIMALS2 = "chicken duck goose hen turkey parrot ostrich peacock swan pigeon".split()
THINGS = FRUIT + BAKED + SCHOOL + TOYS
ALL_OBJECTS = sorted(set(THINGS + PLANTS + CLOTHES + GEAR + BOXES + ANIMALS4 + ANIMALS2))
PLACES = """market school library museum bakery farm park beach zoo harbor workshop toy_shop garden stadium theater
community_center train_station village_hall bookshop campsite castle fair supermarket sports_club summer_camp""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
KIN = "sister brother cousin friend neighbor aunt uncle teacher grandmother grandfather classmate".split()
IRREGULAR = {"tomato": "tomatoes", "potato": "potatoes", "sheep": "sheep", "goose": "geese", "person": "people",
             "child": "children", "cactus": "cacti", "shelf": "shelves", "scarf": "scarves", "loaf": "loaves", "mango": "mangoes",
             "foot": "feet", "domino": "dominoes", "man": "men", "woman": "women", "half": "halves"}
WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": lambda a, b: a + b, "-": lambda a, b: a - b,
                                                    "*": lambda a, b: a * b, "/": lambda a, b: a // b}
# Sentences that frame a step: {np} names what is found, {=} is the equation.
COMMON_FRAMES = ["{np} is {=}", "{np} is {=}", "{np} [comes to|works out to|must be|equals|is given by] {=}",
                 "[let us find|we look for|we want to know|let us work out] {np}: {=}",
                 "[calculate|we calculate|work out|we work out|compute] {np}: {=}", "{=}, [and that|which] is {np}",
                 "[we get|we have] {=} for {np}", "[for {np} we write|we write down {np} as] {=}"]
FRAMES = {
    "+": ["to [find|get|work out] {np}, [add {a} and {b}|we add {a} and {b}|{b} is added to {a}]: {=}",
          "[adding the two|if we add {a} and {b}], we get {np}: {=}", "[add|we add] to [find|get] {np}: {=}",
          "{a} and {b} [together|taken together] make {np}: {=}", "[add the two numbers|we need the sum], so {np} is {=}"],
    "-": ["to [find|get|work out] {np}, [subtract|take away|we subtract|we take away] {b} from {a}: {=}",
          "[subtract|we subtract] to [find|get] {np}: {=}", "[taking {b} away from|with {b} taken from] {a}, {np} is {=}",
          "[we need the difference|look at the difference], so {np} is {=}", "{a} less {b} [is|gives] {np}: {=}"],
    "*": ["to [find|get|work out] {np}, [multiply|we multiply] {a} by {b}: {=}", "multiplying {a} by {b} gives {np}: {=}",
          "[multiply|we multiply] to [find|get] {np}: {=}", "[there are {a} times {b} here|this is {a} times {b}], so {np} is {=}",
          "{a} times {b} [is|gives] {np}: {=}"],
    "/": ["to [find|get|work out] {np}, [divide|we divide] {a} by {b}: {=}", "dividing {a} by {b} gives {np}: {=}",
          "[divide|we divide] to [find|get] {np}: {=}", "[with {a} divided by {b}|splitting {a} by {b}], {np} is {=}",
          "{a} divided by {b} [is|gives] {np}: {=}"],
}
FIRST = ["", "", "", "", "first, ", "first of all, ", "to start, ", "to begin with, ", "step one: ", "we start like this: ",
         "from the story, ", "we know enough to begin: "]
NEXT = ["then, ", "", "", "", "next, ", "after that, ", "now, ", "from there, ", "knowing this, ", "as a next step, ",
        "given this, ", "in the next step, ", "we go on: "]
LAST = ["so ", "so ", "therefore, ", "that means ", "this means that ", "in the end, ", "thus, ", "hence, ", "", "",
        "we can say that ", "as a result, ", "this shows that ", "the answer is that ", "finally, ", "it follows that ",
        "and so ", "this tells us that ", "we conclude that ", "that is why "]
MOODS = ["It [is|was] a [sunny|rainy|windy|cold|warm|busy|quiet|bright|cloudy|lovely] [{day}|morning|afternoon|day in {month}]. ",
         "{p} [likes|loves] [to count things|{day}s|math|keeping lists|helping at home|being outside|{month}]. ",
         "[Here is what happened|Something nice happened|There was a lot to do] at the {place} [on {day}|last week|last {month}]. ",
         "[The {place} [is|was] [very busy|quite full|open late|decorated]] [on {day}|in {month}|this week]. ",
         "{p} and {p.his} {kin} live [near|next to|not far from] the {place}. ", "{p} [is|was] [in a good mood|in a hurry|very busy|full of plans] [on {day}|today]. ",
         "[Everyone|Nobody] [knows|expects] that {p} is good with numbers. ", "{p.his} {kin} told {p} to [be careful with numbers|write everything down]. ",
         "{p} is the [oldest|youngest|tallest|quietest] child in {p.his} [class|family|street]. ",
         "[This happened|It happened] [at the {place}|on {day}|in {month}|two weeks ago]. ",
         "{p} [has a question|tells this story|asks {p.his} {kin} for help]. ", "[School starts|The holidays start|The weekend begins] [soon|on {day}|in {month}]. "]
SELF_CONTAINED = re.compile(r"\b(that|they|it|them|those|left|now|then|after|end|each|more|tickets|of the)\b")
QUESTION_FIRST = [" [Here is what we know|These are the facts|Here is the story|Think about this]: ", " "]

PAIR = re.compile(r"\[([^\[\]]*)\]")
FIELD = re.compile(r"(\$?)\{(\w+|=)([#+@.]?)(\w*)\}(%?)")


@dataclass(frozen=True)
class Person:
    """A name with its pronouns, looked up by the masculine form: ``forms["his"]``."""

    name: str
    forms: dict[str, str] = field(hash=False)


HE = {"he": "he", "him": "him", "his": "his", "self": "himself"}
SHE = {"he": "she", "him": "her", "his": "her", "self": "herself"}


def plural(noun: str) -> str:
    """Plural of a noun of the lists above, the last word of a compound: plural("cherry") == "cherries"."""
    head, _, last = noun.rpartition(" ")
    if last in IRREGULAR:
        last = IRREGULAR[last]
    elif last.endswith("y") and last[-2] not in "aeiou":
        last = last[:-1] + "ies"
    elif last.endswith(("s", "x", "ch", "sh")):
        last += "es"
    else:
        last += "s"
    return f"{head} {last}" if head else last


def article(noun: str) -> str:
    """The noun with its indefinite article: article("orange") == "an orange"."""
    return ("an " if noun[0] in "aeiouAEIOU" and not noun.startswith(("uni", "use")) or noun.startswith("hon") else "a ") + noun


def capitalize(text: str) -> str:
    """Capital letters at the start of every sentence (not after a colon)."""
    return re.sub(r"(^|[.?!] )([a-z])", lambda m: m[1] + m[2].upper(), text)


class Draw:
    """The random choices of one problem, and the rendering of its patterns."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.values: dict[str, object] = {}
        self.spelled = rng.random() < 0.2  # small numbers of this story in words
        girl = rng.random() < 0.5
        self.set(p=self.person(girl), day=rng.choice(DAYS), month=rng.choice(MONTHS), kin=rng.choice(KIN),
                 place=rng.choice(PLACES).replace("_", " "))
        while True:
            other = self.person(rng.random() < 0.5)
            if other.name != self.values["p"].name:
                break
        self.set(q=other)

    def person(self, girl: bool) -> Person:
        return Person(self.rng.choice(GIRLS if girl else BOYS), SHE if girl else HE)

    def set(self, **values: object) -> None:
        self.values.update(values)

    def thing(self, *lists: list[str]) -> str:
        return self.rng.choice(self.rng.choice(lists or (FRUIT, BAKED, SCHOOL, TOYS))).replace("_", " ")

    def two_things(self, *lists: list[str]) -> tuple[str, str]:
        first = self.thing(*lists)
        while (second := self.thing(*lists)) == first:
            pass
        return first, second

    def small(self, low: int = 2, high: int = 12) -> int:
        return self.rng.randint(low, high)

    def factor(self) -> int:
        """Mostly 2..12, now and then 13..20 or a multiple of ten."""
        kind = self.rng.random()
        if kind < 0.8:
            return self.rng.randint(2, 12)
        return self.rng.randint(13, 20) if kind < 0.92 else 10 * self.rng.randint(2, 9)

    def say(self, pattern: str, equation: str = "", spell: bool = False) -> str:
        """Choose among the wordings of a pattern (in a solution, mostly the first) and fill its fields."""
        share = FAVOURITE if equation else 0.0
        while "[" in pattern:
            pattern = PAIR.sub(lambda m: favour(self.rng, m[1].split("|"), share), pattern)

        def fill(match: re.Match) -> str:
            dollar, name, mark, extra, percent = match.groups()
            if name == "=":
                return equation
            value = self.values[name]
            if isinstance(value, Person):
                text = value.forms[extra] if mark == "." else value.name
            elif isinstance(value, int):
                words = spell and self.spelled and value < len(WORDS) and not dollar and not percent
                text = WORDS[value] if words else str(value)
                if mark == "#":
                    noun = self.values.get(extra, extra)
                    text += " " + (noun if value == 1 else plural(noun))
            else:
                text = plural(value) if mark == "+" else article(value) if mark == "@" else value
            return dollar + text + percent

        return FIELD.sub(fill, pattern)


@dataclass(frozen=True)
class Problem:
    """What a template returns: patterns for story, question and final sentence, and the steps between them.

    A step is (a, operation, b, noun phrase for the result, clause with {=}); the last result is the answer."""

    story: list[str]
    question: str
    steps: list[tuple[int, str, int, str, str]]
    final: str


TEMPLATES: dict[str, Callable[[Draw], Problem]] = {}
HELD_OUT: dict[str, Callable[[Draw], Problem]] = {}


def template(function: Callable[[Draw], Problem]) -> Callable[[Draw], Problem]:
    TEMPLATES[function.__name__] = function
    return function


def held_out_template(function: Callable[[Draw], Problem]) -> Callable[[Draw], Problem]:
    HELD_OUT[function.__name__] = function
    return function


def render(draw: Draw, problem: Problem, training: bool) -> tuple[str, str, int] | None:
    """Prompt, response and answer of a problem; None where a step gives less than 2, which would read badly."""
    rng = draw.rng
    story, question = draw.say(rng.choice(problem.story), spell=True), draw.say(problem.question, spell=True)
    if rng.random() < 0.15 and not SELF_CONTAINED.search(question):
        text = question + draw.say(rng.choice(QUESTION_FIRST)) + story
    else:
        text = story + " " + question
    if rng.random() < 0.3 or len(text.split()) < 24:
        text = draw.say(rng.choice(MOODS)) + text
    prompt = f"Question: {capitalize(text)}\nAnswer:"
    sentences, result = [], 0
    # Two training examples in five ask for the equations alone: more arithmetic per token.
    terse = training and 1 <= zlib.crc32(prompt.encode()) % 16 <= 6
    if terse:
        prompt = prompt.removesuffix("Answer:") + "Equations:"
    last = len(problem.steps) - 1
    ends_in_step = last > 0 and rng.random() < 0.15  # the last step says the answer itself
    for index, (a, operation, b, phrase, clause) in enumerate(problem.steps):
        result = OPERATIONS[operation](a, b)
        if result < 2:  # "1 eggs": draw again
            return None
        draw.set(a_=a, b_=b)
        equation = f"{a} {operation} {b} = {result}"
        if terse:
            sentences.append(equation)
            continue
        if rng.random() < 0.7 or (ends_in_step and index == last):
            sentence = clause
        else:
            frame = favour(rng, rng.choice((FRAMES[operation], COMMON_FRAMES)))
            sentence = frame.replace("{np}", phrase).replace("{a}", "{a_}").replace("{b}", "{b_}")
        opening = FIRST if index == 0 else ["so ", "finally, "] if ends_in_step and index == last else NEXT
        sentences.append(draw.say(favour(rng, opening) + sentence, equation))
    if not terse and not ends_in_step:
        draw.set(x=result)
        sentences.append(draw.say(favour(rng, LAST) + problem.final, equation))
    return prompt, f" {capitalize('. '.join(sentences) + '.')}\n#### {result}", result


# ---- training templates -------------------------------------------------------------------------------------------


@template
def boxes_and_extra(d: Draw) -> Problem:
    n, m = d.small(), d.factor()
    e = d.small(2, 40)
    d.set(n=n, m=m, e=e, t=n * m, it=d.thing(), box=d.rng.choice(BOXES))
    return Problem(
        ["{p} has {n#box} of {it+}, and [each {box} holds|there are] {m#it}[ in each one| inside each {box}|]. "
         "[{p.his} {kin}|{q}] gives {p.him} {e} more[ on {day}|].",
         "[at the {place}, |on {day}, |]{p} fills {n#box} with {it+}. [every|each] {box} [gets|takes] {m#it}. "
         "{p.he} also has {e} {it+} that [do not fit in any {box}|are left over|lie on the table].",
         "there are {n#box} [at the {place}|on the shelf|in the room], each with {m#it}. "
         "[then|later] {q} [brings|adds] {e} more {it+}."],
        "how many {it+} are there [altogether|in all|in total]?",
        [(n, "*", m, "the number of {it+} in the {box+}", "the {box+} hold {=} {it+}[ together|]"),
         (n * m, "+", e, "the [total number|number] of {it+}", "with the {e} others there are {=} {it+}")],
        "there are {x} {it+} [altogether|in all|in total]")


@template
def boxes_given_away(d: Draw) -> Problem:
    n, m = d.small(), d.factor()
    g = d.small(2, min(n * m - 1, 60))
    d.set(n=n, m=m, g=g, it=d.thing(), box=d.rng.choice(BOXES))
    return Problem(
        ["{p} [bought|got|picked up] {n#box} of {it+} [at the {place}|on {day}]. each {box} [had|held|contained] {m#it}. "
         "{p.he} [gave {g} of them to|handed {g} of them to|shared {g} of them with] {p.his} {kin}.",
         "[on {day}, |last {month}, |]{p} packed {m#it} into each of {n#box}. "
         "[later|the next day], {p.he} [sold|lost|gave away] {g} [{it+}|of them]."],
        "how many {it+} [does {p} have left|are left|remain]?",
        [(n, "*", m, "the number of {it+} at the start", "[in the beginning {p} had|at first there were] {=} {it+}"),
         (n * m, "-", g, "the number of {it+} that remain", "once those are gone, {=} {it+} are left")],
        "{p} [has {x} {it+} left|still has {x} {it+}]")


@template
def change_from_a_bill(d: Draw) -> Problem:
    n, c = d.small(2, 9), d.small(2, 12)
    total = n * c
    pay = next(b for b in (20, 50, 100, 200) if b > total)
    d.set(n=n, c=c, pay=pay, it=d.thing(SCHOOL, TOYS, CLOTHES, GEAR), place=d.thing(["market", "shop", "fair"]))
    return Problem(
        ["{p} [buys|wants to buy] {n#it} [at the {place}|for {p.his} {kin}|for school]. [each {it} costs|the price of one {it} is] ${c}. "
         "{p.he} pays with [${pay}|a ${pay} bill].",
         "[at the {place}, |on {day}, |]{it@} costs ${c}. {p} takes {n} of them to the counter and [gives the clerk|hands over] ${pay}.",
         "{p} goes to the {place} with ${pay}. {p.he} buys {n#it} [for|at] ${c} each[ and nothing else|]."],
        "how [much money does {p} have left|many dollars of change does {p} get|much change should {p} get back]?",
        [(n, "*", c, "the [total cost|price of all the {it+}]", "the {it+} cost {=} dollars[ together|]"),
         (pay, "-", total, "the change", "{p} gets back {=} dollars")],
        "{p} [gets ${x} back|has ${x} left|gets ${x} in change]")


@template
def two_purchases(d: Draw) -> Problem:
    n, c, m, k = d.small(2, 10), d.small(2, 12), d.small(2, 10), d.small(2, 12)
    one, two = d.two_things(SCHOOL, TOYS, CLOTHES, GEAR)
    d.set(n=n, c=c, m=m, k=k, one=one, two=two)
    return Problem(
        ["{p} [buys|bought] {n#one} and {m#two}[ at the {place}|]. [each {one} costs|one {one} costs] ${c}, [and|while] [each|every] {two} costs ${k}.",
         "at a shop [near|beside] the {place}, {one@} costs ${c} and {two@} costs ${k}. [on {day}, |]{p} buys {n#one} and {m#two}.",
         "{p} needs {n#one} for ${c} each. {p.he} also needs {m#two}, which cost ${k} [apiece|each]."],
        "how [much does {p} spend|many dollars does {p} pay] [in all|altogether|in total]?",
        [(n, "*", c, "the cost of the {one+}", "the {one+} cost {=} dollars"),
         (m, "*", k, "the cost of the {two+}", "the {two+} cost {=} dollars"),
         (n * c, "+", m * k, "the total cost", "together they cost {=} dollars")],
        "{p} [spends|pays] ${x} [in all|altogether|in total]")


@template
def wages(d: Draw) -> Problem:
    h, r, w = d.small(2, 5), d.small(2, 5), d.small(5, 12)
    d.set(h=h, r=r, w=w)
    job = "[at the {place}|in a bakery|as a gardener|in a small cafe|as a painter|on a farm|as a babysitter|as a driver]"
    return Problem(
        [f"{{p}} works {job} for {{h}} hours a day. {{p.he}} [earns|is paid|makes] ${{w}} [an hour|per hour|for each hour]. "
         "this week {p.he} works on {r} days.",
         f"{{p}} [earns|makes] ${{w}} [an hour|per hour] {job}. [every day|each day] {{p.he}} works {{h}} hours, "
         "and {p.he} worked {r} days [last week|this week|in {month}]."],
        "how [much money|many dollars] [does|will] {p} earn [in all|for those days]?",
        [(h, "*", r, "the number of hours", "{p} works {=} hours[ in all|]"),
         (h * r, "*", w, "the total pay", "for these hours {p.he} earns {=} dollars")],
        "{p} earns ${x}[ in all|]")


@template
def saving_for_something(d: Draw) -> Problem:
    w, n = d.small(2, 12), d.small(2, 15)
    h = d.small(5, 60)
    goal = w * n + h
    d.set(w=w, n=n, h=h, goal=goal, it=d.thing(GEAR, CLOTHES, ["bicycle", "guitar", "camera", "game", "skateboard", "telescope"]))
    return Problem(
        ["{p} wants [to buy|to get] {it@} that costs ${goal}. {p.he} [already has|has already saved] ${h} and [saves|puts aside] ${w} [every week|each week|a week].",
         "{it@} costs ${goal}. {p} has ${h} [in {p.his} piggy bank|at home], and {p.his} {kin} gives {p.him} ${w} [every week|each week] [for chores|for helping]."],
        "how many weeks [does {p} need|will it take {p}] to [have enough money|buy the {it}]?",
        [(goal, "-", h, "the money that is [still missing|still needed]", "{p} still needs {=} dollars"),
         (goal - h, "/", w, "the number of weeks", "at ${w} a week this takes {=} weeks")],
        "{p} [needs {x} weeks|has to save for {x} weeks]")


@template
def reading_a_book(d: Draw) -> Problem:
    r, n, a = d.small(4, 15), d.small(2, 12), d.small(10, 60)
    total = r * n + a
    d.set(r=r, a=a, total=total, book=d.rng.choice(["book", "novel", "story book", "history book", "comic book", "travel guide"]))
    return Problem(
        ["{p} is reading {book@} [of|with] {total} pages. {p.he} has [already read|finished] {a} pages. from now on {p.he} reads {r} pages [a day|every day|each evening].",
         "{p} [got|borrowed] {book@} from [the library|{p.his} {kin}]. it has {total} pages, and {p} read {a} of them on {day}. after that, {p.he} reads {r} pages [per day|each day]."],
        "how many [more days|days more] does {p} need to finish the {book}?",
        [(total, "-", a, "the number of pages [left|still to read]", "{p} still has to read {=} pages"),
         (total - a, "/", r, "the number of days", "reading {r} pages a day takes {=} days")],
        "{p} needs {x} more days[ to finish the {book}|]")


@template
def eggs_to_sell(d: Draw) -> Problem:
    hens, days = d.small(3, 12), d.small(2, 7)
    eggs = hens * days
    e = d.small(2, min(eggs - 2, 12))
    c = d.small(2, 4)
    d.set(hens=hens, days=days, e=e, c=c, bird=d.rng.choice(["hen", "duck", "chicken", "goose"]))
    return Problem(
        ["{p} keeps {hens#bird} [on a farm|behind the house|near the {place}]. each of them lays one egg a day. [in|after] {days} days {p} collects all the eggs, "
         "and {p.his} family eats {e} of them. {p.he} sells the rest for ${c} each.",
         "on {p.his} farm, {p} has {hens#bird} that each lay 1 egg [a day|every day]. {p.he} gathers the eggs for {days} days, uses {e} for [a cake|breakfast|baking], and sells the others [at the market|to the neighbors] for ${c} each."],
        "how [much money does {p} make|many dollars does {p} earn]?",
        [(hens, "*", days, "the number of eggs", "the birds lay {=} eggs"),
         (eggs, "-", e, "the number of eggs to sell", "{p} can sell {=} eggs"),
         (eggs - e, "*", c, "the money earned", "for them {p.he} gets {=} dollars")],
        "{p} [makes|earns] ${x}[ from the eggs|]")


@template
def times_as_many(d: Draw) -> Problem:
    a, k = d.small(3, 30), d.small(2, 6)
    d.set(a=a, k=k, it=d.thing(), times="twice" if k == 2 else f"{WORDS[k]} times")
    return Problem(
        ["{p} [has|owns] {a#it}[ at home|]. {q} has {times} as many[ {it+}| as {p}|].",
         "{p} and {q} [collect|count their] {it+} [at the {place}|on {day}]. {p} has {a} of them, and {q} has {times} as many."],
        "how many {it+} do [they|the two of them|{p} and {q}] have [together|altogether|in all]?",
        [(a, "*", k, "the number of {it+} {q} has", "{q} has {=} {it+}"),
         (a * k, "+", a, "the number of {it+} they have together", "[together|both of them together] they have {=} {it+}")],
        "they have {x} {it+} [together|altogether|in all]")


@template
def some_more_some_fewer(d: Draw) -> Problem:
    a, e = d.small(8, 60), d.small(2, 25)
    more = d.rng.random() < 0.5 or e >= a - 1
    b = a + e if more else a - e
    d.set(a=a, e=e, it=d.thing(), word="more" if more else "fewer", verb=d.rng.choice(["picked", "sold", "counted", "found", "collected"]))
    return Problem(
        ["{p} {verb} {a#it}[ at the {place}|]. {q} {verb} {e} {word} [{it+} than|than] {p}[ did|].",
         "[on {day}, |in {month}, |]{p} {verb} {a#it}, while {q} {verb} {e} {word}[ than that|]."],
        "how many {it+} is that [for both of them together|in all|altogether]?",
        [(a, "+" if more else "-", e, "{q}'s number of {it+}", "for {q} it is {=} {it+}"),
         (a, "+", b, "the number for both", "together that is {=} {it+}")],
        "[it is {x} {it+}|there are {x} {it+}] [in all|altogether]")


@template
def pooled_and_shared(d: Draw) -> Problem:
    n, s = d.small(2, 10), d.small(3, 15)
    t = n * s
    a = d.rng.randint(2, t - 2)
    d.set(n=n, a=a, b=t - a, it=d.thing())
    return Problem(
        ["{p} has {a#it} and {q} has {b}. they put [them together|all of them in one pile|everything together] and share them equally among {n} [children|friends|people].",
         "{p} [brought|carried] {a#it} to the {place}, and {q} [brought|carried] {b#it}. [all of them|the {it+}] were [divided|split] equally among {n} [people|children|friends]."],
        "how many {it+} does each [one|person|of them] get?",
        [(a, "+", t - a, "the total number of {it+}", "there are {=} {it+} to share"),
         (t, "/", n, "each share", "each of the {n} gets {=} {it+}")],
        "everyone gets {x#it}")


@template
def rows_of_plants(d: Draw) -> Problem:
    n, m = d.small(3, 12), d.small(3, 15)
    t = n * m
    e = d.small(2, min(20, t - 2))
    d.set(n=n, m=m, e=e, it=d.thing(PLANTS))
    return Problem(
        ["{p} [planted|set out] {n} rows of {it+} with {m} [{it+}|plants] in [each|every] row. [during the winter|after a storm|in {month}], {e} of them [died|were destroyed].",
         "in [the|a] garden [behind|beside] the {place} there were {n} rows of {it+}, and each row had {m}. {p} [dug up|moved|gave away] {e} of them [on {day}|in {month}]."],
        "how many {it+} [are left|remain|are still there]?",
        [(n, "*", m, "the number of {it+} at first", "at first there were {=} {it+}"),
         (t, "-", e, "the number of {it+} left", "without the {e} others, {=} are left")],
        "there are {x} {it+} left")


@template
def two_legs_of_a_trip(d: Draw) -> Problem:
    walking = d.rng.random() < 0.5
    v, w = (d.small(3, 5), d.small(8, 15)) if walking else (d.small(3, 9) * 10, d.small(3, 9) * 10)
    h, k = (d.small(2, 5), d.small(2, 5)) if walking else (d.small(2, 4), d.small(1, 3))
    d.set(v=v, w=w, h=h, k=k, first="walks" if walking else "drives", second="cycles" if walking else "takes a train",
          unit=d.rng.choice(["mile", "kilometer"]))
    return Problem(
        ["{p} {first} for {h} hours at {v} {unit+} per hour. then {p.he} {second} for {k#hour} at {w} {unit+} per hour.",
         "on the way to the {place}, {p} first {first} {v} {unit+} an hour for {h} hours. [after a rest|after lunch], {p.he} {second} at {w} {unit+} an hour for {k#hour}."],
        "how [far does {p} travel|many {unit+} does {p} travel] [in all|altogether]?",
        [(h, "*", v, "the first distance", "the first part is {=} {unit+}"),
         (k, "*", w, "the second distance", "the second part is {=} {unit+}"),
         (h * v, "+", k * w, "the whole distance", "the whole trip is {=} {unit+}")],
        "{p} travels {x} {unit+}[ in all|]")


@template
def bus_stops(d: Draw) -> Problem:
    a = d.small(10, 50)
    off = d.small(2, min(a - 1, 20))
    on = d.small(2, 25)
    d.set(a=a, off=off, on=on, bus=d.rng.choice(["bus", "train", "tram", "ferry", "boat", "coach"]))
    return Problem(
        ["{p} drives a {bus} with {a} [people|passengers] on it. at the {place}, {off} [people|passengers] get off and {on} get on.",
         "there are {a} [people|passengers] on a {bus} [to|from] the {place}. at the [next|first] stop, {off} of them leave. then {on} [new passengers|other people] get on."],
        "how many [people|passengers] are on the {bus} [now|after that|then]?",
        [(a, "-", off, "the number of people who stay", "after {off} people leave, {=} people are still there"),
         (a - off, "+", on, "the number of people on the {bus}", "with the {on} new ones there are {=} people on the {bus}")],
        "there are {x} people on the {bus}[ now|]")


@template
def discount(d: Draw) -> Problem:
    percent, part = d.rng.choice([(10, 10), (20, 5), (25, 4), (50, 2)])
    s = d.small(2, 12)
    price = part * s
    d.set(percent=percent, price=price, it=d.thing(GEAR, CLOTHES), part=part)
    return Problem(
        ["{it@} costs ${price} at the {place}. [today|this week|on {day}] [it is {percent}% off|there is a discount of {percent}%|the shop takes {percent}% off the price]. {p} buys one[ for {p.his} {kin}|].",
         "{p} sees {it@} with a price of ${price}. {p.he} has a coupon for {percent}% off[, and {p.he} uses it|]."],
        "how [many dollars does|much does] {p} pay for [it|the {it}]?",
        [(price, "/", part, "{percent}% of the price", "the discount is {=} dollars"),
         (price, "-", s, "the new price", "with the discount the {it} costs {=} dollars")],
        "{p} pays ${x}[ for the {it}|]")


@template
def part_of_a_group(d: Draw) -> Problem:
    percent, part = d.rng.choice([(10, 10), (20, 5), (25, 4), (50, 2)])
    s = d.small(2, 12)
    t = part * s
    d.set(percent=percent, t=t)
    group = d.rng.choice(["students", "children", "visitors", "guests", "players", "members"])
    d.set(group=group[:-1] if group != "children" else "child")
    act = d.rng.choice(["wear glasses", "have a dog", "play the piano", "come by bus", "like chess", "speak Spanish", "can swim"])
    act_not = {"wear glasses": "do not wear glasses", "have a dog": "do not have a dog", "can swim": "cannot swim"}.get(act, "do not " + act)
    d.set(act=act, actnot=act_not)
    return Problem(
        ["there are {t} {group+} at the {place}. {p} [asks all of them|counts] and [learns|finds out] that {percent}% of them {act}.",
         "{p} [talks to|meets] {t} {group+} [at the {place}|on {day}]. {percent}% of them {act}, and the others {actnot}."],
        "how many of the {group+} {actnot}?",
        [(t, "/", part, "{percent}% of {t}", "the number of those who {act} is {=}"),
         (t, "-", s, "the number of the others", "the others are {=} {group+}")],
        "{x} of the {group+} {actnot}")


@template
def ages(d: Draw) -> Problem:
    a, k, y = d.small(3, 12), d.small(2, 5), d.small(2, 15)
    d.set(a=a, k=k, y=y, times="twice" if k == 2 else f"{WORDS[k]} times")
    return Problem(
        ["{p} is {a} years old. {p.his} {kin} {q} is {times} as old[ as {p.he} is|].",
         "{q} is {times} as old as {p}, [who is {a} years old|and {p} is {a}][ this year| now|]."],
        "how old will {q} be in {y} years?",
        [(a, "*", k, "{q}'s age now", "now {q} is {=} years old"),
         (a * k, "+", y, "{q}'s age in {y} years", "in {y} years {q} will be {=} years old")],
        "{q} will be {x}[ years old|]")


@template
def baking_batches(d: Draw) -> Problem:
    per, n = d.small(2, 9), d.small(2, 12)
    need = per * n
    have = d.small(2, max(2, min(need - 2, 20)))
    d.set(per=per, n=n, have=have, it=d.thing(BAKED), unit="cup",
          stuff=d.rng.choice(["flour", "sugar", "milk", "oats", "butter", "chopped nuts"]))
    return Problem(
        ["{p} needs {per} cups of {stuff} for one batch of {it+}. {p.he} wants to [bake|make] {n} batches [for the {place}|for a party|for {p.his} {kin}] and has {have#unit} of {stuff}[ at home|].",
         "one batch of {it+} takes {per} cups of {stuff}. {p} [is making|plans to make] {n} batches, and in the kitchen {p.he} finds only {have#unit} of {stuff}."],
        "how many more cups of {stuff} does {p} need?",
        [(n, "*", per, "the amount of {stuff} needed", "{n} batches take {=} cups of {stuff}"),
         (need, "-", have, "the missing amount", "{p} is still short of {=} cups")],
        "{p} needs {x} more cups of {stuff}")


@template
def practice_minutes(d: Draw) -> Problem:
    m, n, e = d.small(2, 9) * 5, d.small(2, 6), d.small(2, 9) * 5
    d.set(m=m, n=n, e=e)
    act = "[practices the piano|practices the violin|goes running|does exercises|studies French|draws|works in the garden|plays chess]"
    return Problem(
        [f"{{p}} {act} for {{m}} minutes [a day|every day|each day] on {{n}} days of the week. on {{day}} {{p.he}} spends another {{e}} minutes on it.",
         f"[every week|each week], {{p}} {act} on {{n}} days, {{m}} minutes each time. this week {{p.he}} [adds|adds an extra] {{e}} minutes on {{day}}."],
        "how many minutes is that [in all|altogether|in total] this week?",
        [(n, "*", m, "the usual number of minutes", "the {n} days make {=} minutes"),
         (n * m, "+", e, "the total time", "with the extra time it is {=} minutes")],
        "{p} spends {x} minutes on it[ this week|]")


@template
def fence_around(d: Draw) -> Problem:
    a, b = d.small(3, 30), d.small(2, 20)
    d.set(a=max(a, b) + 1, b=min(a, b), unit=d.rng.choice(["meter", "yard"]))
    a, b = max(a, b) + 1, min(a, b)
    d.set(field=d.rng.choice(["garden", "field", "playground", "yard", "vegetable patch", "pool", "lawn"]))
    return Problem(
        ["{p} [wants to build|is building] a fence around {field@} [behind the {place}|near the {place}|for {p.his} {kin}]. the {field} is a rectangle {a} {unit+} long and {b} {unit+} wide.",
         "{field@} has the shape of a rectangle. it is {b} {unit+} wide and {a} {unit+} long, and {p} [puts|wants] a fence all the way around it."],
        "how many {unit+} of fence does {p} need?",
        [(a, "+", b, "the length of two sides", "one long and one short side make {=} {unit+}"),
         (a + b, "*", 2, "the length of the fence", "there are two of each, so all four sides make {=} {unit+}")],
        "{p} needs {x} {unit+} of fence")


@template
def tickets(d: Draw) -> Problem:
    c, k = d.small(5, 15), d.small(2, 6)
    n, m = d.small(2, 6), d.small(2, 12)
    d.set(c=c, k=k, n=n, m=m, place=d.rng.choice(["zoo", "museum", "castle", "theater", "fair", "circus", "swimming pool", "concert"]))
    return Problem(
        ["[tickets|the tickets] for the {place} cost ${c} for adults and ${k} for children. {p} goes there with a group of {n} adults and {m} children.",
         "for the {place}, an adult pays ${c} and a child pays ${k}. {p} buys tickets for {n} adults and {m} children[ on {day}|]."],
        "how much do the tickets cost [in all|altogether|in total]?",
        [(n, "*", c, "the price for the adults", "the adults pay {=} dollars"),
         (m, "*", k, "the price for the children", "the children pay {=} dollars"),
         (n * c, "+", m * k, "the total price", "all the tickets cost {=} dollars")],
        "the tickets cost ${x}[ in all|]")


@template
def two_days_of_work(d: Draw) -> Problem:
    a, e = d.small(8, 50), d.small(2, 30)
    b = a + e
    g, i = d.small(3, min(a, 40)), d.rng.randrange(6)
    d.set(a=a, e=e, g=g, it=d.thing(FRUIT, BAKED, TOYS), d1=DAYS[i], d2=DAYS[i + 1],
          verb=d.rng.choice(["picked", "collected", "packed", "prepared", "gathered"]))
    return Problem(
        ["on {d1} {p} {verb} {a#it}, and on {d2} {p.he} {verb} {e} more than on {d1}. then {p.he} [sold {g}|gave {g} to {q}|lost {g}].",
         "{p} {verb} {a#it} on {d1}. the next day {p.he} {verb} {e} more than the day before, and in the evening {p.he} [gave away|sold] {g} of them all."],
        "how many {it+} does {p} have [now|left|in the end]?",
        [(a, "+", e, "the number for {d2}", "on {d2} it was {=} {it+}"),
         (a, "+", b, "the number for both days", "both days together make {=} {it+}"),
         (a + b, "-", g, "the number left", "that leaves {p.him} with {=} {it+}")],
        "{p} has {x} {it+} [left|now]")


@template
def packs_to_buy(d: Draw) -> Problem:
    per, n, c = d.small(2, 12), d.small(2, 10), d.small(2, 9)
    d.set(t=per * n, per=per, c=c, it=d.thing(), pack=d.rng.choice(["pack", "box", "bag", "packet", "carton"]))
    return Problem(
        ["{p} needs {t#it} for [a party|the {place}|{p.his} class|a project]. {it+} [come|are sold] in {pack+} of {per}, and each {pack} costs ${c}.",
         "{it+} are sold in {pack+} of {per}. one {pack} costs ${c}. {p} [must|has to] buy exactly {t#it} for [the {place}|{p.his} {kin}|{day}]."],
        "how much [money will {p} spend|does {p} have to pay|will it cost]?",
        [(per * n, "/", per, "the number of {pack+}", "{p} needs {=} {pack+}"),
         (n, "*", c, "the cost", "the {pack+} cost {=} dollars")],
        "{p} [spends|pays] ${x}[ in all|]")


@template
def collection(d: Draw) -> Problem:
    a, n, m = d.small(10, 60), d.small(2, 8), d.small(3, 12)
    lost = d.small(2, min(a - 1, 20))
    d.set(a=a, n=n, m=m, lost=lost, it=d.thing(SCHOOL, TOYS))
    return Problem(
        ["{p} [had|owned] a collection of {a#it}. {p.he} [lost {lost} of them|gave {lost} of them to {q}|traded away {lost} of them]. later {p.he} got {n} [packs|boxes|bags] with {m#it} in each.",
         "in {month}, {p} had {a#it}. {p.his} {kin} [took|borrowed] {lost} of them, and then {p} bought {n} [sets|packs] of {m#it} [at the {place}|each]."],
        "how many {it+} does {p} have [now|in the end|after that]?",
        [(a, "-", lost, "the number of {it+} left", "{p} still had {=} {it+}"),
         (n, "*", m, "the number of new {it+}", "the new ones are {=} {it+}"),
         (a - lost, "+", n * m, "the number of {it+} in the end", "altogether that makes {=} {it+}")],
        "{p} has {x} {it+}[ now|]")


@template
def half_then_some(d: Draw) -> Problem:
    k = d.rng.choice([2, 2, 3, 4, 5])
    s = d.small(4, 20)
    e = d.small(2, s - 2)
    d.set(t=k * s, e=e, k=k, it=d.thing(), portion={2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}[k])
    return Problem(
        ["{p} had {t#it}. {p.he} put {portion} of them [in a bag|on a plate|into a drawer|aside for {q}] and then gave {e} from that part to {p.his} {kin}.",
         "{q} gave {p} {portion} of {t#it}. [on {day}|at the {place}|on the way home], {p} [lost|gave away|used] {e} of [those|them]."],
        "how many {it+} are left in {p}'s part?",
        [(k * s, "/", k, "{portion} of the {it+}", "{portion} of them is {=} {it+}"),
         (s, "-", e, "the number left", "without the other {e}, there are {=} left")],
        "{x#it} [remain|are left]")


@template
def trays_and_boxes(d: Draw) -> Problem:
    per, n = d.small(2, 10), d.small(2, 10)
    t = per * n
    pairs = [(a, t // a) for a in range(2, 13) if t % a == 0 and 2 <= t // a <= 20]
    a, b = d.rng.choice(pairs)
    d.set(a=a, b=b, per=per, it=d.thing(BAKED), tray=d.rng.choice(["tray", "sheet", "pan", "rack"]), box=d.rng.choice(["box", "bag", "tin", "basket"]))
    return Problem(
        ["{p} [baked|made] {a#tray} of {it+} with {b#it} on each. {p.he} [packs|puts] them into {box+}, {per} [to|in] [a|each] {box}.",
         "[for the {place}, |on {day}, |]{p} fills {a#tray} with {b#it} each. when they are ready, {p.he} [packs|puts] {per} of them in every {box}."],
        "how many {box+} does {p} fill?",
        [(a, "*", b, "the number of {it+}", "there are {=} {it+}[ in all|]"),
         (t, "/", per, "the number of {box+}", "they fill {=} {box+}")],
        "{p} fills {x} {box+}")


@template
def game_points(d: Draw) -> Problem:
    a, b = d.small(2, 9), d.small(2, 9)
    k, m = d.rng.sample([2, 3, 4, 5, 10], 2)
    lost = d.small(2, 9)
    d.set(a=a, b=b, k=k, m=m, lost=lost, red=d.rng.choice(["red", "gold", "large", "round"]), blue=d.rng.choice(["blue", "silver", "small", "square"]))
    return Problem(
        ["in a game, every {red} [token|star|target] is worth {k} points and every {blue} one is worth {m}. {p} gets {a} {red} and {b} {blue} ones, but loses {lost#point} for [a mistake|being late].",
         "{p} plays a game with {q}[ at the {place}|]. {p.he} wins {k} points for each of {a} {red} stars and {m} points for each of {b} {blue} stars. then {p.he} loses {lost#point}."],
        "how many points does {p} have [at the end|in the end|now]?",
        [(a, "*", k, "the number of points for {red} ones", "the {red} ones bring {=} points"),
         (b, "*", m, "the number of points for {blue} ones", "the {blue} ones bring {=} points"),
         (a * k, "+", b * m, "the sum of the points", "together they make {=} points"),
         (a * k + b * m, "-", lost, "the final score", "with the loss the score is {=}")],
        "{p} has {x} points")


@template
def slices_for_all(d: Draw) -> Problem:
    people, s = d.small(2, 12), d.small(2, 8)
    t = people * s
    pairs = [(a, t // a) for a in range(2, 13) if t % a == 0 and 2 <= t // a <= 16]
    a, b = d.rng.choice(pairs)
    d.set(a=a, b=b, people=people, it=d.rng.choice(["pizza", "cake", "pie", "loaf", "melon", "tart"]))
    return Problem(
        ["{p} cuts {a#it} into {b} slices each for [a party|the {place}|{p.his} {kin}'s birthday]. {people} [people|guests|children] share them equally.",
         "there are {people} [people|guests] at {p}'s table. {p.he} [serves|brings] {a#it}, each cut into {b} slices, and everyone gets the same number of slices."],
        "how many slices does each [one|of them] get?",
        [(a, "*", b, "the number of slices", "there are {=} slices[ in all|]"),
         (t, "/", people, "the number of slices for each", "each one gets {=} slices")],
        "everyone gets {x} slices")


@template
def how_many_more(d: Draw) -> Problem:
    a, b = d.small(3, 12), d.small(3, 12)
    n, m = d.small(2, 12), d.small(2, 12)
    x, y = a * n, b * m
    if x <= y:
        (a, n, x), (b, m, y) = (b, m, y), (a, n, x)
    if x == y:
        n, x = n + 1, x + a
    d.set(a=a, n=n, b=b, m=m, it=d.thing(), box=d.rng.choice(BOXES))
    return Problem(
        ["{p} has {n#box} with {a#it} in each. {q} has {m#box} with {b#it} in each.",
         "at the {place}, {p} [stacks|fills] {n#box} and {q} [stacks|fills] {m}. each of {p}'s {box+} holds {a#it}, while each of {q}'s holds {b}."],
        "how many more {it+} does {p} have than {q}?",
        [(n, "*", a, "{p}'s number of {it+}", "{p} has {=} {it+}"),
         (m, "*", b, "{q}'s number of {it+}", "{q} has {=} {it+}"),
         (x, "-", y, "the difference", "the difference is {=} {it+}")],
        "{p} has {x} more[ {it+}|] than {q}")


@template
def one_total(d: Draw) -> Problem:
    n, m = d.small(), d.factor()
    d.set(n=n, m=m, it=d.thing(SCHOOL, TOYS, CLOTHES), box=d.rng.choice(["shelf", "table", "cart", "truck", "box", "desk", "cupboard", "corner"]))
    return Problem(
        ["{p} is counting {it+} [at the {place}|with {p.his} {kin}|for {q}]. there are {n#box}, and each {box} has {m#it}.",
         "[on {day}, |]{p} helps [at the {place}|{p.his} {kin}]. {p.he} puts exactly {m#it} by each {box}, and there are {n#box}."],
        "how many {it+} [are there|is that] [in all|altogether|in total]?",
        [(n, "*", m, "the total number of {it+}", "{n} times {m} is easy to work out, and it comes to {=} {it+}")],
        "there are {x} {it+} [in all|altogether|in total]")


@template
def one_difference(d: Draw) -> Problem:
    a = d.small(12, 120)
    b = d.small(3, a - 2)
    d.set(a=a, b=b, it=d.thing())
    return Problem(
        ["{p} wants to [collect|make|sell] {a#it} [before {day}|by the end of {month}|for the {place}]. so far {p.he} has [{b}|{b} of them][ and a little time left|, which is a good start|].",
         "a [list|sign|note] at the {place} says that {a#it} are needed. {p} and {q} have brought {b} [of them|{it+}] [so far|until now]."],
        "how many [more {it+}|{it+} more] are needed?",
        [(a, "-", b, "the number of {it+} still needed", "{b} of the {a} are there already, which leaves {=} to go")],
        "{x} more {it+} are needed")


@template
def round_trips(d: Draw) -> Problem:
    a, n = d.small(2, 15), d.small(2, 8)
    d.set(a=a, n=n, unit=d.rng.choice(["mile", "kilometer"]))
    return Problem(
        ["the {place} is {a} {unit+} from {p}'s [house|home|flat]. [this week|last week|in {month}], {p} [cycles|walks|drives] there and back [on {n} days|{n} times].",
         "{p} [lives|works] {a} {unit+} away from the {place}. {p.he} [visits|goes to see] {p.his} {kin} there {n} times and comes home [each time|every time]."],
        "how many {unit+} does {p} travel [in all|altogether]?",
        [(2, "*", a, "the length of one trip there and back", "going there and back is {=} {unit+}"),
         (2 * a, "*", n, "the whole distance", "{n} such trips are {=} {unit+}")],
        "{p} travels {x} {unit+}[ in all|]")


@template
def pocket_money(d: Draw) -> Problem:
    w, n = d.small(3, 12), d.small(2, 12)
    n1, c = d.small(2, 5), d.small(2, 8)
    d.set(w=w, n=n, m=n1, c=c, it=d.thing(SCHOOL, TOYS))
    return Problem(
        ["{p} gets ${w} [a week|every week|each week] from {p.his} [parents|aunt|uncle|grandmother|grandfather] [and saves all of it|and keeps it in a jar]. after {n} weeks {p.he} buys {m#it} for ${c} each.",
         "for [washing the car|walking the dog|cutting the grass], {p} is paid ${w} [a week|per week]. {p.he} does this for {n} weeks. then {p.he} spends some of the money on {m#it} that cost ${c} [apiece|each]."],
        "how [much money|many dollars] does {p} have left?",
        [(n, "*", w, "the money saved", "{p} collects {=} dollars"),
         (n1, "*", c, "the price of the {it+}", "the {it+} cost {=} dollars"),
         (n * w, "-", n1 * c, "the money left", "when this is paid, {p.he} still has {=} dollars")],
        "{p} has ${x} left")


@template
def minutes_of_film(d: Draw) -> Problem:
    h, m, n = d.small(1, 3), 5 * d.small(1, 11), 5 * d.small(1, 6)
    d.set(h=h, m=m, n=n, show=d.rng.choice(["film", "concert", "play", "show", "circus show", "football match", "boat ride", "school feast"]))
    return Problem(
        ["{show@} [on {day} |in {month} |]lasts {h#hour} and {m} minutes[, without the break|]. there is also a break of {n} minutes. {p} [stays to the end|sees all of it].",
         "{p} [watches|goes to see] {show@} [with {p.his} {kin}|on {day}|with {q}]. it takes {h#hour} and {m} minutes, and the way home takes {n} minutes more."],
        "how many minutes is that [in all|altogether]?",
        [(h, "*", 60, "the number of minutes in {h#hour}", "{h#hour} [is the same as|means] {=} minutes"),
         (h * 60, "+", m, "the length of the {show}", "the {show} takes {=} minutes"),
         (h * 60 + m, "+", n, "the whole time", "with the rest it is {=} minutes")],
        "it is {x} minutes[ in all|]")


@template
def better_price(d: Draw) -> Problem:
    n, m = d.small(2, 10), d.small(2, 10)
    c = d.small(2, 9)
    e = d.small(2, 8)
    d.set(n=n, m=m, t=n * (c + e), u=m * c, it=d.thing(SCHOOL, TOYS, CLOTHES), one=d.rng.choice(["first", "small", "old"]), two=d.rng.choice(["second", "big", "new"]))
    return Problem(
        ["at the {one} shop, {n#it} cost ${t}. at the {two} shop, {m} of the same {it+} cost ${u}. {p} [compares the prices|wants to know which shop is cheaper].",
         "{p} paid ${t} for {n#it} in the {one} shop. {q} paid ${u} for {m} of them in the {two} shop."],
        "how many dollars more does one {it} cost in the {one} shop than in the {two} one?",
        [(n * (c + e), "/", n, "the price of one {it} in the {one} shop", "in the {one} shop one {it} costs {=} dollars"),
         (m * c, "/", m, "the price of one {it} in the {two} shop", "in the {two} shop one costs {=} dollars"),
         (c + e, "-", c, "the difference", "the prices differ by {=} dollars")],
        "one {it} costs ${x} more[ in the {one} shop|]")


@template
def chairs_for_guests(d: Draw) -> Problem:
    n, m = d.small(3, 12), d.small(2, 8)
    h = d.small(2, min(30, n * m - 1))
    d.set(n=n, m=m, h=h, event=d.rng.choice(["a concert", "a wedding", "a school play", "a party", "a meeting", "a chess evening"]), it=d.rng.choice(["chair", "cup", "plate", "lamp", "glass", "cushion"]))
    return Problem(
        ["{p} sets up {n} tables for {event} at the {place}. every table needs {m#it}, but {p.he} [has|finds] only {h}.",
         "for {event}, {p} wants to put {m#it} [at|on|by] each of {n} tables. [in the cellar|at the {place}|at home] there are {h#it} already."],
        "how many more {it+} does {p} need?",
        [(n, "*", m, "the number of {it+} needed", "all the tables need {=} {it+}"),
         (n * m, "-", h, "the number of {it+} missing", "{=} {it+} are still missing")],
        "{p} needs {x} more {it+}")


@template
def coins_in_a_jar(d: Draw) -> Problem:
    a, b = d.small(2, 12), d.small(2, 12)
    (one, k), (two, m) = d.rng.sample([("dime", 10), ("nickel", 5), ("ten-cent coin", 10), ("five-cent coin", 5), ("two-cent coin", 2), ("twenty-cent coin", 20)], 2)
    d.set(a=a, b=b, one=one, two=two, k=k, m=m)
    return Problem(
        ["{p} [opens|empties] a jar and finds {a#one} and {b#two}. {one@} is worth {k} cents, and {two@} is worth {m} cents.",
         "[on {day}, |]{p} has {a#one}, worth {k} cents each, and {b#two}, worth {m} cents each, in {p.his} pocket."],
        "how many cents does {p} have [in all|altogether]?",
        [(a, "*", k, "the value of the {one+}", "the {one+} are worth {=} cents"),
         (b, "*", m, "the value of the {two+}", "the {two+} are worth {=} cents"),
         (a * k, "+", b * m, "the whole value", "together that makes {=} cents")],
        "{p} has {x} cents")


# ---- held-out templates -------------------------------------------------------------------------------------------


@held_out_template
def legs_on_a_farm(d: Draw) -> Problem:
    a, b = d.small(2, 15), d.small(2, 20)
    d.set(a=a, b=b, four=d.thing(ANIMALS4), two=d.thing(ANIMALS2))
    return Problem(
        ["{p} has a farm with {a#four} and {b#two}. every {four} has 4 legs and every {two} has 2 legs.",
         "in the field [near|behind] the {place}, {p} counts {a#four} with 4 legs each and {b#two} with 2 legs each."],
        "how many legs do the animals have [altogether|in all]?",
        [(a, "*", 4, "the number of legs of the {four+}", "the {four+} have {=} legs"),
         (b, "*", 2, "the number of legs of the {two+}", "the {two+} have {=} legs"),
         (a * 4, "+", b * 2, "the number of all legs", "together they have {=} legs")],
        "the animals have {x} legs")


@held_out_template
def leaking_tank(d: Draw) -> Problem:
    out, t = d.small(2, 6), d.small(2, 12)
    inn = out + d.small(2, 10)
    d.set(inn=inn, out=out, t=t)
    return Problem(
        ["{p} fills [a tank|a pool|a barrel] at the {place} with {inn} liters of water every minute. because of a hole, it loses {out#liter} [every|each] minute."],
        "how many liters [are in it|does it hold] after {t} minutes?",
        [(inn, "-", out, "the gain in each minute", "each minute adds {=} liters"),
         (inn - out, "*", t, "the amount of water", "after {t} minutes there are {=} liters")],
        "there are {x} liters of water after {t} minutes")


@held_out_template
def average_of_three(d: Draw) -> Problem:
    m = d.small(6, 40)
    a, b = m - d.small(0, 5), m + d.small(0, 5)
    c = 3 * m - a - b
    d.set(a=a, b=b, c=c, it=d.thing(FRUIT, BAKED, TOYS))
    return Problem(
        ["{p} [sold|picked|counted] {a#it} on Monday, {b} on Tuesday and {c} on Wednesday[ at the {place}|]."],
        "what is the average number of {it+} per day?",
        [(a, "+", b, "the number for two days", "the first two days make {=} {it+}"),
         (a + b, "+", c, "the number for three days", "all three days make {=} {it+}"),
         (3 * m, "/", 3, "the average", "shared over three days that is {=} a day")],
        "the average is {x} {it+} per day")


@held_out_template
def empty_seats(d: Draw) -> Problem:
    r, s = d.small(4, 12), d.small(4, 12)
    a = d.small(2, r * s // 2)
    b = d.small(1, r * s // 3)
    d.set(r=r, s=s, a=a, b=b)
    return Problem(
        ["a hall [at|beside] the {place} has {r} rows with {s} seats in each. {a} adults and {b#child} come to hear {p} sing[ on {day}|], and everyone takes one seat."],
        "how many seats stay empty?",
        [(r, "*", s, "the number of seats", "the hall has {=} seats"),
         (a, "+", b, "the number of people", "{=} people come"),
         (r * s, "-", a + b, "the number of empty seats", "there are {=} empty seats")],
        "{x} seats stay empty")


@held_out_template
def profit(d: Draw) -> Problem:
    n, c, g = d.small(2, 12), d.small(2, 10), d.small(1, 8)
    d.set(n=n, c=c, s=c + g, it=d.thing(SCHOOL, TOYS, CLOTHES, GEAR))
    return Problem(
        ["{p} buys {n#it} for ${c} each and sells [them all|all of them] [at the {place}|to {q}'s shop] for ${s} each.",
         "{p} makes {it+}. the material for one {it} costs ${c}, and [people|customers] pay ${s} for it. [on {day}|in {month}] {p.he} sells {n} of them."],
        "how much [profit|gain] does {p} make?",
        [(c + g, "-", c, "the profit on one {it}", "on each {it} {p} gains {=} dollars"),
         (g, "*", n, "the whole profit", "for all of them the gain is {=} dollars")],
        "{p} makes a profit of ${x}")


@held_out_template
def stairs_up_and_down(d: Draw) -> Problem:
    f, s, n = d.small(2, 6), d.small(3, 12), d.small(2, 4)
    d.set(f=f, s=s, n=n)
    return Problem(
        ["{p} lives {f} floors above the street, and there are {s} steps between one floor and the next. [today|on {day}], {p.he} walks all the way up {n} times[ because the elevator is broken|]."],
        "how many steps does {p} climb?",
        [(f, "*", s, "the number of steps for one climb", "one climb is {=} steps"),
         (f * s, "*", n, "the number of steps for {n} climbs", "{n} climbs are {=} steps")],
        "{p} climbs {x} steps")


def calculation(rng: random.Random) -> tuple[int, str, int]:
    """One calculation as the stories have them: numbers, operation, and a result of 2 or more."""
    while True:
        kind = rng.choice("+-*/")
        a, b = rng.randint(2, 12), rng.randint(2, 12) if rng.random() < 0.7 else rng.choice((*range(13, 21), *range(20, 91, 10)))
        if kind in "+-":
            a, b = rng.randint(2, 150), rng.randint(2, 99)
        elif kind == "/":
            a *= b
        elif rng.random() < 0.5:
            a, b = b, a
        if OPERATIONS[kind](a, b) >= 2:
            return a, kind, b


def drill(rng: random.Random) -> dict:
    """Bare arithmetic in the form of the solutions, for training alone: more of it per token than in any story."""
    while True:
        steps = [calculation(rng) for _ in range(rng.randint(1, 6))]
        said = ", ".join(f"{a} {kind} {b}" for a, kind, b in steps)
        result = OPERATIONS[steps[-1][1]](steps[-1][0], steps[-1][2])
        if len(steps) == 1 and rng.random() < 0.5:
            more, c = rng.choice(("add", "take away")), rng.randint(2, 99)
            steps.append((result, "+" if more == "add" else "-", c))
            said += f", then {more} {c}"
            result += c if more == "add" else -c
        asked = rng.choice(("What is {}?", "How much is {}?", "Work out {}.", "Calculate {}.")).format(said)
        prompt = f"Question: {asked}\nAnswer:"
        if result >= 2 and zlib.crc32(prompt.encode()) % 16:
            solved = [f"{x} {operation} {y} = {OPERATIONS[operation](x, y)}" for x, operation, y in steps]
            return {"task": "math", "template": "drill", "seen_template": True, "prompt": prompt,
                    "response": f" {'. '.join(solved)}.\n#### {result}", "answer": result}


def generate(rng: random.Random, held_out: bool = False) -> dict:
    """Draw one word problem, or in every other training example a drill.

    Returns task, template, seen_template, prompt (ends in "\\nAnswer:"), response (ends in "\\n#### answer") and answer.
    Training never sees a prompt whose crc32 is divisible by 16, nor any template of HELD_OUT.

    >>> generate(random.Random(0))["task"]
    'math'
    """
    if not held_out and rng.random() < 0.5:
        return drill(rng)
    unseen = held_out and rng.random() < 0.5
    pool = HELD_OUT if unseen else TEMPLATES
    while True:
        name = rng.choice(list(pool))
        draw = Draw(rng)
        rendered = render(draw, pool[name](draw), not held_out)
        if rendered is None:
            continue
        prompt, response, answer = rendered
        asked = prompt.replace("Equations:", "Answer:")
        if unseen or (zlib.crc32(asked.encode()) % 16 == 0) == held_out:
            return {"task": "math", "template": name, "seen_template": not unseen, "prompt": prompt,
                    "response": response, "answer": answer}
