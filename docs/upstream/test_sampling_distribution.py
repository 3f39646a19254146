"""For transformers' tests/generation/test_candidate_generator.py: fails with the release, passes with fix.diff."""

import unittest

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import candidate_generator
from transformers.generation.utils import _speculative_sampling
from transformers.testing_utils import require_torch, torch_device


class MockTokenizer:
    """A tokenizer whose vocabulary is listed in another order than its ids, as in fast tokenizers."""

    def __init__(self, letters, order=1):
        self._vocab = {letter: i for i, letter in list(enumerate(letters))[::order]}

    def get_vocab(self):
        return self._vocab

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": []}


@require_torch
class TestUniversalSpeculativeSamplingDistribution(unittest.TestCase):
    def get_translator(self, target_letters, assistant_letters, order):
        torch.manual_seed(0)
        self.assistant = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(assistant_letters),
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                initializer_range=0.3,
            )
        ).to(torch_device)
        # through the module, so that the class under test can be replaced there
        return candidate_generator.AssistantToTargetTranslator(
            target_tokenizer=MockTokenizer(target_letters),
            assistant_tokenizer=MockTokenizer(assistant_letters, order),
            target_vocab_size=len(target_letters),
            assistant_model=self.assistant,
            assistant_prune_lm_head=True,
        )

    def check_target_logits_match_target_ids(self, target_letters, assistant_letters, order):
        """The logit of a candidate must be found at the id that the candidate is translated to."""
        translator = self.get_translator(target_letters, assistant_letters, order)
        start = torch.zeros((1, 1), dtype=torch.long, device=torch_device)
        with torch.no_grad():
            logits = self.assistant(start).logits[:, -1:]
        target_logits = translator.get_target_logits(logits)
        for candidate in range(logits.shape[-1]):
            candidate_ids = torch.cat([start, torch.full_like(start, candidate)], dim=1)
            target_id = translator.get_target_ids(start, start, candidate_ids)[0, -1]
            self.assertEqual(target_logits[0, 0, target_id], logits[0, 0, candidate])
        return translator, logits

    def test_target_logits_match_target_ids(self):
        for order in (1, -1):
            with self.subTest(order=order):
                self.check_target_logits_match_target_ids("abcdefgh", "xhgfedcbay", order)

    def test_assistant_vocabulary_is_subset_of_target_vocabulary(self):
        """Nothing is pruned then, and candidates are the assistant's own ids."""
        self.check_target_logits_match_target_ids("abcdefgh", "dcba", -1)

    def test_sampled_tokens_have_target_distribution(self):
        """Tokens drawn by the assistant and verified have the distribution of the target's logits."""
        translator = self.get_translator("abcdefgh", "xhgfedcbay", order=-1)
        start, draws = torch.zeros((1, 1), dtype=torch.long, device=torch_device), 4000
        with torch.no_grad():
            logits = self.assistant(start).logits[:, -1:]
        target_logits = 0.5 * torch.randn((1, 2, 8), device=torch_device)
        candidate_logits = translator.get_target_logits(logits)
        counts = torch.zeros(8, device=torch_device)
        for candidate in logits[0, 0].softmax(dim=-1).multinomial(draws, replacement=True):
            candidate_ids = torch.cat([start, candidate[None, None]], dim=1)
            candidate_ids = translator.get_target_ids(start, start, candidate_ids)
            tokens, _ = _speculative_sampling(candidate_ids, candidate_logits, 1, target_logits)
            counts[tokens[0, 0]] += 1
        expected = target_logits[0, 0].softmax(dim=-1)
        total_variation = (counts / draws - expected).abs().sum() / 2
        self.assertLess(total_variation, 0.04)  # 4000 exact draws: 0.016 on average
