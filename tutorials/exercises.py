"""What the lessons share: `check` for the exercises, `show` for a function of the package, `paint` for rounds, `bar` and
`curve` for figures, `examples` of texts, and `distribution_of`, which runs a function once per outcome of its draws.

Of the right answers only salted hashes are kept (numbers to three decimals); a function you write is called with the
arguments in `CALLS`, and what it returns is hashed.
"""

import hashlib
import inspect
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # so that the lessons run in a fresh clone, too
from omnidraft.cli import render  # noqa: E402
from omnidraft.exactness import distribution_of, total_variation  # noqa: E402, F401

escape = render.escape  # makes a token safe to print

if hasattr(sys.stdout, "reconfigure"):  # an output that lacks a character must not end a lesson
    sys.stdout.reconfigure(errors="backslashreplace")

ANSWERS = {  # exercise: (hash of the answer, hint)
    "1.1": ("8380ddb191c060a8", "of each token, take the smaller of the two probabilities, and add them up"),
    "1.2": ("297b2ca5a87db2dc", "a is written if it is drawn and accepted, or if a token is rejected and the new draw gives a"),
    "1.3": ("5929d7c8e452502b", "one token is certain; a second one if the first draft token is accepted; and so on"),
    "2.1": ("f429d03daec46bb2", "the sign of SentencePiece for a space, then UTF-8: \"é\".encode() has two bytes"),
    "2.2": ("9afe99e65327eac0", "both stand-ins are named in the lesson; the answer has two characters"),
    "2.3": ("1912ee442f1aea8d", "running sums (np.cumsum) of the lengths are the boundaries; which ones occur on both sides"),
    "3.1": ("aaa83815f8e54b46", "the longest n-gram at a place wins, even if a shorter one would leave a better rest"),
    "3.2": ("f8bf435a525ae8c3", "C forces out one entry and is then the most recent one, with no use; D finds another pair"),
    "3.3": ("c733da18cdf760f2", "cut both at the shared boundaries of exercise 2.3; keep blocks of n >= 2 against exactly 1"),
    "4.1": ("1fb144c4b2b3e8b8", "ab is merged: the product; what ab takes is taken off a; b keeps its own"),
    "4.2": ("e7fb91d8c6f2c09c", "go through the three drafts as by hand: which proposal may be rejected, and what replaces it"),
    "4.3": ("1680c082462093f9", "a lone a needs a second token that is no b"),
    "5.1": ("059b170761f7a1b0", "the token a alone, divided by all tokens whose split begins with a"),
    "5.2": ("4da1a24508a7cc4d", "P(c) is mass(abc) / mass(ab); compare it with Q(c)"),
    "5.3": ("4f5ddd37a024f02b", "add up p over the tokens whose split begins with the prefix; the root has the empty prefix"),
    "6.1": ("4db84d4aec679e24", "cut both rows to the first two tokens, make each sum to 1, then KL(q || p), not KL(p || q)"),
    "6.2": ("f6f7d5f332c45e50", "c is the child's atom, so Q(c) = 0.5; whatever is no child proposes *stop*"),
    "6.3": ("ff50a5167357ac44", "q, less 1 at d; exp(1000) is too large, but softmax(z) = softmax(z - max z)"),
    "7.1": ("758113c7ca8e4363", "compare 0.9, 0.9 · 0.8, ... with the threshold; the token that triggers the stop counts"),
    "7.2": ("abab44d11cbd515e", "where the mean of the derivative, (y + 6 (1 - y)) P - y, is 0"),
    "7.3": ("8c4fa7b79cf2c38e", "for k = 0, 1, ..., len(P): 1 + P_1 + ... + P_1 · ... · P_k tokens in a time of 1 + k · step"),
    "8.1": ("2630f49d2c81d482", "B has 300 rows and 8 columns; A has 8 rows and 100 columns"),
    "8.2": ("55f8817e74f5be03", "12 s = n · (time of a token before - time of a token after), each time 1 / r"),
    "8.3": ("52fa1ea5508ca52a", "keep the number of the best; compare scores[i] with its score, less the tolerance"),
}
CALLS = {  # exercise: the arguments of each call
    "1.3": [(0.5, 1), (0.5, 3), (0.9, 8), (0.0, 4), (1.0, 4)],
    "2.3": [([4, 1, 2, 2], [4, 5]), ([1, 4, 2, 3], [3, 2, 1, 4]), ([3], [1, 1, 1]), ([2, 2, 2], [3, 3])],
    "3.3": [([b" w", b"indow", b"s"], [b" window", b"s"]), ([b"a", b"b", b"c", b"d"], [b"abc", b"d"]),
            ([b"ab", b"c"], [b"a", b"bc"]), ([b"a", b"b", b"cd"], [b"ab", b"c", b"d"])],
    "4.3": [([0.8, 0.2], [0.5, 0.5]), ([0.6, 0.4], [0.1, 0.9]), ([0.3, 0.7], [1.0, 0.0])],
    "5.3": [({7: 0.1, 8: 0.3, 9: 0.6}, {7: (1,), 8: (1, 2), 9: (2,)}, prefix) for prefix in [(), (1,), (1, 2), (3,)]],
    "6.3": [([0.0, 0.0], 0), ([1.0, 2.0, 0.5], 1), ([1000.0, 0.0], 0), ([-1000.0, 1000.0, 1000.0], 2)],
    "7.3": [([0.9] * 20, 0.1), ([0.3] * 20, 0.1), ([0.5, 0.9, 0.9], 1.0), ([0.95, 0.9, 0.2, 0.9, 0.9], 0.15),
            ([0.4, 1.0, 1.0, 1.0], 0.3), ([], 0.2)],
    "8.3": [([0.5, 0.6, 0.595, 0.4, 0.61], 0.02), ([0.5, 0.3], 0.02), ([0.5, 0.5, 0.45], 0.04), ([0.3, 0.6, 0.5, 0.5], 0.2),
            ([0.7], 0.1)],
}


def check(exercise, answer):
    """Say whether an answer is right, and give a hint if not; `...` means "not answered yet". True if right, else None."""
    stored, hint = ANSWERS[exercise]
    right, verdict = False, "not yet"
    try:
        if callable(answer):
            answer = [answer(*arguments) for arguments in CALLS[exercise]]
        if answer is ... or isinstance(answer, list) and any(part is None or part is ... for part in answer):
            verdict = "open"
        elif digest(exercise, answer) == stored:
            right, verdict = True, "right"
    except Exception as error:  # whatever a reader's function may raise
        verdict = f"not yet ({type(error).__name__}: {error})"
    print(f"{exercise} {verdict}." + (f" Hint: {hint}." if verdict.startswith("not") else ""))
    return right or None  # which a notebook does not show


def digest(exercise, answer):
    """The salted hash of an answer."""
    return hashlib.sha256(f"omnidraft {exercise}: {_spell(answer)}".encode()).hexdigest()[:16]


def _spell(answer):
    if isinstance(answer, str | bytes):
        return repr(answer)
    if isinstance(answer, set):
        return str(sorted(map(_spell, answer)))
    return str([_spell(part) for part in answer]) if hasattr(answer, "__len__") else f"{float(answer) + 1e-9:.3f}"


def show(function):
    """Print where a function of the package lives, and its lines without docstring and empty lines."""
    lines, first = inspect.getsourcelines(function)
    quotes = [place for place, line in enumerate(lines) if '"""' in line]
    code = [line for place, line in enumerate(lines) if line.strip() and not (quotes and quotes[0] <= place <= quotes[-1])]
    print(f"# {function.__module__.replace('.', '/')}.py, line {first}\n{''.join(code)}")


def bar(value, scale=40, form=""):
    """A bar of `scale` blocks for a value of 1, followed by the value if there is a format for it."""
    return "█" * round(scale * value) + (f" {value:{form}}" if form else "")


def curve(values, low=None, high=None):
    """Values as a line of blocks from `low` to `high` (default: the least and greatest value), then the first and last."""
    low, high = min(values) if low is None else low, max(values) if high is None else high
    blocks = "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / ((high - low) or 1))] for value in values)
    return f"{blocks}  {values[0]:.2f} to {values[-1]:.2f}"


def examples(task, count):
    """The first held-out texts of a task ("math", "code" or "text"), each a dict with "prompt" and "response"."""
    lines = (ROOT / "omnidraft" / "data" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


def paint(tokenizer, rounds, legend=False):
    """Print rounds in the colours of `omnidraft.render`, with its signs + * - ! ^ in a notebook and where colours are lost."""
    console = Console(highlight=False)
    plain = console.no_color or console.color_system is None
    signs = plain or console.is_jupyter
    if legend:
        console.print(render.legend(signs), soft_wrap=True)
    painter = render.Painter(tokenizer, signs, one_line=True)
    console.print(Text.assemble(*map(painter.paint, rounds), painter.finish()), soft_wrap=plain)
