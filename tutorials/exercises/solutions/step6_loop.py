"""Step 6, solved.

The drafter forgets its draft and reads what was written, so both models always continue from the same text. (The package keeps
those of its tokens that agree, so that the drafter's cache need not be filled again.)
"""

from mini import verify


def speculate(draft, target, trie, text, k, new, temperature, choose):
    rounds, ids = [], target.write(text)
    end = len(ids) + new
    while len(ids) < end:
        tokens, q, before = [], [], draft.write(text)[-1]
        while len(tokens) < min(k, end - len(ids) - 1):
            q.append(draft.rows(before, temperature))
            before = choose(q[-1])
            tokens.append(before)

        atoms = []
        for j, token in enumerate(tokens):
            path = trie.paths[token]
            atoms += [(atom, j, path[:i]) for i, atom in enumerate(path)]
        _, proposals, node = trie.walk([atom for atom, _, _ in atoms])
        if node in trie.token:
            proposals.append(trie.token[node])

        p = target.rows([ids[-1], *proposals], temperature)  # the one pass
        written, _ = verify(atoms, q, p, trie, choose)
        rounds.append(written)
        ids = ids + written
        text += "".join(target.words[token] for token in written)
    return rounds
