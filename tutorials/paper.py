"""OmniDraft as in its paper (arXiv 2507.02659), in one file of NumPy, for bigram models.

A small drafter q writes d_1..d_k ahead in its own vocabulary V_q. They are translated to target
tokens t_1..t_m, and the target p checks these in one pass. While it serves, the drafter collects
n-grams, learns from the target, and trains a head that says when to stop a draft. Symbols and order
are the paper's. The package does the same with real models (docs/learning.md).
"""
import re
from collections import OrderedDict, defaultdict
from itertools import chain, product

import numpy as np

STYLES = {"accepted": "32", "merged": "36;4", "rejected": "31;9", "recovered": "1;33",
          "bonus": "1;35"}  # of a terminal

def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)

class Model:
    """A bigram model: it has counted in a text which token follows which."""
    def __init__(self, words, text):
        self.words = words.split()
        ids, counts = self.encode(text), np.full((len(self.words), len(self.words)), 0.1)
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
        self.logits = np.log(counts)  # (V, V): row i is for the token after token i

    def encode(self, text):  # the longest token at each place
        any_word = "|".join(map(re.escape, sorted(self.words, key=len, reverse=True)))
        return [self.words.index(word) for word in re.findall(any_word, text)]

    def spell(self, word):  # a word of the other model in its own tokens, or []
        ids = self.encode(word)
        return ids if "".join(self.words[token] for token in ids) == word else []

# ---- 1. The direct map: which tokens are the same in both vocabularies ---------------------------
def direct_map(draft, target):
    """(V_q,): the target token that is spelled like each draft token, or -1."""
    same = {word: token for token, word in enumerate(target.words)}
    return np.array([same.get(word, -1) for word in draft.words])

# ---- 2. The n-gram cache: several draft tokens that spell one target token -----------------------
class NGramCache(OrderedDict):
    """(d_1..d_n) -> t; at most `size` of them: the least recently used one is evicted (LRU)."""
    size = 16

    def insert(self, written, draft, target):  # from what a round wrote
        for token in written:
            ngram = tuple(draft.spell(target.words[token]))
            if len(ngram) > 1:
                self[ngram] = token
                self.move_to_end(ngram)
        while len(self) > self.size:
            self.popitem(last=False)

    def longest_match(self, drafted):  # at the start of some draft tokens; else the first alone
        for length in range(len(drafted), 1, -1):
            if tuple(drafted[:length]) in self:
                self.move_to_end(tuple(drafted[:length]))
                return tuple(drafted[:length])
        return tuple(drafted[:1])

# ---- 3. Translation: q' of what is proposed (Eq. 1) and of every other token (Eq. 2) -------------
def translate(drafted, rows, direct, cache, size):
    """[(t_i, its draft tokens, the row q' (V_p,))] for d_1..d_k, drawn from `rows` (k, V_q)."""
    proposals, shared = [], direct >= 0
    while drafted:
        ngram = cache.longest_match(drafted)
        q, token = np.zeros(size), direct[ngram[0]]
        q[direct[shared]] = rows[0][shared]  # q'(x) = q(x)
        if len(ngram) > 1:
            joint = np.prod([row[d] for row, d in zip(rows, ngram, strict=False)])
            if token >= 0:  # the n-gram takes its part from the token that d_1 alone stands for
                q[token] = max(0, q[token] - joint)
            token = cache[ngram]
            q[token] = joint  # q'(t) = q(d_1) ... q(d_n)
        if token < 0:  # no target token: the proposals end here
            break
        proposals.append((token, ngram, q))
        drafted, rows = drafted[len(ngram):], rows[len(ngram):]
    return proposals

# ---- 4. Algorithm 1: draft, translate, verify ----------------------------------------------------
def verify(proposals, p, choose):
    """Accept each t_i with min(1, p / q'). A rejection draws from the residual max(0, p - q')."""
    written = []
    for (token, _, q), row in zip(proposals, p):
        keep = min(1, row[token] / q[token])
        if choose(np.array([keep, 1 - keep])) == 1:
            residual = np.maximum(0, row - q)
            return [*written, choose(residual if residual.any() else row)]  # the recovered token
        written.append(token)
    return [*written, choose(p[-1])]  # the bonus token

def speculate(draft, target, cache, text, new, choose, head=None, k=4):
    """Yields for each round its draft context, d_1..d_k, proposals, rows p and written tokens."""
    direct, ids = direct_map(draft, target), target.encode(text)
    end = len(ids) + new
    while len(ids) < end:
        own, rows = draft.encode(text)[-1:], []  # a bigram model looks at the last token
        while len(rows) < min(k, end - len(ids) - 1) and not (rows and head and head.stops(own)):
            rows.append(softmax(draft.logits[own[-1]]))
            own.append(choose(rows[-1]))
        proposals = translate(own[1:], rows, direct, cache, len(target.words))
        p = softmax(target.logits[[ids[-1], *(token for token, _, _ in proposals)]])  # (m + 1, V_p)
        written = verify(proposals, p, choose)
        cache.insert(written, draft, target)
        yield own, proposals, p, written
        ids, text = ids + written, text + "".join(target.words[token] for token in written)

# ---- 5. The hybrid loss (Eq. 3 and 4), its gradient, and one online update -----------------------
def hybrid(draft, target, rounds, lam=0.2):
    """L_DM + lambda L_N-gram at the tokens that the rounds wrote; loss, gradient (V_q, V_q)."""
    direct, loss, gradient = direct_map(draft, target), 0.0, np.zeros_like(draft.logits)
    shared = np.flatnonzero(direct >= 0)
    for own, _, p, written in rounds:
        before = own[0]
        for token, row in zip(written, p):
            ids = draft.spell(target.words[token])
            if len(ids) == 1:  # L_DM: KL(q' || p), both restricted to the tokens of the direct map
                q = softmax(draft.logits[before, shared])
                log_ratio = np.log(q / row[direct[shared]] * row[direct[shared]].sum())
                loss += q @ log_ratio
                gradient[before, shared] += q * (log_ratio - q @ log_ratio)
            for previous, d in zip([before, *ids], ids if len(ids) > 1 else []):
                q = softmax(draft.logits[previous])  # L_N-gram: -log q(d_1) ... q(d_n)
                loss -= lam * np.log(q[d])
                gradient[previous] += lam * (q - np.eye(len(q))[d])
            before = ids[-1] if ids else before
    return loss, gradient

# ---- 6. The acceptance head: stop once 1 - P_1 ... P_i > gamma -----------------------------------
class Head:
    """P_i = sigmoid(f(d_{i-1}, d_i)), how likely d_i is accepted; here f is a table (V_q, V_q)."""
    def __init__(self, size, gamma=0.7):
        self.f, self.gamma = np.zeros((size, size)) + 3, gamma

    def stops(self, own):  # the token that triggers the stop is proposed all the same
        return 1 - np.prod(1 / (1 + np.exp(-self.f[own[:-1], own[1:]]))) > self.gamma

    def learn(self, rounds, rate=0.1):
        """A step of cross-entropy; the label of d_i is min(1, p / q') of its proposal."""
        for own, proposals, p, _ in rounds:
            labels = [min(1, row[token] / q[token]) for (token, ngram, q), row in zip(proposals, p)
                      for _ in ngram]
            for place, label in zip(zip(own, own[1:]), labels):
                self.f[place] -= rate * (1 / (1 + np.exp(-self.f[place])) - label)

# ---- 7. How biased is the rule? Run every outcome of its draws -----------------------------------
class Every:
    """Makes the given choices, then the first possible one each time, and notes the others."""
    def __init__(self, given):
        self.given, self.made, self.weight, self.others = given, [], 1.0, []

    def __call__(self, weights):
        if len(self.made) == len(self.given):
            first, *others = np.flatnonzero(weights).tolist()
            self.others += [[*self.made, other] for other in others]
            self.given = [*self.given, first]
        self.made.append(self.given[len(self.made)])
        self.weight *= weights[self.made[-1]] / weights.sum()
        return self.made[-1]

def distance(draft, target, cache, new=3, text="ha"):
    """Total variation between the first tokens that `speculate` writes and the target's own."""
    found, waiting, before = defaultdict(float), [[]], target.encode(text)[-1:]
    while waiting:
        every = Every(waiting.pop())
        rounds = [*speculate(draft, target, cache.copy(), text, new, every, k=2)]
        found[tuple(chain(*(written for *_, written in rounds)))[:new]] += every.weight
        waiting += every.others
    own = {ids: softmax(target.logits[[*before, *ids[:-1]]])[range(new), ids].prod()
           for ids in product(range(len(target.words)), repeat=new)}
    return sum(abs(found[ids] - own[ids]) for ids in own) / 2

# ---- 8. One round in colours, and what each component brings -------------------------------------
def paint(words, proposals, written):
    """A round as a line: proposals up to the first rejection, and the target's own token."""
    kept = len(written) - 1
    shown = [(words[token], "merged" if len(ngram) > 1 else "accepted")
             for token, ngram, _ in proposals[:kept]]
    shown += [(words[token], "rejected") for token, *_ in proposals[kept:kept + 1]]
    shown.append((words[written[-1]], "recovered" if kept < len(proposals) else "bonus"))
    return " ".join(f"\033[{STYLES[kind]}m{word}\033[0m ({kind})" for word, kind in shown)

if __name__ == "__main__":
    draft = Model("h a ! - o", "aah!h!aahah!")
    target = Model("h a ha ! o", "haha!ahha!haha!aha!ohaha!ahaha!aha!")
    rng, cache, empty, head = np.random.default_rng(0), NGramCache(), NGramCache(), Head(5)
    empty.size = 0
    def serve(new, cache, head=None):
        choose = lambda weights: int(rng.choice(len(weights), p=weights / weights.sum()))
        return [*speculate(draft, target, cache, "ha", new, choose, head)]
    def measure(name, cache, head=None):
        rounds = serve(1500, cache, head)
        drafted = sum(len(own) - 1 for own, *_ in rounds) / len(rounds)
        print(f"{name:24}{1500 / len(rounds):5.2f} tokens a pass, {drafted:.2f} drafted")
    measure("direct map", empty)
    measure("+ n-gram cache", cache)
    for _ in range(30):  # Algorithm 2: serve a text, update on it; drafter and head jointly
        rounds = serve(60, cache)
        draft.logits -= 0.03 * hybrid(draft, target, rounds)[1]
        head.learn(rounds)
    measure("+ hybrid loss, 30 texts", cache)
    measure("+ acceptance head", cache, head)
    both = [(proposals, written) for _, proposals, _, written in rounds
            if len(written) > 2 and {len(ngram) for _, ngram, _ in proposals} == {1, 2}]
    print("one round:", paint(target.words, *both[0]))
    print(f"The rule is not exact: {distance(draft, target, cache):.3f} from the target's own "
          "distribution of three tokens. mini.py mends this.")
