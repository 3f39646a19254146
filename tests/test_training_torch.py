"""Learning by autograd: the same steps as in NumPy, an unchanged base model, and adapters that both backends read."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace

import numpy as np
import pytest
from test_cli import LETTERS, own_caches, run, write_model  # noqa: F401 (a fixture)
from test_learning import PROMPTS, serve
from vocabularies import byte_level, sentencepiece

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from test_backward_torch import exact  # noqa: E402, F401 (a fixture)
from test_transformers_model import BYTES, KINDS, SIZES, random_model  # noqa: E402

from omnidraft import losses, sampling_torch, stopping, stopping_torch  # noqa: E402
from omnidraft.decoding import speculative  # noqa: E402
from omnidraft.drafting import Draft  # noqa: E402
from omnidraft.engine.load import load  # noqa: E402
from omnidraft.engine.transformers_model import TransformersModel  # noqa: E402
from omnidraft.engine.weights import load_tensors  # noqa: E402
from omnidraft.learning import training, training_torch  # noqa: E402
from omnidraft.learning.adapters import Adapters, identity  # noqa: E402
from omnidraft.learning.lora import LoRA  # noqa: E402
from omnidraft.learning.online import Learner, Schedule  # noqa: E402
from omnidraft.learning.training import Recipe  # noqa: E402
from omnidraft.options import Options  # noqa: E402
from omnidraft.pairs import pair as pairs  # noqa: E402
from omnidraft.pairs.pair import Pair  # noqa: E402
from omnidraft.sampling import Uniforms  # noqa: E402
from omnidraft.stopping import Confidence  # noqa: E402
from omnidraft.text.errors import OmnidraftError  # noqa: E402
from omnidraft.translation import Proposals  # noqa: E402

PIECES = sentencepiece(LETTERS, "▁ t, ▁t h, ▁th e, i n, o u", name="draft")
GROUPED = {"num_key_value_heads": 1, "num_hidden_layers": 2}
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
DRAFTERS = {"llama": {"model_type": "llama", **GROUPED},
            "llama, tied": {"model_type": "llama", "tie_word_embeddings": True, **GROUPED},
            "qwen2": {**QWEN2, **GROUPED}, "qwen2, tied": {**QWEN2, "tie_word_embeddings": True, **GROUPED}}
ENGINES = {"numpy": training, "torch": training_torch}
kinds, ranks = pytest.mark.parametrize("kind", DRAFTERS), pytest.mark.parametrize("rank", [0, 4])


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    data = byte_level("Ġ t, h e, Ġt he, i n, in g, Ġ a", name="target")
    made = {kind: str(write_model(base / kind.replace(", ", "-"), PIECES, 1, **more)) for kind, more in DRAFTERS.items()}
    return made | {"target": str(write_model(base / "target", data, 2, model_type="llama"))}


@pytest.fixture(scope="module")
def examples(folders) -> list[losses.Example]:
    """Six texts of the target, as examples for a drafter with this tokenizer."""
    pair = Pair(load(folders["llama"]), load(folders["target"]))
    rng = np.random.default_rng(0)
    learner = Learner(pair, training.Trainer(pair.draft, Recipe(rank=0), rng), rng, Schedule(every=100, guard=0))
    serve(learner, PROMPTS[:6])
    return learner.batch


def drafter(folders, kind: str, backend: str):
    return load(folders[kind], "float32", backend=backend, device="cpu")


def trainer_of(base, backend: str, rank: int = 4, **recipe):
    return ENGINES[backend].Trainer(base, Recipe(rank=rank, **recipe), np.random.default_rng(0))


def in_float64(folder: str) -> TransformersModel:
    """Made with NumPy, because torch's safetensors reader does not work under `exact`."""
    settings = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(settings).double().eval()
    tensors = {name: torch.tensor(array, dtype=torch.float64) for name, array in load_tensors(folder).items()}
    model.load_state_dict(tensors, strict=False)
    return TransformersModel(model, load(folder).tokenizer)


def trainers(folders, bases, rank: int, **recipe):
    """(pair, trainer) of each backend, with the same random numbers."""
    target = load(folders["target"])
    for backend, base in zip(ENGINES, bases, strict=True):
        yield Pair(base, target), trainer_of(base, backend, rank, **recipe)


def weights_of(base) -> dict[str, np.ndarray]:
    return {name: tensor.detach().double().numpy().copy() for name, tensor in base.model.state_dict().items()}


def rows(model, text: str = "the thing and the house") -> np.ndarray:
    ids = model.tokenizer.encode(text, bos=True)
    return model.forward(ids, model.new_cache(), rows=len(ids))


# ---------------------------------------------------------------------------------------------------------- parity

@kinds
@ranks
@pytest.mark.parametrize("loss", ["lifted", "hybrid"])
def test_steps_equal_those_of_numpy(folders, examples, kind, rank, loss, exact):  # noqa: F811
    bases = load(folders[kind], "float64"), in_float64(folders[kind])
    (pair, ours), (other, theirs) = trainers(folders, bases, rank, loss=loss, rate=0.01, decay=0.05)
    assert ours.state().keys() == theirs.state().keys()
    for batch in (examples[:3], examples[3:], examples[::2]):
        assert ours.step(pair, batch) == pytest.approx(theirs.step(other, batch), rel=1e-10)
    for name, array in theirs.state().items():
        assert array.dtype == np.float64 and np.abs(ours.state()[name] - array).max() < 1e-8, name
    assert ours.expected_acceptance(pair, examples) == pytest.approx(theirs.expected_acceptance(other, examples), rel=1e-8)
    np.testing.assert_allclose(rows(ours.model()), rows(theirs.model()), atol=1e-7)


@ranks
def test_in_float32_as_well(folders, examples, rank):
    (pair, ours), (other, theirs) = trainers(folders, [drafter(folders, "llama, tied", b) for b in ENGINES], rank)
    assert ours.step(pair, examples) == pytest.approx(theirs.step(other, examples), rel=1e-5)
    assert ours.expected_acceptance(pair, examples) == pytest.approx(theirs.expected_acceptance(other, examples), abs=1e-3)


@pytest.fixture
def device(monkeypatch) -> None:
    """Tensors are treated as if they were on a GPU: rows and losses stay there."""
    monkeypatch.setattr(training_torch, "numpy_is_faster", lambda logits: False)
    monkeypatch.setattr(sampling_torch, "CpuSampler", sampling_torch.Sampler)


@ranks
@pytest.mark.parametrize("recipe", [{"loss": "hybrid"}, {"loss": "dm"}, *({"divergence": kind} for kind in losses.DIVERGENCES)])
def test_steps_on_a_device_equal_those_of_numpy(folders, examples, rank, recipe, exact, device, monkeypatch):  # noqa: F811
    bases = load(folders["llama"], "float64"), in_float64(folders["llama"])
    (pair, ours), (other, theirs) = trainers(folders, bases, rank, rate=0.01, **recipe)
    texts = [replace(text, target_probs=text.target_probs.astype(np.float64)) for text in examples]
    on_device = [replace(text, target_probs=torch.from_numpy(text.target_probs)) for text in texts]
    for some in (slice(3), slice(3, None)):
        expected = ours.step(pair, texts[some])
        with monkeypatch.context() as patched:  # NumPy's losses are not called
            patched.setattr(losses, "LOSSES", {})
            assert theirs.step(other, on_device[some]) == pytest.approx(expected, rel=1e-10)
    for name, array in theirs.state().items():
        assert np.abs(ours.state()[name] - array).max() < 1e-8, name
    assert theirs.expected_acceptance(other, on_device) == pytest.approx(ours.expected_acceptance(pair, texts), rel=1e-8)


def test_a_learner_keeps_rows_on_the_device_and_learns_the_same(folders, tmp_path, monkeypatch):
    found = []
    for on_device in (False, True):
        if on_device:
            monkeypatch.setattr(training_torch, "numpy_is_faster", lambda logits: False)
            monkeypatch.setattr(sampling_torch, "CpuSampler", sampling_torch.Sampler)
        learner = resumed(folders, tmp_path / str(on_device), "torch", rank=0, rate=0.003, guard=0)
        learned = serve(learner, PROMPTS[:5], max_new_tokens=16)
        assert isinstance(learner.batch[0].target_probs, torch.Tensor if on_device else np.ndarray)
        assert isinstance(learner.memory[0].target_probs, np.ndarray)
        found.append([one.loss for one in learned if one.updated])
    assert len(found[0]) == 2 and found[1] == pytest.approx(found[0], rel=1e-3)


def test_broken_rows_on_a_device_are_skipped(folders, tmp_path, device):
    learner = resumed(folders, tmp_path, "torch", rank=0, guard=0)
    learner.begin(Options())
    learner.observe(Draft(), Proposals(), torch.full((1, learner.pair.target.vocab_size), torch.nan), [5], 0, True)
    assert "NaN or infinite" in learner.finish("the", []).note and learner.skipped == 1 and not learner.batch


def test_public_names_and_signatures_are_equal():
    ours, theirs = training.Trainer, training_torch.Trainer
    names = {name for name in dir(ours) if not name.startswith("_")} | {"__init__"}
    assert names == {name for name in dir(theirs) if not name.startswith("_")} | {"__init__"}
    for name in names:
        one, other = (inspect.signature(getattr(c, name)).parameters for c in (ours, theirs))
        assert [(p.name, p.default) for p in one.values()] == [(p.name, p.default) for p in other.values()]
    assert inspect.signature(training.adapted).parameters.keys() == inspect.signature(training_torch.adapted).parameters.keys()


# -------------------------------------------------------------------------------------------------------- the trainer

@kinds
@ranks
def test_the_base_is_never_changed(folders, examples, kind, rank):
    base = drafter(folders, kind, "torch")
    before, trainer, pair = weights_of(base), trainer_of(base, "torch", rank), Pair(base, load(folders["target"]))
    seen = rows(base)
    np.testing.assert_allclose(rows(trainer.model()), seen, atol=1e-6)  # nothing learned yet
    for _ in range(2):
        trainer.step(pair, examples)
    model = trainer.model()
    assert model is trainer.model() and model is not base and np.abs(rows(model) - seen).max() > 1e-3
    assert (rows(base) == seen).all() and all((before[k] == v).all() for k, v in weights_of(base).items())
    assert all(p.grad is None for p in base.model.parameters())
    own = weights_of(model)
    if rank and "tied" in kind:  # only the head has changed
        assert (own["model.embed_tokens.weight"] == before["model.embed_tokens.weight"]).all()
        assert (own["lm_head.weight"] != own["model.embed_tokens.weight"]).any()
    elif "tied" in kind:
        assert (own["lm_head.weight"] == own["model.embed_tokens.weight"]).all()


@ranks
def test_a_loss_that_is_not_finite_changes_nothing(folders, examples, rank, monkeypatch):
    base = drafter(folders, "llama", "torch")
    trainer, pair = trainer_of(base, "torch", rank), Pair(base, load(folders["target"]))
    trainer.step(pair, examples)
    before, lifted = trainer.state(), losses.LOSSES["lifted"]
    for broken in (lambda value, slope: (value * np.nan, slope), lambda value, slope: (value, slope * np.nan)):
        monkeypatch.setitem(losses.LOSSES, "lifted",
                            lambda *given, broken=broken, **more: (*broken(*lifted(*given, **more)[:2]), 1))
        assert np.isnan(trainer.step(pair, examples))
        assert all((before[k] == v).all() for k, v in trainer.state().items())
    monkeypatch.setitem(losses.LOSSES, "lifted", lifted)
    assert np.isfinite(trainer.step(pair, examples)) and trainer.step(pair, []) == 0
    trainer.restore(before)
    assert all((before[k] == v).all() for k, v in trainer.state().items())
    with pytest.raises(OmnidraftError, match="other parameters: use its drafter and rank"):
        trainer.restore(trainer_of(base, "torch", 3).state())


def test_the_default_rate_depends_on_the_size():
    class Large:
        parameters = 68_000_000

    class Small(Large):
        parameters = 600_000

    assert [Recipe(rank=r).step_size(d) for d in (Small, Large) for r in (32, 0)] == [0.01, 0.001, 1e-4, 1e-4]
    assert Recipe(rate=0.5).step_size(Large) == 0.5
    Small.parameters = 4_000_000
    assert [Recipe(rank=r).step_size(Small) for r in (32, 0)] == pytest.approx([0.005, 0.0005])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_kind_of_model_learns(folders, examples, name, dtype):
    architecture, sizes, _ = KINDS[name]
    base = TransformersModel(random_model(architecture, sizes, PIECES.size).to(dtype), PIECES, name=name)
    pair = Pair(base, load(folders["target"]))
    for rank in (0, 4):
        trainer = trainer_of(base, "torch", rank, rate=0.003)
        values = [trainer.step(pair, examples[:2]) for _ in range(4)]
        assert values[-1] < values[0] and all(array.dtype == np.float32 for k, array in trainer.state().items()
                                              if k.startswith("parameters."))
        assert trainer.model().dtype == dtype and rows(trainer.model()).shape[1] == PIECES.size
        if rank:
            moved = {k for k, v in weights_of(trainer.model()).items() if (v != weights_of(base).get(k)).any()}
            moved = {k for k in moved if "relative_pos_embeddings" not in k}  # ProphetNet's is a linear layer of a block
            assert moved and not any("norm" in k or "embed" in k or "wte" in k for k in moved)


def test_what_cannot_learn_is_told(folders):
    quantized = drafter(folders, "llama", "torch")
    quantized.model.is_quantized = True
    for base, backend, says in ((drafter(folders, "llama", "numpy"), "torch", "run by transformers"),
                                (drafter(folders, "llama", "torch"), "numpy", "NumPy engine"),
                                (quantized, "torch", "not quantized")):
        with pytest.raises(OmnidraftError, match=says):
            trainer_of(base, backend)


# ---------------------------------------------------------------------------------------- online, and adapters on disk

def resumed(folders, root, backend: str, kind: str = "llama, tied", guard: int = 48, **recipe) -> Learner:
    pair = Pair(drafter(folders, kind, backend), load(folders["target"], backend=backend))
    schedule = Schedule(every=2, replay=1, guard=guard)
    return Adapters(root).resume(pair, Recipe(**{"rank": 4} | recipe), schedule, np.random.default_rng(0))


@ranks
def test_the_drafter_learns_its_target(folders, tmp_path, rank):
    learner = resumed(folders, tmp_path, "torch", rank=rank, rate=0.01)
    before = trainer_of(learner.trainer.base, "torch").expected_acceptance
    learned = serve(learner, PROMPTS * 4, max_new_tokens=16)
    values = [one.loss for one in learned if one.updated]
    assert len(values) == 16 and np.mean(values[-4:]) < np.mean(values[:4])
    pair, texts = learner.pair, list(learner.memory)
    assert learner.trainer.expected_acceptance(pair, texts) > before(pair, texts) + 0.02
    assert pair.draft is learner.trainer.model()


@pytest.mark.parametrize("kind", ["llama, tied", "qwen2"])
@ranks
def test_what_one_backend_has_learned_the_other_goes_on_with(folders, tmp_path, kind, rank):
    for first, second in (("numpy", "torch"), ("torch", "numpy")):
        store = Adapters(tmp_path / first)
        learner = resumed(folders, store.root, first, kind, guard=0, rank=rank)
        serve(learner, PROMPTS[:4], temperature=0.0, max_new_tokens=8)
        store.keep(learner)
        other = resumed(folders, store.root, second, kind, guard=0, rank=rank)
        state = other.trainer.state()
        assert other.statistics == learner.statistics and state["optimizer.steps"] == 2
        for name, array in learner.trainer.state().items():
            assert (state[name] == array).all(), name
        np.testing.assert_allclose(rows(other.pair.draft), rows(learner.pair.draft), atol=1e-4)
        for each in (first, second):  # the drafter of `generate --adapter`
            base = drafter(folders, kind, each)
            seen = rows(base)
            adapted = store.load(Pair(base, learner.pair.target)).drafter(base)
            np.testing.assert_allclose(rows(adapted), rows(learner.pair.draft), atol=1e-4)
            assert (rows(base) == seen).all()
        serve(other, PROMPTS[4:], temperature=0.0, max_new_tokens=8)
        store.keep(other)
        assert store.load(Pair(drafter(folders, kind, first), learner.pair.target)).statistics.updates == 4


@pytest.mark.parametrize("backend", ENGINES)
@ranks
def test_an_adapted_drafter_is_adapted_again_from_its_base(folders, tmp_path, backend, rank):
    """A second learner of the same pair, or an adapter on an adapted drafter, must not add up to the first one."""
    store = Adapters(tmp_path)
    learner = resumed(folders, tmp_path, backend, "llama, tied", guard=0, rank=rank)
    pair, base = learner.pair, learner.trainer.base
    serve(learner, PROMPTS[:4], temperature=0.0, max_new_tokens=8)
    store.keep(learner)
    wanted = rows(pair.draft).copy()
    for again in (store.load(pair).drafter(pair.draft), trainer_of(pair.draft, backend, rank).model()):
        assert again.untouched is base
    np.testing.assert_allclose(rows(store.load(pair).drafter(pair.draft)), wanted, atol=1e-5)
    second = store.resume(pair, Recipe(rank=rank), Schedule(every=2), np.random.default_rng(0))
    assert second.trainer.base is base  # held-out prompts are compared with this one
    np.testing.assert_allclose(rows(pair.draft), wanted, atol=1e-5)
    pair.draft = store.load(pair).drafter(pair.draft)
    third = Adapters(tmp_path / "new").resume(pair, Recipe(rank=rank), Schedule(every=2), np.random.default_rng(0))
    assert pair.draft is third.trainer.base is base  # nothing was learned here


def test_loaded_targets_with_one_tokenizer_have_adapters_of_their_own():
    def made(seed: int) -> Pair:
        return Pair(*(TransformersModel(random_model("LlamaForCausalLM", SIZES, tokenizer.size, number), tokenizer)
                      for tokenizer, number in ((PIECES, 0), (BYTES, seed))))

    keys = [identity(made(seed))["fingerprint"] for seed in (1, 1, 2)]
    assert keys[0] == keys[1] != keys[2]
    offloaded = made(3)  # weights on a disk cannot be read
    offloaded.target.model.to("meta")
    assert identity(offloaded)["fingerprint"] not in keys


def test_a_drafter_without_files_is_known_by_its_numbers(folders, tmp_path):
    def made(seed: int) -> Pair:
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
        model = random_model("GPT2LMHeadModel", sizes, PIECES.size, seed)
        return Pair(TransformersModel(model, PIECES, name="gpt"), load(folders["target"]))

    store, schedule = Adapters(tmp_path), Schedule(every=2)
    learner = store.resume(made(0), Recipe(rank=4), schedule, np.random.default_rng(0))
    serve(learner, PROMPTS[:2], max_new_tokens=12)
    place = store.keep(learner)
    names = json.loads(next(place.glob("v*/adapter_config.json")).read_text())
    assert {"c_attn", "c_proj", "c_fc", "lm_head"} == set(names["target_modules"])
    assert names["layers_to_transform"] == [0, 1]
    again = store.resume(made(0), Recipe(rank=4), schedule, np.random.default_rng(0))
    np.testing.assert_allclose(rows(again.pair.draft), rows(learner.pair.draft), atol=1e-5)
    assert store.load(made(0)).folder == place and store.load(made(1)) is None
    with pytest.raises(OmnidraftError, match="another draft"):
        store.load(made(1), place.name)


def test_fresh_adapters_are_those_of_numpy(folders):
    for kind in DRAFTERS:
        one = training_torch.fresh(drafter(folders, kind, "torch"), np.random.default_rng(3), 2)
        other = training.Trainer(drafter(folders, kind, "numpy"), Recipe(rank=2), np.random.default_rng(3)).lora
        assert list(one.parameters) == list(other.parameters)
        assert all((one.parameters[name].numpy() == array).all() for name, array in other.parameters.items())


@pytest.mark.parametrize("kind", ["llama", "gpt-2", "gemma 3, window in some layers"])
def test_adapters_load_in_peft(folders, examples, kind, tmp_path):
    peft = pytest.importorskip("peft")
    architecture, sizes, _ = KINDS[kind]
    base = TransformersModel(random_model(architecture, sizes, PIECES.size), PIECES)
    trainer = trainer_of(base, "torch")
    trainer.step(Pair(base, load(folders["target"])), examples)
    LoRA({k: v.detach().numpy() for k, v in trainer.served.items()}, 4, 4).save(tmp_path)
    ours = rows(trainer.model(), "the thing")
    assert np.abs(rows(base, "the thing") - ours).max() > 1e-3
    ids = torch.tensor([base.tokenizer.encode("the thing", bos=True)])
    with torch.no_grad():
        theirs = peft.PeftModel.from_pretrained(base.model, tmp_path)(ids).logits[0].numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


# ----------------------------------------------------------------------------------------------------- command line

def adapt(folders, *arguments):
    return run("adapt", *arguments, "-d", folders["llama, tied"], "-t", folders["target"], "-n", "16", "--every", "2", "--rank",
               "4", "--adapters", "kept")


def test_adapt_learns_with_either_backend_by_turns(folders, tmp_path):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    for served, backend in ((2, "torch"), (4, "numpy"), (6, "torch")):
        result = adapt(folders, "prompts.txt", "--limit", "2", "--json", "--backend", backend, "--device", "cpu" if served > 2
                       else "auto")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout.splitlines()[-1])["prompts"] == served
    generate = ["generate", "the thing", "-d", folders["llama, tied"], "-t", folders["target"], "-n", "12"]
    texts = {run(*generate, "--adapter", "auto", "--adapters", "kept", "--backend", backend).stdout for backend in ENGINES}
    assert texts == {run(*generate).stdout}  # greedy: the same text


@pytest.mark.parametrize("arguments, says", [
    (["--head", "both"], "unknown head"), (["--device", "abacus"], "unknown device"),
    (["--dtype", "int3"], "unknown dtype")])
def test_adapt_says_what_is_wrong_in_one_line(folders, tmp_path, monkeypatch, arguments, says):
    monkeypatch.setattr(pairs, "NUMPY_IS_FASTER", 0)  # so that PyTorch runs the small drafter
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    result = adapt(folders, "prompts.txt", "--backend", "torch", *arguments)
    assert result.exit_code == 1 and says in result.stderr and result.stderr.strip().count("error:") == 1


@pytest.mark.parametrize("how", ["joint", "interleaved"])
@pytest.mark.filterwarnings("error")
def test_the_head_of_a_drafter_on_a_device_learns_and_stops_as_on_the_host(folders, how, monkeypatch):
    """Its features come from there, and PyTorch's head, given the same weights, writes the same texts."""
    found = []
    for on_device in (False, True):
        if on_device:
            monkeypatch.setattr(training_torch, "numpy_is_faster", lambda tensor: False)
            monkeypatch.setattr(sampling_torch, "CpuSampler", sampling_torch.Sampler)
        pair = Pair(drafter(folders, "llama", "torch"), TransformersModel.load(folders["target"]))
        rng = np.random.default_rng(0)
        trainer = training_torch.Trainer(pair.draft, Recipe(rank=4, rate=3e-3), rng)
        learner = Learner(pair, trainer, rng, Schedule(every=3, head=how))
        learned = serve(learner, PROMPTS, stop=Confidence(6, 0.01, learner.head))
        features, labels = zip(*learner.labelled, strict=True)
        assert all(isinstance(one, np.ndarray) for one in features) and len(labels) > 50, len(labels)
        texts = [[record.draft_tokens for record in one.rounds] for one in learned]
        found.append((texts, labels, [array.tolist() for array in learner.head.parameters.values()]))
        twin = stopping_torch.AcceptanceHead(pair.draft.embedding.shape[1], learner.head.parameters)
        with pytest.raises(OmnidraftError, match="the head is PyTorch's"):
            Learner(pair, trainer, rng, head=twin)
        same = [list(speculative(pair, PROMPTS[0], Options(stop=Confidence(6, 0.01, head), max_new_tokens=16), Uniforms([])))
                for head in ((twin, learner.head) if on_device else ())]
        assert not same or [one.draft_tokens for one in same[0]] == [one.draft_tokens for one in same[1]]
    (texts, labels, weights), (same_texts, same_labels, same_weights) = found
    assert same_texts == texts and same_labels == pytest.approx(labels, abs=1e-4)
    for one, other in zip(weights, same_weights, strict=True):
        assert other == pytest.approx(one, abs=1e-4) and np.abs(one).sum() > 1e-3


@pytest.mark.parametrize("sampler", [sampling_torch.CpuSampler, sampling_torch.Sampler])  # the second is used on a GPU
def test_a_head_that_numpy_has_trained_goes_on_in_torch(folders, tmp_path, monkeypatch, sampler):
    monkeypatch.setattr(sampling_torch, "CpuSampler", sampler)
    if sampler is sampling_torch.Sampler:
        monkeypatch.setattr(training_torch, "numpy_is_faster", lambda tensor: False)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    assert adapt(folders, "prompts.txt", "--head", "interleaved", "--threshold", "0").exit_code == 0
    monkeypatch.setattr(pairs, "NUMPY_IS_FASTER", 0)  # so that PyTorch runs the small drafter

    def head() -> stopping.AcceptanceHead:
        base = drafter(folders, "llama, tied", "torch")
        return Adapters("kept").load(Pair(base, load(folders["target"]))).head

    before = head()
    result = adapt(folders, "prompts.txt", "--head", "interleaved", "--backend", "torch", "-T", "1", "--threshold", "0")
    assert result.exit_code == 0, result.output
    assert any((head().parameters[name] != array).any() for name, array in before.parameters.items())
    generate = ["generate", "the thing", "-d", folders["llama, tied"], "-t", folders["target"], "-n", "12"]
    adapted = run(*generate, "--adapter", "auto", "--adapters", "kept", "--backend", "torch")
    assert adapted.exit_code == 0 and adapted.stdout == run(*generate).stdout


