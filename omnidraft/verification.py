"""The four verification rules: which proposals the target keeps, and what it writes instead.

p = target, q = draft. Row i of `target_probs` is p, after temperature and filters, given the
context and the proposals before position i; m proposals need m + 1 rows (NumPy arrays or tensors).
*Accepted*: the proposal is kept. *Recovered*: drawn from the residual after a rejection. *Bonus*:
the free token when every proposal is kept. All rules are lossless, except `omnidraft` at T > 0:

`slem`       arXiv 2502.05202, and every rule at temperature 0: `exact_match`
`tli`        arXiv 2502.05202: `rejection_sampling` with q on the shared tokens
`omnidraft`  arXiv 2507.02659, Algorithm 1: `rejection_sampling` with the q' of `translation.merge`
`lifted`     this project's own, for any two tokenizers: blocks of atoms on lifted distributions
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from math import isnan
from typing import Any, NamedTuple

from .lifting import ROOT, Comparison, Lifting, Origin, Split
from .sampling import Rows, Uniforms
from .text.errors import OmnidraftError

RULES = ("lifted", "omnidraft", "slem", "tli")


class Verdict(NamedTuple):
    """What a round writes: the `accepted` proposals, then one token from the target itself."""

    emitted: list[int]
    last: str  # what that token is: "recovered" or "bonus"

    @property
    def accepted(self) -> int:
        """How many proposals are kept."""
        return len(self.emitted) - 1


def ratio(target_prob: float, draft_prob: float) -> float:
    """min(1, p/q), or 0 if q = 0; it divides only where the quotient cannot overflow."""
    if draft_prob <= 0:
        return 0.0
    return 1.0 if target_prob >= draft_prob else float(target_prob / draft_prob)


def residual(target_probs: Any, draft_probs: Any, scale: float = 1.0) -> Any:
    """Weights max(0, scale p - q) (V,); at scale 1, p itself if all of them are 0 (p = q)."""
    if scale != 1:
        target_probs = scale * target_probs
    left = target_probs.clip(draft_probs)
    left -= draft_probs  # max(scale p, q) - q takes less time
    if scale == 1:
        left += target_probs * (left.max() == 0)  # not an `if`, which would wait for the GPU
    return left


def exact_match(proposals: Sequence[int], choices: Iterable[int]) -> Verdict:
    """Keep proposals (m,) while they equal the target's `choices` (m + 1,); end with the one after.

    choices: the argmax of each target row at temperature 0, else a sample: what it writes alone.
    """
    emitted = []
    for choice, proposal in zip(choices, [*proposals, None], strict=True):  # None: the bonus
        emitted.append(choice)
        if choice != proposal:
            break
    if len(emitted) <= len(proposals):
        return Verdict(emitted, "recovered")
    return Verdict(emitted, "bonus")


def rejection_sampling(proposals: Sequence[int], draft_probs: Sequence[Any],
                       target_probs: Sequence[Any], uniforms: Uniforms,
                       proposed: Sequence[Any] | None = None) -> Verdict:
    """Accept each proposal t with min(1, p(t)/q(t)); else draw from norm(max(0, p - q)) and stop.

    proposals: (m,) target ids; draft_probs: m rows (V_p,) of q or q' over the target's tokens;
    target_probs: m + 1 rows (V_p,); proposed: (m,) the q(t), given if the rows of `draft_probs` are
    lazy: they are then computed only on rejection. Lossless if each t was drawn from its row.
    """
    if not proposed:
        proposed = [row[token] for token, row in zip(proposals, draft_probs, strict=False)]  # (m,)
    wanted = (row[token] for token, row in zip(proposals, target_probs, strict=False))  # (m,)

    emitted = []
    for row, (p, q) in enumerate(uniforms.floats(zip(wanted, proposed, strict=True))):
        if q <= 0 or not uniforms.accept(ratio(p, q)):
            left = residual(target_probs[row], draft_probs[row])  # (V_p,)
            emitted.append(uniforms.choose(left))
            return Verdict(emitted, "recovered")
        emitted.append(proposals[row])
    emitted.append(uniforms.choose(target_probs[len(proposals)]))
    return Verdict(emitted, "bonus")


def lifted(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
           target_probs: Sequence[Any], uniforms: Uniforms, limit: int | None = None) -> Verdict:
    """Verify a round's atoms on lifted distributions; every emitted token has distribution p.

    atoms, origins: from `Lifting.reveal`; target_probs: m + 1 rows (V_p,) along the m tokens of
    `lifting.walk(atoms)`, or its first `limit` (the bonus then follows them, whatever comes later).

    At each node of the trie the next atom proposes a child, or that a token ends there, with the P
    and Q of `Lifting.choice`. They are judged as a block (arXiv 2403.10444, here for atoms): r is 1
    at first, and each comparison makes it r' = min(1, r P/Q). All are kept with the last r'. If
    not, go back from the last comparison, and stop at each with probability h = Z / (Z + 1 - r),
    where r is the one before it, and Z the sum of its residual max(0, r P - Q) over all categories.
    Only what precedes it is kept: the residual draws a category, and p the next token within it.
    This never keeps less than judging one by one, and it is exact (docs/note.md, section 3):
    1. The draft up to a comparison is kept with probability r: more of it with sum Q r' = sum
       min(Q, r P) = r - Z, and otherwise exactly so much with h; r - Z + (1 - r + Z) h = r.
    2. Category c comes next with probability r P, as in the target: drafted and kept with Q r' =
       min(Q, r P), or drawn from the residual with max(0, r P - Q); the sum is r P.
    """
    steps = comparisons(atoms, origins, lifting, target_probs, limit)
    kept, refused, left = _keep(steps, origins, lifting, target_probs, uniforms)
    emitted = [step.ends for step in kept if step.ends >= 0]
    p = target_probs[len(emitted)]
    if refused is not None:
        category = uniforms.choose(left)
        tokens = lifting.members(refused.node, category, len(p))
        emitted.append(int(tokens[uniforms.choose(p[tokens])]))
        return Verdict(emitted, "recovered")
    node = kept[-1].next_node if kept else ROOT
    if node != ROOT:  # the draft ends inside a token
        tokens = lifting.below(node)
        emitted.append(int(tokens[uniforms.choose(p[tokens])]))
        if emitted[-1] != lifting.token.get(node):
            return Verdict(emitted, "recovered")
        p = target_probs[len(emitted)]
    emitted.append(uniforms.choose(p))
    return Verdict(emitted, "bonus")


def _keep(steps: Iterable[Comparison], origins: Sequence[Origin], lifting: Lifting,
          target_probs: Sequence[Any],
          uniforms: Uniforms) -> tuple[list[Comparison], Comparison | None, Any]:
    """The kept comparisons, the first rejected one (None: all are kept), its residual (C + 1,)."""
    steps = list(steps)
    if not steps or uniforms.accept(steps[-1].after):
        return steps, None, None

    # Not all are kept: go back from the last comparison, with a draw for each, until one stops us.
    # The last that has r = 1 before it stops us in any case, because there h = 1.
    sure = max(i for i, step in enumerate(steps) if step.before == 1)
    draws = [(i, uniforms.next()) for i in range(len(steps) - 1, sure, -1)]
    # As h <= r, a draw of r or more does not stop us, and needs no whole distribution.
    possible = [(i, draw) for i, draw in draws if draw < steps[i].before]

    def left_of(step: Comparison) -> Any:
        p, q = p_and_q(step, origins, lifting, target_probs)
        return residual(p, q, step.before)

    left = Rows(steps, left_of)  # computed when asked for
    sums = ((left[i].sum(), 1 - steps[i].before) for i, _ in possible)
    shares = uniforms.floats((z, z + rest) for z, rest in sums)  # h = Z / (Z + 1 - r)
    for (i, draw), (z, whole) in zip(possible, shares, strict=True):
        if draw < ratio(z, whole):
            return steps[:i], steps[i], left[i]
    return steps[:sure], steps[sure], left[sure]


def comparisons(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
                target_probs: Sequence[Any], limit: int | None = None) -> Iterator[Comparison]:
    """The comparisons of a round, up to the first with P = 0; arguments as for `lifted`.

    They also end before a broken row of the target (NaN, or every token ruled out). It is an error
    only if all that precedes it is kept: then `lifted` draws from it.
    """
    rows = len(target_probs)
    if limit is not None:
        rows = min(limit, rows)
    route = [step for step in lifting.route(atoms) if step.row < rows]

    # 1. P and Q of a proposal come from three sums, each over few probabilities.
    sums = _sums(route, origins, lifting, target_probs)

    # 2. Along the route, r' = min(1, r P / Q).
    r = q = 1.0
    above = 1.0  # the mass of the node, which the comparison before has computed
    for step, proposing, possible, mass in sums:
        stop_prob = 1.0
        if step.stopped_at != ROOT:  # the same atom's *stop* came just before
            stop_prob = q
        share = proposing / (possible or 1.0)
        q = max(0.0, 1.0 - share) if step.stop else share
        q /= stop_prob or 1.0
        p = mass if step.node == ROOT else mass / (above or 1.0)
        above = mass
        before = r
        r = ratio(r * p, q)
        yield step._replace(target_prob=p, draft_prob=q, stop_prob=stop_prob, before=before,
                            after=r)
        if r == 0:
            return


def _sums(route: Sequence[Comparison], origins: Sequence[Origin], lifting: Lifting,
          target_probs: Sequence[Any]) -> Iterator[tuple[Comparison, float, float, float]]:
    """The comparisons with their sums, up to the first that needs a broken row.

    They are computed one by one when they are asked for; on a device all at once, in one copy.
    """
    sums = lifting.sums(_wanted(route, origins, lifting, target_probs))
    for step in route:
        try:
            proposing, possible, mass, entry = islice(sums, 4)
        except OmnidraftError:
            return
        if isnan(entry):
            return
        yield step, proposing, possible, mass


def _wanted(route: Sequence[Comparison], origins: Sequence[Origin], lifting: Lifting,
            target_probs: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """(row, ids) of the sums for P and Q: the three of each comparison, and one entry.

    The entry is NaN in a broken row on a device; NumPy raises when it computes such a row.
    """
    for step in route:
        draft_row, prefix = origins[step.place]
        yield draft_row, _proposing(step, prefix, lifting)
        yield draft_row, lifting.continuing(prefix)[0] if prefix else ()  # all that are left
        if step.child:
            yield target_probs[step.row], lifting.below(step.node + step.child)
        else:
            yield target_probs[step.row], lifting.own(step.node)
        yield target_probs[step.row], (0,)


def _proposing(step: Comparison, prefix: Split, lifting: Lifting) -> list[int]:
    """The draft tokens that propose this child; for *stop*, those that propose any child."""
    children = lifting.children(step.node) if step.stop else step.child
    after = lifting.after(prefix)
    return [token for atom in children for token in after.get(atom, ())]


def p_and_q(step: Comparison, origins: Sequence[Origin], lifting: Lifting,
            target_probs: Sequence[Any]) -> tuple[Any, Any]:
    """P and Q (C + 1,) over all categories of a comparison."""
    q = lifting.distribution(*origins[step.place])
    if step.stopped_at != ROOT:  # the same atom proposed *stop*, and that was accepted
        q[list(lifting.children(step.stopped_at))] = 0.0
        q /= step.stop_prob
    _, p, q = lifting.choice(step.node, target_probs[step.row], q)
    return p, q


def acceptances(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
                target_probs: Sequence[Any]) -> list[float]:
    """P(kept) of each atom given those before it, up to the first 0: labels of the acceptance head.

    This project's own. The draft is kept up to an atom with probability r (see `lifted`). As r
    can rise again, the labels multiply to the smallest r so far. The list ends with the rows.
    """
    steps = comparisons(atoms, origins, lifting, target_probs)
    after = {step.place: step.after for step in steps}  # an atom may be compared twice
    least = accumulate(after.values(), min, initial=1.0)
    return [now / before for before, now in pairwise(least)]
