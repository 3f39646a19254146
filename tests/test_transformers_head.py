"""The packed output matrix: transformers' logits, only where the model's forward gives them, and the model stays unchanged."""

from __future__ import annotations

from threading import Event, Thread

import ggufs
import numpy as np
import pytest

import omnidraft

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from test_transformers_model import BYTES, SIZES, WINDOW, random_model  # noqa: E402

from omnidraft.engine import transformers_gguf, transformers_head  # noqa: E402
from omnidraft.engine.transformers_model import TransformersModel  # noqa: E402
from omnidraft.learning import training_torch  # noqa: E402

GEMMA = "Gemma3ForCausalLM", {**SIZES, **WINDOW, "head_dim": 8}
IDS = [3, 1, 4, 1, 5, 9, 2]
HAS_KERNEL = torch.backends.mkldnn.is_available()


@pytest.fixture
def always(monkeypatch):
    """Pack every matrix that can be packed, of any size and however fast."""
    monkeypatch.setattr(transformers_head, "LARGE", 0)
    monkeypatch.setattr(transformers_head, "CLEARLY", float("inf"))


def wrapped(architecture: str, sizes: dict) -> tuple[TransformersModel, torch.nn.Module]:
    inside = random_model(architecture, sizes, BYTES.size)
    return TransformersModel(inside, BYTES), inside


@pytest.mark.skipif(not HAS_KERNEL, reason="PyTorch without oneDNN")
def test_a_packed_head_gives_the_logits_and_hidden_states_of_the_forward(always):
    model, inside = wrapped(*GEMMA)
    assert model._head is not None and "output matrix packed (0 MB more)" in model.kernel
    cache = model.new_cache()
    cache.keeps_hidden = True
    found = [model.forward(IDS[:4], cache, 4), model.forward(IDS[4:5], cache)]
    cache.rewind(4)
    found.append(model.forward(IDS[4:], cache, 3))
    with torch.no_grad():
        wanted = inside(torch.tensor([IDS]), output_hidden_states=True)
    logits = wanted.logits[0].numpy()
    np.testing.assert_allclose(np.concatenate(found), logits[[0, 1, 2, 3, 4, 4, 5, 6]], atol=1e-5)
    np.testing.assert_allclose(cache.hidden, wanted.hidden_states[-1][0, 4:], atol=1e-5)
    assert "forward" not in vars(inside) and type(inside.lm_head) is torch.nn.Linear


@pytest.mark.parametrize("case", ["gemma 2 caps its logits", "cohere scales its logits", "a small matrix",
                                  "another type of number"])
def test_a_head_that_does_not_pay_or_is_not_all_is_not_packed(case, always, monkeypatch):
    kind, sizes = GEMMA
    if case == "gemma 2 caps its logits":
        kind, sizes = "Gemma2ForCausalLM", {**sizes, "final_logit_softcapping": 0.5}
    elif case == "cohere scales its logits":
        kind, sizes = "CohereForCausalLM", {**SIZES, "logit_scale": 0.25}
    elif case == "a small matrix":
        monkeypatch.setattr(transformers_head, "LARGE", 2**24)
    inside = random_model(kind, sizes, BYTES.size)
    if case == "another type of number":
        inside = inside.to(torch.bfloat16)
    model = TransformersModel(inside, BYTES)
    assert model._head is None and "packed" not in model.kernel
    with torch.no_grad():
        wanted = inside(torch.tensor([IDS])).logits[0].float().numpy()
    np.testing.assert_allclose(model.forward(IDS, model.new_cache(), len(IDS)), wanted, atol=1e-5)


@pytest.mark.skipif(not HAS_KERNEL, reason="PyTorch without oneDNN")
def test_what_is_hooked_into_a_model_later_is_run(always):
    """accelerate and others replace `forward` or add hooks after a model was wrapped."""
    model, inside = wrapped(*GEMMA)
    before = model.forward(IDS, model.new_cache())
    inside.lm_head.register_forward_hook(lambda part, given, logits: logits * 2)
    np.testing.assert_allclose(model.forward(IDS, model.new_cache()), 2 * before, atol=1e-5)


@pytest.mark.skipif(not HAS_KERNEL, reason="PyTorch without oneDNN")
@pytest.mark.parametrize("how", ["a copy that learned", "changed in place", "replaced"])
def test_other_weights_than_the_packed_ones_are_used(how, always):
    """A drafter learns in a copy, whose output matrix is then another than the packed one."""
    model, inside = wrapped(*GEMMA)
    before = model.forward(IDS, model.new_cache(), len(IDS))
    if how == "a copy that learned":
        model = training_torch.copied(model, untie=True)
        inside = model.model
    with torch.no_grad():
        if how == "replaced":
            inside.lm_head.weight = torch.nn.Parameter(3 * inside.lm_head.weight)
        else:
            inside.lm_head.weight.mul_(3)
        wanted = inside(torch.tensor([IDS])).logits[0].numpy()
    np.testing.assert_allclose(model.forward(IDS, model.new_cache(), len(IDS)), wanted, atol=1e-5)
    assert np.abs(wanted - before).max() > 0.1


def test_a_slow_head_is_not_packed(monkeypatch):
    monkeypatch.setattr(transformers_head, "LARGE", 0)
    monkeypatch.setattr(transformers_head, "CLEARLY", 0.0)
    assert wrapped(*GEMMA)[0]._head is None


# ------------------------------------------------------------------------------------- a GGUF file without its vocabulary

def test_transformers_reads_a_gguf_without_its_vocabulary(tmp_path, monkeypatch):
    """The same model, and each long list has its length, from which the size of the vocabulary is known."""
    gguf = pytest.importorskip("gguf")
    usual = gguf.GGUFReader
    ggufs.tiny(path := tmp_path / "tiny.gguf")
    ggufs.tiny(other := tmp_path / "other.gguf")
    monkeypatch.setattr(transformers_gguf, "LONG", 100)
    with transformers_gguf.brief(path):
        brief, whole = gguf.GGUFReader(path), gguf.GGUFReader(str(other))
    assert gguf.GGUFReader is usual and type(whole) is usual
    assert brief.fields.keys() == whole.fields.keys()
    for name, field in whole.fields.items():
        assert len(brief.fields[name].data) == len(field.data), name
        if len(field.data) < 100:
            assert brief.fields[name].contents() == field.contents()
    assert len(brief.fields["tokenizer.ggml.tokens"].data) > 100
    for one, two in zip(brief.tensors, whole.tensors, strict=True):
        np.testing.assert_array_equal(one.data, two.data)
    found = [omnidraft.load(name, backend="torch") for name in (path, other)]
    logits = [one.forward(IDS, one.new_cache(), len(IDS)) for one in found]
    np.testing.assert_array_equal(*logits)


def test_the_reader_is_restored_after_two_threads(tmp_path):
    """The first leaves before the second, which came while it was inside, or had to wait."""
    gguf = pytest.importorskip("gguf")
    usual, one_inside, two_inside, one_left = gguf.GGUFReader, Event(), Event(), Event()

    def one() -> None:
        with transformers_gguf.brief(tmp_path):
            one_inside.set()
            two_inside.wait(0.3)
        one_left.set()

    def two() -> None:
        one_inside.wait(5)
        with transformers_gguf.brief(tmp_path):
            two_inside.set()
            one_left.wait(5)

    threads = [Thread(target=work) for work in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert gguf.GGUFReader is usual and one_left.is_set() and two_inside.is_set()


def test_the_reader_is_restored_after_an_error(tmp_path):
    gguf = pytest.importorskip("gguf")
    usual = gguf.GGUFReader
    with pytest.raises(KeyError), transformers_gguf.brief(tmp_path):
        raise KeyError
    assert gguf.GGUFReader is usual
