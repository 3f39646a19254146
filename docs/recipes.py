"""The recipes of docs/api.md. A test runs each one on its own."""
# ruff: noqa: E402, F811, I001

# %% 1. Two models, one text
import omnidraft

pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")  # names, folders, or loaded models
result = pair.generate("Once upon a time", max_new_tokens=24)
print(result.text, "|", result.finish_reason, "|", len(result.tokens), "tokens in", len(result.rounds), "target passes")

# %% 2. Stream sampled text
import omnidraft

pair = omnidraft.pair()
for piece in pair.stream("Once upon a time", do_sample=True, temperature=0.8, top_p=0.95, seed=1, max_new_tokens=24):
    print(piece, end="", flush=True)

# %% 3. Stop strings
import omnidraft

pair = omnidraft.pair()
result = pair.generate("Once upon a time", stop_strings=["."], max_new_tokens=60)
print(repr(result.text), result.finish_reason)

# %% 4. Several prompts and sequences, as JSON
import json

import omnidraft

pair = omnidraft.pair()
for prompt in ("Once", "Ann has"):
    for seed in (0, 1):
        result = pair.generate(prompt, do_sample=True, seed=seed, max_new_tokens=8)
        print(json.dumps(result.to_dict()["text"]))

# %% 5. Process the target's logits; the text follows exactly the distribution you return
# At temperature 0 a processor is called once per token, in order, and may keep state (grammars).
# Above, only ids and logits may decide what it returns: it also sees drafts that do not stay.
import omnidraft

pair = omnidraft.pair()
bias = {token: 2.0 for token, data in enumerate(pair.target.tokenizer.token_bytes) if data == b" fox"}


def processor(ids, logits):  # the ids before, logits (V,)
    for token, more in bias.items():
        logits[token] += more
    return logits


print(pair.generate("There was a little", processor=processor, do_sample=True, max_new_tokens=8).text)

# %% 6. The loop itself, compared with plain decoding
import numpy as np

import omnidraft
from omnidraft.metrics import speedup, summarize

pair, options = omnidraft.pair(), omnidraft.Options.of(draft_length=8, max_new_tokens=32)
rounds = list(omnidraft.speculative(pair, "Once upon a time", options, omnidraft.Uniforms(np.random.default_rng(0))))
alone = list(omnidraft.plain(pair.target, "Once upon a time", options, omnidraft.Uniforms(np.random.default_rng(0))))
assert [token for one in rounds for token in one.emitted] == [token for one in alone for token in one.emitted]
print(summarize(rounds).block_efficiency, "tokens per pass,", speedup(summarize(rounds), summarize(alone)), "times as fast")

# %% 7. A conversation in which both models keep their caches
import numpy as np

import omnidraft
from omnidraft.pairs.conversation import Conversation

chat = Conversation(omnidraft.pair())
options, draws = omnidraft.Options.of(max_new_tokens=24), omnidraft.Uniforms(np.random.default_rng(0))
for message in ("Ann has 3 boxes of 12 pens. How many pens does she have?", "Tell me a story about a dog."):
    written = [token for one in chat.ask(message, options, draws) for token in one.emitted]
    print(chat.target.tokenizer.decode(written), len(chat.messages), "messages")

# %% 8. Is a rule exact? Try every outcome of its draws in small random worlds
from omnidraft.exactness import check

print({rule: check(rule, 2).worst for rule in ("lifted", "tli", "slem", "omnidraft")})

# %% 9. The drafter learns from its target while it serves, saves an adapter, and drafts with it later
import tempfile

import numpy as np

import omnidraft
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe

pair, rng = omnidraft.pair("draft-general", "qwen-like"), np.random.default_rng(0)
store = omnidraft.Adapters(tempfile.mkdtemp())  # the default is the user's own folder
learner = store.resume(pair, Recipe(loss="lifted", rank=8), Schedule(every=2), rng)
prompts, options = ["Once upon a time", "The dog", "One day", "Tom"], omnidraft.Options.of(max_new_tokens=16)
for learned in omnidraft.learn(learner, prompts, options, omnidraft.Uniforms(rng)):
    print(learned.updated, round(learned.loss, 3))
print("saved to", store.keep(learner))
later = omnidraft.pair("draft-general", "qwen-like")
adapted = omnidraft.pair(store.load(later).drafter(later.draft), later.target)
print(adapted.generate("Once upon a time", max_new_tokens=16).text)

# %% 10. Models loaded with transformers, and drafting inside its own generate
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import omnidraft
from omnidraft.engine.load import folder  # for the embedded models; yours have folders or hub ids

draft, target = ((AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path))
                 for path in (folder("draft-tasks"), folder("qwen-like")))
pair = omnidraft.pair(draft, target)
model, tokenizer = target
inputs = tokenizer("Once upon a time", return_tensors="pt", return_token_type_ids=False)
plain = model.generate(**inputs, max_new_tokens=16, do_sample=False)
drafted = model.generate(**inputs, max_new_tokens=16, do_sample=False, custom_generate=pair.decoder())
assert torch.equal(plain, drafted)
print(tokenizer.decode(drafted[0]))

# %% 11. Stream from transformers' generate, which runs in another thread
from threading import Thread

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

import omnidraft
from omnidraft.engine.load import folder

draft, target = ((AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path))
                 for path in (folder("draft-tasks"), folder("qwen-like")))
pair, (model, tokenizer) = omnidraft.pair(draft, target), target
inputs = tokenizer("Once upon a time", return_tensors="pt", return_token_type_ids=False)
streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)  # if generate fails, no text comes
torch.manual_seed(1)
settings = dict(inputs, max_new_tokens=16, do_sample=True, streamer=streamer, custom_generate=pair.decoder())
thread = Thread(target=model.generate, kwargs=settings)
thread.start()
for piece in streamer:
    print(piece, end="", flush=True)
thread.join()

# %% 12. A loss of this package in your own PyTorch training
import torch
from transformers import AutoModelForCausalLM

import omnidraft
from omnidraft.engine.load import folder
from omnidraft.losses import make_example

pair, prompt = omnidraft.pair("draft-general", "qwen-like"), "Once upon a time"
model = AutoModelForCausalLM.from_pretrained(folder("draft-general"))  # the drafter, on any device
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

# What the target writes, and its distribution for each token of it, at temperature 1.
written = pair.generate(prompt, max_new_tokens=24).tokens
ids = pair.target.tokenizer.encode(prompt, bos=True) + written
rows = pair.target.forward(ids, pair.target.new_cache(), rows=len(written) + 1)[:-1]
probs = torch.from_numpy(rows).softmax(-1)

example = make_example(pair, prompt, written, probs)  # the same text in the tokens of both
means = []
for _ in range(3):
    logits = model(torch.tensor([example.draft_ids])).logits[0]
    loss, n = omnidraft.losses_torch.lifted(logits, example, pair)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    means.append(float(loss.detach() / n))
assert means[-1] < means[0]
print(means)
