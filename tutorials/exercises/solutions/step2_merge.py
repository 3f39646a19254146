"""Step 2, solved.

Try the longest n-gram first, since the target itself would write the longest token. Advance by as many draft tokens as the
proposal stands for. A token that the target cannot spell ends the proposals: anything after it would be in the wrong position.
"""


def merge(draft, direct, ngrams):
    proposals, place = [], 0
    while place < len(draft):
        for length in range(len(draft) - place, 1, -1):
            ngram = tuple(draft[place:place + length])
            if ngram in ngrams:
                proposals.append(ngrams[ngram])
                place += length
                break
        else:  # no n-gram begins here
            if draft[place] not in direct:
                return proposals
            proposals.append(direct[draft[place]])
            place += 1
    return proposals
