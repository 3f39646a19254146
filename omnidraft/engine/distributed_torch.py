"""A target spread over several processes by transformers' tensor parallelism.

Each process holds a part of every weight matrix, so all of them must make every pass. Rank 0 runs
drafter, loop and random draws, and tells the others in a few integers what to read after which
tokens; they make the same pass on their parts.

    torchrun --nproc-per-node 2 --no-python omnidraft generate 'Once upon' --backend torch \\
        --tensor-parallel -t FOLDER
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers.distributed import DistributedConfig

from ..errors import OmnidraftError
from .transformers_loading import choose_device
from .transformers_model import TransformersCache, TransformersModel

# What the argument of transformers is called; older ones take the plan itself.
PLAN = ({"distributed_config": DistributedConfig(tp_plan="auto")}
        if hasattr(DistributedConfig, "tp_plan") else {"tp_plan": "auto"})


class DistributedModel(TransformersModel):
    """A TransformersModel whose weights all ranks hold together; rank 0 uses it like any other.

    >>> omnidraft.pair(target="big", backend="torch", tensor_parallel=True)  # doctest: +SKIP
    """

    def __init__(self, model: Any, *args: Any, **parts: Any) -> None:
        name, config = parts.get("name", "model"), model.config.get_text_config(decoder=True)
        if not model.supports_tp_plan:
            raise OmnidraftError(f"{name} ({config.model_type}) has no tensor parallel plan in "
                                 "transformers: use a device map")
        for what in ("num_attention_heads", "num_key_value_heads"):
            heads, size = getattr(config, what, None), dist.get_world_size()
            if heads and heads % size:
                raise OmnidraftError(f"{name}: {size} processes cannot share its {heads} heads "
                                     f"evenly ({what}): start another number of them")
        # While this is made, all ranks make the same passes without being told.
        self._leads, self._broken = False, False
        self._latest: Any = None  # the one state that all ranks have
        super().__init__(model, *args, **parts)
        self._columns = False
        # Orders go over gloo, so that no device waits for them, and for as long as rank 0 thinks.
        self._orders = dist.new_group(backend="gloo", timeout=timedelta(days=365))
        self._leads = dist.get_rank() == 0

    @classmethod
    def load(cls, name_or_folder: Any, dtype: str = "auto", device: str = "auto",
             **more: Any) -> DistributedModel:
        """Load this rank's part; ranks other than 0 then follow, and end the process.

        Raises OmnidraftError also where torchrun did not start several processes.
        """
        if int(os.environ.get("WORLD_SIZE", 1)) < 2:
            raise OmnidraftError("tensor parallelism needs several processes: start this with "
                                 "torchrun --nproc-per-node 2")
        if device not in ("auto", choose_device("auto")[0]) or more.get("device_map") is not None:
            raise OmnidraftError("tensor parallelism takes a device per process by itself: leave "
                                 "out device and device_map")
        model = super().load(name_or_folder, dtype, device, **more, **PLAN)
        if int(os.environ.get("RANK", 0)) > 0:
            model.follow()
            sys.exit()
        atexit.register(model.close)
        return model

    def follow(self) -> None:
        """What the other ranks do: every pass that rank 0 makes, until it makes no more."""
        state = None
        while order := self._tell_or_hear():
            kept, rows, batch, *ids = order
            if kept <= 0:  # a text begins, or (-1) a pass without a state
                state = None if kept < 0 else self._new_state()
            elif taken_back := state.get_seq_length() - kept:
                state.crop(-taken_back)
            _, state, _ = super()._run(torch.tensor(ids).view(batch, -1), state, rows)

    def close(self) -> None:
        """Let the other ranks end; rank 0 does so when its process ends, for whatever reason."""
        if self._leads and not self._broken:
            self._tell_or_hear(())
        self._broken = True

    def _run(self, texts: Tensor, state: Any, rows: int,
             hidden: bool = False) -> tuple[Tensor, Any, Tensor | None]:
        if not self._leads:
            return super()._run(texts, state, rows, hidden)
        if self._broken:
            raise OmnidraftError(f"{self.name}: an earlier pass failed, so the processes no longer "
                                 "agree: start again")
        kept = -1 if state is None else state.get_seq_length()
        self._tell_or_hear((kept, rows, len(texts), *texts.flatten().tolist()))
        self._broken = True  # unless the pass ends well: the others may wait in it for this rank
        made = super()._run(texts, state, rows, hidden)
        self._latest, self._broken = made[1], False
        return made

    def forward(self, ids: Sequence[int | Tensor], cache: TransformersCache,
                rows: int = 1) -> Any:
        """As `TransformersModel.forward`; where another text was read last, this one is again."""
        if cache.state is not self._latest:
            cache.state = None
        return super().forward(ids, cache, rows)

    def _tell_or_hear(self, order: Sequence[int] = ()) -> list[int]:
        """Rank 0's order (integers; none: the end), on every rank."""
        size = torch.tensor([len(order)])
        dist.broadcast(size, 0, self._orders)
        numbers = torch.tensor(order if self._leads else [0] * int(size), dtype=torch.int64)
        if len(numbers):
            dist.broadcast(numbers, 0, self._orders)
        return numbers.tolist()
