"""The exact method in 200 lines of NumPy: speculative decoding for two tokenizers, and learning.

A small drafter q writes a few tokens ahead, in its own vocabulary. A large target p checks them all
in one pass, keeps what it might have written itself, and adds a token: each text stays as probable
as the target's own. (After arXiv 2507.02659; verification and loss are this project's own.)
"""
import re
from collections import defaultdict, namedtuple
from itertools import chain, product

import numpy as np

Step = namedtuple("Step", "P Q r node row token groups")  # a comparison, with the r before it
# ---- 1. A model and its tokenizer ----------------------------------------------------------------
class Model:
    """A bigram model: it has counted in a text which token follows which."""
    def __init__(self, words, text):
        self.words = words.split()
        ids, counts = self.write(text), np.full((len(self.words), len(self.words)), 0.1)
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
        self.logits = np.log(counts)  # (V, V): row i is for the token after token i

    def write(self, text):
        """The ids of a text: the longest token at each place; what no token spells is left out."""
        any_word = "|".join(map(re.escape, sorted(self.words, key=len, reverse=True)))
        return [self.words.index(word) for word in re.findall(any_word, text)]

    def spell(self, word):  # a word of another model: its equal, several ids, or ()
        ids = self.write(word)
        return tuple(ids) if "".join(self.words[token] for token in ids) == word else ()

    def rows(self, ids, temperature):
        """The distribution (n, V) of the token after each of the ids; one-hot at temperature 0."""
        if temperature == 0:
            return np.eye(len(self.words))[self.logits[ids].argmax(-1)]
        weights = np.exp(self.logits[ids] / temperature)
        return weights / weights.sum(-1, keepdims=True)

# ---- 2. Translation: both models write in the same small steps, called atoms ---------------------
class Trie:
    """Each target token has a *split* into draft tokens, its atoms: its equal, or an n-gram (h, a).
    Each draft token has a *path* of atoms: itself, or the splits of the target tokens that spell
    it. A *node* is a prefix of a split; at a node, tokens are grouped by their next atom."""
    def __init__(self, draft, target):
        splits = {token: draft.spell(word) for token, word in enumerate(target.words)}
        self.token = {split: token for token, split in splits.items() if split}  # node -> its own
        self.groups = defaultdict(lambda: defaultdict(list))  # node -> {next atom: target tokens}
        for split, token in sorted(self.token.items()):
            for depth, atom in enumerate([*split, None]):  # None: the token ends at this node
                self.groups[split[:depth]][atom].append(token)
        self.groups[()][None] = [token for token in splits if not splits[token]]  # at the root
        for group in self.groups.values():
            group[None] = group.pop(None, [])  # the last group of each node
        atoms, self.paths = {*chain(*self.token)}, []  # paths: one for each draft token
        for token, word in enumerate(draft.words):
            parts = [splits[part] for part in target.spell(word)]
            path = tuple(chain(*parts)) if parts and all(parts) else (-1,)  # -1 matches nothing
            self.paths.append((token,) if token in atoms else path)

    def drafts(self, node, before, barred):
        """{next atom: draft tokens} of those whose path goes on after the atoms `before`, with an
        atom that is not barred; None: with one that leads to no child of the node."""
        found = {atom: [] for atom in self.groups[node]}
        for token, path in enumerate(self.paths):
            rest = path[len(before):]
            if path[:len(before)] == before and rest and rest[0] not in barred:
                found[rest[0] if rest[0] in found else None].append(token)
        return found

    def walk(self, atoms):
        """The comparisons of a draft: (place of the atom, node, barred, number of tokens so far);
        the tokens that it spells, the longest at each place; the node in which it ends."""
        route, tokens, place = [], [], 0
        node = barred = ()
        while place < len(atoms):
            route.append((place, node, barred, len(tokens)))
            is_child = atoms[place] in self.groups[node]
            if is_child:
                node, barred, place = (*node, atoms[place]), (), place + 1
            elif node in self.token:  # *stop*: the atom begins the next token, as no child of this
                barred = self.groups[node]
            else:
                break
            if not is_child or len(self.groups[node]) == 1:
                tokens, node = [*tokens, self.token[node]], ()
        return route, tokens, node

# ---- 3. Verification: how much of the draft is kept, and what the target writes after it ---------
def shares(probs, groups):
    """The probability of each group of tokens, given that it is one of them."""
    masses = np.array([probs[tokens].sum() for tokens in groups.values()])
    return masses / masses.sum()

def verify(atoms, q, p, trie, choose):
    """The 1 to m + 1 tokens of a round, and its steps up to where it ended.
    atoms: [(atom, its draft token, its atoms before)]; q (k, V_q) drew them; p (m + 1, V_p). Block
    verification (arXiv 2403.10444): r, a product of ratios P / Q capped at 1 each time, is the
    probability of keeping the draft up to here. All of it is kept, or a part and then a token from
    the residual max(0, r P - Q), which is what the drafter proposes too rarely."""
    route, written, end = trie.walk([atom for atom, _, _ in atoms])
    steps, r = [], 1.0
    for place, node, barred, row in route:
        atom, token, before = atoms[place]
        groups = trie.drafts(node, before, barred)
        P, Q = shares(p[row], trie.groups[node]), shares(q[token], groups)
        Q[-1] = Q[-1] if node else 0  # at the root no atom proposes a token without a split
        steps.append(Step(P, Q, r, node, row, token, groups))
        choice = [*groups].index(atom if atom in groups else None)
        r = min(1, r * P[choice] / Q[choice]) if Q[choice] > 0 else 0
        if r == 0:
            break
    if steps and choose(np.array([r, 1 - r])) == 1:
        while True:  # back to where r = 1, at the latest the first step, or less far
            last = steps[-1]
            residual = np.maximum(0, last.r * last.P - last.Q)
            if last.r == 1 or choose(np.array([residual.sum(), 1 - last.r])) == 0:
                break
            steps.pop()
        tokens = [*trie.groups[last.node].values()][choose(residual if residual.any() else last.P)]
        return [*written[:last.row], tokens[choose(p[last.row][tokens])]], steps
    if end:  # the atoms end inside a token: draw one that begins as they do
        tokens = trie.groups[end[:-1]][end[-1]]
        written.append(tokens[choose(p[len(written)][tokens])])
        if written[-1] != trie.token.get(end):
            return written, steps
    return [*written, choose(p[len(written)])], steps

# ---- 4. The loop: draft, translate, one pass of the target, verify -------------------------------
def speculate(draft, target, trie, text, k, new, temperature, choose):
    """Yields for each round its tokens, and [(draft token before the row q, step)] for `learn`."""
    ids = target.write(text)
    end = len(ids) + new
    while len(ids) < end:
        own, q = draft.write(text)[-1:], []  # a bigram model looks at the last token
        for _ in range(min(k, end - len(ids) - 1)):  # the target adds one token of its own
            q.append(draft.rows(own[-1], temperature))
            own.append(choose(q[-1]))
        paths = [trie.paths[token] for token in own[1:]]
        atoms = [(atom, j, path[:i]) for j, path in enumerate(paths) for i, atom in enumerate(path)]
        _, proposals, node = trie.walk([*chain(*paths)])
        proposals += [trie.token[node]] if node in trie.token else []
        p = target.rows([ids[-1], *proposals], temperature)  # (m + 1, V_p) in one pass
        written, steps = verify(atoms, q, p, trie, choose)
        yield written, [(own[step.token], step) for step in steps]
        ids += written
        text += "".join(target.words[token] for token in written)

# ---- 5. Learning: the lifted loss is a divergence of what verification compared ------------------
def learn(draft, rounds, rate):
    """One online update, from the rounds of a text: a step down the gradient of each KL(P || Q)."""
    for before, step in chain(*(steps for _, steps in rounds)):
        draft.logits[before] -= rate * gradient(step, draft.rows(before, 1))

def gradient(step, q):
    """The derivative of KL(P || Q) by the logits of the row q (V_q,), over groups that the drafter
    can propose. Going against it moves q towards P, group by group."""
    found = np.zeros(len(q))
    groups = [(share, step.groups[atom]) for share, atom in zip(step.P, step.groups, strict=True)
              if step.groups[atom] and (step.node or atom is not None)]
    p_sum, q_sum = sum(share for share, _ in groups), sum(q[tokens].sum() for _, tokens in groups)
    for share, tokens in groups:
        found[tokens] = q[tokens] / q_sum - share / p_sum * q[tokens] / q[tokens].sum()
    return found

# ---- 6. The proof: run every possible outcome ----------------------------------------------------
class Every:
    """Makes the given choices, then the first possible one each time, and notes the others."""
    def __init__(self, choices):
        self.given, self.made, self.weight, self.others = iter(choices), [], 1.0, []

    def __call__(self, weights):
        choice = next(self.given, None)
        if choice is None:
            choice, *others = np.flatnonzero(weights).tolist()
            self.others += [[*self.made, other] for other in others]
        self.made.append(choice)
        self.weight *= weights[choice] / sum(weights)
        return choice

def distance(models, temperature=1, new=3, text="ha"):
    """Total variation between the first tokens that `speculate` writes and the target's own."""
    found, waiting, target = defaultdict(float), [[]], models[1]
    while waiting:
        choose = Every(waiting.pop())
        rounds = [written for written, _ in speculate(*models, text, 2, new, temperature, choose)]
        found[tuple(chain(*rounds))[:new]] += choose.weight
        waiting += choose.others
    every, before = range(len(target.words)), target.write(text)[-1:]
    own = {ids: target.rows([*before, *ids[:-1]], temperature)[range(new), ids].prod()
           for ids in product(every, repeat=new)}
    return sum(abs(found[ids] - own[ids]) for ids in own) / 2

if __name__ == "__main__":
    draft = Model("h a ah ! -", "aah!h!aahah!")
    target = Model("h a ha ha! ?", "haha!ahha!haha!aha!haha!ahaha!aha!")
    models, rng = (draft, target, Trie(draft, target)), np.random.default_rng(0)
    for when in ("before learning", "after one update"):
        rounds = [*speculate(*models, "ha", 4, 600, 1, lambda w: rng.choice(len(w), p=w / sum(w)))]
        print(f"{when}: {600 / len(rounds):.2f} tokens a pass, error {distance(models):.0e}")
        learn(draft, rounds, 0.02)
