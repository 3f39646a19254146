"""The sampler for PyTorch models on the CPU."""

import numpy as np
import torch

from .. import sampling, sampling_torch
from ..errors import OmnidraftError
from ..sampling import BROKEN, RULED_OUT


class CpuSampler(sampling.Sampler):
    """For models on the CPU: NumPy's sampler with PyTorch's softmax, which takes half the time."""

    to_numpy = staticmethod(sampling_torch.Sampler.to_numpy)  # hidden states are tensors

    @staticmethod
    def process(logits: np.ndarray, *settings: float) -> np.ndarray:
        """Like `sampling.process`, for logits (V,)."""
        probs = sampling_torch.process(torch.from_numpy(logits), *settings).numpy()
        if np.isnan(probs[0]):
            raise OmnidraftError(RULED_OUT if logits.max() == -np.inf else BROKEN)
        return probs
