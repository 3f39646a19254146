"""Assisted sampling across tokenizers: the first token does not have the target's distribution."""

import inspect
import sys

import tokenizers
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.generation import candidate_generator as module

TARGET = " abcdefghijklmnopqrs"
ASSISTANTS = "xyz" + TARGET[::-1], TARGET[:12]  # one with tokens that the target does not have; one without
FIXES = {"list(self.target_to_assistant": "sorted(self.target_to_assistant",
         "= assistant_prune_lm_head": "= len(self._suppress_input_ids) > 0 and assistant_prune_lm_head"}


def load(letters, seed, std):
    """A model of one layer with random weights, and its tokenizer: one token per letter."""
    raw = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(letters)}, []))
    raw.decoder = tokenizers.decoders.Fuse()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(letters), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, initializer_range=std, bos_token_id=None, eos_token_id=None))
    return model.eval(), PreTrainedTokenizerFast(tokenizer_object=raw)


def total_variation(letters, draws):
    """The distance from the target's distribution: of the first tokens of `generate`, and of exact draws."""
    (target, tokenizer), (assistant, other) = load(TARGET, 0, 0.1), load(letters, 3, 0.3)
    p = target(**(prompt := tokenizer("abc", return_tensors="pt"))).logits[0, -1].softmax(-1)
    first = torch.stack([target.generate(
        **prompt, do_sample=True, top_k=0, max_new_tokens=2, pad_token_id=0, tokenizer=tokenizer,
        assistant_model=assistant, assistant_tokenizer=other)[0, 3] for _ in range(draws)])
    exact = p.multinomial(draws, replacement=True)
    return [(ids.bincount(minlength=len(p)) / draws - p).abs().sum() / 2 for ids in (first, exact)]


@torch.no_grad()
def main(draws=1000):
    transformers.utils.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: total "
          f"variation of the first token from the target's distribution, {draws} draws")
    source = inspect.getsource(module.AssistantToTargetTranslator)
    for state in ("as released", "with the two fixes"):
        for letters in ASSISTANTS:
            try:
                sampled, exact = total_variation(letters, draws)
                print(f"{state}, assistant {letters!r}: {sampled:.3f}, exact draws {exact:.3f}")
            except AttributeError as error:
                print(f"{state}, assistant {letters!r}: AttributeError: {error}")
        for old, new in FIXES.items():
            source = source.replace(old, new)
        exec(source, vars(module))  # the same class with these two lines changed


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
