"""Distillation losses: how far the drafter is from the target along a text, and the gradient.

p = target, q = draft; only the drafter is trained. Along a text that the pair wrote together:

    dm      L_DM, the sum of KL(q' || p) at tokens of the direct map        arXiv 2507.02659, Eq. 3
    hybrid  L_DM + lambda * L_N-gram, the sum of -log q(d_j) in n-grams     Eq. 4
    lifted  the sum of D(P, Q) over verification's comparisons              this project's own

If the target wrote snow, flake, and the drafter spells this snow, f, la, ke, then `hybrid` is a KL
at snow, and lambda * -log(q(f) q(la) q(ke)). Each summand is a `Term`, which compares P with Q over
*categories* c of draft tokens: Q(c) = sum_{d in c} q(d) / sum_{d in any category} q(d). Categories
are the tokens of the direct map (Eq. 3), all draft tokens (Eq. 4), or the atoms with which draft
tokens begin (`lifted_categories`).

draft_logits: (N, V_q), row j predicts draft_ids[j + 1]. A loss returns the *summed* value, its
gradient (N, V_q), where backpropagation starts, and the number of terms, for the mean.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .lifting import ROOT, Lifting, Split
from .pairing import Pairing
from .text.errors import OmnidraftError
from .translation import extend, until_end
from .vocabulary import aligned_spans

DIVERGENCES = ("forward", "reverse", "tv")
FLOOR, TINY = 1e-12, 1e-30  # lower bounds of P and Q inside a logarithm
Result = tuple[float, np.ndarray, int]


@dataclass
class Example:
    """One text that a pair wrote, in both vocabularies.

    Prompt "The", response snow, flake: draft_ids are The, snow, f, la, ke, and starts are 1, 2.
    """

    draft_ids: list[int]  # prompt and response in draft tokens, as far as a context holds them
    target_ids: list[int]  # (M,) the response, up to and including its end token
    target_probs: Any  # (M, V_p) row i is p for target_ids[i], at temperature 1; or a tensor
    starts: list[int]  # (M,) index in draft_ids of the token that starts at the same byte, or -1


class Term(NamedTuple):
    """P against Q; Q is the softmax of one row of the draft logits, summed by category."""

    row: int
    categories: np.ndarray  # (W,) category of each id of the draft tokenizer; -1: none
    target: np.ndarray  # (C,) P, not normalised; a term without any does not count
    divergence: str
    weight: Any = 1.0


# ---- the three losses ----------------------------------------------------------------------------
def dm(draft_logits: np.ndarray, example: Example, pair: Pairing) -> Result:
    """Sum of KL(q' || p), renormalised over the shared tokens, at directly mapped tokens (Eq. 3).

    p = (0.6, 0.3), q = (0.4, 0.4), rest not shared: KL((1/2, 1/2) || (2/3, 1/3)) = log(9/8) / 2.
    """
    return hybrid(draft_logits, example, pair, weight=0.0)


def hybrid(draft_logits: np.ndarray, example: Example, pair: Pairing,
           weight: float | str = 0.2) -> Result:
    """dm + weight * sum of -log q(d_j) over the draft tokens d_j of n-grams (Eq. 3 and 4).

    An n-gram counts where the draft text spells a target token t by its cached split. Example: q =
    1/2, 1/4 give weight * log 8. Weight "dynamic": p(t); OmnidraftError for any other string.
    """
    return _total(draft_logits, hybrid_terms(draft_logits.shape, example, pair, weight))


def lifted(draft_logits: np.ndarray, example: Example, pair: Pairing,
           divergence: str = "forward") -> Result:
    """Sum of "forward" KL(P || Q), "reverse" KL(Q || P) or "tv" over verification's comparisons.

    P and Q are those of `Lifting.choice`; tv = 1 - sum_c min(P(c), Q(c)) is the probability of a
    rejection, judged alone. The KLs, else infinite, leave out categories that no draft token
    proposes and, at the root, atoms that begin no target token; elsewhere P is at least 1e-12.
    P = (3/4, 1/4), Q = (1/2, 1/2): tv 1/4, reverse log(4/3) / 2.
    """
    return _total(draft_logits, lifted_terms(draft_logits.shape, example, pair, divergence))


LOSSES = {"dm": dm, "hybrid": hybrid, "lifted": lifted}


# ---- their terms ---------------------------------------------------------------------------------
def hybrid_terms(shape: Sequence[int], example: Example, pair: Pairing, weight: float | str,
                 index: Callable[..., Any] = np.asarray) -> Iterator[Term]:
    """The terms of `hybrid` for logits of this shape, target token by target token.

    index: makes ids an array (or a tensor).
    """
    if weight != "dynamic" and not (isinstance(weight, (int, float)) and weight >= 0):
        raise OmnidraftError(f"the n-gram weight is {weight!r}: give 0 or more, or 'dynamic'")
    size = min(shape[1], pair.draft.tokenizer.size)
    direct = pair.alignment.draft_to_target[:size]  # (W,)
    # Eq. 3 compares the target tokens of the direct map: q' adds up the draft tokens of each.
    mapped = np.unique(direct[direct >= 0])  # (S,) target tokens
    categories = index(np.where(direct >= 0, np.searchsorted(mapped, direct), -1))
    shared = index(mapped)
    each = index(np.arange(size))  # in Eq. 4 each draft token is a category
    ids = example.draft_ids[:shape[0] + 1]
    for t, start, p in zip(example.target_ids, example.starts, example.target_probs, strict=True):
        if not 0 < start < len(ids):
            continue
        if ids[start] == pair.alignment.target_to_draft[t]:  # Eq. 3: KL(q' || p)
            yield Term(start - 1, categories, p[shared], "reverse")
            continue
        split = pair.cache.split_of(t) or ()
        if weight and split and tuple(ids[start:start + len(split)]) == split:
            scale = p[t] if weight == "dynamic" else weight
            for row, d in enumerate(split, start - 1):  # Eq. 4: -log q(d_j), as P has only d_j
                yield Term(row, each, each == d, "forward", scale)


def lifted_terms(shape: Sequence[int], example: Example, pair: Pairing, divergence: str,
                 lifting: Any = None, index: Callable[..., Any] = np.asarray) -> Iterator[Term]:
    """P and Q over the categories of each comparison that verification would make on this text.

    lifting, index: for rows of the target that are tensors, those of the twin.
    """
    if divergence not in DIVERGENCES:
        raise OmnidraftError(f"unknown divergence {divergence!r}: choose forward, reverse or tv")
    width = min(shape[1], pair.draft.tokenizer.size)
    lifting = lifting or pair.lifting

    @cache  # the same ones recur
    def categories_at(*where: Split) -> list[Any]:
        found = lifted_categories(pair.lifting, width, divergence == "tv", *where)
        return [index(ids) for ids in found]

    for at, prefix, node, stopped_at, p in places(example, pair.lifting):
        if 0 < at <= shape[0]:
            categories, counted = categories_at(prefix, node, stopped_at)
            yield Term(at - 1, categories, lifting.masses(node, p) * counted, divergence)


def places(example: Example,
           lifting: Lifting) -> Iterator[tuple[int, Split, Split, Split, np.ndarray]]:
    """The comparisons that verification makes if this text is drafted.

    Each has at: index of the draft token whose next atom proposes; prefix: its earlier atoms; node
    and stopped_at: as in `lifting.Comparison`; p: the target's row (V_p,).
    """
    size = len(example.draft_ids)
    atoms, origins = lifting.reveal(example.draft_ids, range(size))  # indices instead of rows
    atoms.append(None)  # the end of the text
    origins.append((size, ()))
    begins = [i for i, (_, prefix) in enumerate(origins) if not prefix]  # of each draft token
    row = 0
    while row < len(example.target_ids):
        start = example.starts[row]
        if start < 0:  # a round starts where tokens of both texts start
            row += 1
            continue
        first = begins[start]
        now = row
        for step in lifting.route(atoms[first:]):
            now = row + step.row
            if now == len(example.target_ids):
                break
            token = example.target_ids[now]
            at, prefix = origins[first + step.place]
            yield at, prefix, step.node, step.stopped_at, example.target_probs[now]
            inside = step.next_node != ROOT and token in lifting.below(step.next_node)
            if step.ends != token and not inside:
                break  # the atoms differ from the text, or spell a longer token
        row = now + 1


def lifted_categories(lifting: Lifting, width: int, exact: bool, prefix: Split, node: Split,
                      stopped_at: Split) -> tuple[np.ndarray, np.ndarray]:
    """The category (W,) of each draft token by its atom after `prefix`; which (C + 1,) count.

    Categories are the C atoms of the node, then one more: inside the trie *stop* (any other atom),
    at the root the uncovered tokens (no atom). Draft tokens that do not continue `prefix` are in
    none (-1). Example: draft tokens a, b, ba and target tokens a, b, ab, as in `lifting`; at the
    root, at node (a), and at the root after the b of ba:

    >>> lifting = Lifting({0: (0,), 1: (1,), 2: (0, 1)}, {2: (1, 0)}, 3)
    >>> lifted_categories(lifting, 3, False, (), ROOT, ROOT)[0].tolist()
    [0, 1, 1]
    >>> lifted_categories(lifting, 3, False, (), (0,), ROOT)[0].tolist()
    [1, 0, 0]
    >>> lifted_categories(lifting, 3, False, (1,), ROOT, ROOT)[0].tolist()
    [-1, -1, 0]

    Atoms that begin no target token have P = 0 at the root: all share one category if `exact`, for
    tv, and else are in none, as are children of `stopped_at`.
    """
    atoms = lifting.atoms(node)  # (C,)
    children = list(lifting.children(node))  # ascending, as the atoms are
    other = len(atoms)  # the category of all other atoms: *stop*
    if node == ROOT:  # they have P = 0: put them with the first of them, or in no category
        begins = np.isin(atoms, children)  # (C,)
        other = int(begins.argmin()) if exact else -1
    of_atom = np.full(len(lifting.paths), other)  # (V_q,)
    of_atom[children] = np.searchsorted(atoms, children)
    if stopped_at != ROOT:
        of_atom[lifting.atoms(stopped_at)] = -1
    draft_tokens, next_atoms = lifting.continuing(prefix)
    # A token whose path does not continue the prefix is in no category; without a path, `other`.
    categories = np.full(len(lifting.paths), -1 if prefix else other)
    categories[draft_tokens] = of_atom[next_atoms]
    categories = categories[:width]  # (W,)
    held = np.bincount(categories + 1, minlength=len(atoms) + 2)[1:] > 0  # (C + 1,)
    if exact and held.any():  # what no draft token proposes counts too
        held[:] = True
    return categories, held


# ---- value and gradient --------------------------------------------------------------------------
def _total(draft_logits: np.ndarray, terms: Iterable[Term]) -> Result:
    """The sum of the terms, its gradient (N, V_q), and their number."""
    value = 0.0
    gradient = np.zeros_like(draft_logits)  # (N, V_q)
    count = 0
    for row, categories, target, divergence, weight in terms:
        mass = target.sum(dtype=float)
        if not mass > 0:
            continue
        width = len(categories)
        logits = np.where(categories >= 0, draft_logits[row, :width], -np.inf)  # (W,)
        q = np.exp(logits - logits.max())  # (W,) not normalised; 0 for tokens in no category
        masses = np.bincount(categories + 1, q, len(target) + 1)[1:]  # (C,) without -1
        total = masses.sum()
        P = target / mass  # (C,)
        Q = masses / total  # (C,)
        distance, slope = _divergence(P, Q, divergence, q.dtype)  # slope (C,): its derivative by Q
        value += weight * distance
        # Through the softmax: dQ(c) / dlogit(d) = q(d) / total * ([d in c] - Q(c))
        slope = (slope - slope @ Q) * (weight / total)
        # subtle: -1, no category, takes the last slope, but there q is 0
        gradient[row, :width] += q * slope[categories]
        count += 1
    return float(value), gradient, count


def _divergence(P: np.ndarray, Q: np.ndarray, kind: str,
                dtype: Any = float) -> tuple[float, np.ndarray]:
    """The divergence of P and Q (C,), and its derivative by Q (C,); logarithms in `dtype`."""
    if kind == "tv":
        return 1.0 - np.minimum(P, Q).sum(), -(Q < P).astype(float)
    bounded = np.maximum(Q, TINY)
    free = Q > TINY  # elsewhere the bound makes the derivative 0
    log_ratio = np.log((bounded / np.maximum(P, FLOOR)).astype(dtype))  # log(Q / P)
    if kind == "reverse":
        return (Q * log_ratio).sum(), log_ratio + free
    return -(P * log_ratio).sum(), -P * free / bounded


# ---- the text of a pair, as an Example -----------------------------------------------------------
def make_example(pair: Pairing, prompt: str | Sequence[int], target_ids: Sequence[int],
                 target_probs: Any) -> Example:
    """The Example of a prompt (text or draft ids) and response; OmnidraftError for too few rows."""
    draft = pair.draft.tokenizer
    target = pair.target.tokenizer
    ends = pair.target.eos_ids
    ids = until_end([int(token) for token in target_ids], ends)
    if len(target_probs) < len(ids):
        raise OmnidraftError(f"{len(ids)} target tokens need as many rows, not {len(target_probs)}")
    if isinstance(prompt, str):
        prompt_ids = draft.encode(prompt, bos=True)
    else:
        prompt_ids = list(prompt)
    draft_ids = extend(draft, prompt_ids, target.decode_bytes(ids))
    starts = _starts(draft.pieces(draft_ids), draft.decode_bytes(prompt_ids), target.pieces(ids))
    if ids and ids[-1] in ends and not target.pieces(ids[-1:])[0]:
        # Replace the end token by the drafter's, if it has one.
        direct = int(pair.alignment.target_to_draft[ids[-1]])
        own = [token for token in [direct, *pair.draft.eos_ids] if token >= 0][:1]
        starts[-1] = len(draft_ids) if own else -1
        draft_ids = draft_ids + own
    # As in drafting, only a prompt that is too long loses its start.
    room = pair.draft.context_size
    cut = max(0, min(len(draft_ids) - room, len(prompt_ids) - room // 2))
    starts = [at - cut if at > cut else -1 for at in starts]
    return Example(draft_ids[cut:], ids, target_probs[:len(ids)], starts)


def _starts(draft: list[bytes], prompt: bytes, response: list[bytes]) -> list[int]:
    """Where in the draft tokens each target token of the response starts, or -1."""
    starts = [-1] * len(response)
    for (start, end), (first, last) in aligned_spans(draft, [prompt] + response):
        if first > 0 and end > start and last > first:  # 0 is the prompt
            starts[first - 1] = start
    return starts
