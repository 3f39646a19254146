"""The four verification rules: which proposals the target keeps, and what it writes instead.

p = target, q = draft (arXiv 2507.02659; Leviathan et al. 2023). Rows are the processed distributions that were sampled
from. Row i of `target_probs` is p given the context and the proposals before position i, so m proposals come with
m + 1 rows. Words: *accepted* = a kept proposal, *recovered* = drawn from the residual after a rejection, *bonus* = the
free token when every proposal was kept.

`greedy`              temperature 0, any rule: keep proposals while they are the target's argmax.
`rejection_sampling`  `tli` (arXiv 2502.05202) with q on the shared tokens, lossless; `omnidraft` (arXiv 2507.02659,
                      Algorithm 1) with the translated q' of `translation.merge`, biased at temperature > 0.
`exact_match`         `slem` (arXiv 2502.05202): keep proposals while the target's own sample equals them, lossless.
`lossless`            this project's own: atom by atom on lifted distributions, exact for any two tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .lifting import ROOT, Lifting
from .sampling import Uniforms
from .translation import Translated

RULES = ("lossless", "omnidraft", "slem", "tli")


@dataclass
class Verdict:
    """What a round writes: `emitted` target tokens, of which the first `accepted` are kept proposals.

    `kinds` names each emitted token's fate: "accepted", "recovered" or "bonus".
    """

    emitted: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    accepted: int = 0

    def emit(self, token: int, kind: str) -> None:
        """Append a token that enters the text."""
        self.emitted.append(int(token))
        self.kinds.append(kind)
        self.accepted += kind == "accepted"


def greedy(proposals: Sequence[int], target_choices: Sequence[int]) -> Verdict:
    """Keep proposals (m,) while they equal the target's argmax (m + 1,); the first other argmax ends the round.

    >>> greedy([5, 6], [5, 7, 8]).emitted
    [5, 7]
    """
    verdict = Verdict()
    for proposal, choice in zip(proposals, target_choices, strict=False):
        if proposal != choice:
            verdict.emit(choice, "recovered")
            return verdict
        verdict.emit(choice, "accepted")
    verdict.emit(target_choices[len(proposals)], "bonus")
    return verdict


def residual(target_probs: np.ndarray, draft_probs: np.ndarray | Translated) -> np.ndarray:
    """Weights max(0, p - q) of shape (V,), or p itself where rounding leaves nothing of them (p = q)."""
    left = target_probs - draft_probs
    np.maximum(left, 0.0, out=left)
    return left if left.max() > 0 else target_probs


def rejection_sampling(proposals: Sequence[int], draft_probs: Sequence[np.ndarray | Translated], target_probs: np.ndarray,
                       uniforms: Uniforms) -> Verdict:
    """Accept each proposal t with probability min(1, p(t)/q(t)), else draw from norm(max(0, p - q)) and end.

    proposals: (m,) target ids; draft_probs: m rows (V_p,) of q or q' over the target's vocabulary, of which only
    `row[token]` and `p - row` are used; target_probs: (m + 1, V_p). Lossless if each proposal was drawn from its row.

    >>> q, p = np.array([1.0, 0.0]), np.array([[0.5, 0.5], [0.0, 1.0]])
    >>> rejection_sampling([0], [q], p, Uniforms([0.4, 0.0])).emitted
    [0, 1]
    """
    verdict = Verdict()
    for row, (proposal, q) in enumerate(zip(proposals, draft_probs, strict=True)):
        p = target_probs[row]
        if not _keep(p[proposal], q[proposal], uniforms):
            verdict.emit(uniforms.choose(residual(p, q)), "recovered")
            return verdict
        verdict.emit(proposal, "accepted")
    verdict.emit(uniforms.choose(target_probs[len(proposals)]), "bonus")
    return verdict


def exact_match(proposals: Sequence[int], target_probs: np.ndarray, uniforms: Uniforms) -> Verdict:
    """Draw from p (m + 1, V_p) row by row and go on while the draw is the proposal (m,): the text is p's own sample."""
    verdict = Verdict()
    for row, proposal in enumerate(proposals):
        drawn = uniforms.choose(target_probs[row])
        if drawn != proposal:
            verdict.emit(drawn, "recovered")
            return verdict
        verdict.emit(drawn, "accepted")
    verdict.emit(uniforms.choose(target_probs[len(proposals)]), "bonus")
    return verdict


@dataclass(frozen=True)
class Choice:
    """One comparison of `lossless`: at a node of the trie, the laws P and Q (C + 1,) of what comes next, and what is proposed.

    The categories are the children with their `atoms` (C,) and, last, what ends here (`Lifting.choice`).
    """

    place: int  # of the atom that proposes
    node: int
    probs: np.ndarray  # (V_p,) the target's row
    atoms: np.ndarray
    target_law: np.ndarray
    draft_law: np.ndarray
    chosen: int  # the category that the atom proposes
    ends: int  # the target token that enters the text if the proposal is accepted, or -1
    next_node: int

    @property
    def acceptance(self) -> float:
        """min(1, P/Q) of the proposal."""
        return _ratio(self.target_law[self.chosen], self.draft_law[self.chosen])


def choices(atoms: Sequence[int | None], laws: Sequence[np.ndarray], lifting: Lifting,
            target_probs: np.ndarray) -> Iterator[Choice]:
    """The comparisons of a round as long as each proposal is accepted, in order; arguments as in `lossless`.

    When *stop* is accepted a token ends, the same atom begins the next one, and its law is narrowed to non-children.
    """
    place, row, node = 0, 0, ROOT
    law: np.ndarray | None = None  # Q of the atom at hand, narrowed once an end before it was accepted
    ordered = lifting.ordered(target_probs[0])
    while place < len(atoms):
        atom, law = atoms[place], laws[place] if law is None else law
        child_atoms, target_law, draft_law = lifting.choice(node, target_probs[row], ordered, law)  # (C,), (C + 1,), (C + 1,)
        child = lifting.children[node].get(atom)
        chosen = -1 if child is None else int(np.flatnonzero(child_atoms == atom)[0])
        whole = child is None or not lifting.children[child]
        ends = lifting.token[node if child is None else child] if whole else -1
        yield Choice(place, node, target_probs[row], child_atoms, target_law, draft_law, chosen, ends, ROOT if whole else child)
        if child is None:
            law = law.copy()
            law[child_atoms] = 0.0
            law /= draft_law[-1]
        else:
            place, law = place + 1, None
        node = ROOT if whole else child
        if whole:
            row += 1
            if row == len(target_probs):  # the round ends before its atoms do
                return
            ordered = lifting.ordered(target_probs[row])


def lossless(atoms: Sequence[int | None], laws: Sequence[np.ndarray], lifting: Lifting, target_probs: np.ndarray,
             uniforms: Uniforms, limit: int | None = None) -> Verdict:
    """Verify a round's atoms against the target's distributions lifted onto atoms; every emitted token has law p.

    atoms: (n,) draft ids, None where a token has no path; laws: n rows (V_q,), the law Q that each was drawn from given
    those before it (`Lifting.reveal`); target_probs: (m + 1, V_p) rows along the m tokens of `lifting.walk(atoms)`, or along
    its first `limit`, after which the bonus follows whatever the atoms (a limit that depended on them would bias the law).

    At a node of the trie the categories are its children, and what ends there: at the root the uncovered tokens,
    inside the node's own token (*stop*). The next atom proposes its child, else the end. Ordinary rejection sampling
    compares the two laws of that choice; a rejection draws a category from norm(max(0, P - Q)), then a token from p
    restricted to it. Atoms that run out inside a node leave p restricted to the node's subtree.
    """
    verdict, node = Verdict(), ROOT
    for choice in choices(atoms, laws, lifting, target_probs):
        if not _keep(choice.target_law[choice.chosen], choice.draft_law[choice.chosen], uniforms):
            p, drawn = choice.probs, uniforms.choose(residual(choice.target_law, choice.draft_law))
            if drawn < len(choice.atoms):
                within = lifting.below(lifting.children[choice.node][int(choice.atoms[drawn])])
            else:
                within = lifting.uncovered(len(p)) if choice.node == ROOT else np.array([lifting.token[choice.node]])
            verdict.emit(within[uniforms.choose(p[within])], "recovered")
            return verdict
        node = choice.next_node
        if choice.ends >= 0:
            verdict.emit(choice.ends, "accepted")
            if verdict.accepted == limit:
                break
    p = target_probs[verdict.accepted]
    if node != ROOT:
        below = lifting.below(node)
        token = int(below[uniforms.choose(p[below])])
        if token != lifting.token[node]:
            verdict.emit(token, "recovered")
            return verdict
        verdict.emit(token, "accepted")
        p = target_probs[verdict.accepted]
    verdict.emit(uniforms.choose(p), "bonus")
    return verdict


def acceptances(atoms: Sequence[int | None], laws: Sequence[np.ndarray], lifting: Lifting,
                target_probs: np.ndarray) -> list[float]:
    """min(1, P/Q) of every atom, had all before it been accepted: the labels of the acceptance head (this project's own).

    An atom that ends one token and begins the next takes part in two comparisons, whose acceptances multiply. The list ends
    where the rows do.
    """
    found: list[float] = []
    for choice in choices(atoms, laws, lifting, target_probs):
        if choice.place == len(found):
            found.append(1.0)
        found[-1] *= choice.acceptance
        if choice.acceptance == 0:
            break
    return found


def _keep(target_prob: float, draft_prob: float, uniforms: Uniforms) -> bool:
    """Accept with min(1, p/q); what was not drawn from q (q = 0) is rejected. No quotient is formed that could overflow."""
    return draft_prob > 0 and uniforms.accept(_ratio(target_prob, draft_prob))


def _ratio(target_prob: float, draft_prob: float) -> float:
    """min(1, p/q), and 0 where q = 0; no quotient is formed that could overflow."""
    if draft_prob <= 0:
        return 0.0
    return 1.0 if target_prob >= draft_prob else float(target_prob / draft_prob)
