"""OmniDraft as in its paper (arXiv 2507.02659), for one target: one file of NumPy, bigram models.

A small drafter q writes d_1..d_k in its vocabulary V_q, translated to t_1..t_m, which the target p
checks in one pass. Meanwhile q collects n-grams, learns, and trains a head that says when to stop.
"""
import re
from collections import namedtuple
from itertools import product

import numpy as np

Round = namedtuple("Round", "own proposals p written")  # own: the draft context, then d_1..d_k
STYLES = {"accepted": "32", "merged": "36;4", "recovered": "1;33", "bonus": "1;35"}  # in a terminal

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

    def spell(self, word):  # a word of the other model in its own tokens, or ()
        ids = self.encode(word)
        return tuple(ids) if "".join(self.words[token] for token in ids) == word else ()

# ---- 1. The direct map (lesson 2): which tokens are the same in both vocabularies ----------------
def direct_map(draft, target):
    """(V_q,): the target token that is spelled like each draft token, or -1."""
    same = {word: token for token, word in enumerate(target.words)}
    return np.array([same.get(word, -1) for word in draft.words])

# ---- 2. The n-gram cache (lesson 3): several draft tokens that spell one target token ------------
class NGramCache(dict):
    """(d_1..d_n) -> t, the last used one last; beyond `size` the first one is evicted (LRU)."""
    size = 16

    def insert(self, written, draft, target):  # from what a round wrote
        for token in written:
            ngram = draft.spell(target.words[token])
            if len(ngram) > 1:
                self.pop(ngram, None)
                self[ngram] = token
        while len(self) > self.size:
            del self[next(iter(self))]

    def longest_match(self, drafted):  # at the start of some draft tokens; else the first alone
        for length in range(len(drafted), 1, -1):
            ngram = tuple(drafted[:length])
            if ngram in self:
                self[ngram] = self.pop(ngram)
                return ngram
        return tuple(drafted[:1])

# ---- 3. Translation (lesson 4): q' of what is proposed (Eq. 1) and of every other token (Eq. 2) --
def translate(drafted, rows, direct, cache, size):
    """[(t, its draft tokens, the row q' (V_p,))] for d_1..d_k, drawn from `rows` (k, V_q)."""
    proposals = []
    while drafted:
        ngram = cache.longest_match(drafted)
        token, q = direct[ngram[0]], np.zeros(size)
        q[direct[direct >= 0]] = rows[0][direct >= 0]  # q'(x) = q(x)
        if len(ngram) > 1:
            joint = np.prod([row[d] for row, d in zip(rows, ngram)])
            if token >= 0:  # the n-gram takes its part from the token that d_1 alone stands for
                q[token] = max(0, q[token] - joint)
            token = cache[ngram]
            q[token] = joint  # q'(t) = q(d_1) ... q(d_n)
        if token < 0:  # no target token: it is dropped (lesson 8: a small bias), and the rest
            break
        proposals.append((token, ngram, q))
        drafted, rows = drafted[len(ngram):], rows[len(ngram):]
    return proposals

# ---- 4. Algorithm 1 (lessons 1 and 4): draft, translate, verify ----------------------------------
def verify(proposals, p, rng):
    """Accept each t with min(1, p / q'). A rejection draws from the residual max(0, p - q')."""
    for kept, (token, _, q) in enumerate(proposals):
        if rng.random() >= p[kept, token] / q[token]:
            residual = np.maximum(0, p[kept] - q)
            recovered = rng.choice(len(q), p=residual / residual.sum())
            return [token for token, *_ in proposals[:kept]] + [recovered]
    return [token for token, *_ in proposals] + [rng.choice(p.shape[1], p=p[-1])]  # the bonus

def speculate(draft, target, cache, text, new, rng, head=None, k=4):
    """Yield the rounds that write at least `new` tokens after a text."""
    direct, ids = direct_map(draft, target), target.encode(text)
    end = len(ids) + new
    while len(ids) < end:
        own, rows = draft.encode(text)[-1:], []  # a bigram model looks at the last token
        while len(rows) < k and not (rows and head and head.stops(own)):
            rows.append(softmax(draft.logits[own[-1]]))
            own.append(rng.choice(len(rows[-1]), p=rows[-1]))
        proposals = translate(own[1:], rows, direct, cache, len(target.words))
        p = softmax(target.logits[[ids[-1], *(token for token, *_ in proposals)]])  # (m + 1, V_p)
        written = verify(proposals, p, rng)
        cache.insert(written, draft, target)
        yield Round(own, proposals, p, written)
        ids, text = ids + written, text + "".join(target.words[token] for token in written)

# ---- 5. The hybrid loss (Eq. 3 and 4), and its gradient (lesson 7) -------------------------------
def hybrid(draft, target, rounds, lam=0.2):
    """L_DM + lambda L_N-gram at the tokens that the rounds wrote; loss, gradient (V_q, V_q)."""
    direct, loss, gradient = direct_map(draft, target), 0.0, np.zeros_like(draft.logits)
    shared = np.flatnonzero(direct >= 0)
    for own, _, p, written in rounds:
        before = own[0]
        for token, row in zip(written, p):
            ids = draft.spell(target.words[token])
            if len(ids) == 1:  # L_DM: KL(q || p), both restricted to the tokens of the direct map
                q, wanted = softmax(draft.logits[before, shared]), row[direct[shared]]
                log_ratio = np.log(q / wanted * wanted.sum())
                loss += q @ log_ratio
                gradient[before, shared] += q * (log_ratio - q @ log_ratio)
            else:  # L_N-gram: -log q(d_1) ... q(d_n)
                for previous, d in zip([before, *ids], ids):
                    q = softmax(draft.logits[previous])
                    loss -= lam * np.log(q[d])
                    gradient[previous] += lam * (q - np.eye(len(q))[d])
            before = ids[-1] if ids else before
    return loss, gradient

# ---- 6. The acceptance head (lesson 8): stop once 1 - P_1 ... P_i > gamma ------------------------
class Head:
    """P_i = sigmoid(f(d_{i-1}, d_i)), how likely d_i is accepted; here f is a table (V_q, V_q)."""
    def __init__(self, size, gamma=0.7):
        self.f, self.gamma = np.full((size, size), 3.0), gamma  # at first P = 0.95

    def stops(self, own):  # the token that triggers the stop is proposed all the same
        return 1 - np.prod(1 / (1 + np.exp(-self.f[own[:-1], own[1:]]))) > self.gamma

    def learn(self, rounds, rate=0.1):
        """Steps of cross-entropy; labels of a proposal's d_i multiply to min(1, p / q')."""
        for own, proposals, p, written in rounds:
            place = 0
            for (token, ngram, q), row in zip(proposals, p[:len(written)]):  # the reached ones
                label = min(1, row[token] / q[token]) ** (1 / len(ngram))
                for pair in zip(own[place:], ngram):  # each (d_{i-1}, d_i), with this label
                    self.f[pair] -= rate * (1 / (1 + np.exp(-self.f[pair])) - label)
                place += len(ngram)

# ---- 7. How biased is the rule? (lesson 4) Instead of drawing, add up every draft of two tokens --
def bias(draft, target, cache, text="ha"):
    """Total variation between the first token that a round writes and the target's own."""
    direct, own, size = direct_map(draft, target), draft.encode(text)[-1], len(target.words)
    p, written = softmax(target.logits[target.encode(text)[-1]]), np.zeros(size)
    for drafted in product(range(len(draft.words)), repeat=2):
        rows = softmax(draft.logits[[own, drafted[0]]])
        drawn = rows[0, drafted[0]] * rows[1, drafted[1]]
        for token, _, q in translate(drafted, rows, direct, cache, size)[:1]:  # if any
            keep, residual = min(1, p[token] / q[token]), np.maximum(0, p - q)
            written[token] += drawn * keep
            written += drawn * (1 - keep) * residual / max(residual.sum(), 1e-30)
            drawn = 0
        written += drawn * p  # 0 if a token was proposed
    return abs(written - p).sum() / 2

# ---- 8. One round in colours, and what each component brings -------------------------------------
def paint(words, one):
    """What a round wrote, and how: the last token is the target's own."""
    kept = len(one.written) - 1
    hows = ["merged" if len(ngram) > 1 else "accepted" for _, ngram, _ in one.proposals[:kept]]
    hows.append("recovered" if kept < len(one.proposals) else "bonus")
    return " ".join(f"\033[{STYLES[how]}m{words[token]}\033[0m ({how})"
                    for token, how in zip(one.written, hows))

def measure(name, *models_and_cache, head=None, k=4):  # if a draft token costs a tenth of a pass
    rounds = [*speculate(*models_and_cache, "ha", 1500, np.random.default_rng(0), head, k)]
    written, drafted = np.mean([(len(one.written), len(one.own) - 1) for one in rounds], axis=0)
    print(f"{name:24}{written:5.2f} tokens a pass, {drafted:.2f} drafted, "
          f"{written / (1 + 0.1 * drafted):.2f} x plain, bias {bias(*models_and_cache):.4f}")

if __name__ == "__main__":
    draft = Model("h a ! - o", "aah!h!aahah!")  # only the drafter has -, only the target ha
    target = Model("h a ha ! o", "haha!ahha!haha!aha!ohaha!ahaha!aha!")
    cache, empty, head, rng = NGramCache(), NGramCache(), Head(5), np.random.default_rng(0)
    empty.size = 0
    measure("direct map", draft, target, empty)
    measure("+ n-gram cache", draft, target, cache)
    for _ in range(30):  # Algorithm 2: serve a text, update on it; drafter and head jointly
        rounds = [*speculate(draft, target, cache, "ha", 60, rng)]
        draft.logits -= 0.03 * hybrid(draft, target, rounds)[1]
        head.learn(rounds)
    measure("+ hybrid loss, 30 texts", draft, target, cache)
    measure("+ acceptance head", draft, target, cache, head=head)
    measure("k = 3, without a head", draft, target, cache, k=3)  # a tuned k does better here
    mixed = [one for one in rounds if {len(ngram) for _, ngram, _ in one.proposals} == {1, 2}]
    print("one round:", paint(target.words, max(mixed, key=lambda one: len(one.written))))
    print("bias: of the first token after ha, for drafts of two tokens; mini.py mends it")
