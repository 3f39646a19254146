"""OpenBLAS' own kernel on weights packed once: the product, when it is used, and no access outside its arrays."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from omnidraft.engine import llama, matmul
from omnidraft.engine.matmul import Layout, Linear, choose_layout
from tests.test_models import random_model

needs_kernel = pytest.mark.skipif(matmul.kernel() is None, reason="NumPy's BLAS has no AVX2 kernel of OpenBLAS 0.3 here")


@pytest.mark.parametrize("alone", [0, 1])
@pytest.mark.parametrize("outputs", [128, 150])
def test_packed_weights_give_the_same_product(outputs: int, alone: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(matmul, "CACHED", 3 * matmul.OUTPUTS * 40 * 4)  # blocks of three panels
    rng = np.random.default_rng(5)
    weight, bias = rng.standard_normal((outputs, 40), np.float32), rng.standard_normal(outputs, np.float32)
    linear = Linear(weight, bias, Layout(alone=alone, multiple=4, packed=True))
    assert (linear.panels is None) == (matmul.kernel() is None)
    assert Linear(weight.astype(float), bias, linear.layout).panels is None  # the kernel is for float32
    for m in (*range(1, 17), 33, 250):
        wide = rng.standard_normal((m, 80), np.float32)
        for x in (np.ascontiguousarray(wide[:, ::2]), wide[:, ::2], wide[:, ::2].astype(float)):  # the kernel sees only bytes
            assert np.abs(linear(x) - (x @ weight.T + bias)).max() < 1e-4


@needs_kernel
def test_a_kernel_is_used_only_where_it_is_known_and_right(monkeypatch: pytest.MonkeyPatch):
    again = matmul.kernel.__wrapped__  # without the cache
    assert again() is not None
    for answers in ({}, {"config": "OpenBLAS 0.4.1 Haswell", "corename": "Haswell"},
                    {"config": "OpenBLAS 0.3.31", "corename": "SkylakeX"}):
        with monkeypatch.context() as patch:
            patch.setattr(matmul, "_ask", lambda library, what, answers=answers: answers.get(what, ""))
            assert again() is None
    with monkeypatch.context() as patch:
        right = matmul.packed_product
        patch.setattr(matmul, "packed_product", lambda *args: right(*args) + 1)
        assert again() is None
    monkeypatch.setattr(matmul, "kernel", lambda: None)
    shapes = ((64, 128), (64, 72))
    assert not choose_layout.__wrapped__(shapes).packed
    assert Linear(np.ones((8, 8), np.float32), None, Layout(packed=True)).panels is None


@pytest.mark.parametrize("large", [False, True])
def test_a_large_model_holds_its_weights_once(large: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(llama, "LARGE", 0 if large else 10**9)
    monkeypatch.setattr(matmul, "LARGE", 2**20)  # weights to time
    choose_layout.cache_clear()
    model = random_model(dtype=np.float32, layout=None, vocab_size=64)
    choose_layout.cache_clear()
    linears = [part for layer in model.layers for part in layer[:4]] + [model.head]
    held = [[array for array in (part.panels, part.blocks) if array is not None] for part in linears]
    stored = sum(array.nbytes for arrays in held for array in arrays) + model.embedding.nbytes
    assert max(map(len, held)) <= (1 if large else 2)
    if large:
        assert stored <= 1.3 * 4 * model.parameters
        model.forward(list(range(40)), cache := model.new_cache())  # a prompt longer than a group
        assert np.isfinite(model.forward([1], cache)).all()


@pytest.mark.parametrize("layout", [Layout(), Layout(64), Layout(packed=True), Layout(alone=0, packed=True)])
def test_a_large_model_with_one_matrix_for_embedding_and_head_holds_it_once(layout: Layout, monkeypatch):
    sizes = {"vocab_size": 67, "tie_word_embeddings": True, "layout": layout, "dtype": np.float32}
    apart = random_model(**sizes)
    monkeypatch.setattr(llama, "LARGE", 0)
    once = random_model(**sizes)
    assert once.embedding.nbytes == 0 < apart.embedding.nbytes and once.embedding.shape == apart.embedding.shape
    for ids in (66, np.array([0, 8, 66]), np.array([[1, 2], [65, 3]])):
        np.testing.assert_allclose(once.embedding[ids], apart.embedding[ids], rtol=1e-6)
    rows = [model.forward([66, 1, 8, 1], model.new_cache(), 4) for model in (once, apart)]
    np.testing.assert_allclose(*rows, rtol=1e-4, atol=1e-5)


def test_only_float32_is_packed():
    shapes = ((64, 128), (64, 96))
    assert not choose_layout(shapes, "float64").packed


GUARDED = """
import ctypes, mmap
import numpy as np
from omnidraft.engine import matmul

libc, kernel, page = ctypes.CDLL(None), matmul.kernel(), mmap.PAGESIZE
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def guarded(numbers, at_the_start, pieces):
    # a copy that begins behind, or ends before, a page that may not be touched
    size = -(-numbers.nbytes // page) * page
    begin = libc.mmap(None, size + 2 * page, 3, 0x22, -1, 0)
    pieces.append((begin, size + 2 * page))
    assert libc.mprotect(begin, page, 0) == libc.mprotect(begin + page + size, page, 0) == 0
    place = begin + page + (0 if at_the_start else size - numbers.nbytes)
    array = np.ctypeslib.as_array(ctypes.cast(place, ctypes.POINTER(ctypes.c_float)), numbers.shape)
    array[...] = numbers
    return array


rng = np.random.default_rng(0)
for at_the_start in (False, True):
    for inputs in (1, 2, 3, 5, 7, 8, 9, 31, 64, 129, 320):
        for panels in (1, 2, 3, 5):
            for tokens in (1, *range(4, 33, 4)):
                pieces = []
                weight = rng.standard_normal((8 * panels, inputs), np.float32)
                x = rng.standard_normal((tokens, inputs), np.float32)
                arrays = [guarded(a, at_the_start, pieces) for a in (
                    matmul.in_panels(weight), x, np.zeros((tokens, inputs), "f4"), np.zeros((tokens, 8 * panels), "f4"))]
                w, x, copy, y = (a.ctypes.data for a in arrays)
                kernel.pack(inputs, tokens, x, inputs, copy)
                kernel.multiply(8 * panels, tokens, inputs, 1.0, w, copy, y, 8 * panels)
                assert np.abs(arrays[3] - arrays[1] @ weight.T).max() < 1e-3
                for piece in pieces:
                    libc.munmap(*piece)
print("within")
"""


@needs_kernel
@pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made as Linux makes them")
def test_the_kernel_stays_within_its_arrays():
    env = os.environ | {"OPENBLAS_CORETYPE": "Haswell"}  # benchmarks choose others, where there is AVX-512
    done = subprocess.run([sys.executable, "-c", GUARDED], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "within\n"), done.stderr
