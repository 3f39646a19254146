"""What the lessons draw, in a notebook or if matplotlib.pyplot is loaded (`make site` does that); otherwise nothing."""

import sys
from importlib.util import find_spec

from omnidraft.lifting import Lifting
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


def draw_trie(title, splits, p, tokens, atoms):
    """Print a trie with its masses, and draw it: a solid line is an atom, a dashed line *stop*, which ends a token."""
    lifting = Lifting(splits, {}, len(atoms))

    def below(node):
        """What follows a node: (name, mass, the token that ends there or None, the node or None)."""
        for atom in lifting.children(node):
            child = (*node, atom)
            ends = None if lifting.children(child) else lifting.token[child]
            yield atoms[atom], p[lifting.below(child)].sum(), ends, None if ends is not None else child
        if node in lifting.token:
            yield "stop", p[lifting.token[node]], lifting.token[node], None

    def write(node, depth):
        for name, mass, ends, child in below(node):
            told = f", the token {tokens[ends]}" if ends is not None else ""
            print(f"{'   ' * depth}{name} {'█' * round(20 * mass)} {mass:.1f}{told}")
            if child:
                write(child, depth + 1)

    print(f"root {p[lifting.below(())].sum():.1f}")
    write((), 1)
    axes, plt = canvas(title, 2.4)
    if not axes:
        return
    rows = iter(range(99))

    def text(depth, row, name, mass, colour):
        box = {"boxstyle": "round", "fc": "w", "ec": colour}
        axes.text(depth, -row, f"{name} {mass:.1f}", ha="center", va="center", bbox=box)

    def draw(node, depth, name, mass):
        """Draw what is at and below a node; returns its row."""
        found = []
        for below_name, below_mass, ends, child in below(node):
            if child:
                found.append((draw(child, depth + 1, below_name, below_mass), "-"))
                continue
            row = next(rows)
            text(depth + 1, row, below_name, below_mass, "C2")
            axes.text(depth + 1.25, -row, f"the token {tokens[ends]}", va="center", color="C2")
            found.append((row, "--" if below_name == "stop" else "-"))
        row = sum(one for one, _ in found) / len(found)
        for other, line in found:
            axes.plot([depth, depth + 1], [-row, -other], line, color="C0", zorder=0)
        text(depth, row, name, mass, "C0")
        return row

    draw((), 0, "root", p[lifting.below(())].sum())
    axes.set(xlim=(-0.3, 3), ylim=(0.6 - next(rows), 0.6))
    axes.axis("off")
    show(plt)
