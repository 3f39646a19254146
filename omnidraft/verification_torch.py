"""Torch twin of `verification.py`: a round's probabilities gathered at once, and at most three copies to the host.

Proposals and atoms are known on the host, hence the way that they take if all are accepted. The few numbers compared on it
are gathered on the device and copied together; each draw after that is one more copy, of which `lossless` has at most two (a
category and a token in it, or the last token and the bonus), `rejection_sampling` one. `greedy`, `exact_match`: one in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import lifting, verification
from .lifting_torch import ROOT, Laws, Lifting, ragged_sums, upload
from .sampling import Rows
from .sampling_torch import Uniforms, in_place, on_host, to_host
from .translation import Translated
from .verification import Verdict, _keep, _ratio


def greedy(proposals: Sequence[int], target_choices: Tensor) -> Verdict:
    """Keep proposals (m,) while they equal the target's argmax (m + 1,); one copy.

    >>> greedy([5, 6], torch.tensor([5, 7, 8])).emitted
    [5, 7]
    """
    return verification.greedy(proposals, to_host(target_choices, 1 << 62))


def residual(target_probs: Tensor, draft_probs: Tensor | Translated) -> Tensor:
    """Weights max(0, p - q) of shape (V,), or p itself where rounding leaves nothing of them (p = q)."""
    left = (target_probs - draft_probs).clamp_(min=0)
    if on_host(left):
        return left if in_place(left).max() > 0 else target_probs
    return left.addcmul_(target_probs, left.sum() == 0)


def rejection_sampling(proposals: Sequence[int], draft_probs: Sequence[Tensor | Translated] | Tensor,
                       target_probs: Tensor | Sequence[Tensor], uniforms: Uniforms) -> Verdict:
    """Accept each proposal t with probability min(1, p(t)/q(t)), else draw from norm(max(0, p - q)) and end.

    proposals: (m,) target ids; draft_probs: m rows (V_p,) of q or q'; target_probs: (m + 1, V_p).

    >>> q, p = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    >>> rejection_sampling([0], q, p, Uniforms([0.4, 0.0])).emitted
    [0, 1]
    """
    verdict = Verdict()
    pairs = ((target_probs[row][token], draft_probs[row][token]) for row, token in enumerate(proposals))
    if isinstance(target_probs, Tensor):  # all in one copy; rows that are made when they are asked for are on the host
        numbers = [torch.as_tensor(number, device=target_probs.device) for pair in pairs for number in pair]
        pairs = torch.stack(numbers).view(-1, 2).tolist() if numbers else ()
    for row, pair in enumerate(pairs):
        if not _keep(*map(float, pair), uniforms):
            verdict.emit(_draw(residual(target_probs[row], draft_probs[row]), uniforms), "recovered")
            return verdict
        verdict.emit(proposals[row], "accepted")
    verdict.emit(_draw(target_probs[len(proposals)], uniforms), "bonus")
    return verdict


def exact_match(proposals: Sequence[int], target_probs: Tensor | Sequence[Tensor], uniforms: Uniforms) -> Verdict:
    """Draw from p (m + 1, V_p) and keep the draws up to the first that is not the proposal (m,); one copy of a tensor's."""
    if not isinstance(target_probs, Tensor):
        return verification.greedy(proposals, Rows(target_probs, lambda p: _draw(p, uniforms)))
    draws = uniforms.take(len(target_probs))
    verdict = verification.greedy(proposals, to_host(Uniforms(draws).choose(target_probs), target_probs.shape[1]))
    uniforms.give_back(len(draws) - len(verdict.emitted))
    return verdict


class Choice(NamedTuple):
    """One comparison of `lossless`, as `verification.Choice`, with P and Q of the proposed category only."""

    place: int
    node: int
    ends: int
    next_node: int
    narrowed: int  # the node whose children the atom is known not to be, or ROOT
    target_prob: float
    draft_prob: float


def choices(atoms: Sequence[int | None], laws: Laws, lifting: Lifting,
            target_probs: Tensor | Sequence[Tensor]) -> Iterator[Choice]:
    """The comparisons of a round as long as each proposal is accepted, in order; arguments as in `lossless`.

    The numbers in a tensor come in one copy. Rows on the host are asked for one after another, as the comparisons are.
    """
    steps, found = _steps(atoms, laws, lifting.host, len(target_probs)), None
    if isinstance(target_probs, Tensor) and (steps := [*steps]):
        _, proposed, drafted = zip(*steps, strict=True)
        rows, tokens, possible = zip(*drafted, strict=True)
        masses, sums = ragged_sums((target_probs, *zip(*proposed, strict=True)),
                                   (laws.draft_probs, rows + rows, tokens + possible))
        found = zip(masses, sums, sums[len(steps):], strict=False)  # ends with the masses
    mass, before = 1.0, 1.0  # P and Q of the proposal before
    for (*step, stop), proposed, drafted in steps:
        p, q, given = next(found) if found else _read(target_probs, laws.rows, proposed, drafted)
        q = q / (given or 1.0)  # an expanded token's later atom: relative to all draft tokens that begin like it
        q = max(0.0, 1 - q) if stop else q
        law = p
        if step[1] != ROOT:
            law = p / (mass or 1.0)  # relative to the node, which the comparison before proposed
        elif step[4] != ROOT:
            q = q / (before or 1.0)  # relative to what is no child of the node that ended before
        mass, before = p, q
        yield Choice(*step, law, q)


def lossless(atoms: Sequence[int | None], laws: Laws, lifting: Lifting, target_probs: Tensor | Sequence[Tensor],
             uniforms: Uniforms, limit: int | None = None) -> Verdict:
    """Verify a round's atoms against the target's distributions lifted onto atoms, as `verification.lossless`.

    atoms: (n,) draft ids, None where a token has no path; laws: theirs (`Lifting.reveal`); target_probs: (m + 1, V_p).
    """
    verdict, node, host, before = Verdict(), ROOT, lifting.host, 1.0
    for choice in choices(atoms, laws, lifting, target_probs):
        if not _keep(choice.target_prob, choice.draft_prob, uniforms):
            p, law = target_probs[verdict.accepted], laws[choice.place]
            if choice.narrowed != ROOT:
                law = law.index_fill(0, upload(list(host.children[choice.narrowed]), law.device), 0.0) / before
            atom = _draw(residual(*lifting.categories(choice.node, p, law)), uniforms)
            if atom < len(law):
                within = host.below(host.children[choice.node][atom])
            else:
                within = host.uncovered(len(p)) if choice.node == ROOT else [host.token[choice.node]]
            verdict.emit(within[_draw(p.index_select(0, upload(within, p.device)), uniforms)], "recovered")
            return verdict
        node, before = choice.next_node, choice.draft_prob
        if choice.ends >= 0:
            verdict.emit(choice.ends, "accepted")
            if verdict.accepted == limit:
                break
    p = target_probs[verdict.accepted]
    if node != ROOT:
        below = host.below(node)
        token = below[_draw(p.index_select(0, upload(below, p.device)), uniforms)]
        if token != host.token[node]:
            verdict.emit(token, "recovered")
            return verdict
        verdict.emit(token, "accepted")
        p = target_probs[verdict.accepted]
    verdict.emit(_draw(p, uniforms), "bonus")
    return verdict


def acceptances(atoms: Sequence[int | None], laws: Laws, lifting: Lifting, target_probs: Tensor) -> list[float]:
    """min(1, P/Q) of every atom, had all before it been accepted, up to the first that is 0; one copy."""
    found: list[float] = []
    for choice in choices(atoms, laws, lifting, target_probs):
        if choice.place == len(found):
            found.append(1.0)
        found[-1] *= _ratio(choice.target_prob, choice.draft_prob)
        if found[-1] == 0:
            break
    return found


def _steps(atoms: Sequence[int | None], laws: Laws, host: lifting.Lifting, rows: int) -> Iterator[tuple]:
    """Per comparison: what is known of it, where P is found (row, target tokens), and where Q is (`Laws.parts`)."""
    row, place, node, narrowed = 0, 0, ROOT, ROOT
    while place < len(atoms) and row < rows:  # a round may end before its atoms do
        child, begin = host.children[node].get(atoms[place]), host.first[node]
        stop, after = child is None and node != ROOT, node if child is None else child
        whole = child is None or not host.children[child]
        ends = host.token[after] if whole else -1
        following = ROOT if whole else after
        yield ((place, node, ends, following, narrowed, stop),
               (row, host.order[begin:begin + (ends >= 0)] if child is None else host.below(child)),
               laws.parts(place, host.children[node] if stop else () if child is None else (atoms[place],)))
        if whole and ends < 0:
            return  # cannot be accepted: a dead end, or no path at the root
        row, place, node, narrowed = row + whole, place + (child is not None), following, node if stop else ROOT


def _read(target_probs: Sequence[Tensor], draft_probs: Sequence[Tensor], proposed: tuple,
          drafted: tuple) -> tuple[float, float, float]:
    """What `ragged_sums` gathers, for one comparison, read on the host where it lies."""
    (row, within), (drawn, tokens, possible) = proposed, drafted
    p, q = in_place(target_probs[row]), in_place(draft_probs[drawn])
    return sum(p[within].tolist()), sum(q[tokens].tolist()), sum(q[possible].tolist()) if possible else 0.0


def _draw(weights: Tensor, uniforms: Uniforms) -> int:
    """One index drawn by `weights` (N,), on the host."""
    return to_host(uniforms.choose(weights), weights.shape[0])[0]
