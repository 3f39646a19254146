"""What the lessons draw, in a notebook or if matplotlib.pyplot is loaded (`make site` does that); otherwise nothing."""

import sys
from importlib.util import find_spec

from rich.console import Console

COLOURS = {"1:1": "C0", "n:1": "C2", "1:n": "C1", "n:n": "C3"}


def canvas(title, height):
    """New axes with this title, and pyplot; None, None if nothing is drawn."""
    if "matplotlib.pyplot" not in sys.modules and not (Console().is_jupyter and find_spec("matplotlib")):
        return None, None
    import matplotlib.pyplot as plt

    axes = plt.subplots(figsize=(7, height), layout="constrained")[1]
    axes.set_title(title)
    return axes, plt


def show(plt):
    """Show the figure in a notebook; elsewhere it is left to whoever loaded pyplot."""
    if Console().is_jupyter:
        plt.show()


def figure(title, curves, x=None):
    """{name: values} as curves over the numbers `x` (default: 0, 1, ...), or as bars over the names `x`."""
    axes, plt = canvas(title, 2.6)
    if not axes:
        return
    for number, (name, values) in enumerate(curves.items()):
        if x and isinstance(x[0], str):
            width = 0.8 / len(curves)
            axes.bar([place + (number - (len(curves) - 1) / 2) * width for place in range(len(x))], values, width, label=name)
            axes.set_xticks(range(len(x)), x, rotation=20 * (max(map(len, x)) > 12))
        else:
            axes.plot(x or range(len(values)), values, marker="o", label=name)
    if len(curves) > 1:
        axes.legend(frameon=False)
    show(plt)


def draw_spans(title, spans):
    """The spans of lesson 2 (kind, draft tokens, target tokens), with the drafter's tokens above the target's."""
    axes, plt = canvas(title, 1.4)
    if not axes:
        return
    place = 0
    for kind, *sides in spans:
        for row, tokens in zip((1, 0), sides, strict=True):
            left = place
            for token in tokens:
                axes.add_patch(plt.Rectangle((left + 0.1, row), len(token) - 0.2, 0.8, fill=False, ec=COLOURS[kind], lw=1.8))
                axes.text(left + len(token) / 2, row + 0.4, token.decode(errors="replace").replace(" ", "␣"), ha="center",
                          va="center", fontsize=6.5)
                left += len(token)
        place = left
    for kind, colour in COLOURS.items():
        axes.plot([], [], color=colour, label=kind)
    axes.set(xlim=(0, place), ylim=(-0.1, 1.9))
    axes.set_yticks([0.4, 1.4], ["target", "drafter"])
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 0))
    show(plt)


def draw_trie(title, lifting, p, tokens, atoms):
    """A trie from left to right, with masses: a solid line is an atom, a dashed line *stop*, which ends a token."""
    axes, plt = canvas(title, 2.4)
    if not axes:
        return
    rows = iter(range(99))

    def text(depth, row, name, mass, colour):
        box = {"boxstyle": "round", "fc": "w", "ec": colour}
        axes.text(depth, -row, f"{name} {mass:.1f}", ha="center", va="center", bbox=box)

    def leaf(depth, name, token, mass):
        row = next(rows)
        text(depth, row, name, mass, "C2")
        axes.text(depth + 0.25, -row, f"the token {tokens[token]}", va="center", color="C2")
        return row

    def draw(node, depth, name):
        """Draw the subtree of a node; returns the node's row."""
        mass, children, token = p[lifting.below(node)].sum(), lifting.children(node), lifting.token.get(node, -1)
        if not children:
            return leaf(depth, name, token, mass)
        below = [(draw((*node, atom), depth + 1, atoms[atom]), "-") for atom in children]
        if token >= 0:
            below.append((leaf(depth + 1, "stop", token, p[token]), "--"))
        row = sum(one for one, _ in below) / len(below)
        for other, line in below:
            axes.plot([depth, depth + 1], [-row, -other], line, color="C0", zorder=0)
        text(depth, row, name, mass, "C0")
        return row

    draw((), 0, "root")
    axes.set(xlim=(-0.3, 3), ylim=(0.6 - next(rows), 0.6))
    axes.axis("off")
    show(plt)
