"""Small Python functions from a description, with docstring and asserts: the training and test text of the task "code".

A kind is a block of code_kinds.txt: argument types, function names, phrases and several bodies, all with slots
($x, $e, $r ...) that one draw fills with names and constants. Many kinds also take a condition ($c, "are even") or a
change ($v, "doubled") from a second table, so that one kind stands for dozens of functions. The asserts of an example
are not written anywhere: the function is executed on drawn inputs and its results are kept.

Example: generate(random.Random(0))["response"] -> '\\ndef count_odd(values):\\n    \"\"\"Return how many ...'
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .wording import favour

# What a slot means:
#   $x $y        argument names            $X        $x with "the list" or backticks, for phrases
#   $e $f        element, second element   $N $S     what elements are called: numbers, number
#   $r $t $n     result, total, counter    $o $w     other list, best so far
#   $i $j        indices or pair elements  $F        the function's own name
#   $k $l $m $d  bound, higher bound, divisor, digit
#   $h $z $B     word length, width, group size
#   $a $b $u     letters ($u: mid-alphabet)
#   $s $q $p     separator, sign, word piece
#   $c $g $W     a condition on $e, its negation, its short name
#   $C $D        the condition in words, plural and singular ("are even", "is even")
#   $v $P $Q     a changed $e, the change in words ("doubled"), its short name
# In code_kinds.txt: "[kind] argument types", "> function names", "- phrase" (a value) or "? phrase" (a truth), then
# bodies, indented, separated by "--". A line "#? ..." is a comment that one drawn function in three keeps.
KINDS = (Path(__file__).parent / "code_kinds.txt").read_text(encoding="utf-8")

# One line each: words with "plural|singular" verb; condition; its negation; name.
NUMBER_CONDITIONS = """
are|is even; $e % 2 == 0; $e % 2 != 0; even
are|is odd; $e % 2 == 1; $e % 2 == 0; odd
are|is positive; $e > 0; $e <= 0; positive
are|is negative; $e < 0; $e >= 0; negative
are|is greater than $k; $e > $k; $e <= $k; above_$k
are|is larger than $k; $e > $k; $e <= $k; over_$k
are|is at least $k; $e >= $k; $e < $k; at_least_$k
are|is less than $k; $e < $k; $e >= $k; below_$k
are|is smaller than $k; $e < $k; $e >= $k; under_$k
are|is at most $k; $e <= $k; $e > $k; at_most_$k
are|is divisible by $m; $e % $m == 0; $e % $m != 0; divisible_by_$m
are|is not divisible by $m; $e % $m != 0; $e % $m == 0; not_divisible
are|is between $k and $l; $k <= $e <= $l; not $k <= $e <= $l; between
lie|lies outside the range $k to $l; $e < $k or $e > $l; $k <= $e <= $l; outside
end|ends in the digit $d; abs($e) % 10 == $d; abs($e) % 10 != $d; ending_in_$d
differ|differs from $k; $e != $k; $e == $k; not_$k
have|has two digits; 10 <= abs($e) <= 99; not 10 <= abs($e) <= 99; two_digit
leave|leaves the remainder 1 when divided by $m; $e % $m == 1; $e % $m != 1; remainder_one
have|has a square greater than $l; $e * $e > $l; $e * $e <= $l; large_square
are|is even and greater than $k; $e % 2 == 0 and $e > $k; $e % 2 != 0 or $e <= $k; even_above
are|is odd and less than $l; $e % 2 == 1 and $e < $l; $e % 2 == 0 or $e >= $l; odd_below
"""
WORD_CONDITIONS = """
are|is longer than $h letters; len($e) > $h; len($e) <= $h; longer_than_$h
are|is shorter than $h letters; len($e) < $h; len($e) >= $h; shorter_than_$h
have|has exactly $h letters; len($e) == $h; len($e) != $h; with_$h_letters
have|has at least $h letters; len($e) >= $h; len($e) < $h; at_least_$h
have|has at most $h letters; len($e) <= $h; len($e) > $h; at_most_$h
start|starts with "$a"; $e.startswith("$a"); not $e.startswith("$a"); starting_with_$a
begin|begins with the letter $a; $e[0] == "$a"; $e[0] != "$a"; with_$a_first
end|ends with "$a"; $e.endswith("$a"); not $e.endswith("$a"); ending_with_$a
contain|contains the letter "$a"; "$a" in $e; "$a" not in $e; with_$a
do|does not contain "$a"; "$a" not in $e; "$a" in $e; without_$a
start|starts with a vowel; $e[0] in "aeiou"; $e[0] not in "aeiou"; vowel_first
end|ends with a vowel; $e[-1] in "aeiou"; $e[-1] not in "aeiou"; vowel_last
have|has an even number of letters; len($e) % 2 == 0; len($e) % 2 == 1; even_length
have|has an odd number of letters; len($e) % 2 == 1; len($e) % 2 == 0; odd_length
read|reads the same backwards; $e == $e[::-1]; $e != $e[::-1]; palindromes
come|comes before "$u" in the alphabet; $e < "$u"; $e >= "$u"; before_$u
contain|contains "$a" or "$b"; "$a" in $e or "$b" in $e; "$a" not in $e and "$b" not in $e; with_$a_or_$b
"""
CHAR_CONDITIONS = """
are|is a vowel; $e in "aeiou"; $e not in "aeiou"; vowels
are|is a digit; $e.isdigit(); not $e.isdigit(); digits
are|is an upper-case letter; $e.isupper(); not $e.isupper(); upper
are|is a lower-case letter; $e.islower(); not $e.islower(); lower
are|is a letter; $e.isalpha(); not $e.isalpha(); letters
are|is a space; $e == " "; $e != " "; spaces
are|is equal to "$a"; $e == "$a"; $e != "$a"; letter_$a
are|is either "$a" or "$b"; $e in "$a$b"; $e not in "$a$b"; $a_or_$b
are|is different from "$a"; $e != "$a"; $e == "$a"; not_$a
come|comes after "$u" in the alphabet; $e > "$u"; $e <= "$u"; after_$u
are|is neither a letter nor a digit; not $e.isalnum(); $e.isalnum(); symbols
"""
# One line each: words; changed element; name.
NUMBER_CHANGES = """
squared; $e * $e; square
squared; $e ** 2; square
cubed; $e ** 3; cube
doubled; $e * 2; double
doubled; 2 * $e; double
tripled; 3 * $e; triple
halved (rounded down); $e // 2; halve
negated; -$e; negate
increased by $m; $e + $m; add_$m
decreased by $m; $e - $m; subtract_$m
multiplied by $m; $e * $m; times_$m
multiplied by $m and increased by $d; $e * $m + $d; scale
replaced by its remainder modulo $m; $e % $m; mod_$m
limited to at most $k; min($e, $k); cap_$k
raised to at least $k; max($e, $k); floor_$k
replaced by its last digit; abs($e) % 10; last_digit
replaced by its absolute value; abs($e); absolute
replaced by its distance from $k; abs($e - $k); distance
subtracted from $l; $l - $e; complement
"""
WORD_CHANGES = """
written in upper case; $e.upper(); upper
written in capitals; $e.upper(); capitals
capitalized; $e.capitalize(); capitalize
reversed; $e[::-1]; reverse
written backwards; $e[::-1]; backwards
repeated twice; $e * 2; twice
followed by "$q"; $e + "$q"; mark
followed by "$p"; $e + "$p"; append
put after "$p"; "$p" + $e; prefix
shortened to its first $m letters; $e[:$m]; shorten
stripped of its first letter; $e[1:]; tail
stripped of its last letter; $e[:-1]; trim
replaced by its last letter; $e[-1]; last_letter
put between "$q" signs; "$q" + $e + "$q"; wrap
filled up with "$q" to $z characters; $e.ljust($z, "$q"); pad
stripped of every "$a"; $e.replace("$a", ""); strip_$a
given "$b" for every "$a"; $e.replace("$a", "$b"); swap_$a
"""
CHAR_CHANGES = """
written in upper case; $e.upper(); upper
doubled; $e * 2; double
doubled; $e + $e; double
followed by "$q"; $e + "$q"; mark
put in brackets; "(" + $e + ")"; bracket
"""

WORDS = """apple river stone cloud table lemon tiger paper house green window garden bread candle music orange silver
winter summer train bridge forest pencil bottle button carpet dinner engine finger hammer island jacket kitten ladder
market needle ocean pepper rabbit salad ticket violin wagon yellow zebra level radar noon civic eye ant bee cat dog egg
fox hat ice jam kite lamp moon nest owl pig queen rose sun tree ball urn van wolf box yak zoo data code test unit node
loop list item area idea echo anna otto kayak apron arrow under over open end edge easy early even ever alpha beta
gamma delta omega sugar coffee honey museum school letter number pocket planet rocket shadow signal silent simple spring
street summit temple thunder tunnel valley velvet walnut whisper copper cotton donkey eagle feather ginger harbor level
madam kite igloo insect onion otter ostrich uncle umbrella unit oak elm ash fir inn oar oil ink tin pan pin pen cup mug
delta omega red blue black white brown gold iron wood sand snow rain wind fire star hill lake road farm barn
""".split()
NAMES = "Ann Ben Cora Dan Eva Finn Gus Hana Ian Jo Kim Leo Mia Ned Ola Pam Rae Sam Tom Uma Vera Will Zoe".split()
FRUIT = "pear plum fig lime kiwi nut corn rice milk tea salt oil bean cake soup".split()

# Argument names per type, each with the names its elements may get.
ARGUMENTS = {
    "ints": "numbers:number/n/num values:value/v/val nums:num/n/number items:item/x/element data:d/value/x xs:x/n"
            " scores:score/s integers:n/number/x elements:element/e/x amounts:amount/a/value seq:x/n/item"
            " lst:x/item/n sizes:size/s ages:age/a points:point/p prices:price/p array:x/value/number",
    "words": "words:word/w strings:s/string/word names:name/n/word items:item/s/w labels:label/s terms:term/t/word"
             " tokens:token/t/tok lines:line/s entries:entry/s/item keys:key/k/name",
    "text": "text:char/c/letter/ch string:c/char/ch s:c/ch/char sentence:char/letter/c line:c/char/symbol"
            " message:letter/char/ch phrase:ch/c/char source:c/char/symbol",
    "word": "word:letter/c/char/ch name:c/letter/ch s:c/ch/char text:char/c/letter term:ch/letter/c",
    "n": "n:d/x number:d/x num:d/x value:v/x m:x/v count:c/v limit:x/v size:x/v",
    "small": "n:x k:x count:x times:x size:x m:x length:x",
    "big": "n:d number:d num:d value:d code:d",
    "letter": "letter:c target:c wanted:c ch:c symbol:c",
    "target": "target:x wanted:x goal:x value:x number:x",
    "key": "key:k name:k wanted:k word:k",
    "table": "table:row/line/r grid:row/line/r matrix:row/r/vector rows:row/r/line cells:row/line",
    "mapping": "scores:name/key/who prices:item/name/key ages:name/who/key stock:item/key/name counts:key/word/name"
               " points:name/key/player table:key/name/k",
    "pairs": "pairs:name/key entries:name/key/label records:name/label/key items:name/key sales:name/who/item",
}
ARGUMENTS["repeats"] = ARGUMENTS["words"]
ARGUMENTS["digits"] = ARGUMENTS["sortish"] = ARGUMENTS["ints"]
SECOND = {  # names of the inner or second element
    "table": "value number cell v x n", "mapping": "value amount v count points", "pairs": "number amount value n v",
    "words": "value number n v",
}
TWINS = {  # for two arguments of the same type
    "ints": "first:second left:right a:b one:other xs:ys u:v".split(),
    "n": "a:b m:n first:second x:y number:other".split(),
    "small": "width:height rows:columns m:n a:b x:y".split(),
}
RESULTS = "result result out res output new answer collected".split()
CHOSEN = "kept found chosen selected matching".split()  # also for results of a condition
TOTALS = "total total running acc so_far current".split()
COUNTS = "count count tally hits counter".split()
OTHERS = "others rest remaining".split()
WINNERS = "best best winner leader".split()
INDICES = "i i i index pos idx k".split()
PAIRS = "i:j a:b p:q u:v this:that".split()  # elements of two lists walked together
GENERIC = "solve process compute run task helper transform work apply handle func calc".split()
NOUNS = {
    "number": "numbers:number numbers:number values:value integers:integer elements:element items:item".split(),
    "word": "words:word words:word strings:string items:item".split(),
    "char": "characters:character characters:character letters and signs:sign symbols:symbol".split(" ", 2)[:2]
            + ["characters:character", "symbols:symbol"],
}
REFERENCES = {
    "list": ["`$x`", "`$x`", "the list `$x`", "the given list", "the list"],
    "string": ["`$x`", "`$x`", "the string `$x`", "the given string", "the string"],
    "table": ["`$x`", "the table `$x`", "the given table", "the list of rows `$x`"],
    "dict": ["`$x`", "the dictionary `$x`", "the given dictionary", "the dict `$x`"],
    "number": ["`$x`"],
}
ELEMENT = {"words": "word", "repeats": "word", "text": "char", "word": "char", "pairs": "pair"}
CONTAINER = {"text": "string", "word": "string", "table": "table", "mapping": "dict", "n": "number", "small": "number",
             "big": "number", "letter": "number", "target": "number", "key": "number"}
VERBS = (["returns"] * 4 + ["gives back", "produces", "computes"],
         ["Return"] * 4 + ["Give back", "Produce", "Compute", ""])
TRUTH = (["tells whether", "returns True if", "checks whether", "returns whether", "checks if"],
         ["Tell whether", "Return True if", "Check whether", "Return whether", "Check if", "True if"])
DULL = ["[]", "''", "0", "None", "-1", "{}"]  # results that a first assert avoids
SLOT = re.compile(r"\$([A-Za-z])")
PLUS = re.compile(r"^( *)(\$\w) \+= (.+)$")
AGREE = re.compile(r"(\w+)\|(\w+)")


@dataclass(frozen=True)
class Kind:
    """One family of functions: argument types, name, phrase and body patterns."""

    name: str
    types: tuple[str, ...]
    held_out: bool
    names: tuple[str, ...]
    phrases: tuple[str, ...]
    truth: bool
    bodies: tuple[str, ...]

    @property
    def uses_condition(self) -> bool:
        return "$c" in self.bodies[0] or "$g" in self.bodies[0]

    @property
    def uses_change(self) -> bool:
        return "$v" in self.bodies[0]


def _parse_kind(block: str) -> Kind:
    """Read one block of code_kinds.txt (its first line has lost the leading bracket)."""
    head, *lines = block.rstrip().split("\n")
    name, rest = head.split("]")
    types = rest.split()
    marked = [line for line in lines if line[:1] in ">-?"]
    body = "\n".join(line[4:] for line in lines if line.startswith("    "))
    return Kind(
        name=name,
        types=tuple(t for t in types if t != "held-out"),
        held_out="held-out" in types,
        names=tuple(word for line in marked if line[0] == ">" for word in line[2:].split()),
        phrases=tuple(line[2:] for line in marked if line[0] != ">"),
        truth=any(line[0] == "?" for line in marked),
        bodies=tuple(part.strip("\n") for part in body.split("\n--\n")),
    )


def _rows(table: str) -> list[tuple[str, ...]]:
    return [tuple(part.strip() for part in line.split("; ")) for line in table.strip().split("\n")]


ALL_KINDS = [_parse_kind(block) for block in ("\n" + KINDS).split("\n[")[1:]]
TRAINING_KINDS = [kind for kind in ALL_KINDS if not kind.held_out]
TRAINING_KINDS += [kind for kind in TRAINING_KINDS if kind.uses_condition or kind.uses_change]  # these are many in one
HELD_OUT_KINDS = [kind for kind in ALL_KINDS if kind.held_out]
CONDITIONS = {"number": _rows(NUMBER_CONDITIONS), "word": _rows(WORD_CONDITIONS), "char": _rows(CHAR_CONDITIONS)}
CHANGES = {"number": _rows(NUMBER_CHANGES), "word": _rows(WORD_CHANGES), "char": _rows(CHAR_CHANGES)}
ARGUMENT_NAMES = {
    kind: [(name, elements.split("/")) for name, elements in (entry.split(":") for entry in text.split())]
    for kind, text in ARGUMENTS.items()
}


def _ints(rng: random.Random, low: int = 2, high: int = 5) -> list[int]:
    bottom, top = rng.choice([(0, 9), (1, 20), (-9, 9), (1, 12), (0, 30), (-5, 20), (1, 5), (10, 60)])
    return [rng.randint(bottom, top) for _ in range(rng.randint(low, high))]


def _text(rng: random.Random) -> str:
    words = [rng.choice(WORDS) for _ in range(rng.randint(1, 3))]
    style = rng.randrange(6)
    if style == 0:
        words[-1] = str(rng.randint(1, 99))
    elif style == 1:
        words = [word.capitalize() for word in words]
    elif style == 2:
        words[0] = words[0].upper() + rng.choice("!?-:")
    elif style == 3:
        words[0] += str(rng.randint(0, 9))
    return " ".join(words)


def _letter(rng: random.Random, before: list) -> str:
    return rng.choice(before[0] or "a") if rng.random() < 0.7 else rng.choice("aeiorst")


def _target(rng: random.Random, before: list) -> int:
    roll = rng.random()
    if roll < 0.4:
        return rng.choice(before[0])
    return sum(rng.sample(before[0], 2)) if roll < 0.7 else rng.randint(0, 12)


VALUES: dict[str, Callable[[random.Random, list], object]] = {
    "ints": lambda rng, before: _ints(rng),
    "digits": lambda rng, before: [rng.randint(1, 9) for _ in range(rng.randint(2, 4))],
    "sortish": lambda rng, before: sorted(_ints(rng)) if rng.random() < 0.5 else _ints(rng, 2, 4),
    "words": lambda rng, before: [rng.choice(WORDS) for _ in range(rng.choice([2, 3, 3, 4, 4, 5]))],
    "repeats": lambda rng, before: rng.choices(rng.sample(WORDS, 2), k=rng.randint(3, 4)),
    "text": lambda rng, before: _text(rng),
    "word": lambda rng, before: rng.choice(WORDS),
    "n": lambda rng, before: rng.randint(1, rng.choice([9, 20, 40])),
    "small": lambda rng, before: rng.randint(1, 5),
    "big": lambda rng, before: rng.randint(1, 10 ** rng.randint(1, 5)),
    "letter": _letter,
    "target": _target,
    "key": lambda rng, before: rng.choice(list(before[0])) if rng.random() < 0.6 else rng.choice(FRUIT),
    "table": lambda rng, before: _table(rng),
    "mapping": lambda rng, before: _mapping(rng),
    "pairs": lambda rng, before: _pairs(rng),
}


def _table(rng: random.Random) -> list[list[int]]:
    width, top = rng.randint(2, 3), rng.choice([4, 9, 20])
    return [[rng.randint(0, top) for _ in range(width)] for _ in range(rng.randint(1, 3))]


def _mapping(rng: random.Random) -> dict[str, int]:
    return {key: rng.randint(1, 15) for key in rng.sample(rng.choice([NAMES, FRUIT]), rng.randint(2, 3))}


def _pairs(rng: random.Random) -> list[tuple[str, int]]:
    few = rng.sample(rng.choice([NAMES, FRUIT]), 2)
    return [(rng.choice(few), rng.randint(1, 15)) for _ in range(rng.randint(2, 3))]


def _fill(pattern: str, slots: dict[str, str]) -> str:
    """Replace slots until none is left (a slot's text may hold slots itself)."""
    while "$" in pattern:
        pattern = SLOT.sub(lambda match: slots[match[1]], pattern)
    return pattern


def _constants(rng: random.Random) -> dict[str, str]:
    k = rng.choice([2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15])
    a, b = rng.sample("aeiorstnlbc", 2)
    return {
        "k": str(k), "l": str(k + rng.randint(2, 10)), "m": str(rng.randint(2, 7)), "d": str(rng.randint(0, 9)),
        "h": str(rng.randint(3, 6)), "z": str(rng.randint(6, 9)), "B": str(rng.randint(2, 3)),
        "u": rng.choice("ghkmnprs"), "a": a, "b": b,
        "p": rng.choice(["un", "re", "my", "big", "new", "fizz", "hop", "s"]),
        "s": rng.choice([" ", "-", ", ", "/", "+", "_", ": ", ".", "|"]), "q": rng.choice("*#-_.!?x"),
    }


def _names(rng: random.Random, kind: Kind) -> dict[str, str]:
    """Draw the argument and variable names, all different from one another."""
    slots: dict[str, str] = {}
    taken: list[str] = []

    def choose(slot: str, options: list[str]) -> None:
        free = [name for name in options if name not in taken] or [name + "2" for name in options]
        slots[slot] = favour(rng, free)
        taken.append(slots[slot])

    first, elements = rng.choice(ARGUMENT_NAMES[kind.types[0]])
    if len(kind.types) == 2 and kind.types[0] == kind.types[1]:
        slots["x"], slots["y"] = rng.choice(TWINS[kind.types[0]]).split(":")
        taken += [slots["x"], slots["y"]]
    else:
        choose("x", [first])
        if len(kind.types) == 2:
            choose("y", [name for name, _ in ARGUMENT_NAMES[kind.types[1]]])
    choose("e", elements)
    choose("f", SECOND.get(kind.types[0], "x y v").split())
    choose("r", RESULTS + CHOSEN if kind.uses_condition else RESULTS)
    for slot, options in ("t", TOTALS), ("n", COUNTS), ("o", OTHERS), ("w", WINNERS):
        choose(slot, options)
    pairs = [pair.split(":") for pair in PAIRS if not set(pair.split(":")) & set(taken)]
    if "$i, $j" in kind.bodies[0]:
        slots["i"], slots["j"] = favour(rng, pairs)
    else:
        choose("i", INDICES)
        choose("j", ["j", "j", "other"])
    return slots


def _slots(rng: random.Random, kind: Kind) -> dict[str, str]:
    """Everything one draw decides except phrase, body and tests."""
    slots = _constants(rng) | _names(rng, kind)
    element = ELEMENT.get(kind.types[0], "number")
    if kind.uses_condition:
        words, slots["c"], slots["g"], slots["W"] = rng.choice(CONDITIONS[element])
        slots["C"], slots["D"] = AGREE.sub(r"\1", words), AGREE.sub(r"\2", words)
        if element == "char":  # "are a vowel" -> "are vowels" would need a table of its own
            slots["C"] = re.sub(r"^are an? ([\w-]+(?: letter)?)$", r"are \1s", slots["C"])
    if kind.uses_change:
        slots["P"], slots["v"], slots["Q"] = rng.choice(CHANGES[element])
    if element in NOUNS:
        slots["N"], slots["S"] = rng.choice(NOUNS[element]).split(":")
    slots["X"] = rng.choice(REFERENCES[CONTAINER.get(kind.types[0], "list")])
    slots["F"] = ""
    name = _fill(rng.choice(GENERIC if rng.random() < 0.1 else kind.names), slots)
    slots["F"] = name + "_of" if name in slots.values() else name
    return slots


def _source(rng: random.Random, kind: Kind, slots: dict[str, str], docstring: str) -> str:
    """Write the function: signature, docstring, one of the bodies."""
    lines = favour(rng, kind.bodies).split("\n")
    comments = rng.random() < 0.15
    lines = [line.replace("#?", "#") for line in lines if comments or "#?" not in line]
    if rng.random() < 0.1:
        lines = [PLUS.sub(r"\1\2 = \2 + \3", line) for line in lines]
    body = _fill("\n    ".join(lines), slots)
    return f'def {slots["F"]}({_signature(slots)}):\n    """{docstring}"""\n    {body}\n'


def _signature(slots: dict[str, str]) -> str:
    return ", ".join(slots[name] for name in "xy" if name in slots)


def _phrases(rng: random.Random, kind: Kind, slots: dict[str, str]) -> tuple[str, str]:
    """Return the description and the docstring, now and then in different words."""
    described = rng.choice(kind.phrases)
    documented = described if rng.random() < 0.8 else rng.choice(kind.phrases)
    verbs, imperatives = TRUTH if kind.truth else VERBS
    description = f"{rng.choice(verbs)} {_fill(described, slots)}"
    if rng.random() < 0.2:  # the docstring may name the argument in another way
        slots = slots | {"X": rng.choice(REFERENCES[CONTAINER.get(kind.types[0], "list")])}
    sentence = f"{favour(rng, imperatives)} {_fill(documented, slots)}".strip()
    if rng.random() < 0.15:
        sentence = sentence.replace("`", "")
    stop = "." if sentence.endswith('"') or rng.random() < 0.9 else ""
    return description, sentence[0].upper() + sentence[1:] + stop


def _tests(rng: random.Random, kind: Kind, name: str, source: str) -> list[str]:
    """Run the function on drawn inputs and write its results as asserts; prefer results that say something."""
    space: dict = {}
    exec(compile(source, "<drawn>", "exec"), space)
    function = space[name]
    wanted = rng.choice([2, 2, 3])
    lines: list[str] = []
    results: list[str] = []
    for attempt in range(40):
        arguments: list = []
        for kind_of_value in kind.types:
            arguments.append(VALUES[kind_of_value](rng, arguments))
            if attempt > 8 and isinstance(arguments[0], list):  # short lists give rare results more often
                arguments[0] = arguments[0][:2]
        shown = ", ".join(map(repr, arguments))
        result = repr(function(*arguments))
        line = f"assert {name}({shown}) == {result}"
        says_little = result in (results[-1:] or DULL) or result == shown
        if len(line) > 100 or line in lines or (attempt < 20 and says_little):
            continue
        lines.append(line)
        results.append(result)
        if len(lines) == wanted:
            break
    return lines


def _draw(rng: random.Random, kind: Kind) -> dict:
    """Draw one example of a kind (again, where no two short asserts were found)."""
    while True:
        slots = _slots(rng, kind)
        description, docstring = _phrases(rng, kind, slots)
        source = _source(rng, kind, slots, docstring)
        tests = _tests(rng, kind, slots["F"], source)
        if len(tests) >= 2:
            break
    request = f"Task: Write a Python function `{slots['F']}({_signature(slots)})` that {description}."
    return {"task": "code", "template": kind.name, "seen_template": not kind.held_out,
            "prompt": "\n".join([request, "Tests:", *tests, "Solution:"]), "response": "\n" + source, "tests": tests}


def generate(rng: random.Random, held_out: bool = False) -> dict:
    """Draw one example: prompt, response and the assert lines of the prompt.

    Training examples and held-out ones share no prompt: the split is the prompt's CRC-32 modulo 16, and half of the
    held-out examples come from kinds that training never sees.
    Example: generate(random.Random(1))["prompt"] -> "Task: Write a Python function `...` that returns ...".
    """
    if held_out and rng.random() < 0.5:
        return _draw(rng, rng.choice(HELD_OUT_KINDS))
    while True:
        example = _draw(rng, rng.choice(TRAINING_KINDS))
        if (zlib.crc32(example["prompt"].encode()) % 16 == 0) == held_out:
            return example
