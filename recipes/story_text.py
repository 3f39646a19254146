"""Short stories, notes, letters and other everyday prose, drawn without end from a grammar of 22 kinds of text.

``generate(rng)`` gives one training example, ``generate(rng, held_out=True)`` one that training never sees: half of
those are of kinds that training never uses, half of training kinds whose prompt falls into the held-out sixteenth by
its checksum. What the prompt names (character, thing, place, day) is what the text is about.

The little language of the patterns: ``[a|b|c]`` is one of several wordings (they nest); ``{x}`` is a word chosen for
this text, ``{x@}`` the same with a/an, ``{x+}`` its plural. The hero's pronouns are {he}, {him}, {his}; those of the
second character {he2}, {him2}, {his2}.
"""

# ruff: noqa: E501 (a sentence and its wordings stay on one line)
from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable

from .math_text import BOYS, DAYS, GIRLS, MONTHS, article
from .wording import FAVOURITE, favour

ANIMALS = """fox rabbit hedgehog mouse bear badger owl squirrel otter frog turtle crow deer wolf mole goose duck cat donkey
goat lamb pony beaver raven sparrow lizard snail hare robin swan hen rooster puppy kitten elephant monkey tiger lion
penguin seal camel parrot heron stork raccoon""".split()
PEOPLE = """baker gardener sailor farmer shepherd painter tailor miller clockmaker teacher fisherman carpenter postman
librarian cook student violinist blacksmith nurse king queen princess knight wizard giant pilot potter weaver beekeeper
juggler""".split()
FEMALE = {"queen", "princess", "hen", "nurse"}
MALE = {"king", "fisherman", "postman", "knight", "wizard", "rooster"}
TRAITS = """small young old brave shy clever curious lonely cheerful lazy gentle proud patient hungry kind quiet stubborn
tired busy poor honest careful forgetful friendly sleepy grumpy playful polite nervous merry thoughtful restless modest
dreamy generous timid hopeful strong slow wise clumsy elderly bold funny serious eager jealous fearless ragged humble""".split()
# thing: (how it looks, the trouble with it, what it turns out to be good for)
THINGS = {
    "key": ("small and cold", "did not fit any door", "it opened the rusty gate behind the mill"),
    "lantern": ("covered in dust", "would not burn", "it lit the whole path at night"),
    "map": ("yellow and torn", "had no names on it", "it showed the way to a hidden spring"),
    "bell": ("round and shiny", "made no sound", "its ringing called everyone home for supper"),
    "feather": ("long and blue", "kept flying away in the wind", "it made a fine pen for writing letters"),
    "ring": ("thin and golden", "was far too big", "it belonged to an old lady who had missed it for years"),
    "drum": ("painted red and white", "had a hole in it", "its beat made the whole village dance"),
    "book": ("thick and heavy", "was written in strange letters", "it was full of songs that everyone wanted to hear"),
    "mirror": ("framed in silver", "was cracked in the middle", "it sent the sunlight into the darkest corner"),
    "coin": ("old and green", "could not buy anything", "it was the last one missing in the museum"),
    "boat": ("made of dark wood", "let in water", "it carried three friends across the river"),
    "kite": ("shaped like a bird", "was caught in a high tree", "it could be seen from every house in the valley"),
    "flute": ("made of bone", "only squeaked", "its tune put the crying baby to sleep"),
    "umbrella": ("striped and wide", "would not open", "it kept four friends dry in the storm"),
    "clock": ("tall and dark", "always showed noon", "it chimed at the very moment of the new year"),
    "basket": ("woven from willow", "had lost its handle", "it made a warm bed for a lost kitten"),
    "hat": ("green with a wide brim", "was much too large", "it was just the right nest for the sparrows"),
    "seed": ("no bigger than a pea", "would not grow", "it became the tallest flower in the garden"),
    "stone": ("smooth and warm", "was too heavy to carry", "it glowed softly when the moon came up"),
    "letter": ("sealed with red wax", "had no name on it", "it brought two old friends together again"),
    "rope": ("thick and strong", "was full of knots", "it pulled the cart out of the mud"),
    "ladder": ("narrow and old", "was missing two steps", "it helped to save a cat from the roof"),
    "violin": ("brown and polished", "had only two strings", "it filled the square with music"),
    "telescope": ("made of brass", "showed nothing but fog", "it made the stars seem close enough to touch"),
    "box": ("locked with three locks", "could not be opened", "it was full of seeds for the spring"),
    "bottle": ("green and dusty", "was stuck in the mud", "there was a message from a far island in it"),
    "scarf": ("soft and very long", "was full of holes", "it kept everyone warm on the coldest night"),
    "compass": ("no bigger than a button", "always pointed south", "it led the travelers safely through the fog"),
    "candle": ("made of yellow wax", "kept going out", "its light led the lost children home"),
    "whistle": ("carved from wood", "was blocked with sand", "its sound called the dogs back to the house"),
    "puppet": ("dressed in a red coat", "had lost an arm", "it made the sick boy laugh for the first time in weeks"),
    "wheel": ("as big as a table", "was bent on one side", "it was the very part that the old wagon needed"),
    "shell": ("pink inside", "had a chip on the edge", "you could hear the sea in it on a quiet night"),
    "cup": ("made of thin glass", "leaked at the bottom", "it was a pretty home for a little plant"),
    "crown": ("made of paper", "fell apart in the rain", "it made the new pupil feel welcome"),
    "spoon": ("long and wooden", "was burned at one end", "it made even plain soup taste wonderful"),
    "blanket": ("blue with yellow stars", "was torn in two", "it covered both children on the night train"),
    "notebook": ("bound in leather", "had no pages left", "its cover hid a recipe for the best bread in the land"),
    "anchor": ("rusty and enormous", "could not be lifted", "it kept the ferry in place during the flood"),
    "medal": ("shaped like a sun", "was scratched all over", "it reminded the old soldier of his first friend"),
    "vase": ("tall and blue", "was broken into three pieces", "it looked lovely with wild flowers in it"),
    "camera": ("black and square", "took only blurry pictures", "one of its pictures won the first prize"),
    "ball": ("red with white dots", "had no air left in it", "it made the new children in the street into friends"),
    "boot": ("worn and muddy", "did not match any other", "it was a cozy house for a family of mice"),
    "lamp": ("green with a brass foot", "flickered all the time", "it showed the ships where the rocks were"),
    "pearl": ("pale and perfect", "slipped out of every pocket", "it completed the necklace of the old countess"),
    "chair": ("carved with leaves", "had only three legs", "it was the throne in the school play"),
    "painting": ("dark and dusty", "hung upside down for years", "it showed the village as it was long ago"),
    "pot": ("black and round", "had no lid", "it cooked enough stew for all the guests"),
    "sled": ("fast and narrow", "turned over at every bend", "it brought the medicine to the sick shepherd"),
    "button": ("bright as a star", "rolled away all the time", "it was the one missing from the mayor's coat"),
}
BIG = set("boat kite clock ladder box wheel basket violin drum rope sled chair painting anchor pot mirror lamp".split())
PLACES = """forest meadow village harbor market mill garden castle river lake hill library beach farm orchard valley bridge
station square barn field island lighthouse museum school bakery workshop tower theater swamp waterfall cave inn mountain
windmill stable pond cottage temple fountain vineyard desert""".split()
TOWN_PLACES = """harbor market mill garden castle library beach park bridge station square museum school bakery theater
fountain town_hall church cinema bookshop hotel cafe river lake sports_hall playground""".split()
FAR_PLACES = """castle island lighthouse tower waterfall desert valley monastery palace volcano old_city silver_lake
northern_sea great_forest white_mountain golden_temple royal_garden frozen_river""".split()
SPOTS = """under a bush|behind a tall oak|beside the road|near an old well|under a heap of leaves|in the long grass|
next to the fence|on the steps|at the foot of a wall|in a hollow tree|under a bench|in the wet sand|among the reeds|
between two stones|behind the stable|on the doorstep""".replace("\n", "").split("|")
TIMES = """one morning|one evening|one cold day in winter|early in spring|on a warm afternoon|late one night|one rainy day|
at the end of summer|one Sunday|in the first week of autumn|on the longest day of the year|before sunrise|after a long storm|
one quiet afternoon|on market day|the day after the first snow|one foggy morning|when the leaves were falling|
on a windy Friday|a little before midnight|one hot day in July|at the beginning of May|during the holidays|
on the last day of school|when the apples were ripe|one Saturday at noon""".replace("\n", "").split("|")
FEELINGS = "happy proud relieved grateful glad delighted thankful content pleased cheerful overjoyed".split()
BAD_FEELINGS = "sad worried angry disappointed confused tired ashamed afraid upset puzzled nervous discouraged lonely hopeless".split()
WEATHER = "sunny rainy windy foggy snowy cloudy stormy warm cold mild frosty hot".split()
EVENTS = """meeting|picnic|concert|school play|football match|birthday party|book club|dinner|garden sale|chess evening|
swimming lesson|dance class|flea market|choir practice|hike|film night|science fair|parents' evening|boat trip|bake sale|
repair workshop|painting course|wedding|quiz night|street festival|museum visit""".replace("\n", "").split("|")
TOWNS = """Millbrook Ashford Greenhill Lakeside Stonebridge Redfield Oakdale Westport Fairview Northgate Silverton Brookside
Highcliff Elmwood Riverton Clearwater Maplewood Easthaven Thornbury Whitby Foxley Hillcrest Sandford Pinewood""".split()
KIN = "grandmother grandfather aunt uncle cousin sister brother friend neighbor teacher".split()
COLORS = "red blue green yellow white black brown grey orange purple pink silver".split()
MATERIALS = "oak steel wool cotton leather glass bamboo copper linen clay pine aluminum cork".split()
PRODUCTS = {"backpack": "carry books and a lunch box", "lamp": "read late in the evening", "kettle": "boil water in two minutes",
            "chair": "sit for hours without pain", "raincoat": "walk through the worst storm", "tent": "sleep well under the stars",
            "bicycle": "ride to work every day", "blanket": "stay warm in winter", "notebook": "keep all ideas in one place",
            "umbrella": "stay dry on the way home", "desk": "work or study in comfort", "watch": "never be late again",
            "knife": "cut bread and vegetables", "pan": "fry eggs without burning them", "bottle": "keep tea hot all day",
            "pillow": "fall asleep quickly", "toolbox": "find every tool at once", "radio": "hear music in every room",
            "shelf": "store books and plants", "suitcase": "travel with one hand free", "scarf": "keep the cold wind out",
            "basket": "bring home fruit from the market", "clock": "wake up on time", "hammock": "rest between two trees",
            "teapot": "serve tea to six guests", "ladder": "reach the highest shelf"}
# dish: (where it cooks, how it is served, the verb for cooking it)
DISHES = {"soup": ("a large pot", "in bowls", "simmer"), "stew": ("a heavy pot", "in deep plates", "cook gently"),
          "curry": ("a deep pan", "with rice", "simmer"), "pasta": ("a big pan", "on warm plates", "cook"),
          "sauce": ("a small pot", "in a jug", "thicken"), "casserole": ("an oven dish", "straight from the dish", "bake"),
          "gratin": ("a flat dish", "on warm plates", "bake"), "pie": ("a round dish", "in large slices", "bake"),
          "risotto": ("a wide pan", "in deep plates", "cook slowly"), "chowder": ("a tall pot", "in small bowls", "simmer")}
FOODS = """carrot|tomato|onion|potato|mushroom|pumpkin|leek|bean|pepper|cabbage|spinach|lentil|pea|zucchini|cauliflower|
broccoli|chickpea|sweet potato|eggplant|celery|beetroot|corn|parsnip|turnip|artichoke""".replace("\n", "").split("|")
HERBS = "parsley basil thyme mint dill rosemary sage oregano chives coriander".split()
SHOPS = """bakery|library|post office|train station|school|park|museum|pharmacy|town hall|bookshop|swimming pool|theater|
hospital|market|church|cinema|bus stop|river|harbor|hotel|sports hall|fire station|playground|flower shop|bank""".replace("\n", "").split("|")
FUR = "black white brown grey yellow spotted striped ginger".split()
PETS = "cat dog parrot rabbit turtle hamster kitten puppy pony goose duck".split()
HOBBIES = """painting|baking|gardening|swimming|reading|chess|hiking|singing|cycling|knitting|fishing|sailing|dancing|
drawing|skating|carpentry|pottery|photography|climbing|cooking""".replace("\n", "").split("|")
IRREGULAR = {"mouse": "mice", "wolf": "wolves", "goose": "geese", "deer": "deer", "tomato": "tomatoes", "potato": "potatoes",
             "knife": "knives", "shelf": "shelves", "fisherman": "fishermen", "postman": "postmen", "spinach": "spinach leaves",
             "celery": "celery stalks", "corn": "corn cobs", "broccoli": "broccoli florets", "cauliflower": "cauliflower florets"}

CHOICE = re.compile(r"\[([^\[\]]*)\]")
FIELD = re.compile(r"\{(\w+)([@+]?)\}")


def plural(noun: str) -> str:
    """plural("cherry") == "cherries"; the last word of a compound changes."""
    head, space, last = noun.rpartition(" ")
    if last in IRREGULAR:
        last = IRREGULAR[last]
    elif last.endswith("y") and last[-2] not in "aeiou":
        last = last[:-1] + "ies"
    else:
        last += "es" if last.endswith(("s", "x", "ch", "sh")) else "s"
    return head + space + last


def capitalize(text: str) -> str:
    """Capital letters at the start of the text, of sentences and of quoted sentences (not of 'asked' after "?\"")."""
    text = re.sub(r'(^ ?"?|[.?!] "?|\." "?|said, "|[?!]" "|[?!]" (?!(?:(?:s?he )?(?:asked|cried|said|called))\b))([a-z])',
                  lambda m: m[1] + m[2].upper(), text)
    return re.sub(r"\bi\b", "I", text)


def pronouns(female: bool, mark: str = "") -> dict[str, str]:
    he, him, his, himself = ("she", "her", "her", "herself") if female else ("he", "him", "his", "himself")
    return {"he" + mark: he, "him" + mark: him, "his" + mark: his, "self" + mark: himself}


class Draw:
    """The words chosen for one text, and the filling of its patterns."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        girl, girl2 = rng.random() < 0.5, rng.random() < 0.5
        name = rng.choice(GIRLS if girl else BOYS)
        name2 = rng.choice([n for n in (GIRLS if girl2 else BOYS) if n != name])
        place, place2 = rng.sample(PLACES, 2)
        street, street2 = (p.replace("_", " ") for p in rng.sample(TOWN_PLACES, 2))
        friend = rng.choice([n for n in GIRLS + BOYS if n not in (name, name2)])
        self.words = {"name": name, "name2": name2, **pronouns(girl), **pronouns(girl2, "2"), "place": place, "place2": place2,
                      "street": street, "street2": street2, "friend": friend, "far": rng.choice(FAR_PLACES).replace("_", " "),
                      "spot": rng.choice(SPOTS), "time": rng.choice(TIMES), "trait": rng.choice(TRAITS),
                      "glad": rng.choice(FEELINGS), "glad2": rng.choice(FEELINGS), "sad": rng.choice(BAD_FEELINGS),
                      "day": rng.choice(DAYS), "month": rng.choice(MONTHS), "weather": rng.choice(WEATHER),
                      "bad": rng.choice("rainy windy foggy snowy stormy cold wet".split()),
                      "event": rng.choice(EVENTS), "town": rng.choice(TOWNS), "kin": rng.choice(KIN),
                      "color": rng.choice(COLORS), "hobby": rng.choice(HOBBIES), "pet": rng.choice(PETS),
                      "hour": f"{rng.choice(['half past ', 'a quarter past ', 'a quarter to ', '', ''])}"
                              f"{rng.choice('two three four five six seven eight nine ten'.split())}"}
        self.take_thing()

    def take_thing(self, small: bool = False) -> None:
        """Choose {thing} with its look, trouble and use; a small one fits into a bag."""
        thing = self.rng.choice([name for name in THINGS if not (small and name in BIG)])
        look, trouble, use = THINGS[thing]
        self.words.update(thing=thing, look=look, trouble=trouble, use=use)

    def hero(self, kinds: list[str], mark: str = "") -> None:
        """Choose a character ({hero} or {hero2}) and the pronouns."""
        kind = self.rng.choice([k for k in kinds if k != self.words.get("hero")])
        female = kind in FEMALE or (kind not in MALE and self.rng.random() < 0.5)
        self.words.update({"hero" + mark: kind, **pronouns(female, mark)})

    def set(self, **words: str) -> None:
        self.words.update(words)

    def say(self, pattern: str, share: float = FAVOURITE) -> str:
        """Fill a pattern; the first wording of a bracket is taken with probability `share`, else any of them."""
        while "[" in pattern:
            pattern = CHOICE.sub(lambda m: favour(self.rng, m[1].split("|"), share), pattern)

        def fill(match: re.Match) -> str:
            word = self.words[match[1]]
            return article(word) if match[2] == "@" else plural(word) if match[2] == "+" else word

        while "{" in pattern:
            pattern = FIELD.sub(fill, pattern)
        return pattern


Kind = Callable[[Draw], tuple[str, str, list[str]]]
KINDS: dict[str, Kind] = {}
HELD_OUT: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


def held_out_kind(function: Kind) -> Kind:
    HELD_OUT[function.__name__] = function
    return function


OPENINGS = [
    "[once upon a time there was|once there was|there once lived|long ago there lived|not so long ago there was] {trait@} {hero}[ in the {place}| near the {place}| who {habit}|].",
    "[in the {place}|near the {place}|at the edge of the {place}] lived {trait@} {hero}[ who {habit}|, known to everyone].",
    "[have you heard of the {trait} {hero} of the {place}?|this is the story of {trait@} {hero} from the {place}.|people still talk about the {trait} {hero} of the {place}.]",
    "the {hero} [was|had always been] {trait}, [and the neighbors knew it|or so they said in the {place}|and {he} {habit}].",
]
HABITS = """loved {hobby}|lived alone|had very few friends|dreamed of the {place2}|never slept late|talked to the stars|collected stones|
was always hungry|knew every path by heart|hated rain|got up before everyone else|could not keep a secret|sang all day|
wanted to see the world|never said no to anyone|kept {pet@} as a friend|laughed at every joke""".replace("\n", "").split("|")
HELP = ["\"[let me help you|i know what to do|give it to me for a moment|we can do this together|do not give up|two heads are better than one|wait here and i will fetch my tools],\" said the {hero2}[ with a smile| kindly| after a while|].",
        "the {hero2} [offered to help|knew what to do|had seen such a thing before|thought for a while and nodded].",
        "\"[what is wrong?|why do you look so {sad}?|can i do anything for you?]\" asked the {hero2}, [and the {hero} told {him2} everything|and sat down to listen]."]
ENDINGS = [
    "[from that day on|ever since|after that], the {hero} [never went anywhere without the {thing}|told the story to anyone who would listen|kept the {thing} beside {his} bed|was a little less {trait}].",
    "that [night|evening], the {hero} [slept better than ever|smiled in {his} sleep|felt {glad}|looked at the stars and felt {glad}|could not stop talking about the {thing}].",
    "[everyone in the {place}|every neighbor|the whole {place}] [was|felt] {glad}, and [most of all the {hero}|the {hero} was {glad2} too].",
    "the {hero} [had learned|understood now|never forgot] that [a friend is worth more than gold|good things take time|it is better to share|asking for help is not a shame|even old things can be useful|a little patience goes a long way].",
    "and [if you go to the {place} today, you can still see it there|that is how the {trait} {hero} became known in the whole {place}|to this day people at the {place} talk about it].",
    "[at last|in the end], the {hero} [went home with a light heart|was no longer {sad}|laughed out loud], and the {hero2} [stayed for supper|came to visit every week|became {his} best friend].",
]


@kind
def story_finds(d: Draw):
    d.hero(ANIMALS + PEOPLE)
    d.hero(ANIMALS + PEOPLE, "2")
    d.set(habit=d.rng.choice(HABITS))
    return ("[Write|Tell|Make up] a [short |little |]story about [{hero@}|{trait@} {hero}|{hero@} in the {place}] who finds {thing@}[ {spot}|].", "Story", [
        favour(d.rng, OPENINGS),
        "{time}, {he} [went for a walk|was on {his} way home|was looking for food|was walking|had nothing to do|was chasing a butterfly] near the {place} and [found|saw|discovered|noticed|came upon|almost fell over] {thing@} {spot}.",
        "it was {look}, and [the {hero} had never seen anything like it|it seemed to wait for someone|nobody knew who had left it there|the {hero} picked it up at once|{he} could not look away]. "
        "[but|sadly,|the trouble was that|there was only one problem:] the {thing} {trouble}[, so the {hero} was {sad}|, and the {hero} felt {sad}|].",
        "[{he} tried for hours|{he} tried again and again|all day long {he} tried to mend it|{he} sat down and thought about it|{he} asked the wind and the moon], but nothing [helped|worked|changed].",
        "[then|just then|the next morning|after a while|at that moment], {hero2@} [came by|passed|stopped|looked over the fence|came down the road]. " + favour(d.rng, HELP),
        "[together they worked until evening|it took them all night|they worked side by side|the two of them cleaned it and turned it around], and [suddenly|finally|little by little|to their surprise] the {thing} was [as good as new|just right|fixed|better than before].",
        "[soon they found out that|it turned out that|before long everyone knew that|what a surprise it was when they saw that] {use}.",
        favour(d.rng, ENDINGS)])


@kind
def story_gift(d: Draw):
    d.hero(ANIMALS + PEOPLE)
    d.hero(ANIMALS + PEOPLE, "2")
    d.set(habit=d.rng.choice(HABITS))
    return ("[Write|Tell|Make up] a [short |]story about {hero@} who gives {thing@} to {trait@} {hero2}.", "Story", [
        "[the {hero} had|for many years the {hero} had kept] {thing@} [on a shelf|in an old chest|under the bed|by the window]. it was {look}, [and {he} was proud of it|and {he} would not have sold it for anything|but {he} never used it].",
        "[next door|across the road|on the other side of the {place}] lived {hero2@}. {he2} was {trait} and [had no visitors|often sat alone {spot}|never asked for anything].",
        "{time}, the {hero} [saw {him2} crying|met {him2} at the {place}|heard {him2} sigh|noticed how {sad} {he2} was]. \"[what a pity|that must not be|i have an idea],\" [thought the {hero}|{he} said to {self}].",
        "{he} [ran home|went home|hurried back], [wrapped the {thing} in paper|tied a ribbon around the {thing}|cleaned the {thing}] and [left it on the doorstep|brought it to the {hero2}|knocked on the door].",
        "the {hero2} [could hardly believe it|turned it over and over|did not know what to say]. \"[is it really for me?|why are you so kind?|may i keep it?]\" {he2} asked. [it {trouble}, but that did not matter|\"of course,\" said the {hero}].",
        "[a few days later|within a week|soon], [something happened|everybody could see why it was a good gift|there was news]: {use}.",
        "[now|since then|from that time on] the {hero2} [was not lonely anymore|came to supper every {day}|smiled at everyone], and the {hero} [learned that giving is better than keeping|was {glad} as never before|did not miss the {thing} at all]."])


@kind
def story_loses(d: Draw):
    d.take_thing(small=True)
    return ("[Write|Tell|Make up] a [short |]story about {name}, who loses [{thing@}|the {thing} of {his} {kin}] [at|near] the {place}[ {time}|].", "Story", [
        "{name} had [a wonderful|a special|an old|a favorite|a very dear] {thing}. it was {look}, and [{his} {kin} had given it to {him}|{he} had it from {his} {kin}|{he} looked after it well].",
        "{time}, {name} [took it to|went with it to|carried it to] the {place}[ because {he} wanted to show it to {name2}| and met {name2} there| to meet {name2}|].",
        "[on the way back|when {he} came home|at supper|before going to bed], {he} [reached into {his} bag|looked for it|opened {his} bag|wanted to clean it]. the {thing} was [gone|not there|nowhere to be seen]!",
        "{name} [felt|was] {sad}. [{he} looked in every corner|{he} turned every pocket inside out|{he} walked back the same way|{he} could not sleep all night and searched again in the morning], but [found nothing|it was not there|there was no sign of it].",
        "[then {he} called {name2}|luckily, {name2} wanted to help|{name2} had an idea|{he} told {name2} about it]. \"[think about where you stood last|let us search one more time|we should ask the people there|start at the beginning|it cannot be far],\" {he2} said.",
        "[they asked an old man|they asked everyone they met|they searched until it was almost dark|they looked behind every wall|they went back to the {place}], and [at last|finally|an hour later] {name2} [found|saw|discovered] the {thing} {spot}.",
        "[{name} was so {glad} that {he} jumped into the air|{name} hugged {name2}|\"thank you!\" cried {name}|{name} laughed and cried at the same time].",
        "[since then|from then on|now] {name} [always looks twice before {he} leaves|keeps the {thing} in a safe place|never forgets to check {his} bag], and {name2} [is {his} best friend|often laughs about that day|still tells the story]."])


@kind
def story_builds(d: Draw):
    d.hero(ANIMALS)
    d.hero(ANIMALS, "2")
    project, first, reason = d.rng.choice([
        ("bridge", "carried long branches to the water", "the river was too wide to jump over"), ("raft", "tied logs together", "there was an island to explore"),
        ("house", "dug a hole for the first post", "the winter would be cold"), ("swing", "looked for a strong branch", "the little ones had nothing to play with"),
        ("pond", "dug in the soft ground", "the summer would be dry"), ("tower", "piled stone upon stone", "from there one could look over the trees"),
        ("treehouse", "collected boards and nails", "there was no place for rainy days"), ("cart", "cut four round wheels", "the apples were too heavy to carry"),
        ("oven", "mixed clay and straw", "fresh bread smells so good"), ("fence", "cut sixty poles", "somebody was stealing the carrots"),
        ("windmill", "drew a plan in the sand", "there was so much corn to grind"), ("stage", "laid the planks in a row", "the spring play was coming"),
        ("boat", "bent the wood over a fire", "the fish were on the far side of the lake"), ("well", "looked for a damp spot", "the stream was so far away")])
    d.set(project=project, first=first, reason=reason, trait2=d.rng.choice(TRAITS))
    return ("[Write|Tell|Make up] a [short |]story about {trait@} {hero} and {hero2@} who build {project@} [together|near the {place}|by the {place}].", "Story", [
        "[{trait@} {hero} and {hero2@} were neighbors|{trait@} {hero} and {trait2@} {hero2} were good friends|there once was {trait@} {hero} whose best friend was {hero2@}|{trait2@} {hero2} shared a home with {trait@} {hero}] [near|not far from|by] the {place}.",
        "{time}, the {hero} said, \"[we should build|let us build|why do we not build|i want to build] {project@}!\" the {hero2} [nodded|agreed at once|thought about it and said yes|clapped], [for|because] {reason}.",
        "[first|so first|to begin with] they {first}. [it was hard work|it took all morning|it was slow work|their feet hurt|they got dirty from head to toe], but the {hero} [sang a song|told jokes|did not complain|made it into a game].",
        "[at noon|on the second day|when they were half done|just before evening], [a strong wind came|part of it fell down|they lost the hammer|they began to argue about the size|a heavy rain began], and the {hero2} [felt {sad}|wanted to give up|sat down on the ground|said that it was hopeless].",
        "\"[we can try another way|look how much is done already|every mistake teaches us something|rest a little and then we go on|i will not do it without you],\" said the {hero}.",
        "[so they started again|they took a deep breath and went on|after some bread and cheese they went on|the neighbors lent a hand], and [this time|now] they [worked more slowly|measured everything twice|helped each other|made every joint stronger].",
        "[when the sun went down|three days later|at the end of the week|a month later] the {project} was [ready|finished|done], and [all the animals came to see it|it was better than they had hoped|even the old judge of the {place} was impressed].",
        "the {hero} and the {hero2} were {glad}, and [they knew that they could do anything together|the hard days were forgotten|they celebrated until midnight|they gave it a name]."])


@kind
def story_journey(d: Draw):
    d.take_thing(small=True)
    d.hero(PEOPLE + ANIMALS)
    d.hero(PEOPLE + ANIMALS, "2")
    purpose, leaving = d.rng.choice([("to bring back {thing@}", "for {he} had heard of {thing@} there that was {look}"), ("to find {thing@}", "for somewhere there {he} hoped to find {thing@}"),
                                     ("with {thing@}", "and in {his} bag was {thing@}, {look}"), ("because of {thing@}", "and all of it because of {thing@} that {trouble}")])
    d.set(purpose=purpose, leaving=leaving)
    return ("[Write|Tell|Make up] a [bedtime |short |]story about {trait@} {hero} who travels to the {far} {purpose}.", "Story", [
        "{trait@} {hero} lived [near|beside|by] the {place}. [every night {he} dreamed of|people had often told {him} about|{he} had never seen] the {far}, [which was seven days away|far beyond the hills|beyond the edge of every map].",
        "{time}, {he} [packed some bread|put on {his} best coat|said goodbye to the neighbors|locked the door] and [left|set out|began the journey], {leaving}.",
        "the [road|way|path] was [long|steep|muddy|narrow|empty], and [on the third day it began to rain|at night the wind howled|soon {his} feet were sore|there was little to eat|no one gave {him} a bed]. the {hero} was {sad}, but [{he} went on|{he} did not turn back|{he} thought of the {thing}].",
        "[at a crossroads|in a dark wood|by a small fire|under a bridge|at an empty inn] {he} met {hero2@}. \"[where are you going?|are you lost?|what brings you here?]\" asked the {hero2}. the {hero} [told the whole story|explained everything|spoke of the {thing}].",
        "\"[then take the left path|follow the stream|walk with me|go where the birds go|wait for the moon],\" said the {hero2}, \"and [do not be afraid|never look back|you will be there by morning|trust your own nose].\"",
        "[it was good advice|the {hero2} was right]. [at sunrise|the next day|two days later] the {hero} [stood before|reached|could see] the {far}, and [there|right there] {he} [learned what the {thing} was good for|understood the secret of the {thing}]: {use}.",
        "[{he} was {glad}|the {hero} felt {glad}|tears of joy ran down {his} face], and [the way home seemed short|{he} wrote a letter to the {hero2}|{he} stayed there for a whole year|when {he} came home, everyone listened to {his} tale]."])


@kind
def story_contest(d: Draw):
    d.hero(ANIMALS)
    d.hero(ANIMALS, "2")
    contest, act, slip = d.rng.choice([
        ("race", "ran", "stumbled over a root"), ("singing contest", "sang", "forgot the second verse"), ("baking contest", "baked", "put salt in the dough instead of sugar"),
        ("swimming race", "swam", "took a wrong turn at the reeds"), ("dancing contest", "danced", "slipped on a wet leaf"), ("kite contest", "pulled the string", "let go of the string"),
        ("chess game", "played", "overlooked a knight"), ("jumping contest", "jumped", "landed in a puddle"), ("painting contest", "painted", "knocked over the blue paint")])
    d.set(contest=contest, act=act, slip=slip)
    if contest == "swimming race":
        d.set(place=d.rng.choice(["river", "lake", "harbor", "pond"]))
    return ("[Write|Tell|Make up] a [short |]story about {contest@} between {trait@} {hero} and {hero2@}[ at the {place}|].", "Story", [
        "[every year|once a year|each spring] there was {contest@} at the {place}. [this time|that year] {trait@} {hero} and {hero2@} [were the only ones left|wanted to win at any price|met in the final].",
        "\"[nobody can beat me|i have trained for weeks|may the better one win|you had better stay at home],\" said the {hero2}. the {hero} [only smiled|said nothing|felt {sad}|took a deep breath].",
        "the prize was {thing@}, {look}. [all the animals|half the town|young and old] had come to the {place} to watch, and [it was quiet|the flags were waving|somebody beat a drum].",
        "[then it began|at {hour} it began|a bell rang and it began]. the {hero2} {act} [like a champion|as if it were nothing|with all {his2} strength], but [near the end|suddenly|at the worst moment] {he2} {slip}.",
        "[the {hero} could have used that|now the {hero} could win easily|everybody shouted that the {hero} should go on]. [instead|but] {he} [stopped and helped|turned around and waited|held out a hand to the {hero2}]. \"[that would not be fair|let us start again|i do not want to win like this],\" {he} said.",
        "[the judges whispered|nobody spoke for a moment|then the crowd cheered]. [in the end|after a long talk], [both of them got the prize|the {hero} got the prize|the {hero2} won by a hair, but gave the prize to the {hero}].",
        "[soon they found out what the {thing} was good for: {use}. that evening there was a feast|they took turns with the {thing}|nobody looked at the {thing} for long], and [from then on they were friends|the {hero} was {glad}|the {hero2} never boasted again]."])


@kind
def note(d: Draw):
    return ("[Write a [short |]note to|Leave a [short |]note for] {name} about the {event} on {day}.", "Note", [
        "[dear|hello|hi] {name}, [this is just a reminder about|i am writing about|here is some news about|please do not forget|there is a change of plan for|a few words about] the {event} on {day}.",
        "[it starts|we meet|we begin|everyone should be there] at {hour} [in front of|at|behind|near|opposite] the {street}[, so please be there ten minutes early|, so you should leave home in good time|, not at the {street2} as last year|].",
        "[it may be {bad}, so take a warm coat|they say that the day will be {weather}|if it is {bad}, we will go inside|nobody knows what the weather will be like]. [please bring something to drink|bring a pen and paper|wear good shoes|you do not need to bring anything|bring some money for the bus].",
        "[{name2} is coming too|{name2} will pick you up if you like|i have asked {name2} to help us|{name2} cannot come because {he2} is ill|{name2} is looking after the music], and [we need one more chair|we still need a cake|there is room for your {kin} as well|your {kin} is welcome too|someone has to feed the {pet}].",
        "[if you cannot come|if something changes|if you have any questions], [call me|leave a message with {name2}|tell me|write to me] [before noon|tonight|by the evening before|as soon as you can].",
        "[i am looking forward to the {event}|i hope to see you there|it will be fun|it would not be the same without you][, and i am sure you will like it|. thank you for your help last time|, and i will save you a seat|].",
        "[yours|best wishes|see you soon|with love|greetings], {friend}."])


@kind
def reminder(d: Draw):
    return ("[Write|Leave] a note for {name}, who looks after the {pet} [until {day}|while we are in {town}].", "Note", [
        "[hello|dear|hi] {name}, [thank you for looking after|it is so kind of you to take care of|here is all you need to know about] the {pet}.",
        "[it gets|please give it] [a small bowl of food|half a cup of food|some fresh food] [at {hour}|every morning|twice a day], and [there must always be|it needs] clean water. [the food is|you will find the food] [in the cupboard next to the door|on the top shelf|in the {color} box|under the table].",
        "[the {pet} likes to sleep|the {pet} often hides|you can usually find the {pet}] {spot}, so [do not worry if you do not see it|look there first|close the door quietly].",
        "[please do not let it|it must not] [play with the {thing}|eat cake|go near the {street}|sit on the {color} chair]; [last week there was trouble|it is {trait} and never listens|{name2} was quite upset the last time].",
        "[in the evening|after supper|once a day] [talk to it for a while|brush it|let it run in the garden|sing to it][, because it is easily bored|, for it gets [sad|restless|nervous] when it is alone|, and then it sleeps better].",
        "[if anything happens|if you need help], [ask {name2} next door|call me in {town}|the doctor is near the {street}]. we [are|will be|stay] in {town} until {day}, [and we will bring you something nice|and then you must stay for dinner].",
        "[many thanks|all the best|yours], {friend}."])


@kind
def letter(d: Draw):
    d.take_thing(small=True)
    return ("Write a letter from {name} to {his} {kin} about [a trip to {town}|a week in {town}|moving to {town}|a new job in {town}] in {month}.", "Letter", [
        "dear {kin}, [i am writing to you from {town}|greetings from {town}|at last i have time to write to you from {town}|you will not believe it, but i am in {town}]. [we arrived here|i came here] [on {day}, {month} " + str(d.rng.randint(1, 28)) + "|at the beginning of {month}|in the middle of {month}], and the weather [is|has been] {weather}[ so far|].",
        "[the town is smaller than i thought|the streets are narrow and full of flowers|everything here is different|people here walk slowly and greet everyone]. [from my window i can see the {street}|there is {street@} at the end of our street|the {street} is only five minutes away].",
        "[yesterday|two days ago|this morning] i [met|got to know] {name2}, who [lives next door|works at the bakery|knows everyone here|is as fond of {hobby} as i am]. {he2} [showed me|took me to] the {street2}, and [we talked about {hobby} for hours|{he2} told me about {his2} family|we laughed a lot].",
        "[the only bad thing is|what i do not like is|sometimes i complain about] [the noise at night|the food|the long way to the shops|the cold room], but [i am getting used to it|i do not mind|it will get better].",
        "[for you i have found|i have bought you|i am sending you] {thing@}; it is {look}[, so i hope you like it|, just as you like it|, and it made me think of you|].",
        "[please write soon|please give my love to everyone|tell me how things are at home], and [do not forget to water my plants|feed the {pet} for me|take care of yourself|come and see me in {month}].",
        "[your|with love, your|many greetings from your|i miss you. your] {name}."])


@kind
def diary(d: Draw):
    return ("Write a diary entry by {name} about {weather@} {day} at the {place}[ with {name2}|].", "Diary", [
        "{day}, {month} " + str(d.rng.randint(1, 28)) + ". [today was|it was] {weather@} [day|day, and i woke up early|day, just as i had hoped].",
        "[after breakfast|in the morning|at ten o'clock|as soon as i was dressed] i went to the {place} with {name2}, because [we had planned it for weeks|{he2} had asked me|there was nothing to do at home|i wanted to think about something else].",
        "[at first|in the beginning|to be honest,] i was {sad}, [since i had slept badly|for we had argued the day before|because i had forgotten my lunch|as the way was so long], but [then|soon] [things changed|i felt better|{name2} made me laugh].",
        "[we found|{name2} found|a child showed us|we came across] {thing@} {spot}. it was {look}, and [we wondered where it came from|we took a picture of it|{name2} wanted to keep it|we guessed who had lost it].",
        "[later|in the afternoon|after lunch] we [sat down and talked about {hobby}|drank hot tea|met my {kin}|watched the people|played cards|shared a piece of cake], and [i laughed more than i have in weeks|time went by so fast|i told {him2} my secret|i almost forgot the time].",
        "[now|tonight] i am {glad} and [very tired|a little tired|not tired at all]. [tomorrow|next week|on the weekend] [i will go back there|i want to try {hobby}|i must finish my homework|i will write to my {kin}].",
        "[good night, dear diary.|that is all for today.|i hope that i will remember this day.|]"])


@kind
def weather_report(d: Draw):
    low = d.rng.choice([n for n in range(-5, 19) if abs(n) != 1])  # no "1 degrees"
    high = max(2, low + d.rng.randint(3, 12))
    skies = [("rainy", "heavy showers", "an umbrella", "rain"), ("windy", "strong wind from the west", "a warm jacket", "wind"), ("foggy", "thick fog", "a good light on the bicycle", "fog"),
             ("cloudy", "grey clouds", "a light coat", "cloud"), ("stormy", "thunder and lightning", "good shoes and a raincoat", "storm"), ("sunny", "a clear sky", "sunglasses", "warm air")]
    if high < 6:
        skies = [("snowy", "fresh snow", "warm boots", "snow"), ("icy", "ice on every road", "warm gloves", "frost"), ("frosty", "a clear but cold sky", "a thick scarf", "frost")]
    sky, what, gear, core = d.rng.choice(skies)
    months = ["December", "January", "February"] if high < 6 else ["June", "July", "August"] if high > 20 else MONTHS[2:6] + MONTHS[8:11]
    d.set(sky=sky, what=what, gear=gear, core=core, low=str(low), high=str(high), month=d.rng.choice(months), next=DAYS[(DAYS.index(d.words["day"]) + 1) % 7])
    return ("Write a weather report for {town} [on|for] {day} in {month}: {sky}, {high} degrees.", "Report", [
        "[here is|and now|this is] the {month} weather for {town}. {day} will be {sky}, with {what} [in the morning|from early morning|for most of the day|until the evening].",
        "[the temperature starts|it starts] at {low} degrees [before sunrise|at dawn|in the early hours] and [reaches|climbs to|goes up to] {high} degrees [in the afternoon|by two o'clock|around noon].",
        "[near the {street}|in the hills|along the river|close to the {street}] it [feels colder|may be a little warmer|will be quieter]"
        "[, so be careful on the roads|, and drivers should slow down|, and walkers should stay on the path|]. {name}, [a farmer|a teacher|a fisher|a guide] from the {street2}, [says that this {month} is unlike any other|hopes for a change soon|likes it just like that|has never seen such days in {month}].",
        "[if you go out|if you leave the house|for the {event} in the evening], [take {gear} with you|you will need {gear}|do not forget {gear}].",
        "[during the night|after sunset|later in the night], the {core} [grows weaker|moves away to the east|gives way to a quiet sky], and [the stars may come out|it gets cooler|the air becomes dry].",
        "[on {next}|the next day], [people in {town}|we] can [expect|hope for] [better weather|a milder day|more of the same|some sunshine][, but the end of the week stays uncertain|, and the weekend looks good|, while it turns colder in the north|]."])


@kind
def recipe(d: Draw):
    dish = d.rng.choice(list(DISHES))
    tool, served, cook = DISHES[dish]
    food, food2 = d.rng.sample([f for f in FOODS if f != "onion"], 2)
    d.set(dish=dish, tool=tool, served=served, cook=cook, food=food, food2=food2, herb=d.rng.choice(HERBS), people=d.rng.choice("two three four five six".split()),
          minutes=str(5 * d.rng.randint(2, 9)))
    return ("[Write|Give|Note down] [the steps|a recipe] for {food@} {dish} with {food2+} and {herb} for {people} people.", "Recipe", [
        "[this {food} {dish} is enough for {people} people|for {people} people you need a little time and {tool}|my {kin} {name} taught me this {food} {dish}, which is enough for {people}].",
        "first, [wash|rinse|clean] the {food+} and [the {food2+}|then the {food2+}], and cut them into [small pieces|thin slices|cubes|large chunks].",
        "[heat some oil|melt a spoon of butter|warm a little oil] in a pan and [add an onion|add a clove of garlic|stir in some salt|brown a little flour], [stirring until it smells good|and wait for two minutes|but keep the heat low].",
        "[put in|add] the {food+}, [then|and after five minutes] the {food2+}, and [season with salt and pepper|stir well|mix everything with a wooden spoon|shake the pan now and then].",
        "[pour in a cup of water|add half a cup of cream|add the juice of a lemon|add a glass of tomato juice], [move everything to {tool}|fill everything into {tool}], and let it {cook} for {minutes} minutes. [do not let it burn|taste it from time to time|meanwhile, set the table|you can clean the kitchen in the meantime].",
        "[at the end|shortly before serving|last of all], [chop the {herb} and scatter it on top|take some fresh {herb} and stir it in|the {herb} goes in].",
        "serve the {dish} {served}[, and cut some bread to go with it| while it is hot| at once|]. [what is left tastes even better the next day|children like it with a little cheese|it goes well with a glass of cold water|{name2} always asks for more]."])


@kind
def directions(d: Draw):
    a, b, c, e = d.rng.sample(SHOPS, 4)
    side = d.rng.choice(["left", "right"])
    where, start = d.rng.choice([("in {town}", " in {town}"), ("by way of {road}", ""), ("along {road}", ""), ("on foot", "")])
    d.set(a=a, b=b, c=c, e=e, where=where, start=start, side=side, other="right" if side == "left" else "left", count=d.rng.choice("second third fourth next".split()),
          road=d.rng.choice("Mill King Church Garden Station Park Bridge Long Queen River School Castle Rose Market".split()) + " " + d.rng.choice(["Street", "Road", "Lane", "Avenue"]))
    return ("[Explain|Describe|Tell {name}|Explain to {name}] the way from the {a} to the {b} {where}.", "Directions", [
        "[start at|leave from|begin in front of] the {a}{start} and [walk|go] [straight ahead|down the hill|slowly uphill] [along|down] {road} until you [see|reach|come to] the {c}.",
        "turn {side} [there|at the corner|after the traffic light|behind it], and [follow the road|keep going] for [about five minutes|two blocks|three hundred steps|a while].",
        "[on your {other} you will see|you will pass on your {other}|look to the {other}, and you will see] the {e}, [which has {color@} door|with its {color} roof|where there is always a crowd|where {name2} works].",
        "[do not stop there, but take|right after it, take|behind it, take|from there, take] the {count} street on the {other}. [it is narrow, so watch out for bicycles|it is a quiet one|there is a big tree at the corner|an old sign shows the way].",
        "[cross the small bridge|go through the gate|walk past a row of houses|go down some steps] and [then turn {side} again|keep to the {side}|walk on for two minutes].",
        "the {b} is [at the end of the road|right in front of you|next to {color@} house|behind {color@} fence]. [the whole way takes|it takes] [ten|fifteen|twenty] minutes[ on foot|].",
        "[if you get lost|if you are not sure|should it be dark], [ask anyone in {town} for the {b}|go back to the {c} and try again|look for the signs|call {friend}][, because everybody knows it|, for people here are friendly|]."])


@kind
def product(d: Draw):
    item = d.rng.choice(list(PRODUCTS))
    d.set(item=item, can=PRODUCTS[item], stuff=d.rng.choice(MATERIALS), price=str(d.rng.randint(9, 99)), years=d.rng.choice("two three five ten".split()), shop=d.rng.choice(TOWNS),
          quality=d.rng.choice("light strong simple clever modern elegant sturdy cheap useful handmade".split()))
    middle = ["[the {stuff} is easy to clean|the {color} finish does not fade|the {stuff} comes from a small workshop in {shop}], and [every part can be repaired|it weighs less than you think|nothing rattles or breaks].",
              "[our customers like|people praise|everyone likes] [the careful work|the {quality} shape|the pleasant {color} tone]. \"[i use it every day|i bought one for my {kin} as well|i would not give it away again|it is better than my old one],\" [says|writes] {name} from {town}.",
              "it [comes|is sold] [in three sizes|with a small bag|in a plain box|with a booklet], costs {price} dollars, and we [give|offer] a guarantee of {years} years."]
    d.rng.shuffle(middle)
    return ("[Write a product text for|Describe|Advertise] {quality@} {color} {item} made [of|with] {stuff}[ for {price} dollars|].", "Product", [
        "[meet our new {item}|this is the {item} you have been waiting for|are you looking for {item@}? here is the right one]: {quality}, {color} and made with [real|fine|good] {stuff}.",
        "[with it, you can|it helps you to|it lets you] {can}, [at home or on the road|day after day|without any trouble|whatever the weather].", *middle,
        "[order before {day}|order this week|visit our shop in {shop}] and [we will send it free of charge|you get a second one at half price|you can try it for a month].",
        "[{item@} like this|such {item@}] [makes a fine gift|lasts a lifetime|is hard to find elsewhere|is a friend for life]."])


@kind
def dialogue(d: Draw):
    d.hero(PEOPLE)
    d.hero(PEOPLE, "2")
    return ("Write a [short |]dialogue between {hero@} and {hero2@} about {thing@}[ at the {place}|].", "Dialogue", [
        "\"[good morning|hello|good evening|excuse me|what a day],\" said the {hero} [at|near] the {place}. \"[is that your {thing}|where did you get that {thing}|may i look at your {thing}|have you seen {thing@} anywhere|are you selling that {thing}]?\"",
        "\"[that is a long story|it depends on who is asking|i will tell you about it|funny that you ask],\" [answered|replied|said] the {hero2}. \"[i found one|there was one] {spot} {time}. [why do you ask?|is it important?|does it belong to you?]\"",
        "\"[i lost one just like it|my {kin} had one like it|i have been looking for one for years|i dreamed of one last night],\" the {hero} [explained|said]. \"it was {look}, but it {trouble}.\"",
        "the {hero2} [smiled|looked at it again|scratched {his2} head|was silent for a moment|put {his2} glasses on]. \"[then it must be the same one|how strange|that sounds right]. [do you know what it is good for?|can you prove it?|what would you do with it?]\"",
        "\"[yes, my {kin} once told me about it|everyone in {town} knows the tale|i can only tell you what people say],\" the {hero} [answered|went on]. \"[one day|in the end], {use}.\"",
        "\"[in that case|well then|if that is so],\" said the {hero2}, \"[you should have it|let us share it|it is yours|we will find out together|come in and sit down].\"",
        "the {hero} [shook {his2} hand|was {glad}|laughed|bowed], and [they walked away side by side|they drank a cup of tea together|the two were friends from then on|nobody spoke of money]."])


@kind
def invitation(d: Draw):
    return ("Write an invitation from {name} to {name2} for the {event} in {town}[ on {day}|].", "Invitation", [
        "dear {name2}, [i would like to invite you to|you are invited to|please come to|it is my pleasure to invite you to] [our|the] {event} in {town}[ this year|].",
        "it [takes place|will be held] on {day}, {month} " + str(d.rng.randint(1, 28)) + ", at {hour}, [in the garden behind|in the rooms of|right next to|across from] the {street}.",
        "[there will be|we are planning|you can look forward to] [music and games|good food and long talks|a small show about {hobby}|cake, tea and a surprise], and [later|after that] [we will dance|my {kin} will give a speech|we will light a fire|{friend} will play the violin].",
        "[you may bring|feel free to bring] [your {kin}|a friend|your {pet}]. [please wear something {color}|there is no need for presents|come as you are|a salad or some bread would be welcome].",
        "[if it is|in case it is|should it be] [rainy|windy|stormy|wet|too cold], [we will meet indoors|we will put up a tent|nothing changes], [so do not worry|because we have enough room|and there is tea for everyone].",
        "[please let me know|tell me] [by the end of the week|before the first of the month|soon] [whether you can come|if you will be there][, so that we can plan|, for we have to count the chairs|].",
        "[i would be [happy|glad|delighted] to see you|it would not be the same without you|we have not met for so long]. [yours|warm greetings|see you soon], {name}."])


@kind
def news_item(d: Draw):
    d.hero([p for p in PEOPLE if p not in {"king", "queen", "princess", "knight", "wizard", "giant"}])
    return ("Write a [short |]news item about {hero@} from {town} who found {thing@}[ at the {place}| {spot}|].", "News", [
        "{town}. {trait@} {hero} [made an unusual discovery|had a surprise|became famous overnight] on {day}: [near|at] the {place}, {he} found {thing@} {spot}.",
        "\"[i thought it was a joke|at first i wanted to leave it there|i could not believe my eyes|i was only looking for my {pet}],\" said the {hero}, who [has lived in {town} for years|is well known for {his} love of {hobby}|was on {his} way to work].",
        "the {thing}, which is {look}, {trouble} [when it was found|at first], but [experts repaired it|two neighbors helped to repair it|after some work it was fine again].",
        "[a woman from the museum|the mayor|a teacher of history|a collector named {name2}] [believes|says|is sure] that it is [at least a hundred years old|very rare|of great value][, and the police are looking for the owner|, and visitors are already arriving|].",
        "[by the weekend|a few days later|soon] it was clear to everyone [in {town}|in the town]: {use}.",
        "[the town will celebrate with {event@}|there will be a small party at the {street}|the {thing} will be shown at the {street} until {month}]. [\"we are [happy|proud|delighted],\" said {friend}, a neighbor|the {hero} will be the guest of honor]."])


@kind
def plan(d: Draw):
    return ("[Write|Make|Note down] a plan for {weather@} {day} with {name2} at the {street}.", "Plan", [
        "[the plan for {day} is simple|here is what we will do on {day}|this is how {day} will go|{day} is the day, and this is the plan]. [at seven|at eight|right after waking up], [we get up and have a big breakfast|i make breakfast for everyone|i walk around the block with the {pet}].",
        "then {name2} [comes by|meets us at the door|brings the bicycles], and we [go|walk|ride] to the {street}[ by way of the {street2}|]. [it will be {weather}, they say|people say that it will be {weather}|on {weather@} day it is best to leave early].",
        "[until noon|in the morning] we [do some {hobby}|look for the best spot|help my {kin} with the work|look at everything there is to see][, which {name2} enjoys more than anything|, as long as we are not tired|].",
        "[for lunch there is|at lunchtime we eat] [bread, cheese and apples|soup from a big pot|whatever {name2} brings along], and [afterwards|then] [we rest for an hour|everyone may sleep a little|we play a game].",
        "[in the afternoon|around [two|three|four]], [there is the {event}|we go to the {event}][, and i do not want to miss it|, so we must be on time|].",
        "[if it gets too late|should anything go wrong|if somebody gets tired], we [go back home|sit in the cafe|change the order], and [nobody will be {sad}|that would be fine as well].",
        "[in the evening|at the end of the day] we [write down what we have seen|cook together|watch a film|talk about {hobby}], and [i think everyone will be {glad}|then it is time for bed]."])


@kind
def place_description(d: Draw):
    middle = ["[at the entrance stands|the first thing you see is|on the left there is] [an old tree with {color} leaves|{color@} gate|a small house with {color@} roof], and [beyond it|behind it] [a path leads uphill|the land opens up|the noise of the town fades away].",
              "[the air smells of|everything smells of] [wet earth|fresh bread|salt|hay|smoke and apples], and [from somewhere comes|you can hear] [the sound of a bell|the call of a bird|children's laughter|a slow song].",
              "[an old man sits|a woman sits|a child sits] [under a tree|by the door|on the steps|at a small table|on a bench|near the wall], with {thing@} that is {look}[, and does not seem to wait for anything|, and smiles at everyone who passes|].",
              "[some people come here for {hobby}|most visitors come for the {event}|in {month} the school classes come here], [others simply want to be alone|others only want to rest]."]
    d.rng.shuffle(middle)
    d.set(when=d.rng.choice(["in {month}", "on {weather@} day", "{time}", "on {day}"]))
    return ("Describe the {street} [near|in|of] {town} {when}.", "Description", [
        "[anyone who visits|everyone who comes to|whoever sees] the {street} [near|in] {town} {when} "
        "[will not forget it|should take some time|will be {glad}].",
        *middle[:d.rng.randint(3, 4)],
        "[a hundred years ago|in the old days|long before our time], [there was a market here|a famous painter lived here|travelers slept here][, but today only the walls are left|, and some of that life can still be felt|, as {name} from the museum will tell you].",
        "[when evening comes|at dusk|when the lamps are lit], the {street} [grows quiet|turns {color}|seems larger], and [one feels {glad}|it is hard to leave|the day is over]."])


@held_out_kind
def lost_pet_poster(d: Draw):
    d.set(fur=d.rng.choice(FUR))
    return ("Write a poster about a lost {fur} {pet} [in {town}|near the {street} in {town}].", "Poster", [
        "lost: our {fur} {pet} [has been missing since {day}|disappeared on {day}]. [it was last seen|someone saw it] {spot} near the {street} in {town}.",
        "[the {pet} is {trait}|it is {trait@} animal] and [answers to the name of {name}|likes to hide in dark corners|is afraid of loud noises]. around its neck it wears [{color@} ribbon|a small bell|a band with our address].",
        "[our {kin} is very {sad}|the children are {sad}|we are all {sad}], because [the {pet} has lived with us for years|the house is so quiet now].",
        "[please look in your garden|please check your cellar|please look behind your shed]. [do not try to catch it, but speak to it softly|offer it some water|give it something to eat].",
        "[if you know anything|if you see it], [call {name2}|leave a note for {name2} at the {street}], [at any time|day or night].",
        "there is a reward: [a basket of fruit|a free dinner|twenty dollars|a big cake]. [we would be so [glad|thankful] to have it back|thank you for your help]."])


@held_out_kind
def thank_you_card(d: Draw):
    return ("Write a thank-you card from {name} to {his} {kin} for {thing@}.", "Card", [
        "dear {kin}, [thank you so much for|many thanks for] the {thing} [that came on {day}|you sent me]. it is {look}, and [i could not believe my eyes|i was {glad} when i opened the box].",
        "[i showed it to {name2} at once|{name2} wants to have one too|{name2} was here when it came], and [we took it to the {street}|we talked about you all evening].",
        "i must admit that it {trouble} [at first|in the beginning], but [{name2} helped me|after a little work everything was fine], and [now we know|soon we found out]: {use}.",
        "[how are you|how is the weather in {town}|are you still fond of {hobby}]? [here it has been {weather}|i have been busy with {hobby}], and [i often think of the {event} last year|school is as always].",
        "[i hope to see you in {month}|please visit us soon], and [then i will show you everything|i will bake a cake for you].",
        "[with love|yours|a big hug], {name}."])


@held_out_kind
def apology(d: Draw):
    return ("Write an apology from {name} to {name2} for missing the {event} on {day}.", "Apology", [
        "dear {name2}, i am [so|very|truly] sorry that i missed the {event} on {day}.",
        "[i had everything ready|i was looking forward to it|i left the house in time], but [then|on the way] [my {kin} fell ill|the {pet} ran away near the {street}|the bus broke down near the {street}|i found a lost child near the {street}].",
        "[by the time i arrived|when i could leave at last|at {hour}], [everyone had gone|the doors were closed], and i felt {sad}.",
        "[i should have called you|i know that i should have told you earlier|it was wrong not to send a message][, and there is no excuse|, for you had worked so hard on it|].",
        "[let me make it up to you|i would like to put it right]: [come to the {street2} with me|let me cook for you|i will help you with your {hobby}] [next week|as soon as you have time].",
        "[i have also found|there is also] {thing@} [for you|that you may like]. it is {look}, and i hope [it makes you smile|you have a place for it].",
        "[please forgive me|i hope that you are not angry]. [your friend|yours], {name}."])


def generate(rng: random.Random, held_out: bool = False) -> dict:
    """Draw one text: task, template (the kind), seen_template, prompt (ends in a line such as "Story:") and response.

    Training never sees a prompt whose crc32 is divisible by 16, nor any kind of HELD_OUT; responses have 55 to 140 words.

    >>> generate(random.Random(0))["task"]
    'text'
    """
    unseen = held_out and rng.random() < 0.5
    pool = HELD_OUT if unseen else KINDS
    while True:
        name = rng.choice(list(pool))
        draw = Draw(rng)
        request, label, sentences = pool[name](draw)
        prompt = f"{capitalize(draw.say(request, share=0.0))}\n{label}:"
        if not unseen and (zlib.crc32(prompt.encode()) % 16 == 0) != held_out:
            continue
        response = " " + capitalize(" ".join(filter(None, map(draw.say, sentences))))
        if 55 <= len(response.split()) <= 140:
            return {"task": "text", "template": name, "seen_template": not unseen, "prompt": prompt, "response": response}
