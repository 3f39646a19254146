"""Words of the narrow world and their forms: names, nouns, verbs, numbers."""

from __future__ import annotations

import re
from pathlib import Path


def words(text: str) -> list[str]:
    """The words of `text`; an underscore stands for a space inside one."""
    return [word.replace("_", " ") for word in text.split()]


def read_lists(file: Path) -> dict[str, list[str]]:
    """Named lists of a file: "NAME: words", or a line "NAME" and an item on each line after it; indented lines go on."""
    lists: dict[str, list[str]] = {}
    for line in re.sub(r"\n +", " ", file.read_text(encoding="utf-8")).splitlines():
        if match := re.fullmatch(r"([A-Z]{2,}\w*)(?:: (.*))?", line):
            name = match[1]
            lists[name] = words(match[2] or "")
        elif line and not line.startswith("#"):
            lists[name].append(line)
    return lists


GIRLS = words("""
Ada Alice Amy Ana Ann Anna Bella Beth Carla Clara Cora Dana Diana Dora Ella Ellen Emily Emma Eva Eve Fay Fiona Gina Grace
Greta Hanna Hazel Helen Ida Ines Iris Ivy Jane Jill Joan Joy Judy Julia June Kate Kim Laura Lea Lena Lily Linda Lisa Lola
Lucy Maja Maria Marta Mary Maya Mia Mila Mina Molly Mona Nadia Nancy Nina Nora Olga Olive Paula Petra Pia Rita Rosa Rose
Ruby Ruth Sally Sara Sofia Sonja Sue Susan Tara Tess Tina Uma Una Vera Wendy Zoe Sophie Mara Jenny Lara Elsa""")
BOYS = words("""
Adam Alan Alex Anton Arthur Ben Bill Bob Boris Carl Chris Dan Daniel David Dean Denis Eric Erik Felix Finn Frank Fred
George Greg Gus Hans Harry Henry Hugo Ian Igor Ivan Jack Jake James Jim Joe John Jonas Josh Karl Ken Kevin Kurt Lars Leo
Liam Luis Luke Marco Mark Martin Matt Max Mike Milo Neil Nick Nils Noah Oliver Omar Oscar Otto Pablo Paul Pedro Peter Phil
Ralf Ray Rob Ron Ross Sam Sid Simon Steve Sven Theo Tim Toby Tom Tony Victor Walter Will Yuri Zack Ali Amir Kofi Raj""")
SISTERS = words("sister mother aunt grandmother niece grandma mom daughter wife")
BROTHERS = words("brother father uncle grandfather nephew grandpa dad son")
FRIENDS = words("friend cousin neighbor teacher classmate")
JOBS = words("""baker farmer teacher cook gardener painter tailor shopkeeper fisherman carpenter florist nurse librarian
mechanic potter student boy girl hunter clown sailor pilot builder waiter grocer artist collector child coach clerk driver""")

FOOD = words("""apple pear plum peach orange lemon mango banana cherry grape melon kiwi fig berry strawberry apricot
cookie muffin cake pie bun roll waffle pancake donut cupcake pretzel bagel croissant cracker biscuit tart egg carrot potato
tomato onion pepper mushroom bean radish cucumber pumpkin candy chocolate lollipop gumdrop sweet mint nut peanut almond
walnut date sausage meatball dumpling sandwich burger pizza taco olive pickle fish_finger chip snack ice_cream jelly_bean
slice_of_bread slice_of_pizza piece_of_cake rice_cake bar_of_chocolate""")
THINGS = words("""pencil pen crayon marker brush eraser ruler notebook book comic folder envelope stamp letter postcard card
sticker poster map photo picture ticket coin button bead ribbon badge medal key lock ball bat racket kite doll puppet robot
puzzle dice marble balloon whistle drum flute bell toy toy_car model_plane board_game teddy_bear shell pebble stone rock
feather leaf acorn flower rose tulip daisy lily tree bush plant seed pot bucket basket shovel rake hose nail screw bolt
hammer brick tile plank bulb battery candle lamp lantern cup mug glass bowl plate fork spoon knife jar bottle can tin box
bag towel cushion pillow blanket sheet rug curtain hat cap scarf glove sock shoe boot shirt coat belt tie dress mask helmet
umbrella watch ring clock chair stool bench table shelf desk tent rope magnet needle pin paper_clip paper_plane lego_brick
flag sign wheel tire bike scooter skate sled boat paper_star string_of_lights tool magazine newspaper CD record pair_of_socks
roll_of_tape bar_of_soap piece_of_chalk sheet_of_paper""")
NOUNS = FOOD + THINGS
PLANTS = words("""tulip rose daisy lily sunflower bush tree carrot cabbage bean pumpkin potato onion tomato_plant pea seed
apple_tree bulb orchid cactus fern pine oak pear_tree herb lettuce""")
ROW_THINGS = words("chair seat tree plant table bench desk car tent lamp tile stone brick vine bed flower stamp pin")
ANIMALS = words("""bird duck cow sheep goat horse pig dog cat rabbit chicken hen goose bee ant frog fish butterfly pigeon
sparrow monkey parrot lion penguin deer squirrel crow fly mouse swan seal bear llama pony turkey fox owl turtle snail lizard
kitten puppy hamster dolphin spider beetle zebra camel wolf""")
PEOPLE = words("""child student pupil person boy girl player guest visitor passenger worker man woman friend kid fan dancer
singer runner tourist swimmer customer reader skater soldier scout teacher camper member""")
SHARERS = words("friend child student kid person cousin sister brother neighbor classmate girl boy player guest neighbor")
GROUPS = words("group team row class table pair line")
BOXES = words("""box bag basket crate jar packet pack carton bin sack case bundle drawer tin tub shelf pile stack bucket
pouch chest cupboard bunch cart envelope suitcase backpack pocket row set""")
FOOD_BOXES = words("""box bag basket bowl plate tray packet pack carton tin jar crate sack pot bucket tub lunch_box shelf dish
pan cupboard row""")
BIG_BOXES = words("truck van room yard row cart wagon boat train shed garage hall trailer")
BULKY = words("""bush tree shovel rake chair stool bench table shelf desk tent bike scooter sled boat wheel tire rug curtain
coat umbrella plank""")
PRICED = words("""book pen pencil ball hat shirt toy ticket cup plate bag cake sandwich coffee tea kite game card notebook
lamp chair doll scarf cap belt mug pizza burger juice melon stamp comic puzzle poster key battery rose plant
bottle_of_water loaf_of_bread ice_cream movie_ticket bus_ticket toy_car T-shirt pair_of_socks brush bowl towel glove watch
magazine salad soup cookie apple bar_of_soap candle flower tie jacket radio umbrella mirror pie pineapple""")
PLACES = words("""park pond tree field farm room bus train party cafe beach hall library museum playground zoo lake garden
square station shop roof fence yard gym pool cinema school stadium camp ship boat hill bridge concert market bench street
harbor meadow wire branch island kitchen restaurant forest""")
ON_PLACES = "roof|fence|hill|bridge|beach|farm|bench|branch|wire|boat|ship|island|field|street|square"
COLORS = words("red blue green yellow white black brown orange purple pink gray gold silver")
LOOKS = words("""red blue green yellow white black brown big small old new round wooden plastic long short soft
shiny broken fresh pretty heavy light cheap""")
STRINGS = words("ribbon rope stick string board wire cable plank thread pipe chain fence rod log cord tape candle worm")
WAYS = words("km km miles meters")
LENGTHS = words("cm m km inches feet meters miles centimeters yards millimeters")
WEIGHTS = words("kg kg pounds grams kilograms ounces")
VOLUMES = words("liters liters cups ml gallons glasses pints")
TIMES = words("minutes hours minutes hours minutes days")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

IRREGULAR_NOUNS = dict(
    shelf="shelves", fish="fish", leaf="leaves", knife="knives", mouse="mice", woman="women", man="men", child="children",
    dice="dice", person="people", goose="geese", sheep="sheep", wolf="wolves", deer="deer", potato="potatoes", taco="tacos",
    tomato="tomatoes", radio="radios", mango="mangoes", loaf="loaves", fisherman="fishermen", foot="feet", thief="thieves",
    photo="photos", half="halves", CD="CDs", dwarf="dwarfs", scarf="scarves", kilo="kilos", piano="pianos", scouts="scouts",
    elf="elves", snowman="snowmen")
IRREGULAR_VERBS = dict(
    have="had", be="was", buy="bought", find="found", get="got", win="won", make="made", give="gave", sell="sold", eat="ate",
    lose="lost", break_="broke", throw="threw", spend="spent", put="put", take="took", catch="caught", draw="drew",
    write="wrote", read="read", run="ran", drive="drove", ride="rode", swim="swam", build="built", grow="grew", lay="laid",
    send="sent", cut="cut", hide="hid", leave="left", fly="flew", go="went", come="came", fall="fell", pay="paid", keep="kept",
    see="saw", bring="brought", drink="drank", sing="sang", know="knew", hold="held", say="said", set="set", feed="fed",
    tear="tore", burn="burned", steal="stole", think="thought", hand="handed", sew="sewed", knit="knitted", dig="dug",
    do="did", sit="sat", stand="stood", shut="shut", lend="lent", hang="hung", sleep="slept", teach="taught", forget="forgot",
    meet="met", split="split", quit="quit", deal="dealt", shoot="shot", light="lit", wear="wore", tell="told")
ONES = words("""zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen""")
TENS = words("ten twenty thirty forty fifty sixty seventy eighty ninety")


def plural(noun: str) -> str:
    """Plural of a noun or of a compound: plural("slice of pizza") == "slices of pizza"."""
    if " of " in noun:
        head, rest = noun.split(" of ", 1)
        return f"{plural(head)} of {rest}"
    head, _, last = noun.rpartition(" ")
    if last in IRREGULAR_NOUNS:
        last = IRREGULAR_NOUNS[last]
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
    form = IRREGULAR_VERBS.get(verb) or IRREGULAR_VERBS.get(verb + "_")
    if form is None and verb.endswith("y") and verb[-2] not in "aeiou":
        form = verb[:-1] + "ied"
    elif form is None and verb in ("drop", "pop", "plan", "grab", "trim", "stop", "clap", "step", "hop", "drip", "slip", "nap"):
        form = verb + verb[-1] + "ed"
    elif form is None:
        form = verb + ("d" if verb.endswith("e") else "ed")
    return f"{form} {rest}" if rest else form


def number_word(n: int) -> str:
    """A number up to a hundred in words."""
    if n < 20:
        return ONES[n]
    if n == 100:
        return "one hundred"
    return TENS[n // 10 - 1] + ("-" + ONES[n % 10] if n % 10 else "")


def capital(text: str) -> str:
    """`text` with a capital first letter."""
    return text[:1].upper() + text[1:]
