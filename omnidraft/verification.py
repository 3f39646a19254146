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

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain, pairwise, takewhile
from operator import mul
from typing import Any, NamedTuple

from .lifting import ROOT, Choice, Lifting, Split
from .sampling import Uniforms

RULES = ("lifted", "omnidraft", "slem", "tli")


class Verdict(NamedTuple):
    """What a round writes: the `accepted` proposals, then one token of the target's own."""

    emitted: list[int]
    last: str  # what that token is: "recovered" or "bonus"

    @property
    def accepted(self) -> int:
        """How many proposals are kept."""
        return len(self.emitted) - 1


def ratio(target_prob: float, draft_prob: float) -> float:
    """min(1, p/q), and 0 where q = 0: no quotient is formed that could overflow."""
    if draft_prob <= 0:
        return 0.0
    return 1.0 if target_prob >= draft_prob else float(target_prob / draft_prob)


def residual(target_probs: Any, draft_probs: Any, scale: float = 1.0) -> Any:
    """Weights max(0, scale p - q) (V,); at scale 1, where rounding leaves nothing (p = q), p."""
    left = (target_probs if scale == 1 else scale * target_probs).clip(draft_probs)
    left -= draft_probs  # max(scale p, q) - q is quicker to work out
    if scale == 1:
        left += target_probs * (left.sum() == 0)  # not an `if`: a GPU would be waited for
    return left


def exact_match(proposals: Sequence[int], choices: Iterable[int]) -> Verdict:
    """Keep proposals (m,) while they equal the target's `choices` (m + 1,); the first other ends.

    choices: the argmax of the target's rows at temperature 0, else a sample of each, so that the
    text is the target's own sample.
    """
    emitted: list[int] = []
    for choice, proposal in zip(choices, [*proposals, None], strict=True):  # None: no more
        emitted.append(choice)
        if choice != proposal:
            break
    return Verdict(emitted, "recovered" if len(emitted) <= len(proposals) else "bonus")


def rejection_sampling(proposals: Sequence[int], draft_probs: Sequence[Any],
                       target_probs: Sequence[Any], uniforms: Uniforms,
                       proposed: Sequence[Any] | None = None) -> Verdict:
    """Accept each proposal t with min(1, p(t)/q(t)), else draw from norm(max(0, p - q)) and end.

    proposals: (m,) target ids; draft_probs: m rows (V_p,) of q or q' on the target's tokens;
    target_probs: m + 1 rows (V_p,); proposed: (m,) q(t), where `draft_probs` are worked out only
    after a rejection. Lossless if each proposal was drawn from its row.
    """
    pairs = ((target_probs[row][token], proposed[row] if proposed else draft_probs[row][token])
             for row, token in enumerate(proposals))
    for row, (p, q) in enumerate(uniforms.floats(pairs)):
        if q <= 0 or not uniforms.accept(ratio(p, q)):
            left = residual(target_probs[row], draft_probs[row])
            return Verdict([*proposals[:row], uniforms.choose(left)], "recovered")
    return Verdict([*proposals, uniforms.choose(target_probs[len(proposals)])], "bonus")


def lifted(atoms: Sequence[int | None], drawn: Sequence[tuple[Any, Split]], lifting: Lifting,
           target_probs: Sequence[Any], uniforms: Uniforms, limit: int | None = None) -> Verdict:
    """Verify a round's atoms on lifted distributions; every emitted token has distribution p.

    atoms, drawn: what `Lifting.reveal` gives; target_probs: m + 1 rows (V_p,) along the m tokens of
    `lifting.walk(atoms)`, or its first `limit`: the bonus follows those, whatever the atoms are.

    At a node of the trie the next atom proposes a child, or that a token ends there; P and Q are
    those of `Lifting.choice`. They are judged as a block (arXiv 2403.10444, here for atoms): r = 1
    before the first, r' = min(1, r P/Q) after each. All are kept with the last r; else, from
    behind, those before a comparison with h = Z / (Z + 1 - r). There the residual max(0, r P - Q),
    whose sum is Z, draws a category, and p within that the next token. It is exact:

    1. What was drafted so far is kept with r: more of it with sum Q r' = sum min(Q, r P) = r - Z,
       and if not, so much with h; together r - Z + (1 - r + Z) h = r.
    2. Category c follows it with P, as in the target: in what is kept further with Q r' = min(Q, r
       P), by the residual with max(0, r P - Q); together r P.
    3. Judged one by one, comparisons would be kept with the product of all min(1, P/Q). That is
       never more than r, and less where P > Q comes after P < Q.

    As P <= 1, no r further on is above r / (product of the Q until there). A draw above that
    refuses what follows before its rows are worked out, where `target_probs` are `sampling.Rows`.
    """
    steps = choices(atoms, drawn, lifting, target_probs, limit)
    kept, refused, left = _keep(steps, drawn, lifting, target_probs, uniforms)
    emitted = [step.ends for step in kept if step.ends >= 0]
    p, node = target_probs[len(emitted)], kept[-1].next_node if kept else ROOT
    if refused is not None:
        within = lifting.members(refused.node, uniforms.choose(left), len(p))
        return Verdict([*emitted, int(within[uniforms.choose(p[within])])], "recovered")
    if node != ROOT:
        below = lifting.below(node)
        emitted.append(int(below[uniforms.choose(p[below])]))
        if emitted[-1] != lifting.token.get(node):
            return Verdict(emitted, "recovered")
        p = target_probs[len(emitted)]
    return Verdict([*emitted, uniforms.choose(p)], "bonus")


def _keep(steps: Iterable[Choice], drawn: Sequence[tuple[Any, Split]], lifting: Lifting,
          target_probs: Sequence[Any],
          uniforms: Uniforms) -> tuple[list[Choice], Choice | None, Any]:
    """The comparisons that are kept; the next and its residual (C + 1,), None if all are kept."""
    steps, known, draw = iter(steps), [], 1.0
    for step in steps:
        draw = draw if known else uniforms.next()
        known.append(step)
        if draw >= step.most:  # some are refused, whatever the rows of what follows
            break
    if not known or draw < known[-1].after:
        return known, None, None
    left = cache(lambda i: residual(*categories(known[i], drawn, lifting, target_probs),
                                    known[i].before))
    sure, last = max(i for i, step in enumerate(known) if step.before == 1), known[-1]  # h = 1
    draws = [(i, uniforms.next()) for i in range(len(known) - 1 + last.behind, sure, -1)]
    if any(i >= len(known) and draw < last.most for i, draw in draws):
        known += steps
    # As h <= r, r alone refuses most, and no whole distribution is worked out for them.
    some = [(i, draw) for i, draw in draws if i < len(known) and draw < known[i].before]
    totals = uniforms.floats((z := left(i).sum(), z + (1 - known[i].before)) for i, _ in some)
    for (i, draw), total in zip(some, totals, strict=True):
        if draw < ratio(*total):
            return known[:i], known[i], left(i)
    return known[:sure], known[sure], left(sure)


def choices(atoms: Sequence[int | None], drawn: Sequence[tuple[Any, Split]], lifting: Lifting,
            target_probs: Sequence[Any], limit: int | None = None) -> Iterator[Choice]:
    """The comparisons of a round, up to the first with P = 0; arguments as in `lifted`."""
    rows = min(len(target_probs), len(target_probs) if limit is None else limit)
    route = [*takewhile(lambda step: step.row < rows, lifting.route(atoms))]
    masses, drafted = [], []  # (row, ids) to add up: P's mass; Q's, and what that is a share of
    for step in route:
        (q, prefix), children = drawn[step.place], lifting.children(step.node)
        after, atom = lifting.after(prefix), atoms[step.place]
        if atom in children:
            within, same = lifting.below((*step.node, atom)), after.get(atom, [])
        else:
            within = lifting.below(step.node)[:step.node in lifting.token]
            same = [token for other in children if step.stop for token in after.get(other, ())]
        masses.append((step.row, within))
        drafted += [(q, same), (q, lifting.continuing(prefix)[0] if prefix else [])]
    # The drafter's rows are there; one of the target is worked out when its number is asked for.
    numbers = lifting.sums(chain(drafted, ((target_probs[row], ids) for row, ids in masses)))
    q, proposals = 1.0, []
    for step in route:
        left, share = q if step.narrowed != ROOT else 1.0, next(numbers) / (next(numbers) or 1.0)
        q = (max(0.0, 1.0 - share) if step.stop else share) / (left or 1.0)
        proposals.append((left, q))
    later = [*accumulate((q for _, q in proposals[:0:-1]), mul, initial=1.0)]  # Q of all behind
    mass, r = 1.0, 1.0  # of the proposal before: its mass under p, and r
    for step, (left, q), proposed in zip(route, proposals, numbers, strict=True):
        p, before = proposed / (mass or 1.0) if step.node != ROOT else proposed, r
        mass, r, behind = proposed, ratio(r * p, q), later.pop()
        lazy = behind and getattr(target_probs, "none_zero", False)
        yield step._replace(target_prob=p, draft_prob=q, left=left, before=before, after=r,
                            most=min(1.0, r / behind) if lazy else 1.0,
                            behind=len(later) if r else 0)
        if r == 0:
            return


def categories(choice: Choice, drawn: Sequence[tuple[Any, Split]], lifting: Lifting,
               target_probs: Sequence[Any]) -> tuple[Any, Any]:
    """P and Q (C + 1,) of all categories at a comparison."""
    q = lifting.distribution(*drawn[choice.place])
    if choice.narrowed != ROOT:  # the same atom proposed *stop*, and that was accepted
        q[[*lifting.children(choice.narrowed)]] = 0.0
        q /= choice.left
    return lifting.choice(choice.node, target_probs[choice.row], q)[1:]


def acceptances(atoms: Sequence[int | None], drawn: Sequence[tuple[Any, Split]], lifting: Lifting,
                target_probs: Sequence[Any]) -> list[float]:
    """P(kept) of each atom, given those before it, up to the first 0: the acceptance head's labels.

    This project's own. A draft is kept up to an atom with the r of `lifted`, which can rise again:
    the product up to an atom is the least r so far. The list ends where the rows do.
    """
    steps = choices(atoms, drawn, lifting, target_probs)
    after = {step.place: step.after for step in steps}  # an atom may be compared twice
    return [now / before for before, now in pairwise(accumulate(after.values(), min, initial=1.0))]
