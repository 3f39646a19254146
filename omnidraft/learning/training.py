"""Training the drafter: weights or LoRA adapters, an optimizer, and one step on a batch of texts.

At a constant rate the weights fluctuate around what they have learned, so their running mean is
served (Polyak and Juditsky 1992). The base model is never changed.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from .. import losses
from ..engine.llama import Llama
from ..sampling import mask, process
from ..text.errors import GENERATOR, OmnidraftError, expect, expect_number, shown
from . import backward
from .lora import LoRA

SHARE_OF_A = 1 / 16  # share of the rate for A in W + B A; long runs diverge at 1 (arXiv 2402.12354)
MOST = 1e30  # of any setting
AVERAGE = 0.99  # weight of the old mean in the running mean that is served; at first it is less


@dataclass(frozen=True)
class Recipe:
    """What is trained and how; arXiv 2507.02659 has a constant rate, rank 32 and weight 0.2."""

    loss: str = "lifted"  # one of losses.LOSSES
    weight: float | str = 0.2  # of the n-gram term in `hybrid`, or "dynamic"
    divergence: str = "forward"  # for `lifted`
    rank: int = 32  # of the LoRA adapters; 0 trains all weights
    rate: float | None = None  # learning rate; None: see `step_size`
    decay: float = 0.01

    def __post_init__(self) -> None:
        choices = {"loss": list(losses.LOSSES), "divergence": list(losses.DIVERGENCES)}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise OmnidraftError(f"unknown {name} {shown(value)}: "
                                     f"choose one of {', '.join(known)}")
        expect_number("rank", self.rank, "of 0 or more")
        expect_number("decay", self.decay, "of 0 or more", 0, MOST, Real)
        if self.weight != "dynamic":
            expect_number("weight", self.weight, "of 0 or more, or dynamic", 0, MOST, Real)
        if self.rate is not None:
            expect_number("rate", self.rate, "above 0", 1 / MOST, MOST, Real)

    def step_size(self, drafter: Any) -> float:
        """The rate; the default falls with the root of the drafter's size, from 1 M parameters on.

        Above 10 M it is the paper's. A guarded learner begins with less (`online.WARM_UP`).
        """
        if self.rate is not None:
            return self.rate
        if drafter.parameters > 10_000_000:
            return 1e-4
        default = 0.01 if self.rank else 0.001
        return default / max(1.0, drafter.parameters / 1e6) ** 0.5


class Trainer:
    """Trains a drafter of the NumPy engine; raises OmnidraftError for any other.

    An adapted drafter has the one it was made from as `untouched`, and that one is trained.
    `parameters` are the LoRA adapters or, with rank 0, all weights; `served` is their running mean.
    """

    def __init__(self, base: Llama, recipe: Recipe, rng: np.random.Generator) -> None:
        if not isinstance(base, Llama) or base.reread is None:
            raise OmnidraftError("this trainer needs a drafter run by the NumPy engine "
                                 "(for others: training_torch.Trainer)")
        self._check(recipe, rng)
        self.base = getattr(base, "untouched", base)
        self.recipe = recipe
        self.config, self.tensors = self.base.stored(untied=bool(recipe.rank))
        shapes = self.config.tensor_shapes()
        matrices = {name: shape for name, shape in shapes.items()
                    if len(shape) == 2 and name != backward.EMBEDDING}
        lora = LoRA(deepcopy(self.tensors), 0, 0.0)
        if recipe.rank:
            lora = LoRA.fresh(matrices, rng, recipe.rank, base.dtype)
        self._start(lora)

    @staticmethod
    def _check(recipe: Recipe, rng: np.random.Generator) -> None:
        expect("recipe", recipe, Recipe, "a Recipe")
        expect("rng", rng, np.random.Generator, GENERATOR)

    def _start(self, lora: LoRA) -> None:
        """Set up what is trained, a new optimizer, and the running mean."""
        self.lora = lora
        self.parameters = lora.parameters
        shares = {name: SHARE_OF_A for name in self.parameters if ".lora_A." in name}
        self.optimizer = AdamW(self.parameters, self.recipe.step_size(self.base), clip=1.0,
                               decay=self.recipe.decay, shares=shares)
        self.served = deepcopy(self.parameters)

    def merged(self, served: bool = True) -> dict[str, np.ndarray]:
        """The drafter's tensors by Hugging Face name, from the served or the latest parameters."""
        own = self.served if served else self.parameters
        return replace(self.lora, parameters=own).merged(self.tensors)

    def model(self) -> Llama:
        """A drafter with the served weights (its caches start empty); the base is not changed."""
        return self.base.rebuilt(self.config, self.merged())

    def step(self, pair: Any, examples: Sequence[losses.Example]) -> float:
        """One update on the texts; the mean loss per comparison (0: there are none).

        NaN, and nothing is changed, if the loss or the gradient is not finite.
        """
        total, counted, gradients = self._gradients(pair, examples)
        if not counted:
            return total
        if not math.isfinite(total) or not math.isfinite(self.optimizer.step(gradients)):
            return math.nan
        steps = self.optimizer.steps.item()
        share = 1 - min(AVERAGE, steps / (steps + 10))  # of the latest weights; large at first
        for name, mean in self.served.items():
            mean += share * (self.parameters[name] - mean)
        return total / counted

    def _gradients(self, pair: Any, examples: Sequence[losses.Example]) -> tuple[float, int, dict]:
        """Sum of the loss over the comparisons, their count, and the gradients of the mean."""
        tensors = self.merged(served=False)
        wanted = list(self.lora.targets or self.parameters)
        recipe = self.recipe
        options = {"lifted": {"divergence": recipe.divergence}, "hybrid": {"weight": recipe.weight}}
        total = 0.0
        counted = 0
        full = {}
        for example in examples:
            trace = self._run(tensors, example)
            value, slope, count = self._loss(trace.logits, example, pair, recipe.loss,
                                             **options.get(recipe.loss, {}))
            total += value
            counted += count
            for name, gradient in self._back(trace, slope, wanted).items():
                full[name] = full.get(name, 0) + gradient
        for name in full:
            full[name] = full[name] / max(1, counted)
        if full:
            full = self.lora.gradients(full)
        return total, counted, full

    def expected_acceptance(self, pair: Any, examples: Sequence[losses.Example]) -> float:
        """Mean acceptance, 1 - tv, of a draft along these texts, at temperature 1 with `lifted`."""
        tensors = self.merged()
        total = 0.0
        counted = 0
        for example in examples:
            logits = self._run(tensors, example).logits
            value, _, count = self._loss(logits, example, pair, "lifted", divergence="tv")
            total += value
            counted += count
        return 1.0 - total / counted if counted else math.nan

    def state(self) -> dict[str, np.ndarray]:
        """A flat copy of the parameters, the served ones, and the optimizer."""
        return {name: self.host(array) for name, array in self._live().items()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Return to a `state`; raises OmnidraftError if it belongs to other parameters."""
        fill(self._live(), {name: self.like(array) for name, array in state.items()})

    def _live(self) -> dict[str, np.ndarray]:
        """The arrays that steps change, by their names in `state`."""
        live = {}
        for kind, arrays in (("parameters", self.parameters), ("served", self.served),
                             ("optimizer", self.optimizer.state())):
            live |= {f"{kind}.{name}": array for name, array in arrays.items()}
        return live

    def rows(self, logits: Sequence[Any], size: int) -> Any:
        """The target's distributions (M, V_p) for an Example, from the logits (n, V_p) of rounds.

        size: of the target's tokenizer. OmnidraftError if they are broken.
        """
        return process(mask(np.concatenate(logits), size)).astype(np.float32)

    def _loss(self, logits: Any, example: losses.Example, pair: Any, name: str,
              **options: Any) -> tuple[float, Any, int]:
        """The sum of a loss over a text, its gradient (N, V_q), and the number of terms."""
        return losses.LOSSES[name](logits, example, pair, **options)

    def _run(self, tensors: dict[str, np.ndarray], example: losses.Example) -> backward.Trace:
        """A pass whose `logits` are (n, V)."""
        return backward.run(self.config, tensors, example.draft_ids[:self.base.context_size])

    _back = staticmethod(backward.gradients)

    @staticmethod
    def host(array: Any) -> np.ndarray:
        """A copy as an array on the host; the PyTorch twin copies from its device."""
        return np.array(array)

    @staticmethod
    def like(array: Any) -> Any:
        """The array in the form that the parameters have."""
        return np.asarray(array)


def under(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays whose names begin with `prefix`, without it: "a." of {"a.b", "c"} gives {"b"}."""
    found = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            found[name.removeprefix(prefix)] = array
    return found


def adapted(base: Llama, lora: LoRA) -> Llama:
    """The drafter with what was learned; the base is not changed."""
    config, tensors = base.stored(untied=bool(lora.rank))
    return base.rebuilt(config, lora.merged(tensors))


class AdamW:
    """AdamW (arXiv 1711.05101, Algorithm 2) over named arrays or tensors, changed in place.

    Steps along -m / √v, the running mean of gradients over their running size, and weight decay.

    In step t, elementwise, with β1, β2 = betas: m ← β1 m + (1 − β1) g, v ← β2 v + (1 − β2) g²,
    w ← w − rate · (m̂ / (√v̂ + eps) + decay · w), where m̂ = m / (1 − β1^t) and v̂ = v / (1 − β2^t)
    correct for the start at zero. So the first step moves each weight by `rate`. A gradient with a
    norm above `clip` is scaled down to it; `shares` scale the rate by name (default 1).
    """

    def __init__(self, parameters: dict[str, Any], rate: float = 1e-4,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, decay: float = 0.01,
                 clip: float | None = None, shares: dict[str, float] | None = None) -> None:
        self.parameters = parameters
        self.rate = rate
        self.betas = betas
        self.eps = eps
        self.decay = decay
        self.clip = clip
        self.shares = shares or {}
        self.steps = np.zeros(1)
        self.moments = {f"{kind}.{name}": 0 * array
                        for name, array in parameters.items() for kind in ("mean", "square")}

    def step(self, gradients: dict[str, Any]) -> float:
        """One step; returns the gradient's norm before clipping. If not finite, nothing changes."""
        flat = (gradients[name].reshape(-1) for name in self.parameters)
        norm = math.sqrt(sum(float(gradient @ gradient) for gradient in flat))
        if not math.isfinite(norm):
            return norm
        shrink = 1.0
        if self.clip and norm > self.clip:
            shrink = self.clip / norm
        self.steps += 1
        one, two = self.betas
        t = self.steps.item()
        unbiased = 1 / (1 - one ** t)
        root = math.sqrt(1 - two ** t)
        for name, weights in self.parameters.items():
            mean = self.moments[f"mean.{name}"]
            square = self.moments[f"square.{name}"]
            gradient = gradients[name] * shrink
            mean += (1 - one) * (gradient - mean)
            square += (1 - two) * (gradient * gradient - square)
            rate = self.rate * self.shares.get(name, 1.0)
            weights *= 1 - rate * self.decay
            weights -= rate * unbiased * mean / (square ** 0.5 / root + self.eps)
        return norm

    def state(self) -> dict[str, Any]:
        """What training needs to continue besides the parameters, as live arrays for `fill`."""
        return {"steps": self.steps, **self.moments}


def fill(live: dict[str, Any], state: dict[str, Any]) -> None:
    """Copy saved arrays into the live ones; raises OmnidraftError if their shapes differ."""
    shapes = {name: array.shape for name, array in live.items()}
    if shapes != {name: array.shape for name, array in state.items()}:
        raise OmnidraftError("the state belongs to other parameters: use its drafter and rank")
    for name, array in live.items():
        array[...] = state[name]
