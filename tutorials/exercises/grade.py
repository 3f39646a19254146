"""The graders: each runs a reader's function for every possible outcome, and raises a readable `Wrong` at the first mistake."""

import importlib.util
import itertools
import re
import sys
import traceback
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))  # mini.py and helpers.py
import mini  # noqa: E402
from helpers import distribution_of  # noqa: E402

CLOSE = 1e-9


class Wrong(AssertionError):
    """What the function gave, what was wanted, and in which case."""


def compare(what, case, wanted, given, name=str):
    """Raise `Wrong` with both distributions, the largest differences first, unless they are equal."""
    keys = sorted({*wanted, *given}, key=lambda key: -abs(wanted.get(key, 0) - given.get(key, 0)))
    if all(abs(wanted.get(key, 0) - given.get(key, 0)) < CLOSE for key in keys):
        return
    n = decimals(wanted.get(keys[0], 0), given.get(keys[0], 0))
    lines = [f"{what}\n{case}\n\n{'':16} {'wanted':{n + 5}}yours"]
    lines += [f"{name(key):16} {wanted.get(key, 0):.{n}f}   {given.get(key, 0):.{n}f}" for key in keys[:8]]
    raise Wrong("\n".join(lines))


def number(what, case, wanted, given):
    """Raise `Wrong` unless two numbers are equal."""
    if not abs(wanted - given) <= CLOSE:  # also if it is NaN
        n = decimals(wanted, given)
        raise Wrong(f"{what}\n{case}\n\nwanted {wanted:.{n}f}, yours {given:.{n}f}")


def decimals(wanted, given):
    """As many as show that the two numbers differ, but at least four."""
    return next((n for n in range(4, 12) if f"{wanted:.{n}f}" != f"{given:.{n}f}"), 12)


def show(row, names="abcdefgh"):
    """A row or a dict as text: (a 0.50, b 0.30, c 0.20)."""
    pairs = row.items() if isinstance(row, dict) else zip(names, row, strict=False)
    return "(" + ", ".join(f"{name} {p:.2f}" for name, p in pairs) + ")"


# ---- step 1 ----------------------------------------------------------------------------------------------------------
def verify(function):
    """Bigram worlds of three tokens, drafts of one and two: the first two tokens, and how many are written."""
    by_hand = np.array([[0.5, 0.3, 0.2]] * 4), np.array([[0.2, 0.7, 0.1]] * 4)
    rng, means = np.random.default_rng(0), []
    for (p, q), k in itertools.product([by_hand, *rng.dirichlet(np.ones(3), (4, 2, 4))], (1, 2)):  # row -1 comes first

        def written(draws, p=p, q=q, k=k):
            draft = []
            for _ in range(k):
                draft.append(draws.choose(q[draft[-1] if draft else -1]))
            rows = [-1, *draft]
            tokens = [*function(list(draft), q[rows[:k]], p[rows], draws)]
            if not 1 <= len(tokens) <= k + 1:
                raise Wrong(f"1 verify: a draft of {k} writes 1 to {k + 1} tokens\n\nyours: {tokens} for the draft {draft}")
            second = tokens[1] if len(tokens) > 1 else draws.choose(p[tokens[0]])  # the next round's, as exact
            return tokens[0], second, len(tokens)

        found = distribution_of(written)
        case = f"first rows: target {show(p[-1])}, drafter {show(q[-1])}; draft of {k}"
        for place in (0, 1):
            wanted, given = {}, {}
            for (first, second, _), weight in found.items():
                key = (first, second)[:place + 1]
                given[key] = given.get(key, 0) + weight
            for key in itertools.product(range(3), repeat=place + 1):
                wanted[key] = p[-1][key[0]] * (p[key[0]][key[1]] if place else 1)
            compare("1 verify: the text is not distributed as the target's own", case, wanted, given,
                    lambda key: "the text " + "".join("abc"[x] for x in key))
        kept = np.minimum(p[-1], q[-1])
        mean = 1 + kept.sum() + (k > 1) * sum(kept[x] * np.minimum(p[x], q[x]).sum() for x in range(3))
        means.append((case, mean, sum(n * weight for (_, _, n), weight in found.items())))
    for mean in means:  # only now: in one world a biased rule may look right
        number("1 verify: the text is distributed correctly, but the mean number of tokens per round is wrong", *mean)


# ---- step 2 ----------------------------------------------------------------------------------------------------------
def merge(function):
    """All drafts of up to five tokens, the shortest first, against the package's own translation."""
    from omnidraft.ngram_cache import NGramCache
    from omnidraft.translation import Direct
    from omnidraft.translation import merge as translated

    for tokens, direct, ngrams in (
        (["f", "la", "ke", "s"], ["f", "la", "s"], [("f", "la"), ("f", "la", "ke"), ("ke", "s")]),
        (["a", "b", "c"], ["b", "c"], [("a", "b"), ("b", "c", "a"), ("a", "b", "c", "a")]),
    ):
        direct = {d: d.upper() for d in direct}  # the target's tokens have other names than the drafter's
        ngrams = {ngram: "".join(ngram).upper() for ngram in ngrams}
        names = [*direct.values(), *ngrams.values()]
        table, cache = Direct(np.array([names.index(direct[d]) if d in direct else -1 for d in tokens])), NGramCache()
        for ngram, name in ngrams.items():
            cache.insert([tokens.index(d) for d in ngram], names.index(name))
        case = (f"direct tokens {', '.join(f'{d} = {t}' for d, t in direct.items())}; "
                f"n-grams {', '.join(f'{chr(32).join(ngram)} = {t}' for ngram, t in ngrams.items())}")
        for length in range(6):
            for draft in itertools.product(tokens, repeat=length):
                wanted = translated([tokens.index(d) for d in draft], [None] * length, table, cache.longest_match, {}).tokens
                wanted = [names[t] for t in wanted]
                given = function(list(draft), dict(direct), dict(ngrams))
                if given is None or list(given) != wanted:
                    raise Wrong(f"2 merge: {case}\ndraft {' '.join(draft)}\n\nwanted {wanted}, yours {given}")


# ---- step 3 ----------------------------------------------------------------------------------------------------------
WORLDS = (  # splits, p; tokens and atoms have different names
    ({"A": "a", "B": "b", "AB": "ab"}, {"A": 0.4, "B": 0.2, "AB": 0.4}),
    ({"A": "a", "ABC": "abc", "ABD": "abd", "C": "c"}, {"A": 0.1, "ABC": 0.2, "ABD": 0.3, "C": 0.1, "Z": 0.3}),
    ({"B": "b", "BAB": "bab", "BA": "ba"}, {"B": 0.0, "BAB": 0.5, "BA": 0.25, "Y": 0.15, "Z": 0.1}),
)


def choices(splits, p):
    """{node: {atom, "stop" or "rest": probability}}, token by token."""
    nodes = {split[:depth] for split in splits.values() for depth in range(len(split))}
    found = {}
    for node in nodes:
        here = {t: p[t] for t in p if splits.get(t, ())[:len(node)] == node}
        found[node] = {}
        for t, share in here.items():
            category = splits[t][len(node)] if len(splits.get(t, ())) > len(node) else "stop" if node else "rest"
            found[node][category] = found[node].get(category, 0) + share / sum(here.values())
    return found


def trie(function):
    """Three small vocabularies, node by node."""
    for splits, p in WORLDS:
        splits = {token: tuple(split) for token, split in splits.items()}
        given = function(dict(splits), dict(p))
        case = f"splits {', '.join(f'{t} = {chr(32).join(s)}' for t, s in splits.items())}; p = {show(p)}"
        for node, wanted in sorted(choices(splits, p).items()):
            compare(f"3 trie: the choice at {'node ' + ' '.join(node) if node else 'the root'}", case, wanted,
                    (given or {}).get(node, {}))


# ---- step 4 ----------------------------------------------------------------------------------------------------------
def choice(function):
    """Every node of the same vocabularies, with two drafters: the category that is written, and how often it is the draft's."""
    for (splits, p), q in itertools.product(WORLDS, ({"a": 0.6, "b": 0.3, "c": 0.1}, {"a": 0.1, "b": 0.2, "c": 0.7})):
        for node, P in sorted(choices({t: tuple(s) for t, s in splits.items()}, p).items()):
            P = P | ({} if not node or "stop" in P else {"stop": 0.0}) | ({} if node or "rest" in P else {"rest": 0.0})
            found = distribution_of(lambda draws, P=P, q=q: function(
                dict(P), dict(q), "abc"[draws.choose([*q.values()])], draws))
            case = f"P = {show(P)}, q = {show(q)}"
            given = {category: found.get((category, True), 0) + found.get((category, False), 0) for category, _ in found}
            compare("4 choice: what is written is not distributed as P", case, P, given)
            Q = {c: q.get(c, 0) for c in P} | ({"stop": 1 - sum(q.get(c, 0) for c in P if c != "stop")} if node else {})
            number("4 choice: distributed as P, but the draft is not kept as often as it could be", case,
                   sum(min(P[c], Q[c]) for c in P), sum(weight for (_, kept), weight in found.items() if kept))


# ---- step 5 ----------------------------------------------------------------------------------------------------------
def repair(function):
    """All drafts of small worlds, translated as in step 2: how often each token is the first proposal."""
    rng = np.random.default_rng(0)
    for ngrams in ({("a", "b")}, {("a", "b"), ("b", "a")}, {("a", "b"), ("a", "b", "a")},
                   {("a", "b"), ("a", "a", "b"), ("a", "b", "b"), ("b", "b")}):
        k = max(map(len, ngrams))
        rows = {beginning: dict(zip("ab", rng.dirichlet([1, 1]), strict=True))
                for n in range(k) for beginning in itertools.product("ab", repeat=n)}
        wanted = dict.fromkeys(["a", "b", *map("".join, ngrams)], 0.0)
        for draft in itertools.product("ab", repeat=k):
            longest = max((n for n in ngrams if draft[:len(n)] == n), key=len, default=draft[:1])
            wanted["".join(longest)] += np.prod([rows[draft[:i]][draft[i]] for i in range(k)])
        given = function(lambda beginning, rows=rows: dict(rows[tuple(beginning)]), set(ngrams))
        case = f"n-grams {', '.join(sorted(map(' '.join, ngrams)))}; rows: first {show(rows[()])}, after a {show(rows['a',])}"
        compare("5 repair: the first proposal", case, wanted, given or {})


# ---- step 6 ----------------------------------------------------------------------------------------------------------
class Counted(mini.Model):
    """A model of mini.py that counts how often it is asked for rows, and for how many."""

    def __init__(self, words, text):
        super().__init__(words, text)
        self.asked = []

    def rows(self, ids, temperature):
        self.asked.append(np.size(ids))
        return super().rows(ids, temperature)


def loop(function):
    """The models of mini.py: the first three tokens at two temperatures, and the passes of the target."""
    draft, target = Counted("h a ah ! -", "aha!hah-ah!"), Counted("h a ha !", "haha!ahha!haha!aha!haha!ahaha!aha!")
    models = draft, target, mini.Trie(draft, target)  # ha is merged, ah expanded, and - has no path
    for temperature, k, new in ((0, 2, 4), (1, 1, 3), (1, 2, 3)):
        case = f"temperature {temperature}, drafts of {k}, {new} tokens to write"
        found, best = ({}, {}), ({}, {})  # texts and numbers of passes, with their probabilities
        for speculate, (texts, passes) in ((function, found), (best_loop, best)):
            waiting = [[]]
            while waiting:
                choose = mini.Every(waiting.pop())
                draft.asked.clear()
                target.asked.clear()
                rounds = [[*written] for written in speculate(*models, "ha", k, new, temperature, choose)]
                waiting += choose.others
                text = tuple(sum(rounds, []))[:new]
                texts[text] = texts.get(text, 0) + choose.weight
                passes[len(target.asked)] = passes.get(len(target.asked), 0) + choose.weight
                if len(target.asked) != len(rounds):
                    made = f"{len(rounds)} rounds, yours made {len(target.asked)} passes"
                    raise Wrong(f"6 loop: one target pass per round\n\n{made}")
                most = sum(min(k, max(0, new - sum(map(len, rounds[:i])) - 1)) for i in range(len(rounds)))
                if sum(draft.asked) > most:
                    raise Wrong(f"6 loop: too many draft tokens\n{case}\n\nwanted at most {most}, yours {sum(draft.asked)}")
        p, last = mini.Model.rows(target, [*range(4)], temperature), target.write("ha")[-1]
        wanted = {text: p[[last, *text[:-1]], text].prod() for text in itertools.product(range(4), repeat=new)}
        compare("6 loop: the text is not distributed as the target's own", case, wanted, found[0],
                lambda text: "|".join(target.words[t] for t in text))
        least, rounds = (sum(n * weight for n, weight in passes.items()) for _, passes in (best, found))
        number("6 loop: the texts are right, but the mean number of target passes is wrong", case, least, rounds)


def best_loop(*given):
    """The rounds of mini.py."""
    return (written for written, _ in mini.speculate(*given))


# ---- step 7 ----------------------------------------------------------------------------------------------------------
def keep(function):
    """The draft b, b of lesson 6 and random worlds of two comparisons: the first two categories, and how many are kept."""
    by_hand = np.array([[0.8, 0.2]] * 3), np.array([[0.3, 0.7], [0.3, 0.7], [0.6, 0.4]])  # row -1 comes first
    worlds = [by_hand, *np.random.default_rng(0).dirichlet(np.ones(2), (6, 2, 3))]
    for number_of_drafts, (p, q) in itertools.product((2, 1), worlds):

        def written(draws, p=p, q=q, k=number_of_drafts):
            drafted, pairs = [], []
            for _ in range(k):
                row = drafted[-1] if drafted else -1
                pairs.append((p[row].copy(), q[row].copy()))
                drafted.append(draws.choose(q[row]))
            kept = function(pairs, [*drafted], draws)
            if not isinstance(kept, tuple) or len(kept) != 2 or not 0 <= kept[0] <= k or (kept[1] is None) != (kept[0] == k):
                raise Wrong(f"7 keep: of {k} comparisons all are kept, and None, or fewer, and a category\n\nyours: {kept}")
            n, category = kept
            text = [*drafted[:n], *([] if category is None else [category])]
            while len(text) < 2:
                text.append(draws.choose(p[text[-1]]))
            return *text[:2], n

        case = f"first: P {show(p[-1])}, Q {show(q[-1])}; {number_of_drafts} comparisons"
        found, wanted, given = distribution_of(written), {}, {}
        for (first, second, _), weight in found.items():
            given[first, second] = given.get((first, second), 0) + weight
        for first, second in itertools.product(range(2), repeat=2):
            wanted[first, second] = p[-1][first] * p[first][second]
        compare("7 keep: the categories are not distributed as P", case, wanted, given,
                lambda key: "".join("ab"[x] for x in key))
        mean = np.minimum(p[-1], q[-1]).sum()  # a comparison is kept with the r after it
        if number_of_drafts == 2:
            r = np.minimum(1, p[-1] / q[-1])
            mean += sum(q[-1][x] * np.minimum(q[x], r[x] * p[x]).sum() for x in range(2))
        number("7 keep: the categories are distributed correctly, but the mean number of kept comparisons is wrong", case,
               mean, sum(n * weight for (_, _, n), weight in found.items()))


# ---- step 8 ----------------------------------------------------------------------------------------------------------
def direct(function):
    """All targets of up to three tokens, and the drafts of two: a special token with or without a role, and equal spellings."""
    for size in (1, 2, 3):
        for target, draft in itertools.product(itertools.product((b"a", b"b", b""), repeat=size),
                                               itertools.product((b"a", b"c", b""), repeat=2)):
            draft_roles = {"bos": draft.index(b"")} if b"" in draft else {}
            for role, last in itertools.product(("bos", "eos"), (False, True)):
                target_roles = {role: target.index(b"")} if b"" in target else {}
                one_map(function, draft, target, draft_roles, target_roles, last)


def one_map(function, draft, target, draft_roles, target_roles, last):
    """`last`: of several equal target tokens the tokenizer writes the last one, otherwise the first."""
    writes = {data: t for t, data in (enumerate(target) if last else reversed([*enumerate(target)])) if data}
    wanted = [writes.get(data, -1) for data in draft]
    for role, d in draft_roles.items():
        wanted[d] = target_roles.get(role, -1)
    given = function([*draft], [*target], dict(draft_roles), dict(target_roles), lambda data: (writes[data],))
    if given is None or [*given] != wanted:
        raise Wrong(f"8 direct map: draft {[*draft]}, roles {draft_roles}; target {[*target]}, roles {target_roles}; "
                    f"its tokenizer writes {', '.join(f'{data} as {t}' for data, t in writes.items()) or 'nothing'}\n\n"
                    f"wanted {wanted}, yours {given}")


# ---- step 9 ----------------------------------------------------------------------------------------------------------
def hybrid(function):
    """Texts of one target token and of several, whose rows are drawn at random: the loss, then its gradient row by row."""
    rng = np.random.default_rng(0)
    direct = np.array([2, -1, 0])  # draft token 0 equals target token 2, and 2 equals 0
    for text, lam in itertools.product(([(2,)], [(0,)], [(0, 1)], [(1, 1, 2)], [(0,), (2, 0), (2,)], [(2, 1), (0,)]), (1, 0.2)):
        z, rows = rng.normal(size=(sum(map(len, text)), 3)), rng.dirichlet(np.ones(4), len(text))
        loss, gradient, row = 0.0, np.zeros_like(z), 0
        for ids, p in zip(text, rows, strict=True):
            for d in ids:
                q = np.exp(z[row]) / np.exp(z[row]).sum()
                if len(ids) > 1:
                    loss -= lam * np.log(q[d])
                    gradient[row] = lam * (q - (np.arange(3) == d))
                else:
                    q, p = q[[0, 2]] / q[[0, 2]].sum(), p[[2, 0]] / p[[2, 0]].sum()
                    kl = (q * np.log(q / p)).sum()
                    loss += kl
                    gradient[row, [0, 2]] = q * (np.log(q / p) - kl)
                row += 1
        case = (f"draft tokens {' | '.join(' '.join('abc'[d] for d in ids) for ids in text)}; "
                f"a = target token 2, c = target token 0; lam {lam}")
        given = function(z.copy(), [(p.copy(), ids) for p, ids in zip(rows, text, strict=True)], direct.copy(), lam)
        if not isinstance(given, tuple) or len(given) != 2 or np.shape(given[1]) != z.shape:
            raise Wrong(f"9 hybrid: a loss and a gradient of the shape of z, {z.shape}\n{case}\n\nyours: {given}")
        number("9 hybrid: the loss", case, loss, given[0])
        for row, (wanted, yours) in enumerate(zip(gradient, given[1], strict=True)):
            compare(f"9 hybrid: the loss is right, but the gradient at row {row} is wrong", case,
                    dict(zip("abc", wanted, strict=True)), dict(zip("abc", yours, strict=True)))


# ---- step 10 ---------------------------------------------------------------------------------------------------------
def head(function):
    """Bigram worlds of two tokens and a head that doubts some of them: all drafts, and what the head learns from each."""
    rng, rate = np.random.default_rng(0), 0.5
    f = np.array([[3.0, -1.0], [0.5, 2.0]])
    for k, gamma, before in itertools.product((1, 2, 3), (0.9, 0.5, 0.2), (0, 1)):
        q, p = rng.dirichlet(np.ones(2), (2, 2))

        def drafted(draws, q=q, p=p, k=k, gamma=gamma, before=before):
            given = function(f.copy(), q.copy(), p.copy(), before, k, gamma, rate, draws)
            if not isinstance(given, tuple) or len(given) != 2 or np.shape(given[1]) != f.shape:
                raise Wrong(f"10 head: a draft, and the table f after learning\n\nyours: {given}")
            draft, learned = [*given[0]], f.copy()
            for x, d in itertools.pairwise([before, *draft]):
                learned[x, d] -= rate * (1 / (1 + np.exp(-learned[x, d])) - min(1, p[x, d] / q[x, d]))
            case = f"k {k}, gamma {gamma}, after {'ab'[before]}; your draft {' '.join('ab'[d] for d in draft)}"
            pairs = [*itertools.product(range(2), repeat=2)]
            compare("10 head: f after learning from the draft", case, {at: learned[at] for at in pairs},
                    {at: given[1][at] for at in pairs}, lambda at: f"f[{'ab'[at[0]]}, {'ab'[at[1]]}]")
            return tuple(draft)

        wanted, waiting = {}, [((), 1.0, 1.0)]  # drafts, how likely they are, and their product of P
        while waiting:
            draft, weight, product = waiting.pop()
            if draft and (len(draft) == k or 1 - product > gamma):
                wanted[draft] = weight
                continue
            x = (before, *draft)[-1]
            waiting += [((*draft, d), weight * q[x, d], product / (1 + np.exp(-f[x, d]))) for d in range(2)]
        case = f"k {k}, gamma {gamma}, after {'ab'[before]}; f = {f.tolist()}, q = {q.round(2).tolist()}"
        compare("10 head: how probable each draft is", case, wanted, distribution_of(drafted),
                lambda draft: "the draft " + "".join("ab"[d] for d in draft))


# ---- all of them -----------------------------------------------------------------------------------------------------
def written(path, name):
    """The function of this name in a file, which need not import what its step may use."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    module.np = np
    if name == "speculate":
        module.verify = mini.verify
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise Wrong(f"{path.name} has no function {name!r}: reset the file with git checkout, and fill it in")
    return getattr(module, name)


def said(step, folder):
    """What is wrong with the function of a step, or "" if nothing is."""
    stem, check, name = STEPS[step]
    path = folder / f"step{step}_{stem}.py"
    try:
        check(written(path, name))
    except Wrong as wrong:
        return f"\n{wrong}\n"
    except NotImplementedError as hint:
        return f"not written yet; {hint}"
    except Exception as error:  # the reader's own code, or a result that no check can read
        at = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        if isinstance(error, SyntaxError):
            at = [error.lineno]
        place = f"line {at[-1]} of {path.name}" if at else f"what {name} of {path.name} returned"
        return f"\nan error in {place}\n{type(error).__name__}: {error}\n"
    return ""


def lesson_of(step):
    """The lesson of a step, as its README names it: its number, its title, and its file."""
    table = (Path(__file__).resolve().parent / "README.md").read_text(encoding="utf-8")
    number, title, file = re.search(rf"^\| (\d+) · \[(.+)\]\(\.\./(.+)\) \|.*\(step{step}_", table, re.M).groups()
    return f'lesson {number}, "{title}", tutorials/{file}'


STEPS = {1: ("verify", verify, "verify"), 2: ("merge", merge, "merge"), 3: ("trie", trie, "trie"),
         4: ("choice", choice, "choose"), 5: ("repair", repair, "first_proposal"), 6: ("loop", loop, "speculate"),
         7: ("keep", keep, "keep"), 8: ("direct", direct, "direct_map"), 9: ("hybrid", hybrid, "hybrid"),
         10: ("head", head, "head_round")}

if __name__ == "__main__":
    failed = False
    for step in map(int, sys.argv[1:] or map(str, STEPS)):
        message = said(step, Path(__file__).resolve().parent)
        print(f"step {step}: {message or 'right'}" + (f"\n({lesson_of(step)})" if message else ""))
        failed = failed or bool(message)
    sys.exit(failed)
