"""A text that a pair writes, as lines for the page of `omnidraft play`: each is a JSON object.

The first names the pair. Then comes a line per round, with P and Q at each comparison, and at last
a line per token that the target writes alone. All text in them is escaped.
"""

import codecs
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import Options, Pair, Round, Tokenizer, plain, speculative
from ..pairs.prompts import ids_of, uniforms_of
from ..sampling import process
from ..verification import comparisons, p_and_q
from .printing import escape

BARS = 5  # categories that are shown of a distribution
Frame = dict[str, Any]  # one comparison, as the page shows it


def lines(pair: Pair, prompt: Any, shown: str, how: Options, seed: int) -> Iterator[dict]:
    """The lines for a prompt, which the page shows as the text `shown`."""
    ids = ids_of(pair, prompt)
    yield {"draft": escape(pair.draft.name), "target": escape(pair.target.name),
           "prompt": escape(shown), "rule": how.verify, "temperature": how.temperature}
    recorder = Recorder(pair, how)
    for done in speculative(pair, ids, how, uniforms_of(seed), learner=recorder):
        yield {"round": recorder.line(done)}
    piece = pieces(pair.target.tokenizer)
    for done in plain(pair.target, ids[0], how, uniforms_of(seed)):
        yield {"plain": [piece(done.emitted[0]), sum(milliseconds(done))]}


class Recorder:
    """Sees each round as a learner does, and makes its line."""

    def __init__(self, pair: Pair, how: Options) -> None:
        self.lifting = pair.lifting
        self.own = pair.draft.tokenizer
        self.goal = pair.target.tokenizer
        self.piece = pieces(self.goal)
        self.settings = (how.temperature or 1.0, *how.sampling[1:])  # for greedy texts P at T = 1

    def observe(self, draft: Any, proposals: Any, logits: Any, *_: Any) -> None:
        """Keep what the loop shows a learner; the time that this takes counts as the round's."""
        self.seen = draft, proposals, logits

    def line(self, done: Round) -> dict[str, Any]:
        """The round just seen; `decided` is the place of the frame that explains its last token."""
        draft, proposals, logits = self.seen
        rows = list(process(array(logits)[:, :self.goal.size], *self.settings))
        compare = self.of_atoms if proposals.atoms else self.of_tokens
        found = list(compare(proposals, rows))
        decided = decisive(found, done)
        if decided == len(found):
            found.append((self.drawn(proposals, rows, done), ()))
        written = [[name(self.goal, token), kind, self.piece(token)]
                   for token, kind in zip(done.emitted, done.kinds, strict=True)]
        return {"healed": name(self.own, draft.taken_back) or "", "kept": done.draft_kept,
                "draft": [name(self.own, token) for token in draft.tokens],
                "proposals": [name(self.goal, token) for token in proposals.tokens],
                "accepted": done.accepted, "emitted": written, "ms": milliseconds(done),
                "frames": [frame for frame, _ in found], "decided": decided}

    def of_atoms(self, proposals: Any, rows: list[np.ndarray]) -> Iterator[tuple[Frame, Any]]:
        """P and Q of the next atom or *stop* (rule `lifted`, T > 0), and the tokens it may end."""
        origins = [(array(row), before) for row, before in proposals.origins]
        begins = [not before for _, before in origins]
        begins[0] = True  # also inside a token that is healed
        for step in comparisons(proposals.atoms, origins, self.lifting, rows):
            P, Q = p_and_q(step, origins, self.lifting, rows)
            atoms = self.lifting.atoms(step.node).tolist() + [None]  # the last one: *stop*
            proposed = proposals.atoms[step.place]
            marked = atoms.index(proposed if proposed in atoms else None)
            bars = bars_of(P, Q, marked)
            for bar in bars:
                atom = atoms[bar["place"]]
                node = step.node if atom is None else (*step.node, atom)
                bar |= {"name": name(self.own, atom),
                        "ends": name(self.goal, self.lifting.token.get(node))}
            node = [name(self.own, atom) for atom in step.node]
            drafted = self.lifting.own(step.node)
            if step.child:
                drafted = self.lifting.below(step.node + step.child)
            yield {"draft": sum(begins[:step.place + 1]) - 1, "row": step.row, "node": node,
                   "r": step.before, "bars": bars}, drafted

    def of_tokens(self, proposals: Any, rows: list[np.ndarray]) -> Iterator[tuple[Frame, Any]]:
        """P of each proposal, Q if the rule compares with it, and the proposal."""
        place = 0
        for row, (token, span) in enumerate(zip(proposals.tokens, proposals.spans, strict=True)):
            Q = None
            if row < len(proposals.rows):
                Q = array(proposals.rows[row])[:self.goal.size]
            yield self.of_token(place, row, rows[row], Q, token), [token]
            place += span

    def of_token(self, place: int, row: int, P: np.ndarray, Q: Any, token: int) -> Frame:
        """P and Q of target tokens."""
        bars = bars_of(P, Q, token)
        for bar in bars:
            bar["name"] = name(self.goal, bar["place"])
        return {"draft": place, "row": row, "node": None, "r": 1.0, "bars": bars}

    def drawn(self, proposals: Any, rows: list[np.ndarray], done: Round) -> Frame:
        """P of the token that the target draws when nothing is rejected."""
        P = rows[done.accepted]
        if proposals.atoms and done.kinds[-1] == "recovered":  # it begins as the draft ends
            inside = self.lifting.below(self.lifting.route(proposals.atoms)[-1].next_node)
            left = np.zeros_like(P)
            left[inside] = P[inside]
            P = left / left.sum()
        return self.of_token(len(done.draft_tokens), done.accepted, P, None, done.emitted[-1])


def decisive(found: list[tuple[Frame, Any]], done: Round) -> int | None:
    """The place of the rejected comparison, or the end if there is none; None: no token is drawn.

    subtle: the residual is 0 where the draft is rejected, so the new token is not what was drafted.
    """
    if done.accepted == len(done.emitted):
        return None
    for place, (frame, drafted) in enumerate(found):
        if done.kinds[-1] == "recovered" and frame["row"] >= done.accepted:
            if done.emitted[-1] not in drafted:
                return place
    return len(found)


def bars_of(P: np.ndarray, Q: np.ndarray | None, marked: int) -> list[dict[str, Any]]:
    """The likeliest places of P and Q (n,), and in any case the marked one."""
    weights = P if Q is None else np.maximum(P, Q)
    order = np.argsort(-weights, kind="stable")[:BARS].tolist()
    order = [i for i in order if weights[i] > 0]
    if marked not in order:
        order[BARS - 1:] = [marked]
    return [{"place": i, "P": round(float(P[i]), 4), "marked": i == marked,
             "Q": None if Q is None else round(float(Q[i]), 4)} for i in order]


def pieces(tokenizer: Tokenizer) -> Callable[[int], str]:
    """What each token adds to a text; a character split over tokens comes with its last one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return lambda token: escape(decoder.decode(tokenizer.decode_bytes([token])))


def name(tokenizer: Tokenizer, token: int | None) -> str | None:
    r"""A token's text, if there is one; bytes of a cut character are \xNN, an end is <end>."""
    if token is None:
        return None
    if token in tokenizer.roles["eos"]:
        return "<end>"
    data = tokenizer.decode_bytes([token])
    return escape(data.decode("utf-8", "backslashreplace") or tokenizer.strings[token] or "")


def array(values: Any) -> np.ndarray:
    """An array of an array or a tensor on any device."""
    return np.array(values.tolist())


def milliseconds(done: Round) -> list[float]:
    """Of a round: draft, target and the rest, without the reading of the prompt."""
    return [round(1e3 * done.seconds.get(part, 0.0), 2) for part in ("draft", "target", "other")]
