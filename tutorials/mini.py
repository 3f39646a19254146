"""Speculative decoding for two tokenizers, complete in one file: from bytes to drafts that leave the distribution unchanged.

A small drafter q writes a few tokens ahead in its own vocabulary. A large target p checks all of them in one pass, keeps
what it might have written itself, and adds a token of its own. Every text stays exactly as probable as if the target had
written it alone, at any temperature. (After arXiv 2507.02659, with this project's own verification.) Read it top to bottom.

    python tutorials/mini.py                two bigram models, and the proof: every possible outcome, weighted and summed
    python tutorials/mini.py --embedded     two small language models from the package
"""

import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import chain, product

import numpy as np


# ---- 1. A model: what its tokens spell, how it tokenises a text, what it expects next --------------------------------
@dataclass
class Model:
    spell: list  # bytes of each token; b"" for a special token
    write: object  # (ids, data) -> ids of the text of `ids` followed by the bytes `data`
    logits: object  # (ids, n) -> logits (n, V), one row after each of the last n ids
    ends: tuple = ()  # special tokens that end a text

    def bytes(self, ids):
        return b"".join(self.spell[i] for i in ids)

def probabilities(logits, temperature):
    """Rows (n, V) to draw tokens from. At temperature 0 they are one-hot, so nothing below needs a special case."""
    if temperature == 0:
        return np.eye(logits.shape[-1])[logits.argmax(-1)]
    weights = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
    return weights / weights.sum(-1, keepdims=True)

class Draws:
    """Makes every random decision, from uniform numbers in [0, 1)."""
    def __init__(self, numbers):
        self.numbers = iter(numbers)

    def accept(self, probability):
        return next(self.numbers) < probability

    def choose(self, weights):
        sums = np.cumsum(weights)
        return int(np.searchsorted(sums, next(self.numbers) * sums[-1], "right"))

# ---- 2. Alignment: tokens of two vocabularies are equal if they spell the same bytes ---------------------------------
def by_bytes(model):
    """Bytes -> the token that spells them; of several, the one that the model itself writes. None -> its end token."""
    found = {None: model.ends[0]} if model.ends else {}
    for token, data in enumerate(model.spell):
        if data and (data not in found or model.write([], data) == [token]):
            found[data] = token
    return found

def translate(token, source, other, equal):
    """A token of `source` in tokens of the `other` model: its equal, or several tokens; () if they cannot spell it."""
    data = None if token in source.ends[:1] else source.spell[token]
    several = (equal[data],) if data in equal else tuple(other.write([], data or b""))
    return several if data in equal or other.bytes(several) == data else ()

# ---- 3. Translation: both models write in the same small steps -------------------------------------------------------
class Trie:
    """Each target token has a *split* into draft tokens, called atoms: its equal, or an n-gram (ha = h, a). Each draft token
    has a *path* of atoms: itself, or the splits of the target tokens that spell it. So both models write atoms, and the
    probability of each next atom is known for both. A *node* is a prefix of a split, as a tuple of atoms."""

    def __init__(self, draft, target):
        ours, theirs = by_bytes(draft), by_bytes(target)
        splits = {t: translate(t, target, draft, ours) for t in theirs.values()}
        self.token = {split: t for t, split in splits.items() if split}  # node -> the target token that ends there
        self.below = defaultdict(list)  # node -> the target tokens whose split begins with it
        for split in sorted(self.token):
            for depth in range(len(split) + 1):
                self.below[split[:depth]].append(self.token[split])
        self.child = {node: {} for node in self.below}  # node -> {atom: number of the child that it leads to}
        for *node, atom in filter(None, self.below):
            self.child[tuple(node)][atom] = len(self.child[tuple(node)])
        self.leaves = {}  # node -> the target tokens that are still possible, and the child that each is below
        for node, tokens in self.below.items():
            number = {t: i for atom, i in self.child[node].items() for t in self.below[(*node, atom)]}
            tokens = tokens if node else [*tokens, *sorted({*range(len(target.spell))} - {*tokens})]
            self.leaves[node] = np.array(tokens), np.array([number.get(t, len(self.child[node])) for t in tokens])
        atoms, self.paths, self.after = {*chain(*self.token)}, {}, defaultdict(list)
        for d in range(len(draft.spell)):
            spelling = [splits.get(t, ()) for t in translate(d, draft, target, theirs)]
            self.paths[d] = (d,) if d in atoms else tuple(chain(*spelling)) if all(spelling) else ()
            for depth, atom in enumerate(self.paths[d]):  # prefix of a path -> draft tokens, each with its next atom
                self.after[self.paths[d][:depth]].append((d, atom))

    def merge(self, atoms):
        """The target tokens that the atoms spell, the longest possible at each place."""
        tokens, node = [], ()
        for atom in [*atoms, None]:
            if node in self.token and atom not in self.child[node]:
                tokens, node = [*tokens, self.token[node]], ()
            if atom not in self.child[node]:
                return tokens
            node += (atom,)

    def by_target(self, node, p):
        """P (C + 1,) of each child, then of none: at the root a token without a split, else *stop*, the node's own token."""
        tokens, children = self.leaves[node]
        P = np.bincount(children, p[tokens], len(self.child[node]) + 1)
        return P / P.sum()

    def by_drafter(self, q, before):
        """Q (V_q,) of the next atom of a token that was drawn from the row q, given its first atoms `before`."""
        tokens, atoms = np.array(self.after[before]).T
        row = np.bincount(atoms, q[tokens], len(q))
        return row / row.sum() if before else row

# ---- 4. Verification: how much of the draft is kept, and what the target writes after it -----------------------------
def verify(atoms, trie, p, room, draws):
    """1 to m + 1 tokens, given the target's rows p (m + 1, V_p) along m proposals; atoms: [(atom, the row q that its token
    was drawn from, the token's earlier atoms)]. Block verification (arXiv 2403.10444), here of atoms: r is the probability
    with which a draft is kept up to here, the target's probability of its atoms over the drafter's, capped at 1 each time.
    Keep all of it, or a part and then a token from the residual max(0, r P - Q), what the drafter proposes too rarely."""
    steps, written, node, r, place, q = [], [], (), 1.0, 0, None
    while place < len(atoms) and len(written) < room and r > 0:
        atom, children = atoms[place][0], trie.child[node]
        q = trie.by_drafter(*atoms[place][1:]) if q is None else q
        P, Q = trie.by_target(node, p[len(written)]), np.append(q[[*children]], 0)
        Q[-1] = max(0, 1 - Q.sum()) if node else 0  # an atom that is not a child means *stop*
        steps.append((node, P, Q, r, len(written)))
        choice = children.get(atom, -1)
        r = min(1, r * P[choice] / Q[choice]) if Q[choice] > 0 else 0
        if atom in children:
            node, place, q = (*node, atom), place + 1, None
        else:  # the same atom begins the next token, and is known to be none of these children
            q[[*children]] = 0
            q /= Q[-1] or 1
        if atom not in children or not trie.child[node]:
            written, node = [*written, trie.token.get(node)], ()
    if steps and not draws.accept(r):
        left = [np.maximum(0, r * P - Q) for _, P, Q, r, _ in steps]
        shares = [1 if r == 1 else z.sum() / (z.sum() + 1 - r) for z, (*_, r, _) in zip(left, steps, strict=True)]
        sure = max(i for i, share in enumerate(shares) if share == 1)  # the first comparison always has share 1
        last = [*(i for i in range(len(steps) - 1, sure, -1) if draws.accept(shares[i])), sure][0]
        node, P, _, _, kept = steps[last]
        tokens, children = trie.leaves[node]
        among = tokens[children == draws.choose(left[last] if left[last].any() else P)]
        return [*written[:kept], int(among[draws.choose(p[kept][among])])]
    if node:  # the atoms end inside a token
        written.append(trie.below[node][draws.choose(p[len(written)][trie.below[node]])])
        if written[-1] != trie.token.get(node):
            return written
    return [*written, draws.choose(p[len(written)])]

# ---- 5. The loop: draft, translate, one pass of the target, verify ---------------------------------------------------
def speculate(draft, target, trie, own, ids, k, new, temperature, draws):
    """Yields the tokens of each round. The prompt is `own` in the drafter's tokens, and `ids` in the target's."""
    end = len(ids) + new
    while len(ids) < end and ids[-1] not in target.ends:
        tokens, rows, room = [], [], end - len(ids) - 1  # the target adds one token of its own
        while len(tokens) < min(k, room) and not (tokens and tokens[-1] in draft.ends):
            rows.append(probabilities(draft.logits(own + tokens, 1), temperature)[0])
            tokens.append(draws.choose(rows[-1]))
        paths = [trie.paths[d] or (None,) for d in tokens]  # None, what the target cannot spell, matches nothing
        atoms = [(atom, row, path[:i]) for path, row in zip(paths, rows, strict=True) for i, atom in enumerate(path)]
        proposals = trie.merge(chain(*paths))[:room]
        p = probabilities(target.logits(ids + proposals, len(proposals) + 1), temperature)
        written = verify(atoms, trie, p, room, draws)
        written = written[:next((i + 1 for i, t in enumerate(written) if t in target.ends), None)]
        yield written
        ids, data = ids + written, target.bytes(written)
        for d in tokens:  # the drafter keeps its own tokens as long as they agree with what was written
            if not draft.spell[d] or not data.startswith(draft.spell[d]):
                break
            own, data = [*own, d], data[len(draft.spell[d]):]
        own = draft.write(own, data)

# ---- 6. The proof: run every possible outcome ------------------------------------------------------------------------
class Every(Draws):
    """Makes the given decisions, then the first possible one each time, and records the others."""
    def __init__(self, decisions):
        self.decisions, self.made, self.weight, self.others = decisions, 0, 1.0, []

    def choose(self, weights):
        first, *others = np.flatnonzero(weights).tolist()
        if self.made == len(self.decisions):
            self.others += [[*self.decisions, other] for other in others]
            self.decisions = [*self.decisions, first]
        choice = self.decisions[self.made]
        self.made, self.weight = self.made + 1, self.weight * weights[choice] / sum(weights)
        return choice

    def accept(self, probability):
        return self.choose([max(0, 1 - probability), probability]) == 1

def distribution(run):
    """Each outcome of run(draws) -> its probability."""
    found, waiting = defaultdict(float), [[]]
    while waiting:
        draws = Every(waiting.pop())
        found[run(draws)] += draws.weight
        waiting += draws.others
    return found

def bigrams(words, text):
    """A bigram model: it takes the longest token at each place, and has counted in `text` which token follows which."""
    spell, longest_first = [*map(str.encode, words)], "|".join(map(re.escape, sorted(words, key=len, reverse=True))).encode()
    write = lambda ids, data: [*map(spell.index, re.findall(longest_first, b"".join(spell[i] for i in ids) + data))]  # noqa: E731
    counts, seen = np.full((len(words), len(words)), 0.1), write([], text)
    np.add.at(counts, (seen[:-1], seen[1:]), 1)
    return Model(spell, write, lambda ids, n: np.log(counts[ids[-n:]]))

def tables(new=3):
    """Small vocabularies with every case: equal tokens, n-grams (ha, ha!), an expansion (ah), and unmatched ones (?, -)."""
    draft, target = (bigrams(words.split(), b"haha!ahha!haha!aha!haha!ahaha!aha!") for words in ("h a ah ! -", "h a ha ha! ?"))
    models = draft, target, Trie(draft, target), draft.write([], b"ha"), target.write([], b"ha")
    for T in (0, 0.5, 1):
        found = distribution(lambda draws, T=T: tuple(chain(*speculate(*models, 2, new, T, draws))))
        p, last = probabilities(target.logits([*range(5)], 5), T), models[-1][-1]
        gap = sum(abs(found[text] - p[[last, *text[:-1]], text].prod()) for text in product(range(5), repeat=new)) / 2
        print(f"temperature {T}: total variation of the first {new} tokens {gap:.0e}")
        assert gap < 1e-12
    return models

# ---- 7. Models from the package --------------------------------------------------------------------------------------
def embedded(draft="draft-tasks", target="qwen-like", prompt="Write a story about a dog."):
    from omnidraft import load, translation

    def wrap(model):
        cache, held = model.new_cache(), []

        def logits(ids, n):  # the part of the text that the cache holds is not read again
            same = next((i for i, old in enumerate(held) if ids[i:i + 1] != [old]), len(held))
            cache.rewind(min(same, len(ids) - n))
            held[:] = ids
            return model.forward(ids[cache.length:], cache, n)
        spell = [data or b"" for data in model.tokenizer.token_bytes]
        return Model(spell, partial(translation.extend, model.tokenizer), logits, model.eos_ids)

    models = [load(name, "float64") for name in (draft, target)]
    pair = [*map(wrap, models)]
    return *pair, Trie(*pair), *(m.tokenizer.encode(prompt, bos=True) for m in models)

if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--embedded"]):
        sys.exit("usage: python tutorials/mini.py [--embedded]")
    models = embedded() if "--embedded" in sys.argv else tables()
    for temperature in (0, 1):
        rounds = list(speculate(*models, 4, 40, temperature, Draws(iter(np.random.default_rng(0).random, None))))
        print(f"\ntemperature {temperature}: {sum(map(len, rounds))} tokens in {len(rounds)} passes of the target")
        print("|".join(models[1].bytes(tokens).decode(errors="replace") for tokens in rounds))
