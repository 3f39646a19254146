"""vLLM on a CPU: with drafts, the second token does not have the model's distribution at temperature 1.

    python vllm_reproduction.py expand           # no model: what `expand_batch_to_tokens` returns
    python vllm_reproduction.py plain MODEL      # the second token without drafts
    python vllm_reproduction.py ngram MODEL      # with vLLM's own n-gram drafts
    python vllm_reproduction.py mended MODEL     # the same, with the proposed lines

The last three take minutes on a CPU.
"""

import os
import sys
from collections import Counter

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")

import torch
from vllm import LLM, SamplingParams
from vllm.utils import cpu_triton_utils

TEXT = ("Once upon a time, there was a little girl named Lily. She had a dog. "
        "Once upon a time, there was a little")


def mended(output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None):  # noqa: N803
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(input_val == replace_from, replace_to, input_val)
    output.copy_(values.repeat_interleave(counts))


def expand():
    """Temperatures 0.5 and 2 for requests with two positions and one."""
    from vllm.platforms import current_platform
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens
    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    ends = torch.tensor([2, 3], dtype=torch.int32)
    print("expected [0.5, 0.5, 2.0], got", expand_batch_to_tokens(torch.tensor([0.5, 2.0]), ends, 3).tolist())


def sample(drafts, model, draws=1280):
    """Count the tokens that follow the likeliest first one."""
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    llm = LLM(model, dtype="float32", max_model_len=256, enforce_eager=True, max_num_seqs=32,
              speculative_config=speculative if drafts else None)
    found = Counter()
    while found.total() < draws:
        for request in llm.generate([TEXT] * 2, SamplingParams(temperature=1.0, max_tokens=2, n=16), use_tqdm=False):
            found.update(tuple(one.token_ids) for one in request.outputs)
    firsts = Counter()
    for ids, n in found.items():
        firsts[ids[0]] += n
    [(first, count)] = firsts.most_common(1)
    words = llm.get_tokenizer().decode
    shown = [f"{words(ids[1:])!r} {n / count:.3f}" for ids, n in found.most_common() if ids[0] == first][:5]
    print(f"after {words([first])!r} ({count} of {found.total()} draws): {', '.join(shown)}")


if __name__ == "__main__":
    how, *model = sys.argv[1:]
    if how == "mended":
        cpu_triton_utils._expand_kernel_impl.__code__ = mended.__code__
    if how == "expand":
        expand()
    else:
        sample(how != "plain", *model)
