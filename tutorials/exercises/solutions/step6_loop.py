"""Step 6, solved.

The drafter forgets its draft and reads what was written, so both models always continue from the same text. (The package and
mini.py keep those of its tokens that agree, so that the drafter's cache need not be filled again.)
"""

from mini import probabilities, verify


def speculate(draft, target, trie, own, ids, k, new, temperature, draws):
    rounds, end = [], len(ids) + new
    while len(ids) < end and ids[-1] not in target.ends:
        room = end - len(ids) - 1  # for proposals; the last token is the target's own
        tokens, rows = [], []
        while len(tokens) < min(k, room) and not (tokens and tokens[-1] in draft.ends):
            rows.append(probabilities(draft.logits(own + tokens, 1), temperature)[0])
            tokens.append(draws.choose(rows[-1]))

        atoms = []
        for token, row in zip(tokens, rows, strict=True):
            path = trie.paths[token] or (None,)
            atoms += [(atom, row, path[:i]) for i, atom in enumerate(path)]
        proposals = trie.merge([atom for atom, _, _ in atoms])[:room]

        p = probabilities(target.logits(ids + proposals, len(proposals) + 1), temperature)  # the one pass
        written = verify(atoms, trie, p, room, draws)
        for place, token in enumerate(written):
            if token in target.ends:
                written = written[:place + 1]
                break
        rounds.append(written)
        ids = ids + written
        own = draft.write(own, target.bytes(written))
    return rounds
