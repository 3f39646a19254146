"""The four verification rules: which proposals the target keeps, and what it writes instead.

p = target, q = draft. Row i of `target_probs` is p, after temperature and filters, given the
context and the proposals before position i; m proposals need m + 1 rows.
*Accepted*: the proposal is kept. *Recovered*: drawn by the target where the draft was rejected, or
ended inside a token. *Bonus*: the free token when every proposal is kept. All rules are lossless,
except `omnidraft` at T > 0:

`slem`       arXiv 2502.05202, and every rule at temperature 0: `exact_match`
`tli`        arXiv 2502.05202: `rejection_sampling` with q on the shared tokens
`omnidraft`  arXiv 2507.02659, Algorithm 1: `rejection_sampling` with the q' of `translation.merge`
`lifted`     this project's own, for any two tokenizers: blocks of atoms on lifted distributions

`RULES`, at the end, says all that the loop, the options and the commands know of each rule.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import isnan
from operator import lt
from typing import Any, NamedTuple

import numpy as np

from .lifting import ROOT, Comparison, Lifting, Origin
from .pairing import Pairing
from .sampling import Uniforms
from .text.errors import OmnidraftError
from .translation import Proposals, merge, respelled


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


def residual(target_probs: np.ndarray, draft_probs: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Weights max(0, scale p - q) (V,); at scale 1, p itself if all of them are 0 (p = q)."""
    left = (scale * target_probs - draft_probs).clip(0)
    if scale == 1 and left.max() == 0:
        return target_probs
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


def rejection_sampling(proposals: Sequence[int], draft_probs: Sequence[np.ndarray],
                       target_probs: Sequence[np.ndarray], uniforms: Uniforms,
                       proposed: Sequence[float] | None = None) -> Verdict:
    """Accept each proposal t with min(1, p(t)/q(t)); else draw from norm(max(0, p - q)) and stop.

    proposals: (m,) target ids; draft_probs: m rows (V_p,) of q or q' over the target's tokens;
    target_probs: m + 1 rows (V_p,); proposed: (m,) the q(t), given if the rows of `draft_probs` are
    lazy: they are then computed only on rejection. Lossless if each t was drawn from its row.
    """
    emitted = []
    for row, token in enumerate(proposals):
        p = float(target_probs[row][token])
        q = float(proposed[row] if proposed else draft_probs[row][token])
        if not uniforms.accept(ratio(p, q)):
            left = residual(target_probs[row], draft_probs[row])  # (V_p,)
            emitted.append(uniforms.choose(left))
            return Verdict(emitted, "recovered")
        emitted.append(token)
    emitted.append(uniforms.choose(target_probs[len(proposals)]))
    return Verdict(emitted, "bonus")


def lifted(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
           target_probs: Sequence[np.ndarray], uniforms: Uniforms,
           limit: int | None = None) -> Verdict:
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
    steps = comparisons(atoms, origins, lifting, target_probs, limit)  # one by one
    kept, rejected, left = keep(steps, origins, lifting, target_probs, uniforms)
    return written(kept, rejected, left, lifting, target_probs, uniforms)


def written(kept: list[Comparison], rejected: Comparison | None, left: Any, lifting: Lifting,
            target_probs: Sequence[Any], uniforms: Uniforms) -> Verdict:
    """What the kept comparisons spell, then a token of the target.

    It is drawn within a category from the residual `left` (C + 1,) of the rejected comparison. If
    none is rejected, it is one that begins as the draft ends, or the bonus.
    """
    emitted = [step.ends for step in kept if step.ends >= 0]
    p = target_probs[len(emitted)]
    if rejected is not None:
        category = uniforms.choose(left)
        tokens = lifting.members(rejected.node, category, len(p))
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


def keep(steps: Iterable[Comparison], origins: Sequence[Origin], lifting: Lifting,
         target_probs: Sequence[np.ndarray],
         uniforms: Uniforms) -> tuple[list[Comparison], Comparison | None, Any]:
    """The kept comparisons, the first rejected one (None: all are kept), its residual (C + 1,).

    A comparison is computed, and with it perhaps a row of the target, only while it can matter.
    """
    steps = iter(steps)
    known = []
    draw = 1.0
    for step in steps:
        if not known:
            draw = uniforms.next()  # a single one: are all kept?
        known.append(step)
        most = at_most(step)
        if draw >= most[-1]:  # not all, whatever the later rows are
            break
    if not known or draw < known[-1].after:
        return known, None, None
    # For each comparison a draw: where do we stop? As h <= r, not where the draw is r or more.
    draws = [uniforms.next() for _ in range(len(known) + len(step.later))]
    while any(map(lt, draws[len(known):], most)):
        step = next(steps, None)
        if step is None:  # a broken row
            break
        known.append(step)
        most = at_most(step)
    place, left = _stop(known, draws, origins, lifting, target_probs)
    return known[:place], known[place], left


def _stop(known: list[Comparison], draws: list[float], origins: Sequence[Origin],
          lifting: Lifting, target_probs: Sequence[np.ndarray]) -> tuple[int, Any]:
    """Which comparison is the first rejected one, and its residual (C + 1,)."""
    i = len(known)
    while True:  # go back from the last, until one stops us; the first has r = 1, so h = 1
        i -= 1
        r = known[i].before
        if draws[i] >= r:  # and h <= r, as Z <= r: no need to know h
            continue
        left = residual(*p_and_q(known[i], origins, lifting, target_probs), r)
        z = float(left.sum())
        if r == 1 or draws[i] < z / (z + (1 - r)):  # h
            return i, left


def at_most(step: Comparison) -> list[float]:
    """Bounds of r after this comparison and after each later one: r' = min(1, r P/Q), and P <= 1.

    subtle: where Q = 0, they are 1, so that a broken row before it is noticed.
    """
    return list(accumulate(step.later, lambda r, q: ratio(r, q or r), initial=step.after))


def comparisons(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
                target_probs: Sequence[np.ndarray],
                limit: int | None = None) -> Iterator[Comparison]:
    """The comparisons of a round, up to the first with P = 0; arguments as for `lifted`.

    They come with P, Q and r' = min(1, r P / Q). They also end before a broken row of the target
    (NaN, or every token ruled out). It is an error only if all that precedes it is kept: then
    `lifted` draws from it.
    """
    route = _proposed(lifting.route(atoms, len(target_probs), limit), origins, lifting)
    q = [0.0] * len(route)  # `at_most` knows no bounds
    if getattr(target_probs, "none_zero", False):
        q = [step.draft_prob for step in route]
    r = above = 1.0  # above: the mass of the node
    for place, step in enumerate(route, 1):
        try:
            row = target_probs[step.row]
        except OmnidraftError:  # a broken row
            return
        if step.child:
            tokens = lifting.below(step.node + step.child)
        else:  # *stop*
            tokens = lifting.own(step.node)
        mass = _sum(row, tokens) + 0 * float(row[0])  # NaN in every entry, if the row is a tensor
        if isnan(mass):
            return
        p = mass if step.node == ROOT else mass / above
        above = mass
        before = r
        r = ratio(r * p, step.draft_prob)
        later = tuple(q[place:]) if r else ()
        yield step._replace(target_prob=p, before=before, after=r, later=later)
        if r == 0:
            return


def _proposed(route: list[Comparison], origins: Sequence[Origin],
              lifting: Lifting) -> list[Comparison]:
    """The comparisons with the Q of their proposals, each from sums over few tokens."""
    made = []
    q = 1.0
    for step in route:
        row, prefix = origins[step.place]
        after = lifting.after(prefix)
        children = lifting.children(step.node) if step.stop else step.child
        proposing = [token for atom in children for token in after.get(atom, ())]
        possible = lifting.continuing(prefix)[0] if prefix else ()  # (): all draft tokens are
        stop_prob = 1.0 if step.stopped_at == ROOT else q  # the same atom's *stop* came just before
        whole = (_sum(row, possible) or 1.0) * stop_prob
        q = _sum(row, proposing) / (whole or 1.0)
        if step.stop:  # proposed by every atom that is no child
            q = max(0.0, 1.0 - q)
        made.append(step._replace(draft_prob=q, stop_prob=stop_prob))
    return made


def _sum(row: np.ndarray, ids: Sequence[int]) -> float:
    if len(ids) == 1:  # most often, and faster than a sum
        return float(row[ids[0]])
    return float(row[ids].sum()) if len(ids) else 0.0


def p_and_q(step: Comparison, origins: Sequence[Origin], lifting: Lifting,
            target_probs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """P and Q (C + 1,) over all categories of a comparison."""
    q = lifting.distribution(*origins[step.place])
    if step.stopped_at != ROOT:  # the same atom proposed *stop*, and that was accepted
        q[list(lifting.children(step.stopped_at))] = 0.0
        q /= step.stop_prob
    return lifting.choice(step.node, target_probs[step.row], q)


def acceptances(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
                target_probs: Sequence[np.ndarray]) -> list[float]:
    """How far r falls at each atom, up to the first 0: the labels of the acceptance head.

    This project's own. The draft is kept up to an atom with probability r (see `lifted`). As r
    can rise again, the labels multiply to the smallest r so far. The list ends with the rows.
    """
    steps = comparisons(atoms, origins, lifting, target_probs)
    after = {step.place: step.after for step in steps}  # an atom may be compared twice
    least = accumulate(after.values(), min, initial=1.0)
    return [now / before for before, now in pairwise(least)]


# ---- the rules as records -----------------------------------------------------------------------
class Rule(NamedTuple):
    """A rule. To add one, write its functions and put it into `RULES`: nothing else names rules.

    propose(pair, draft, ids, sampler, lifting) -> Proposals: target tokens for a `drafting.Draft`
    after the text `ids` (V_p). judge(proposals, target_probs, uniforms, limit) -> Verdict: from
    m + 1 rows (V_p,), where at most `limit` proposals fit into the text.
    """

    name: str
    propose: Callable[..., Proposals]
    judge: Callable[..., Verdict] | None = None  # None, and every rule at T = 0: `exact_match`
    exact: bool = True  # is the text distributed as the target's own, also at T > 0?
    lifts: bool = False  # is the boundary healed, and a `Lifting` given to `propose`?
    shared_only: bool = False  # may the drafter draw only tokens that the target has, too?


def propose_atoms(pair: Pairing, draft: Any, ids: Sequence[int], sampler: Any,
                  lifting: Any) -> Proposals:
    """The target tokens that the atoms of the draft spell."""
    if not sampler.temperature:  # any proposal is exact: propose the target's own spelling
        return respelled(pair, draft, ids, keep=pair.one_vocabulary)
    in_text = ()
    if draft.taken_back is not None:
        in_text = lifting.paths[draft.taken_back]
    atoms, origins = lifting.reveal(draft.tokens, draft.probs, in_text)
    tokens, spans = lifting.walk(atoms)
    return Proposals(tokens, spans, atoms=atoms, origins=origins, lifting=lifting)


def propose_merged(pair: Pairing, draft: Any, ids: Sequence[int], sampler: Any,
                   lifting: Any) -> Proposals:
    """Direct tokens, merged n-grams and spelled draft tokens."""
    return merge(draft.tokens, draft.probs, pair.direct, pair.cache.longest_match, pair.spellings,
                 _spread(pair, sampler))


def propose_direct(pair: Pairing, draft: Any, ids: Sequence[int], sampler: Any,
                   lifting: Any) -> Proposals:
    """Direct tokens only."""
    def no_match(tokens: Sequence[int], start: int) -> None:
        return None

    return merge(draft.tokens, draft.probs, pair.direct, no_match, {}, _spread(pair, sampler))


def propose_respelled(pair: Pairing, draft: Any, ids: Sequence[int], sampler: Any,
                      lifting: Any) -> Proposals:
    """The drafted text as the target would spell it."""
    return respelled(pair, draft, ids)


def _spread(pair: Pairing, sampler: Any) -> Callable[[Any], Any] | None:
    """Maps a row (V_q,) to the target's tokens (V_p,); None at T = 0, where no row is needed."""
    if not sampler.temperature:
        return None
    return partial(sampler.spread, direct=pair.direct, size=pair.target.vocab_size)


def judge_atoms(proposals: Proposals, target_probs: Sequence[Any], uniforms: Uniforms,
                limit: int) -> Verdict:
    """`lifted`, of what `propose_atoms` made."""
    return lifted(proposals.atoms, proposals.origins, proposals.lifting, target_probs, uniforms,
                  limit)


def judge_tokens(proposals: Proposals, target_probs: Sequence[Any], uniforms: Uniforms,
                 limit: int) -> Verdict:
    """`rejection_sampling`, of what `merge` made."""
    return rejection_sampling(proposals.tokens, proposals.rows, target_probs, uniforms,
                              proposals.probs)


RULES = {rule.name: rule for rule in (
    Rule("lifted", propose_atoms, judge_atoms, lifts=True),
    Rule("omnidraft", propose_merged, judge_tokens, exact=False),
    Rule("slem", propose_respelled),
    Rule("tli", propose_direct, judge_tokens, shared_only=True),
)}
