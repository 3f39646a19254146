"""Distillation losses: how far the drafter's laws are from the target's along a text, and the gradient for its logits.

p = target, q = draft; only the drafter learns, from texts that the pair wrote itself. `dm`, `hybrid` and `hybrid_kl` are
those of arXiv 2507.02659 (Eq. 2 to 4), `lifted` is this project's own. Each is a sum of comparisons of one kind: a target's
law P over some categories of draft tokens with Q(c) = sum_{d in c} q(d) / sum_{d in any category} q(d).

draft_logits: (N, V_q), row j predicts draft_ids[j + 1], so the first token has no row; logits beyond the tokenizer's ids are
masked. What is beyond the last row (the drafter's context) or the end token does not count. Returned are the value *summed*
over the comparisons, its gradient (N, V_q), and their count to divide a batch's sums by. `losses_torch` is the twin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from .errors import OmnidraftError
from .lifting import ROOT, Lifting, Split
from .pairing import Pairing as Pair
from .sampling import process
from .translation import common_prefix, extend

DIVERGENCES = ("forward", "reverse", "tv")
FLOOR, TINY = 1e-12, 1e-30  # least P and least Q inside a logarithm
BLOCK = 1 << 15  # numbers that are compared at once
KEPT = 1 << 22  # draft tokens whose categories are kept (8 bytes each)
Result = tuple[float, np.ndarray, int]


@dataclass
class Example:
    """One text that a pair wrote, seen by both vocabularies."""

    draft_ids: list[int]  # prompt and response as the drafter's tokenizer has them; of more than its context the end
    target_ids: list[int]  # (M,) the response, up to its end token
    target_probs: np.ndarray  # (M, V_p) row i is p before target_ids[i], at temperature 1
    starts: list[int]  # (M,) index into draft_ids of the token that begins at the same byte, -1 if none does


def make_example(pair: Pair, prompt: str | Sequence[int], target_ids: Sequence[int], target_probs: np.ndarray) -> Example:
    """The response `target_ids` to `prompt` with its rows (M, V_p), cut after the end token, which becomes the drafter's.

    `prompt` is a text, or what the drafter reads for it (ids in V_q).
    Tokens without bytes, and after a byte that the drafter cannot spell, have no start. Raises OmnidraftError for lack of rows.

    >>> make_example(pair, "Snow", [732], rows).starts  # <s> " Snow" | "f" "la" "ke" against "flake"  # doctest: +SKIP
    [2]
    """
    draft, target, ends = pair.draft.tokenizer, pair.target.tokenizer, pair.target.eos_ids
    ids = [int(t) for t in target_ids[:next((i + 1 for i, t in enumerate(target_ids) if t in ends), None)]]
    if len(target_probs) < len(ids):
        raise OmnidraftError(f"{len(ids)} target tokens came with {len(target_probs)} rows: give one row for each token")
    prompt_ids = draft.encode(prompt, bos=True) if isinstance(prompt, str) else list(prompt)
    before = draft.decode_bytes(prompt_ids)
    text = before + target.decode_bytes(ids)
    draft_ids = extend(draft, prompt_ids, text[len(before):])
    agreed = common_prefix(draft.decode_bytes(draft_ids), text)
    offsets = accumulate([0, *(len(draft.decode_bytes([token])) for token in draft_ids)])
    begins = {at: j for j, at in enumerate(offsets) if at < agreed}  # byte -> draft token
    sizes = [len(target.decode_bytes([token])) for token in ids]
    starts = [begins.get(at, -1) if size else -1 for at, size in zip(accumulate([len(before), *sizes]), sizes, strict=False)]
    if ids and ids[-1] in ends and not sizes[-1]:
        own = [int(i) for i in (pair.alignment.target_to_draft[ids[-1]], *pair.draft.eos_ids) if i >= 0][:1]
        draft_ids, starts[-1] = [*draft_ids, *own], len(draft_ids) if own else -1
    cut = max(0, len(draft_ids) - pair.draft.context_size)  # the end is what was written; the beginning may be a long prompt
    return Example(draft_ids[cut:], ids, np.asarray(target_probs)[:len(ids)], [at - cut if at > cut else -1 for at in starts])


class Comparison(NamedTuple):
    """P against Q, one row's softmax summed by category; with an n-gram, prod_j q(d_j) moves from d_1's category (Eq. 2)."""

    row: int  # of the draft logits; d_2, ... of an n-gram have the rows after it
    categories: np.ndarray  # (W,) category of each id of the draft tokenizer, -1: outside
    target_law: np.ndarray  # (C,) P, up to a factor
    divergence: str
    weight: float = 1.0
    ngram: Split = ()
    merged: int = -1  # the category of the n-gram itself


def dm(draft_logits: np.ndarray, example: Example, pair: Pair) -> Result:
    """Sum of KL(q' || p), both restricted to shared tokens and renormalised, where the text has a direct pair (Eq. 3).

    p = (0.6, 0.3 | 0.1), q = (0.4, 0.4 | 0.2), the first two shared: KL((1/2, 1/2) || (2/3, 1/3)) = log(9/8) / 2.
    """
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair))


def hybrid(draft_logits: np.ndarray, example: Example, pair: Pair, weight: float | str = 0.2) -> Result:
    """dm + weight * sum of -log q(d_j) over the draft tokens of n-grams (Eq. 3 and 4); weight "dynamic" is p(t).

    An n-gram is the cached split of a target token t where the text has these draft tokens for it; each of them counts.
    q(d_j) = 1/2, 1/4 give weight * log 8. Raises OmnidraftError for another weight.
    """
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair, weight))


def hybrid_kl(draft_logits: np.ndarray, example: Example, pair: Pair, weight: float | str = 0.2) -> Result:
    """dm + weight * KL(q' || p) over the shared tokens and t, once for each n-gram (Eq. 2, renormalised).

    q'(t) = prod_j q(d_j), and what d_1 maps to keeps q(d_1) - q'(t): for q(d_1) = 1/2, q(d_2) = 1/4, 1/8 and 3/8.
    """
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair, weight, merge=True))


def lifted(draft_logits: np.ndarray, example: Example, pair: Pair, divergence: str = "forward") -> Result:
    """Sum of "forward" KL(P || Q), "reverse" KL(Q || P) or "tv" over the choices of lossless verification for the text.

    With P and Q of `Lifting.choice`, tv = 1 - sum_c min(P(c), Q(c)) is one minus the acceptance probability. The KLs leave
    out, and renormalise without, what no draft token can propose ("uncovered"; after a *stop*, the children of the node
    left) and, at the root, what begins no target token. P = (3/4, 1/4), Q = (1/2, 1/2): tv 1/4, reverse log(4/3) / 2.
    """
    return _total(draft_logits, lifted_comparisons(draft_logits.shape, example, pair, divergence))


LOSSES = {"dm": dm, "hybrid": hybrid, "hybrid-kl": hybrid_kl, "lifted": lifted}


def direct_comparisons(shape: Sequence[int], example: Example, pair: Pair, weight: float | str = 0.0,
                       merge: bool = False) -> Iterator[Comparison]:
    """Those of `dm` for logits of this shape; with a weight also those of `hybrid`, or with `merge` of `hybrid_kl`."""
    if weight != "dynamic" and not (isinstance(weight, (int, float)) and weight >= 0):
        raise OmnidraftError(f"the n-gram weight is {weight!r}: give a number of 0 or more, or 'dynamic'")
    direct = pair.alignment.draft_to_target[:min(shape[1], pair.draft.tokenizer.size)]  # (W,)
    shared = np.unique(direct[direct >= 0])  # (S,) target tokens
    categories = np.where(direct >= 0, np.searchsorted(shared, direct), -1)
    ids = example.draft_ids[:shape[0] + 1]
    for token, start, p in zip(example.target_ids, example.starts, example.target_probs, strict=True):
        split = pair.cache.split_of(token) or () if weight else ()
        if not 0 < start < len(ids):
            continue
        if ids[start] == pair.alignment.target_to_draft[token] and p[shared].sum() > 0:
            yield Comparison(start - 1, categories, p[shared], "reverse")
        elif len(split) > 1 and tuple(ids[start:start + len(split)]) == split:
            scale = float(p[token] if weight == "dynamic" else weight)
            merged = int(np.searchsorted(shared, token)) if token in shared else len(shared)
            law = np.append(p[shared], p[token] if merged == len(shared) else [])
            if merge and law.sum() > 0:
                yield Comparison(start - 1, categories, law, "reverse", scale, split, merged)
            for row, d in enumerate(() if merge else split, start - 1):  # -log q(d) is KL((1, 0) || (q(d), 1 - q(d)))
                yield Comparison(row, (np.arange(len(direct)) != d).astype(int), np.array([1.0, 0.0]), "forward", scale)


def lifted_comparisons(shape: Sequence[int], example: Example, pair: Pair, divergence: str) -> Iterator[Comparison]:
    """Those of `lifted`, all along the text's way through the trie. Raises OmnidraftError for an unknown divergence."""
    if divergence not in DIVERGENCES:
        raise OmnidraftError(f"unknown divergence {divergence!r}: choose one of {', '.join(DIVERGENCES)}")
    lifting, exact, width = pair.lifting, divergence == "tv", min(shape[1], pair.draft.tokenizer.size)
    paths = [*(lifting.paths[token] or () for token in example.draft_ids), ()]
    nothing = np.zeros(len(lifting.paths))
    at, prefix, left = -1, (), ROOT  # the next draft token, its atoms so far, and the node whose *stop* it has proposed
    for token, start, p in zip(example.target_ids, example.starts, example.target_probs, strict=True):
        if at < 0 or start != (-1 if prefix else at):
            at, prefix, left = start, (), ROOT
        if at < 0:
            continue
        split = lifting.splits.get(token, ())
        trail = [*accumulate(split, lambda node, atom: lifting.children[node][atom], initial=ROOT)]
        if lifting.token[trail[-1]] != token:  # uncovered
            split, trail = (), [ROOT]
        for node, atom in zip(trail, (*split, None), strict=True):  # None: the token ends at this node
            if 0 < at <= shape[0] and (node == ROOT or (lifting.children[node] and p[lifting.below(node)].sum() > 0)):
                categories, counted = _categories(lifting, width, exact, prefix, node, left if node == ROOT else ROOT)
                law = lifting.choice(node, p, nothing)[1]
                law = np.append(law, 0.0) * counted  # (C + 2,): no target token begins with what is no child of the root
                if law.sum() > 0 and counted.any():
                    yield Comparison(at - 1, categories, law, divergence)
            found = paths[at][len(prefix)] if paths[at] else None
            if atom is None or atom != found:
                break
            at, prefix = (at + 1, ()) if (*prefix, atom) == paths[at] else (at, (*prefix, atom))
        left = node
        if atom is not None or lifting.token[node] != token or found in lifting.children[node]:
            at = -1  # a walk ends here or goes on with a longer token: a new round begins at the next token with a start


def _categories(lifting: Lifting, width: int, exact: bool, prefix: Split, node: int, left: int) -> tuple[np.ndarray, ...]:
    """Category (W,) of each draft token by its path's atom after `prefix`: a child of the node, or what ends there (C).
    At the root C + 1, or -1 if not `exact`, begins no target token. -1: does not go on, or would not have left `left`.
    And which of the (C + 2,) count: all if `exact` and any does, else those that hold a token. Both are kept."""
    key = width, exact, prefix, node, left
    if key not in lifting.categories:
        atoms = lifting.child_ranges(node)[0]
        of_atom = np.full(len(lifting.paths) + 2, len(atoms) if node != ROOT else len(atoms) + 1 if exact else -1)
        of_atom[atoms] = np.arange(len(atoms))
        of_atom[[*(lifting.children[left] if left != ROOT else ()), -2]] = -1
        following = np.full(len(lifting.paths), -2) if prefix else lifting.first_atom - 1  # -2: does not go on, -1: no path
        for draft_token, atom in lifting._longer[prefix] if prefix else ():
            following[draft_token] = atom
        categories = of_atom[following[:width]]
        counted = np.bincount(categories + 1, minlength=len(atoms) + 3)[1:] > 0
        if width * len(lifting.categories) > KEPT:
            lifting.categories.clear()
        lifting.categories[key] = categories, counted | (exact and counted.any())
    return lifting.categories[key]


def _total(draft_logits: np.ndarray, comparisons: Iterable[Comparison]) -> Result:
    """The sum over the comparisons, in blocks that stay in the processor's cache: a text has about a hundred."""
    gradient, value = np.zeros_like(draft_logits), 0.0
    ordered = sorted(comparisons, key=lambda comparison: len(comparison.target_law))
    size = max(1, BLOCK // draft_logits.shape[1])
    for kind in DIVERGENCES:
        group = [comparison for comparison in ordered if comparison.divergence == kind]
        value += sum(_compare(draft_logits, group[i:i + size], kind, gradient) for i in range(0, len(group), size))
    return value, gradient, len(ordered)


def _compare(draft_logits: np.ndarray, group: list[Comparison], kind: str, gradient: np.ndarray) -> float:
    """The weighted value of B comparisons; their gradients are added to `gradient` (N, V_q)."""
    rows, weight, ngrams = [c.row for c in group], np.array([[c.weight] for c in group]), []
    laws = np.zeros((len(group), max(len(c.target_law) for c in group)))  # (B, C), the shorter ones with zeros at their end
    for law, c in zip(laws, group, strict=True):
        law[:len(c.target_law)] = c.target_law / c.target_law.sum(dtype=float)
    slots = np.stack([c.categories for c in group]) + 1  # (B, W); slot 0: outside
    width, inside = slots.shape[1], slots > 0
    for b, c in enumerate(group):
        inside[b, [*c.ngram[:1]]] = True  # d_1 may have no direct token
    logits = np.where(inside, draft_logits[rows, :width], -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))  # (B, W) q up to a factor
    places = slots + (laws.shape[1] + 1) * np.arange(len(group))[:, None]  # in masses (B, C + 1), flat
    masses = np.bincount(places.ravel(), weights.ravel(), laws.size + len(group)).reshape(len(group), -1)
    for b, c in [(b, c) for b, c in enumerate(group) if c.ngram]:
        later = process(draft_logits[c.row + 1:c.row + len(c.ngram), :width])  # (n - 1, W)
        product = weights[b, c.ngram[0]] * later[range(len(later)), c.ngram[1:]].prod()
        masses[b, [slots[b, c.ngram[0]], c.merged + 1]] += [-product, product]
        ngrams.append((b, c, later, product))
    total = masses[:, 1:].sum(-1, keepdims=True)
    draft_laws = masses[:, 1:] / total
    values, along = _divergence(laws, draft_laws, kind, weights.dtype)
    slope = np.zeros_like(masses)  # along the masses, whose total divides
    slope[:, 1:] = (along - np.vecdot(along, draft_laws)[:, None]) * (weight / total)
    for row, change in zip(rows, weights * slope.take(places), strict=True):
        gradient[row, :width] += change
    for b, c, later, product in ngrams:
        change = product * (slope[b, c.merged + 1] - slope[b, slots[b, c.ngram[0]]])
        gradient[range(c.row, c.row + len(c.ngram)), c.ngram] += change
        gradient[c.row + 1:c.row + len(c.ngram), :width] -= change * later
    return float(values @ weight[:, 0])


def _divergence(target_laws: np.ndarray, draft_laws: np.ndarray, kind: str, dtype: Any = float) -> tuple[np.ndarray, ...]:
    """Divergences (B,) of P (B, C) and Q (B, C), and their slopes (B, C) along Q; logarithms are of the logits' `dtype`."""
    if kind == "tv":
        return 1.0 - np.minimum(target_laws, draft_laws).sum(-1), -(draft_laws < target_laws).astype(float)
    bounded, free = np.maximum(draft_laws, TINY), draft_laws > TINY
    log_ratio = np.log((bounded / np.maximum(target_laws, FLOOR)).astype(dtype))
    if kind == "reverse":
        return np.vecdot(draft_laws, log_ratio), log_ratio + free
    return -np.vecdot(target_laws, log_ratio), -target_laws * free / bounded
