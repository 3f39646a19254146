"""Turn the lessons' equations, written for a terminal, into MathML: `sum_x q(x) / p(x)` becomes a sum of fractions.

In running text, mathematics is found by its form: single letters, names with an index or arguments, operators between them.
"""

from __future__ import annotations

import html
import re
from collections import deque
from functools import cache
from itertools import groupby

TOKEN = re.compile(r"\s+|[A-Za-z]+(?:-[A-Za-z]{2,})+|[A-Z]{2,}-\d+|[A-Za-z]+(?:_\w+)?'?|\d+(?:\.\d+)?"
                   r"|<->|<-|->|>=|\|\||\.\.\.|.")
OPERATORS = {"+": "+", "-": "-", "·": r"\cdot", "/": "/", "=": "=", "<": "<", ">": ">", "<-": r"\leftarrow", "->": r"\to",
             "<->": r"\leftrightarrow", ">=": r"\ge", "||": r"\parallel", "‖": r"\parallel", "−": "-", "...": r"\ldots"}
KNOWN = {"beta", "theta", "lambda", "gamma", "log", "exp", "min", "max", "sum"}  # TeX has commands with these names


def is_math(tokens: list[str]) -> list[bool]:
    """For each token, whether it belongs to an equation (or else to the words around it)."""
    found = [False] * len(tokens)
    for at, token in enumerate(tokens):
        name, after = re.match(r"([A-Za-z]+)(?:_\w+)?'?$", token), "".join(tokens[at + 1:at + 3])
        article = token in ("a", "I") and re.match(r"\s+[A-Za-z]{2}|$", after)
        known = token in KNOWN - {"sum", "min", "max", "exp"}
        found[at] |= token in OPERATORS or bool(name) and not article and (
            len(name[1]) == 1 or "_" in token or after[:1] == "(" or known)
        if token == "(":
            end = closing(tokens, at)
            inside = tokens[at + 1:end]
            called = at and found[at - 1] and re.match("[A-Za-z]", tokens[at - 1])
            if end and (called or all(is_math(inside)[i] or re.match(r"[\d\s,().]", one) for i, one in enumerate(inside))):
                found[at:end + 1] = [True] * (end + 1 - at)
    beside = [("".join(tokens[:at]).split() or [""])[-1][-1:] + ("".join(tokens[at + 1:]).split() or [""])[0][:1]
              for at in range(len(tokens))]
    for at, token in enumerate(tokens):
        found[at] |= token[0].isdigit() and any(sign in OPERATORS for sign in beside[at])
    return [yes or token.isspace() and 0 < at < len(tokens) - 1 and found[at - 1] and found[at + 1]
            for at, (yes, token) in enumerate(zip(found, tokens, strict=True))]


def closing(tokens: list[str], at: int) -> int:
    """The place of the parenthesis that closes the one at `at`; 0 if there is none."""
    depth = 0
    for place in range(at, len(tokens)):
        depth += (tokens[place] == "(") - (tokens[place] == ")")
        if not depth:
            return place
    return 0


def tex(tokens: list[str]) -> str:
    """An equation's tokens in TeX, with quotients as fractions."""
    spaced = re.sub(r"\b([a-z]) (?=\d)", r"\1~", "".join(tokens))  # "a 0.6" is not a product
    return expression(deque(token for token in TOKEN.findall(spaced) if not token.isspace()))


def expression(left: deque[str]) -> str:
    """The TeX up to the end or to a closing parenthesis."""
    made = []
    while left and left[0] != ")":
        if left[0] == "/" and made:
            left.popleft()
            made.append(rf"\frac{{{made.pop()}}}{{{factor(left)}}}")
        else:
            made.append(factor(left))
    return " ".join(made)


def factor(left: deque[str]) -> str:
    """One number, sign, name with its arguments, or parenthesis; a sum with its terms."""
    if not left:
        return ""
    token = left.popleft()
    if token == "(":
        inside = expression(left)
        return rf"\left( {inside} \right{left.popleft() if left else '.'}"
    name = re.match(r"([A-Za-z]+)(?:_(\w+))?('?)$", token)
    if not name:
        return OPERATORS.get(token) or (token if re.match(r"[\w.,~]", token) else rf"\text{{{token}}}")
    word, index, prime = name.groups()
    called, ends = bool(left) and left[0] == "(", not left or left[0] == ")"
    if word == "sum":
        return rf"\sum\limits_{index} {factor(left)}"
    shown = (word if len(word) == 1 else f"\\{word}" if word in KNOWN else
             rf"\operatorname{{{word}}}" if called else rf"\text{{{word}}}" if index or ends else rf"\text{{{word} }}") + prime
    if index:
        shown += f"_{index}" if len(index) == 1 else rf"_\text{{{index}}}"
    return f"{shown} {factor(left)}" if called or token == "log" else shown


@cache
def mathml(tokens: tuple[str, ...], large: bool) -> str:
    """An equation's tokens as a MathML element, its fractions large or small."""
    from latex2mathml.converter import convert

    made = convert(tex([*tokens])).replace(' display="inline"', ' displaystyle="true"' * large)
    return re.sub(r"<msup>(<mi>.</mi>)<mi>&#x02032;</mi></msup>", r'\1<mo lspace="0" rspace="0">&#x02032;</mo>', made)


def cell(text: str, among_words: bool = False) -> str:
    """Text as HTML with its equations as MathML; with `among_words` only complete ones of more than a letter."""
    tokens = TOKEN.findall(text)
    made = []
    for math, part in groupby(zip(is_math(tokens), tokens, strict=True), key=lambda one: one[0]):
        words = tuple(token for _, token in part)
        whole = words[0] not in {*OPERATORS} - {"-", "−"} and words[-1] not in OPERATORS and (
            not OPERATORS.keys().isdisjoint(words) or re.search(r"[A-Za-z]'?\(|^[A-Za-z]+_\w$", "".join(words)))
        real = math and (whole or not among_words)
        made.append(mathml(words, not among_words) if real else html.escape("".join(words), quote=False))
    return "".join(made)


def table(block: str) -> str:
    """A block of equations, whose columns are two or more spaces apart, as an HTML table; a drawing stays as it is."""
    if re.search("[─│█]", block):
        return f'<pre class="equation">{html.escape(block.rstrip())}</pre>\n'
    rows: list[dict[int, str]] = []
    starts: list[int] = []
    for line in block.rstrip().splitlines():
        cells = [(found.start(), found[0]) for found in re.finditer(r"\S+(?: \S+)*", line)]
        first = max((column for column, start in enumerate(starts) if start <= cells[0][0]), default=0)
        if len(cells) == 1 and first and (rows[-1].get(first, "").endswith((",", ";")) or "=" not in cells[0][1]):
            rows[-1][first] = f"{rows[-1].get(first, '')} {cells[0][1]}"  # the words continue
            continue
        starts = [start for start, _ in cells] if not first else starts
        rows.append({first + column: text for column, (_, text) in enumerate(cells)})
    width = max(max(row) for row in rows) + 1
    made = "".join("<tr>" + "".join(f"<td>{cell(row.get(column, ''))}</td>" for column in range(width)) + "</tr>\n"
                   for row in rows)
    return f'<div class="equation"><table>\n{made}</table></div>\n'
