"""Step 8, solved.

The dict keeps one token for each spelling: the first one found, unless the tokenizer itself writes a later one, which the model
has read far more often. Special tokens stay outside. All of them spell nothing, so by bytes they would be the same.
"""


def direct_map(draft, target, draft_roles, target_roles, split):
    by_bytes = {}
    for t, data in enumerate(target):
        if data and (data not in by_bytes or split(data) == (t,)):
            by_bytes[data] = t
    found = [by_bytes.get(data, -1) for data in draft]

    for role, d in draft_roles.items():
        if role in target_roles:
            found[d] = target_roles[role]
    return found
