"""What the lessons share: `check` for their questions, `show` for a function of the package, `paint` for rounds, `bar`, `bars`,
`curve` and `figure` for numbers, `paint_spans` and `draw_trie` for lessons 2 and 5, `examples` of texts, and
`distribution_of`, which runs a function once per outcome of its draws.

The right answers are computed on demand. (The functions that readers write are in tutorials/exercises.)
"""

import ast
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # so that the lessons also run in a fresh clone

from omnidraft import Uniforms, speculative  # noqa: E402
from omnidraft.cli import render  # noqa: E402
from omnidraft.exactness import distribution_of, total_variation  # noqa: E402, F401
from omnidraft.sampling import process  # noqa: E402
from omnidraft.verification import comparisons, p_and_q  # noqa: E402

escape = render.escape  # makes a token safe to print

# subtle: import NumPy after omnidraft, which sets the number of its threads (one: a lesson's matrices are small)
from figures import draw_spans, draw_trie, figure  # noqa: E402, F401

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.text import Text  # noqa: E402

if hasattr(sys.stdout, "reconfigure"):  # an output that lacks a character must not end a lesson
    sys.stdout.reconfigure(errors="backslashreplace")


def beta(p, q):
    """Lesson 1's probability of acceptance."""
    return np.minimum(p, q).sum()


def shared_boundaries(draft_lengths, target_lengths):
    """Question 2.3."""
    return sorted({*np.cumsum(draft_lengths).tolist()} & {*np.cumsum(target_lengths).tolist()})


ANSWERS = {  # question: (the answer, or the function to write, hint)
    "1.1": (lambda: beta([0.1, 0.6, 0.3], [0.4, 0.4, 0.2]),
            "for each token, take the smaller of the two probabilities, and add them up"),
    "1.2": (lambda: 0.2 + (1 - beta([0.5, 0.3, 0.2], [0.2, 0.7, 0.1])) * 0.5,
            "a is written if it is drawn and accepted, or if a token is rejected and the new draw gives a"),
    "2.1": (lambda: " né".encode(), '"▁" is a space, the rest is UTF-8: "é".encode() has two bytes'),
    "2.2": (lambda: "ĠĊ", "both stand-ins are named in the lesson; the answer has two characters"),
    "2.3": (shared_boundaries,
            "running sums (np.cumsum) of the lengths are the boundaries; find those that occur on both sides"),
    "3.1": (lambda: [11, 40], "the longest n-gram at a place wins, even if a shorter one would leave something better"),
    "3.2": (lambda: ("CD", "AD"), "C replaces one entry and is then the most recent one, with no use; D meets another pair"),
    "4.1": (lambda: [0.6 - 0.6 * 0.5, 0.4, 0.6 * 0.5],
            "ab is merged: its q' is the product, and a loses as much; b keeps its own"),
    "4.2": (lambda: 0.3 * 0.5, "go through the three drafts as by hand: which proposal can be rejected, and what replaces it"),
    "5.1": (lambda: 0.1 / 0.6, "the token a alone, divided by all tokens whose split begins with a"),
    "5.2": (lambda: (0.1 / 0.6) / 0.5, "c is not a child of node a, so it proposes *stop*; every atom but b means stop"),
    "6.1": (lambda: [min(1, 0.4 * (0.2 / 0.5) / 0.2), 0.4 * min(1, (0.2 / 0.5) / 0.2)],
            "P(c) is mass(abc) / mass(ab); the first number is min(1, r P / Q), the second r times min(1, P / Q)"),
    "6.2": (lambda: 0.2 / (0.2 + 1 - 0.6), "Z = max(0, 0.6 · 0.5 - 0.1) + max(0, 0.6 · 0.5 - 0.9)"),
    "7.1": (lambda: 0.5 * np.log(0.5 / (2 / 3)) + 0.5 * np.log(0.5 / (1 / 3)),
            "cut both rows to the first two tokens, make each sum to 1, then KL(q || p), not KL(p || q)"),
    "7.2": (lambda: abs(0.4 - 0.5), "c is the child's atom, so Q(c) = 0.5; any atom that is not a child proposes *stop*"),
    "8.1": (lambda: 3, "compare 0.9, 0.9 · 0.8, ... with the threshold; the token that triggers the stop counts"),
    "8.2": (lambda: 0.75 / (0.75 + 6 * 0.25), "where the mean of the derivative, (y + 6 (1 - y)) P - y, is 0"),
    "9.1": (lambda: 8 * (300 + 100), "B has 300 rows and 8 columns; A has 8 rows and 100 columns"),
    "9.2": (lambda: 12 / (1 / 200 - 1 / 300), "12 s = n · (time of a token before - time of a token after), each time 1 / r"),
    "10.1": (lambda: 2.2 / (1.05 + 4 * 0.03 + 0.03), "put the numbers into the equation"),
    "10.2": (lambda: 52 / 16, "the speedup is 1 where tau equals what a round costs, in passes of one token"),
}
CALLS = {  # question: the arguments of each call of the reader's function
    "2.3": [([4, 1, 2, 2], [4, 5]), ([1, 4, 2, 3], [3, 2, 1, 4]), ([3], [1, 1, 1]), ([2, 2, 2], [3, 3])],
}


def check(question, answer):
    """Print whether an answer is right, with a hint or the failing call if not; `...` means unanswered. True or None."""
    right, hint = ANSWERS[question]
    if answer is ...:
        print(f"{question} open.")
        return None
    try:
        for arguments in CALLS.get(question, [()]):
            wanted, given = right(*arguments), answer(*arguments) if callable(answer) else answer
            if given is ... or given is None:
                print(f"{question} open.")
                return None
            if not same(given, wanted):
                called = f" {arguments} should give {wanted}, yours {given}." if arguments else ""
                print(f"{question} not yet.{called} Hint: {hint}.")
                return None
    except Exception as error:  # anything that a reader's function may raise
        print(f"{question} not yet ({type(error).__name__}: {error}). Hint: {hint}.")
        return None
    print(f"{question} right.")
    return True  # in a notebook None is not shown


def same(given, wanted):
    """Equal, as texts, or as numbers to three decimals; what was typed at a prompt may be any Python literal."""
    if isinstance(given, str) and (given[:1] in "\"'" or not isinstance(wanted, str)):
        try:
            given = ast.literal_eval(given)
        except (ValueError, SyntaxError):
            raise ValueError("write a number, a list such as [1, 2], or a text in quotes") from None
    if isinstance(wanted, str | bytes):
        return given == wanted
    if hasattr(wanted, "__len__"):
        return hasattr(given, "__len__") and len(given) == len(wanted) and all(map(same, given, wanted))
    return abs(float(given) - wanted) < 6e-4


def show(function):
    """Print where a function of the package is, and its lines without docstring and empty lines."""
    lines, first = inspect.getsourcelines(function)
    quotes = [place for place, line in enumerate(lines) if '"""' in line]
    code = [line for place, line in enumerate(lines) if line.strip() and not (quotes and quotes[0] <= place <= quotes[-1])]
    print(f"# {function.__module__.replace('.', '/')}.py, line {first}\n{''.join(code)}")


def bar(value, scale=40, form=""):
    """A bar with `scale` blocks for a value of 1 (coloured in a notebook), then the value if `form` gives a format."""
    blocks = "█" * round(scale * value)
    return (f"\033[36m{blocks}\033[0m" if Console().is_jupyter else blocks) + (f" {value:{form}}" if form else "")


def bars(values, scale=40, form=".2f", title=None):
    """Print a labelled bar for each of {label: value}; with a title, also draw them (see `figure`)."""
    width = max(map(len, map(str, values)))
    for label, value in values.items():
        print(f"{label!s:{width}}  {bar(value, scale, form)}")
    if title:
        figure(title, {"value": [*values.values()]}, [*map(str, values)])


def curve(values, low=None, high=None):
    """Values as a line of blocks from `low` to `high` (default: the smallest and largest), then the first and last value."""
    low, high = min(values) if low is None else low, max(values) if high is None else high
    blocks = "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / ((high - low) or 1))] for value in values)
    return f"{blocks}  first {values[0]:.2f}, last {values[-1]:.2f}"


def examples(task, count):
    """The first held-out texts of a task ("math", "code" or "text"), each a dict with "prompt" and "response"."""
    lines = (ROOT / "omnidraft" / "data" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    # Prompts that people typed have no response.
    return [text for text in map(json.loads, lines) if "response" in text][:count]


class Step(NamedTuple):
    """A comparison of lesson 6: P and Q are of what the atom proposes, the residual is over all categories."""

    atom: str
    proposes: str  # "child" or "stop"
    P: float
    Q: float
    r: float
    r_after: float
    ends: bool  # does it complete a token of the target?
    residual: np.ndarray


def comparisons_of(models, prompts, options):
    """The drafts of `lifted` after some prompts, each as a list of its steps."""
    drafts = []

    def observe(draft, proposals, logits, emitted, kept, done):  # after each round
        parts = proposals.origins, proposals.lifting, process(logits)
        steps = []
        for step in comparisons(proposals.atoms, *parts):
            P, Q = p_and_q(step, *parts)
            atom = repr(models.draft.tokenizer.token_bytes[proposals.atoms[step.place]].decode(errors="replace"))
            proposes = "stop" if step.stop else "child"
            residual = np.maximum(0, step.before * P - Q)
            probabilities = step.target_prob, step.draft_prob, step.before, step.after
            steps.append(Step(atom, proposes, *probabilities, step.ends >= 0, residual))
        if steps:
            drafts.append(steps)

    draws = Uniforms(np.random.default_rng(0))
    for prompt in prompts:
        list(speculative(models, prompt, options, draws, SimpleNamespace(observe=observe)))
    return drafts


def paint(tokenizer, rounds, legend=False):
    """Print rounds in the colours of `omnidraft.render`, with its signs + * - ! ^ in a notebook or without colours.

    The legend explains what occurs in these rounds.
    """
    console = Console(highlight=False)
    plain = console.no_color or console.color_system is None
    signs = plain or console.is_jupyter

    def painted(signs):
        painter = render.Painter(tokenizer, signs, one_line=True)
        return Text.assemble(*map(painter.paint, rounds), painter.finish())

    if legend:
        signed = painted(True).plain
        for (_, sign, _), line in zip(render.FATES.values(), render.legend(signs).split(), strict=True):
            if f"[{sign}" in signed:
                console.print(line, soft_wrap=True)
    console.print(painted(signs), soft_wrap=plain)


SPANS = {"1:1": ("", ""), "n:1": (">", "cyan underline"), "1:n": ("<", "bold yellow"), "n:n": ("#", "red")}  # sign, style


def paint_spans(names, spans):
    """Print the spans of lesson 2 in brackets, each side after its name, and draw them (see `draw_spans`)."""
    spans = list(spans)
    lines = [Text(f"{name:12}") for name in names]
    for kind, *sides in spans:
        sign, style = SPANS[kind]
        for line, side in zip(lines, sides, strict=True):
            shown = "|".join(escape(token.decode(errors="replace")) for token in side)
            line.append(f"[{sign}{shown}]", style)
    Console(highlight=False).print(*lines, sep="\n", soft_wrap=True)
    draw_spans(" (above) and ".join(names), spans)
