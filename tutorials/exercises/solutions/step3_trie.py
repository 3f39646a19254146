"""Step 3, solved.

Every split adds its token's p to the masses of all its beginnings, itself included. This gives each child's share of its node.
What is left over is the token that ends at the node, or at the root everything that no atom spells.
"""

from collections import defaultdict


def trie(splits, p):
    mass = defaultdict(float)
    for token, split in splits.items():
        for depth in range(len(split) + 1):
            mass[split[:depth]] += p[token]
    mass[()] = sum(p.values())  # with the uncovered tokens, which are possible at the root

    nodes = defaultdict(dict)
    for node in mass:
        if node:
            parent = node[:-1]
            nodes[parent][node[-1]] = mass[node] / mass[parent] if mass[parent] else 0.0
    for node, choice in nodes.items():
        choice["stop" if node else "rest"] = 1 - sum(choice.values())
    return dict(nodes)
