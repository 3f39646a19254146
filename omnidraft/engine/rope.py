"""Rotary position embedding (RoPE, arXiv 2104.09864) and its scaling variants, as transformers computes them.

Dimension pair i of a head turns by the angle position · f_i with f_i = theta^(-2i/head_dim). A pair is one complex
number here, so turning it is one multiplication. The variants stretch the f_i for contexts longer than trained on:
linear (position interpolation, arXiv 2306.15595), dynamic (NTK-aware), yarn (arXiv 2309.00071) and llama3.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def rotations(rope: dict[str, Any], head_dim: int, start: int, stop: int, dtype: Any = np.float32) -> np.ndarray:
    """The complex numbers that turn positions start … stop-1: shape (stop - start, head_dim / 2), complex.

    >>> rotations({"rope_type": "default", "rope_theta": 10000.0}, 4, 0, 1)
    array([[1.+0.j, 1.+0.j]], dtype=complex64)
    """
    positions = np.arange(start, stop)[:, None]
    frequencies, scale = VARIANTS[rope["rope_type"]](rope, head_dim, positions)
    angles = positions * frequencies
    return (scale * np.exp(1j * angles)).astype(np.result_type(dtype, np.complex64))


def _default(rope: dict[str, Any], head_dim: int, positions: np.ndarray) -> tuple[np.ndarray, float]:
    return rope["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim), 1.0


def _linear(rope: dict[str, Any], head_dim: int, positions: np.ndarray) -> tuple[np.ndarray, float]:
    return _default(rope, head_dim, positions)[0] / rope["factor"], 1.0


def _dynamic(rope: dict[str, Any], head_dim: int, positions: np.ndarray) -> tuple[np.ndarray, float]:
    """Past the trained context, theta grows with the text. Each position uses the length at which it was written,
    as transformers does when it feeds one token at a time, so the result does not depend on how a text is cut."""
    stretch = rope["factor"] * np.maximum(positions + 1, rope["context"]) / rope["context"] - (rope["factor"] - 1)
    theta = rope["rope_theta"] * stretch ** (head_dim / (head_dim - 2))  # (positions, 1)
    return theta ** (-np.arange(0, head_dim, 2) / head_dim), 1.0


def _llama3(rope: dict[str, Any], head_dim: int, positions: np.ndarray) -> tuple[np.ndarray, float]:
    """Long waves are slowed down by `factor`, short ones kept, those between are blended."""
    frequencies = _default(rope, head_dim, positions)[0]
    turns = rope["original_context"] * frequencies / (2 * math.pi)  # full turns within the trained context
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (keep + (1 - keep) / rope["factor"]), 1.0


def _yarn(rope: dict[str, Any], head_dim: int, positions: np.ndarray) -> tuple[np.ndarray, float]:
    """As llama3, but the blend is linear in the pair's index, and queries and keys grow with the factor."""
    frequencies, factor = _default(rope, head_dim, positions)[0], rope["factor"]

    def pair_that_turns(times: float) -> float:
        wave = rope["original_context"] / (times * 2 * math.pi)
        return head_dim * math.log(wave) / (2 * math.log(rope["rope_theta"]))

    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    low, high = pair_that_turns(rope.get("beta_fast") or 32), pair_that_turns(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    keep = 1 - np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    scale = rope.get("attention_factor")
    if scale is None:
        both = rope.get("mscale") and rope.get("mscale_all_dim")
        scale = growth(rope["mscale"]) / growth(rope["mscale_all_dim"]) if both else growth(1)
    return frequencies * (keep + (1 - keep) / factor), scale


VARIANTS = {"default": _default, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn}
