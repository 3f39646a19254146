"""The four verification rules: which proposals the target keeps, and what it writes instead.

p = target, q = draft. Row i of `target_probs` is p, processed for sampling, given the context and
the proposals before position i: m proposals come with m + 1 rows, NumPy arrays or tensors. Words:
*accepted* = a kept proposal, *recovered* = drawn from the residual after a rejection, *bonus* = the
free token when every proposal was kept. Rules, lossless but for `omnidraft` above temperature 0:

`slem`       arXiv 2502.05202, and every rule at temperature 0: `exact_match`
`tli`        arXiv 2502.05202: `rejection_sampling` with q on the shared tokens
`omnidraft`  arXiv 2507.02659, Algorithm 1: `rejection_sampling` with the q' of `translation.merge`
`lifted`     this project's own, for any two tokenizers: blocks of atoms on lifted distributions
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import tee
from typing import Any, NamedTuple

from .lifting import ROOT, Lifting, Split
from .sampling import Uniforms

RULES = ("lifted", "omnidraft", "slem", "tli")


@dataclass
class Verdict:
    """What a round writes: `emitted` target tokens, the first `accepted` of them kept proposals."""

    emitted: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # "accepted", "recovered" or "bonus", per token
    accepted: int = 0

    def emit(self, token: int, kind: str) -> Verdict:
        """Append a token that enters the text."""
        self.emitted.append(int(token))
        self.kinds.append(kind)
        self.accepted += kind == "accepted"
        return self


def ratio(target_prob: float, draft_prob: float) -> float:
    """min(1, p/q), and 0 where q = 0: no quotient is formed that could overflow."""
    if draft_prob <= 0:
        return 0.0
    return 1.0 if target_prob >= draft_prob else float(target_prob / draft_prob)


def accept(target_prob: float, draft_prob: float, uniforms: Uniforms) -> bool:
    """Accept with min(1, p/q); what cannot have been drawn from q (q = 0) is rejected."""
    return draft_prob > 0 and uniforms.accept(ratio(target_prob, draft_prob))


def residual(target_probs: Any, draft_probs: Any, scale: float = 1.0) -> Any:
    """Weights max(0, scale p - q) (V,); at scale 1, where rounding leaves nothing (p = q), p."""
    left = (scale * target_probs - draft_probs).clip(0)
    if scale == 1:
        left += target_probs * (left.sum() == 0)  # no question that a device would have to answer
    return left


def exact_match(proposals: Sequence[int], choices: Iterable[int]) -> Verdict:
    """Keep proposals (m,) while they equal the target's `choices` (m + 1,); the first other ends.

    choices: the argmax of the target's rows at temperature 0, else a sample of each, so that the
    text is the target's own sample.
    """
    verdict, choices = Verdict(), iter(choices)
    for proposal, choice in zip(proposals, choices):  # noqa: B905 (one choice more than proposals)
        if choice != proposal:
            return verdict.emit(choice, "recovered")
        verdict.emit(choice, "accepted")
    return verdict.emit(next(choices), "bonus")


def rejection_sampling(proposals: Sequence[int], draft_probs: Sequence[Any],
                       target_probs: Sequence[Any], uniforms: Uniforms,
                       proposed: Sequence[Any] | None = None) -> Verdict:
    """Accept each proposal t with min(1, p(t)/q(t)), else draw from norm(max(0, p - q)) and end.

    proposals: (m,) target ids; draft_probs: m rows (V_p,) of q or q' on the target's tokens;
    target_probs: m + 1 rows (V_p,); proposed: (m,) q(t), where `draft_probs` are worked out only
    after a rejection. Lossless if each proposal was drawn from its row.
    """
    verdict = Verdict()
    if proposed is None:
        proposed = [draft_probs[row][token] for row, token in enumerate(proposals)]
    pairs = ((target_probs[row][token], proposed[row]) for row, token in enumerate(proposals))
    for row, (p, q) in enumerate(uniforms.floats(pairs)):
        if not accept(p, q, uniforms):
            left = residual(target_probs[row], draft_probs[row])
            return verdict.emit(uniforms.choose(left), "recovered")
        verdict.emit(proposals[row], "accepted")
    return verdict.emit(uniforms.choose(target_probs[len(proposals)]), "bonus")


def lifted(atoms: Sequence[int | None], drawn: Sequence[tuple[Any, Split]], lifting: Lifting,
           target_probs: Sequence[Any], uniforms: Uniforms, limit: int | None = None) -> Verdict:
    """Verify a round's atoms on lifted distributions; every emitted token has distribution p.

    atoms, drawn: what `Lifting.reveal` gives; target_probs: m + 1 rows (V_p,) along the m tokens of
    `lifting.walk(atoms)`, or along its first `limit`, after which the bonus follows whatever the
    atoms are (a limit that depended on them would bias the text).

    At a node of the trie the next atom proposes a child, or that a token ends there; of that choice
    both distributions, P and Q, are known (`Lifting.choice`). The comparisons of a round are judged
    together: block verification (arXiv 2403.10444), here over atoms. With r = 1 before the first,
    r' = min(1, r P/Q) after each, all of them are kept with probability r of the last; else, from
    behind, those before a comparison are kept with h = Z / (Z + 1 - r), where Z is the total of the
    residual max(0, r P - Q) over its categories, and the residual draws the category of the next
    token, which comes from p restricted to it. Why this is exact:

    1. r is the probability that the draft is kept up to here, given that it was drafted so far. At
       the end it is so by construction. Before: it is kept further with sum Q r' = sum min(Q, r P)
       = r - Z; else it is kept up to here with h: r - Z + (1 - r + Z) h = r.
    2. So the residual writes category c with Z * max(0, r P(c) - Q(c)) / Z, and what is kept further
       with Q(c) r' = min(Q(c), r P(c)): together r P(c), the target's own share of what is kept.
    3. No rule can keep more: r' P-shares of c must fit into both Q(c) and r P(c). Token by token
       the product of min(1, P/Q) is kept, which is never above r.
    """
    steps, r, ended = [], [1.0], 0
    for choice in choices(atoms, drawn, lifting, target_probs):
        steps.append(choice)
        r.append(ratio(r[-1] * choice.target_prob, choice.draft_prob))
        ended += choice.ends >= 0
        if r[-1] == 0 or ended == limit:
            break
    kept, left = len(steps), None
    if not uniforms.accept(r[-1]):
        kept, left = _fall_back(steps, r, drawn, lifting, target_probs, uniforms)
    verdict = Verdict()
    for choice in steps[:kept]:
        if choice.ends >= 0:
            verdict.emit(choice.ends, "accepted")
    p, node = target_probs[verdict.accepted], steps[-1].next_node if steps else ROOT
    if left is not None:
        within = lifting.members(steps[kept].node, uniforms.choose(left), len(p))
        return verdict.emit(within[uniforms.choose(p[within])], "recovered")
    if node != ROOT:  # the atoms ran out inside a token: p restricted to the node's subtree
        below = lifting.below(node)
        token = int(below[uniforms.choose(p[below])])
        if token != lifting.token[node]:
            return verdict.emit(token, "recovered")
        verdict.emit(token, "accepted")
        p = target_probs[verdict.accepted]
    return verdict.emit(uniforms.choose(p), "bonus")


def _fall_back(steps: list[Choice], r: list[float], drawn: Sequence[tuple[Any, Split]],
               lifting: Lifting, target_probs: Sequence[Any],
               uniforms: Uniforms) -> tuple[int, Any]:
    """How many comparisons are kept where not all are, and the residual (C + 1,) of the next."""
    left = cache(lambda i: residual(*categories(steps[i], drawn, lifting,
                                                target_probs[steps[i].row]), r[i]))
    sure = max(i for i, kept in enumerate(r) if kept == 1)  # h = 1
    draws = [(i, uniforms.next()) for i in range(len(steps) - 1, sure, -1)]
    # h <= r, so most are refused before a whole distribution is worked out.
    some, same = tee((i, draw) for i, draw in draws if draw < r[i])
    totals = uniforms.floats((z := left(i).sum(), z + 1 - r[i]) for i, _ in same)
    for (i, draw), total in zip(some, totals, strict=True):
        if draw < ratio(*total):
            return i, left(i)
    return sure, left(sure)


class Choice(NamedTuple):
    """One comparison of `lifted`: at a node of the trie, P and Q of what the next atom proposes.

    That is the child that it leads to, else *stop*: the node's own token ends here.
    """

    place: int  # of the atom that proposes
    row: int  # of the target
    node: int
    stop: bool
    ends: int  # the target token that enters the text if the proposal is accepted, or -1
    next_node: int
    narrowed: int  # the node whose *stop* the same atom has just proposed, or ROOT
    target_prob: float = 0.0  # P
    draft_prob: float = 0.0  # Q
    left: float = 1.0  # Q of that *stop*: the atom is known to be no child of `narrowed`


def choices(atoms: Sequence[int | None], drawn: Sequence[tuple[Any, Split]], lifting: Lifting,
            target_probs: Sequence[Any]) -> Iterator[Choice]:
    """The comparisons of a round with their P and Q, in order; arguments as in `lifted`.

    An accept test needs two numbers, and each is a sum over a few entries of a row: whole
    distributions are worked out after a rejection only.
    """
    steps, same = tee(_route(atoms, drawn, lifting, target_probs))
    numbers = lifting.sums(part for _, parts in same for part in parts)
    mass, before = 1.0, 1.0  # of the proposal before: its mass under p, and its Q
    for step, _ in steps:
        proposed, drafted, possible = next(numbers), next(numbers), next(numbers)
        p = proposed / (mass or 1.0) if step.node != ROOT else proposed
        q = drafted / (possible or 1.0)
        left = before if step.narrowed != ROOT else 1.0
        mass, before = proposed, (max(0.0, 1.0 - q) if step.stop else q) / (left or 1.0)
        yield step._replace(target_prob=p, draft_prob=before, left=left)


def _route(atoms: Sequence[int | None], drawn: Sequence[tuple[Any, Split]], lifting: Lifting,
           target_probs: Sequence[Any]) -> Iterator[tuple[Choice, list[tuple[Any, Any]]]]:
    """The comparisons while every proposal is accepted, which the atoms alone decide; no P and Q.

    With each the (row, ids) to add up: P's mass, Q's, and what Q is relative to. The route ends
    with the atoms, the target's rows, or a dead end.
    """
    place, row, node, narrowed = 0, 0, ROOT, ROOT
    while place < len(atoms) and row < len(target_probs):
        (q, prefix), children = drawn[place], lifting.children[node]
        after, child = lifting.after[prefix], children.get(atoms[place])
        possible = lifting.continuing(prefix)[0] if prefix else []
        if child is not None:
            stop, whole, here = False, not lifting.children[child], child
            within, drafted = lifting.below(child), after.get(atoms[place], [])
        else:
            stop, whole, here = node != ROOT, True, node
            within = lifting.below(node)[:lifting.token[node] >= 0]
            drafted = [token for atom in children if stop for token in after.get(atom, ())]
        ends = lifting.token[here] if whole else -1  # a target token ends if this is accepted
        next_node = ROOT if whole else here
        yield (Choice(place, row, node, stop, ends, next_node, narrowed),
               [(target_probs[row], within), (q, drafted), (q, possible)])
        if whole and ends < 0:
            return
        place, row = place + (child is not None), row + whole
        node, narrowed = next_node, node if stop else ROOT


def categories(choice: Choice, drawn: Sequence[tuple[Any, Split]], lifting: Lifting,
               target_probs: Any) -> tuple[Any, Any]:
    """P and Q (C + 1,) of all categories at a comparison, `target_probs` (V_p,) being its row."""
    q = lifting.distribution(*drawn[choice.place])
    if choice.narrowed != ROOT:  # the same atom proposed *stop*, and that was accepted
        q[[*lifting.children[choice.narrowed]]] = 0.0
        q /= choice.left
    return lifting.choice(choice.node, target_probs, q)[1:]


def acceptances(atoms: Sequence[int | None], drawn: Sequence[tuple[Any, Split]], lifting: Lifting,
                target_probs: Sequence[Any]) -> list[float]:
    """min(1, P/Q) of every atom, had all before it been accepted, up to the first that is 0.

    The labels of the acceptance head, this project's own. An atom that ends one token and begins
    the next is compared twice: the product counts. The list ends where the rows do.
    """
    found: list[float] = []
    for choice in choices(atoms, drawn, lifting, target_probs):
        if choice.place == len(found):
            found.append(1.0)
        found[-1] *= ratio(choice.target_prob, choice.draft_prob)
        if found[-1] == 0:
            break
    return found
