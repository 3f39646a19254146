"""Torch twins: the NumPy modules' signatures and numbers, exactness by enumeration, and how often they copy to the host."""

from __future__ import annotations

import inspect
from collections import Counter
from functools import partial

import numpy as np
import pytest
from rounds import RoundWorld

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from omnidraft import (  # noqa: E402
    lifting,
    sampling,
    sampling_torch,
    translation,
    verification,
    vocabulary,
)
from omnidraft.exactness import total_variation  # noqa: E402
from omnidraft.text.errors import OmnidraftError  # noqa: E402

TWINS = [(sampling, sampling_torch), (lifting, sampling_torch)]
SETTINGS = [{"temperature": 1.0}, {"temperature": 0.6}, {"temperature": 1.3, "top_k": 7}, {"temperature": 0.8, "top_p": 0.9},
            {"temperature": 1.0, "top_k": 9, "top_p": 0.8}, {"temperature": 0.0}]
CASES = 1000
HOST_ONLY = {"Comparison", "Rows", "mask",  # use ids and dictionaries, or accept both kinds of arrays
             "fast_softmax", "fast_locate", "block_sums"}  # only NumPy needs them


# ---- signatures ------------------------------------------------------------------------------------------------------
def arguments(function) -> list[tuple]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("plain", "twin"), TWINS, ids=lambda module: module.__name__.split(".")[-1])
def test_signatures_are_equal(plain, twin):
    shared = 0
    for name, one in vars(plain).items():
        other = vars(twin).get(name)
        own = (inspect.isfunction(one) or inspect.isclass(one)) and one.__module__ == plain.__name__
        if own and other is None and not name.startswith("_"):
            assert name in HOST_ONLY, name
        if name.startswith("_") or other is None or getattr(one, "__module__", "") != plain.__name__ or other is one:
            continue
        if inspect.isfunction(one):
            assert arguments(one) == arguments(other), name
            shared += 1
        elif name in ("Uniforms", "Lifting", "Sampler"):
            for method, function in vars(one).items():
                if inspect.isfunction(function) and (method[:1] != "_" or name == "Sampler") and method in vars(other):
                    assert arguments(function) == arguments(getattr(other, method)), method
                    shared += 1
    assert shared >= {"lifting": 3, "sampling": 15}[plain.__name__.split(".")[-1]]


# ---- random rounds ---------------------------------------------------------------------------------------------------
class RandomRound:
    """Random vocabularies and one round with them: merges, expansions, partial coverage, unmappable tokens, healing."""

    def __init__(self, seed: int, draft_length: int | None = None):
        rng = self.rng = np.random.default_rng(seed)
        self.draft_size, self.target_size = int(rng.integers(4, 30)), int(rng.integers(4, 60))
        atoms = rng.permutation(self.draft_size)[:max(2, int(0.7 * self.draft_size))]
        few = atoms[:max(2, len(atoms) // 3)]  # long splits share their beginnings, so the trie is deep
        splits = {}
        for token in range(self.target_size):
            if rng.random() < 0.85:
                length = int(rng.choice([1, 2, 3, 4], p=[0.4, 0.3, 0.2, 0.1]))
                splits[token] = tuple(int(a) for a in rng.choice(few if length > 1 else atoms, length))
        spellings = {int(d): tuple(int(t) for t in rng.integers(0, self.target_size, rng.integers(1, 4)))
                     for d in range(self.draft_size) if rng.random() < 0.6}
        self.lifting = lifting.Lifting(splits, spellings, self.draft_size)
        self.torch_lifting = sampling_torch.Lifting(self.lifting)
        self.setting = SETTINGS[seed % (len(SETTINGS) - 1)]
        k = int(rng.integers(0, 7)) if draft_length is None else draft_length
        self.draft_probs = self.probs(k, self.draft_size)
        self.draft_tokens = [sampling.Uniforms(rng).choose(row) for row in self.draft_probs]
        self.in_text = ()
        path = self.lifting.paths[self.draft_tokens[0]] if k else None
        if path and len(path) > 1 and rng.random() < 0.7:
            self.in_text = path[:int(rng.integers(1, len(path)))]
        # Small uniform numbers accept more, so that late places are reached too: in some rounds most are small.
        scale = rng.choice([1.0, 0.3, 1e-4], size=200, p=[[0.4, 0.3, 0.3], [0.1, 0.0, 0.9]][seed % 2])
        self.draws = (rng.random(200) * scale).tolist()

    def probs(self, rows: int, size: int) -> np.ndarray:
        return sampling.process(2.0 * self.rng.standard_normal((rows, size)), **self.setting)

    def both(self, name: str, numpy_arguments: tuple, torch_arguments: tuple):
        """The verdict of both, after checking that the two are equal and used the same number of draws."""
        one, other = sampling.Uniforms(self.draws), sampling_torch.Uniforms(self.draws)
        expected = getattr(verification, name)(*numpy_arguments, one)
        verdict = getattr(verification, name)(*torch_arguments, other)
        assert verdict == expected
        assert other.next() == one.next()
        return verdict


@pytest.fixture(scope="module")
def rounds() -> list[RandomRound]:
    return [RandomRound(seed) for seed in range(CASES)]


def torch_spread(q, direct, size):
    return sampling_torch.Sampler(sampling.Uniforms([])).spread(q, direct, size)


def close(tensor, array) -> None:
    assert tensor.dtype == torch.float64 and np.abs(tensor.numpy() - np.asarray(array)).max(initial=0.0) < 1e-10


@pytest.mark.parametrize("setting", [*SETTINGS, {"temperature": 1e-46}, {"temperature": 1.0, "top_p": 1e-46},
                                     {"temperature": 1.0, "min_p": 0.4}, {"temperature": 1.0, "min_p": 1.0}], ids=str)
def test_processing_equals_numpy(setting):
    rng = np.random.default_rng(0)
    for rows in (rng.standard_normal((5, 40)) * 3, rng.integers(0, 4, (20, 12)).astype(float), rng.standard_normal(9)):
        rows[..., 2] = -np.inf
        close(sampling_torch.process(torch.from_numpy(rows), **setting), sampling.process(rows, **setting))
        for dtype in (torch.float32, torch.bfloat16):
            made = sampling_torch.process(torch.from_numpy(rows).to(dtype), **setting)
            assert made.dtype == torch.float32 and (made.sum(-1) - 1).abs().max() < 1e-5


def test_padding_is_ruled_out():
    with torch.inference_mode():
        logits = torch.zeros(2, 5)
    for rows in (logits, torch.zeros(2, 5)):
        with torch.inference_mode():
            assert sampling.mask(rows, 3) is rows
        assert rows.tolist() == sampling.mask(np.zeros((2, 5)), 3).tolist()


def as_on_a_device(monkeypatch) -> None:
    monkeypatch.setattr(sampling_torch, "CpuSampler", sampling_torch.Sampler)


def test_draws_equal_numpy():
    rng = np.random.default_rng(1)
    for _ in range(300):
        weights = rng.random(int(rng.integers(1, 40))) * (rng.random() < 0.9)
        weights[rng.random(len(weights)) < 0.4] = 0.0
        if weights.sum() > 0:
            u = float(rng.choice([rng.random(), 0.0, 1 - 2**-53]))
            drawn = sampling_torch.Uniforms([u]).choose(torch.from_numpy(weights))
            assert int(drawn) == sampling.Uniforms([u]).choose(weights)


def test_a_generator_gives_the_same_draws_however_they_are_taken():
    one, other = (sampling_torch.Uniforms(np.random.default_rng(3)) for _ in range(2))
    draws = [one.next() for _ in range(150)]
    assert [other.next() for _ in range(150)] == draws and len(set(draws)) == 150 and 0 <= min(draws) < max(draws) < 1
    other.give_back(draws[-2:])
    assert [other.next() for _ in range(3)] == [*draws[-2:], one.next()]


def test_masses_and_laws_equal_numpy(rounds):
    seen = Counter()
    for case in rounds:
        plain, twin = case.lifting, case.torch_lifting
        atoms, laws = plain.reveal(case.draft_tokens, case.draft_probs, case.in_text)
        torch_atoms, torch_laws = twin.reveal(case.draft_tokens, torch.from_numpy(case.draft_probs), case.in_text)
        assert torch_atoms == atoms and len(torch_laws) == len(laws)
        for (row, prefix), (expected, its_prefix) in zip(torch_laws, laws, strict=True):
            assert prefix == its_prefix
            close(twin.distribution(row, prefix), plain.distribution(expected, prefix))
        seen["unmappable"] += None in atoms
        seen["expanded"] += any(len(plain.paths[token] or ()) > 1 for token in case.draft_tokens)
        seen["healed"] += case.in_text != ()
        seen["partial"] += len(plain.order) < case.target_size
        seen["merge"] += any(length > 1 for length in plain.walk(atoms)[1])
        p, law = case.probs(1, case.target_size)[0], case.rng.dirichlet(np.ones(case.draft_size))
        torch_p = torch.from_numpy(p)
        for node in sorted({split[:depth] for split in plain.token for depth in range(len(split))}):
            if p[plain.below(node)].sum() > 1e-3:
                assert twin.atoms(node).tolist() == plain.atoms(node).tolist()
                target_law, draft_law = plain.choice(node, p, law)
                made = twin.choice(node, torch_p, torch.from_numpy(law))
                close(made[0], target_law)
                close(made[1], draft_law)
                assert float(made[0].sum()) == pytest.approx(1)
                close(verification.residual(*made), verification.residual(target_law, draft_law))
    assert min(seen[kind] for kind in ("unmappable", "expanded", "healed", "partial", "merge")) > 100, seen


def test_indices_are_uploaded_once_for_all_texts(rounds):
    one, other = sampling_torch.Lifting(rounds[0].lifting), sampling_torch.Lifting(rounds[0].lifting)
    made = [twin.index(twin.categories, (), rounds[0].target_size) for twin in (one, other, one)]
    assert isinstance(made[0], torch.Tensor) and made[0] is made[1] is made[2]


def test_sums_by_pytorch_on_the_cpu_equal_numpys(rounds):
    """The lifting of PyTorch models on a CPU: rows stay NumPy's, in either width, and only `add_at` differs."""
    of_torch = sampling_torch.CpuSampler(sampling.Uniforms([]))
    for case in rounds[:60]:
        mixed = of_torch.lifting(case.lifting, None)
        assert mixed.add_at is not case.lifting.add_at and mixed.order is case.lifting.order
        for width in (np.float32, np.float64):
            p = case.probs(1, case.target_size)[0].astype(width)
            for (row, prefix) in case.lifting.reveal(case.draft_tokens, case.draft_probs.astype(width), case.in_text)[1]:
                q = mixed.distribution(row, prefix)
                assert q.dtype == width and q == pytest.approx(case.lifting.distribution(row, prefix), abs=1e-6)
                for node in ((), next(iter(case.lifting.token))[:1]):
                    for made, expected in zip(mixed.choice(node, p, q), case.lifting.choice(node, p, q), strict=True):
                        assert made == pytest.approx(expected, abs=1e-6)


def test_lossless_equals_numpy(rounds):
    endings, longest = Counter(), 0
    for case in rounds:
        atoms, laws = case.lifting.reveal(case.draft_tokens, case.draft_probs, case.in_text)
        p = case.probs(len(case.lifting.walk(atoms)[0]) + 1, case.target_size)
        _, torch_laws = case.torch_lifting.reveal(case.draft_tokens, torch.from_numpy(case.draft_probs), case.in_text)
        verdict = case.both("lifted", (atoms, laws, case.lifting, p),
                            (atoms, torch_laws, case.torch_lifting, torch.from_numpy(p)))
        endings[verdict.accepted > 0, verdict.last] += 1
        longest = max(longest, len(verdict.emitted))
        close(torch.tensor(verification.acceptances(atoms, torch_laws, case.torch_lifting, torch.from_numpy(p)),
                           dtype=torch.float64), verification.acceptances(atoms, laws, case.lifting, p))
    assert min(endings[False, "recovered"], endings[True, "recovered"], endings[True, "bonus"]) > 25 and longest > 4


def test_translated_rules_equal_numpy(rounds):
    kept = 0
    for case in rounds:
        direct = np.where(case.rng.random(case.draft_size) < 0.8, case.rng.integers(0, case.target_size, case.draft_size), -1)
        ngrams = {tuple(case.draft_tokens[i:i + n]): int(case.rng.integers(case.target_size))
                  for i in range(len(case.draft_tokens)) for n in (2, 3) if case.rng.random() < 0.3}

        def longest(tokens, start, ngrams=ngrams):
            fits = [(ngrams[tuple(tokens[start:start + n])], n) for n in (3, 2) if tuple(tokens[start:start + n]) in ngrams]
            return next((fit for fit in fits if start + fit[1] <= len(tokens)), None)

        spellings = {d: (1, 3, 2)[:1 + d % 3] for d in range(0, case.draft_size, 2)}
        direct = translation.Direct(direct)
        arguments = direct, longest, spellings
        expected = translation.merge(case.draft_tokens, list(case.draft_probs), *arguments,
                                     lambda q, d=direct, n=case.target_size: sampling.Sampler.spread(q, d, n))
        q = torch.from_numpy(case.draft_probs)
        made = translation.merge(case.draft_tokens, q, *arguments,
                                 lambda q, d=direct, n=case.target_size: torch_spread(q, d, n))
        assert (made.tokens, made.spans) == (expected.tokens, expected.spans)
        bare = translation.merge(case.draft_tokens, [None] * len(case.draft_tokens), *arguments, None)  # as in a greedy round
        assert (bare.tokens, bare.spans) == (made.tokens, made.spans) and not bare.probs
        p = case.probs(len(made.tokens) + 1, case.target_size)
        for row, reference in zip(made.rows, expected.rows, strict=True):
            close(row, reference)
        kept += case.both("rejection_sampling", (made.tokens, expected.rows, p),
                          (made.tokens, made.rows, torch.from_numpy(p))).accepted
        q = [row / row.sum() for row in expected.rows]
        kept += case.both("rejection_sampling", (made.tokens, q, p),
                          (made.tokens, [torch.from_numpy(row) for row in q], torch.from_numpy(p))).accepted
        p[:, 0] += 3.0  # a likely token, so that matches are not rare
        p /= p.sum(-1, keepdims=True)
        proposals = [token if i % 3 else 0 for i, token in enumerate(made.tokens)]
        one, other = sampling.Uniforms(case.draws), sampling_torch.Uniforms(case.draws)
        expected = verification.exact_match(proposals, one.samples(p))
        verdict = verification.exact_match(proposals, other.samples(torch.from_numpy(p)))
        assert verdict == expected and one.next() == other.next()
        kept += verdict.accepted
    assert kept > 500


def test_float32_accepts_as_often_as_float64(rounds):
    same = 0
    for case in rounds[:300]:
        q = torch.from_numpy(case.draft_probs)
        atoms, _ = case.torch_lifting.reveal(case.draft_tokens, q, case.in_text)
        p = torch.from_numpy(case.probs(len(case.lifting.walk(atoms)[0]) + 1, case.target_size))
        emitted = []
        for dtype in (torch.float64, torch.float32):
            _, laws = case.torch_lifting.reveal(case.draft_tokens, q.to(dtype), case.in_text)
            uniforms = sampling_torch.Uniforms(case.draws)
            emitted.append(verification.lifted(atoms, laws, case.torch_lifting, p.to(dtype), uniforms).emitted)
        same += emitted[0] == emitted[1]
    assert same >= 298


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_logits_are_told_when_they_are_copied(bad):
    case = next(case for case in map(RandomRound, range(99)) if not case.lifting.longer(0) and case.lifting.paths[0] == (0,))
    probs = sampling_torch.process(torch.full((2, case.target_size), bad), 1.0)
    assert probs.isnan().all() and sampling_torch.process(torch.full((3,), bad), 0).isnan().any()
    uniforms, q = sampling_torch.Uniforms(np.random.default_rng(0)), torch.eye(case.draft_size)[:1]
    for run in (lambda: verification.lifted(*case.torch_lifting.reveal([0], q), case.torch_lifting, probs, uniforms),
                lambda: verification.lifted(*case.torch_lifting.reveal([], []), case.torch_lifting, probs, uniforms),
                lambda: verification.exact_match([0], uniforms.samples(probs)),
                lambda: verification.rejection_sampling([0], [probs[0]], probs, uniforms)):
        with pytest.raises(OmnidraftError, match="NaN or infinite"):
            run()


# ---- exactness -------------------------------------------------------------------------------------------------------
class TorchWorld(RoundWorld):
    """A random pair of vocabularies whose rounds are verified by the Torch twin."""

    rules = verification

    def __init__(self, seed: int):
        super().__init__(seed)
        self.twin = sampling_torch.Lifting(self.lifting)

    def given(self, tokens, rows, in_text, limit):
        atoms, origins = self.twin.reveal(tokens, torch.from_numpy(np.array(rows)), in_text)
        return atoms, origins, self.twin, torch.from_numpy(self.target_rows(self.twin.walk(atoms)[0][:limit]))


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_lossless_is_exact_in_torch(first):
    worst, healed = 0.0, 0
    for seed in range(first, first + 60):
        world = TorchWorld(seed)
        truth = world.truth()
        worst = max(worst, total_variation(world.two_tokens(world.lossless), truth))
        for context in range(len(world.draft)):
            if world.lifting.longer(context) and seed < 120:
                found = world.two_tokens(partial(world.lossless, context=context))
                worst, healed = max(worst, total_variation(found, truth)), healed + 1
    assert worst < 1e-10 and (healed > 20 or first >= 120)


# ---- copies ----------------------------------------------------------------------------------------------------------
class HiddenCopies(TorchDispatchMode):
    """Collects operations that make the host wait for the device without a call of a Python method of Tensor."""

    names = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique", "unique", "bincount",
             "repeat_interleave", "allclose")

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).split(".")[1]
        by_mask = name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1])
        if by_mask or name.startswith(self.names):
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def copies(monkeypatch):
    """Call it with a function: returns the result, and the number of copies to the host that it would need on a device."""
    count = Counter()
    as_on_a_device(monkeypatch)

    def counted(name: str):
        method = getattr(torch.Tensor, name)

        def wrapper(self, *args, **kwargs):
            count[name] += 1
            return method(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, wrapper)

    for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"):
        counted(name)

    def run(function, *args):
        count.clear()
        with HiddenCopies() as hidden:
            result = function(*args)
        assert not hidden.found
        return result, sum(count.values())

    return run


def test_copies_are_seen(copies):
    assert copies(lambda: torch.ones(3).tolist()) == ([1.0, 1.0, 1.0], 1)
    for hidden in (lambda: torch.ones(3)[torch.tensor(1)], lambda: torch.ones(3)[torch.ones(3) > 0]):
        with pytest.raises(AssertionError):
            copies(hidden)


@pytest.mark.parametrize("draft_length", [1, 4, 16])
def test_drafting_and_proposing_copy_nothing_and_exact_match_once(copies, draft_length):
    """What the rules above temperature 0 compare is copied number by number: on a GPU that was no slower than at once."""
    for seed in range(120):
        case = RandomRound(seed, draft_length)
        uniforms, twin = sampling_torch.Uniforms(case.draws), case.torch_lifting
        logits = torch.from_numpy(case.rng.standard_normal((draft_length, case.draft_size)))
        q, none = copies(lambda rows, case=case: sampling_torch.process(rows, **case.setting), logits)
        drawn, still_none = copies(sampling_torch.locate, q, [uniforms.next() for _ in q])
        assert none == still_none == 0
        tokens = [*sampling_torch.to_host(drawn, case.draft_size)]
        (atoms, laws), total = copies(twin.reveal, tokens, q)
        assert total == 0 and len(atoms) == len(laws)
        direct = case.rng.integers(0, case.target_size, case.draft_size)
        direct = translation.Direct(direct)
        made, total = copies(translation.merge, tokens, q, direct, lambda tokens, start: None, {},
                             lambda q, d=direct, n=case.target_size: torch_spread(q, d, n))
        assert total == 0 and len(made.tokens) == draft_length
        p = torch.from_numpy(case.probs(draft_length + 1, case.target_size))
        assert copies(lambda made=made, p=p, u=uniforms: verification.exact_match(made.tokens, u.samples(p)))[1] == 1


# ---- components by themselves ----------------------------------------------------------------------------------------
def test_verification_by_itself(rounds):
    """What the parts of `lifted` return for tensors is what they return for arrays."""
    ended = Counter()
    for case in rounds[:300]:
        atoms, origins = case.lifting.reveal(case.draft_tokens, case.draft_probs, case.in_text)
        _, rows = case.torch_lifting.reveal(case.draft_tokens, torch.from_numpy(case.draft_probs), case.in_text)
        p = case.probs(len(case.lifting.walk(atoms)[0]) + 1, case.target_size)
        for limit in (None, 1):
            steps = [*verification.comparisons(atoms, origins, case.lifting, p, limit)]
            made = [*verification.comparisons(atoms, rows, case.torch_lifting, torch.from_numpy(p), limit)]
            assert [step[:8] for step in made] == [step[:8] for step in steps]  # places and nodes
            assert np.array([step[8:13] for step in made]) == pytest.approx(np.array([step[8:13] for step in steps]), abs=1e-12)
        one, other = sampling.Uniforms(case.draws), sampling_torch.Uniforms(case.draws)
        kept, refused, left = verification.keep(steps, origins, case.lifting, p, one)
        made = verification.keep(made, rows, case.torch_lifting, torch.from_numpy(p), other)
        assert len(made[0]) == len(kept) and (made[1] is None) == (refused is None) and one.next() == other.next()
        if refused is not None:
            close(made[2], left)
        ended[refused is not None, len(kept) > 0] += 1
    assert min(ended.values()) > 5 and len(ended) >= 3, ended


def test_what_is_proposed_may_be_a_number():
    """As of a token that follows another for certain, or that no draft token is mapped to."""
    p = np.array([[0.1, 0.6, 0.3], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
    q = np.array([[0.2, 0.8, 0.0], [0.0, 0.0, 1.0]])
    for draw in np.linspace(0.01, 0.99, 40):
        one, other = sampling.Uniforms([draw] * 3), sampling_torch.Uniforms([draw] * 3)
        wanted = verification.rejection_sampling([1, 2], q, p, one, [0.8, 1.0])
        rows = torch.from_numpy(q)
        for proposed in ([rows[0, 1], 1.0], [rows[0, 1].float(), 1]):
            draws = sampling_torch.Uniforms([draw] * 3)
            assert verification.rejection_sampling([1, 2], rows, torch.from_numpy(p), draws, proposed) == wanted
        assert verification.rejection_sampling([1, 2], rows, torch.from_numpy(p), other) == wanted


def test_the_direct_map_spreads_one_row_or_many():
    rng = np.random.default_rng(0)
    for size in (3, 40):
        plain = vocabulary.Direct(rng.integers(-1, size, 30))
        rows = rng.random((4, 30))
        expected = np.stack([plain.spread(row, size) for row in rows])
        close(sampling_torch.spread(torch.from_numpy(rows), plain, size), expected)
        close(sampling_torch.spread(torch.from_numpy(rows[0]), plain, size), expected[0])
        assert float(plain.prob(torch.from_numpy(rows[1]), 2)) == pytest.approx(expected[1, 2])
        assert arguments(sampling_torch.spread) == arguments(sampling.Sampler.spread)
