"""Step 5, solved.

A letter or n-gram x is proposed if the draft begins with x but not with a longer n-gram. So subtract the probability of each
n-gram that begins with x, but only once: if an n-gram begins with another one, that one's probability already includes it.
This needs rows that the drafter has not computed (those after "ab", when it drew "aa"). So lesson 5 takes another way.
"""


def first_proposal(row, ngrams):
    def drawn(letters):  # the probability that the draft begins with them
        probability = 1.0
        for i, letter in enumerate(letters):
            probability *= row(letters[:i]).get(letter, 0.0)
        return probability

    found = {}
    for x in [(letter,) for letter in row(())] + list(ngrams):
        longer = [n for n in ngrams if len(n) > len(x) and n[:len(x)] == x]
        nearest = [n for n in longer if not any(len(m) < len(n) and n[:len(m)] == m for m in longer)]
        found["".join(x)] = drawn(x) - sum(drawn(n) for n in nearest)
    return found
