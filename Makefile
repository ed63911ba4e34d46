# `make demo` and `make test` set up all they need on a fresh machine and are quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PINNED := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt

.PHONY: demo real clients clients-all mcp verifiers test test-slow lint format bench house redteam learning learning-smoke credit schema site clean

demo: $(VENV)/.runtime
	$(BIN)/marl train scenarios/kuhn_self_play.yaml --out runs/demo --overwrite
	@$(BIN)/marl plot runs/demo | tail -n 1

# The model of scenarios/real, once; see there.
real: $(VENV)/.gguf
	$(BIN)/python scenarios/real/prepare.py

# Programs written elsewhere run in environments of their own, without marl and torch; see marl/gateway/README.md.
clients: .clients/.installed

clients-all: .clients/.installed .clients-all/.installed .clients-crewai/.installed

# Servers of tools need version 2 of the package mcp, and `verifiers` needs version 1: this environment has the packages
# of the first one, with that version before them.
mcp: .mcp/.installed

# Environments of verifiers.v1 run as programs, in an environment with what verifiers needs, without marl and torch.
verifiers: .verifiers/.installed

# `make test ROOM=credit` runs the tests of one room.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadgroup $(addprefix tests/,$(ROOM))

test-slow: $(VENV)/.dev
	@# Without the model, or without the clients, tests that need them are skipped, and say so.
	-$(MAKE) real
	-$(MAKE) clients
	-$(MAKE) mcp
	-$(MAKE) verifiers
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -rs -n 2 --dist loadgroup -m "slow and not gpu"

# All learning runs at a tenth of their budgets; `make test-slow` has a fifth of them, chosen by the commit's hash.
learning-smoke: $(VENV)/.dev
	ALL_LONG_RUNS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadgroup -m slow tests/training/test_learning.py

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Measured by `make bench` beside made-up models if `make real` has prepared it.
MARL_CACHE ?= $(HOME)/.cache/marl
REAL_MODEL := $(wildcard $(MARL_CACHE)/real/SmolLM2-135M-Instruct)
ROLLOUT_OPTIONS := $(addprefix --model ,$(REAL_MODEL))

bench: $(VENV)/.dev
	for bench in check verdicts turns segments tools sampler self_play train_vs_trl adapters credit_cost mixers packing memory learner rollout weight_sync cluster overlap exactness page exports team_search gateway real_model; do \
		options=; [ $$bench != rollout ] || options="$(ROLLOUT_OPTIONS)"; \
		echo "== $$bench"; $(BIN)/python tests/bench/$$bench.py $$options --out tests/bench/results/$$bench.json || exit 1; \
	done
	for library in pettingzoo openspiel textarena gymnasium chat "openspiel --survey" "textarena --survey"; do \
		name=$$(echo environments_$$library | sed 's/ --/_/'); \
		$(BIN)/python tests/bench/environments.py $$library --out tests/bench/results/$$name.json || exit 1; \
	done

# How the source reads: words of docstrings, names, nesting, comments, imports, files and frames of a training step.
house: $(VENV)/.dev
	$(BIN)/python tests/bench/house.py

# Near misses of 2,000 right answers, made by rule: none may be accepted.
redteam: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/bench/redteam.py --out tests/bench/results/redteam.json

learning: $(VENV)/.dev
	for task in kuhn leduc liars_dice nim tic_tac_toe; do \
		$(BIN)/python tests/bench/learning.py $$task --out tests/bench/results/$${task}_self_play.json || exit 1; \
	done
	$(BIN)/python tests/bench/learning.py two_games --out tests/bench/results/two_games.json
	for team in team_arithmetic train_solver_only train_solver_only_adapters train_solver_only_shared \
			sage r_zero debate solver_critic code_team critic_verdict tree_sampling ppo_team pspo_nim dapo \
			dpo_pairs sft sft_best prime rlhf distillation iterative_dpo \
			chain mixture_of_agents absolute_zero kuhn_frozen_opponent taboo fork_join two_step_q tic_tac_toe_q; do \
		$(BIN)/python tests/bench/learning.py $$team --out tests/bench/results/$$team.json || exit 1; \
	done
	for game in negotiation first_price_auction colonel_blotto_self_play; do \
		$(BIN)/python tests/bench/learning.py $${game%_self_play} --seeds 1 2 3 --out tests/bench/results/$$game.json || exit 1; \
	done
	$(BIN)/python tests/bench/transfer.py --out tests/bench/results/spiral_transfer.json
	$(BIN)/python tests/bench/critic_spoof.py --out tests/bench/results/critic_spoof.json
	$(BIN)/python tests/bench/figures.py

credit: $(VENV)/.dev
	$(BIN)/marl credit-check --out tests/bench/results/credit_check.json
	OMP_NUM_THREADS=1 $(BIN)/python tests/bench/credit_learning.py tune
	OMP_NUM_THREADS=1 $(BIN)/python tests/bench/credit_learning.py run
	$(BIN)/python tests/bench/credit_learning.py report --out tests/bench/results/credit_learning.json \
		--plot tests/bench/results/credit_learning.png

schema: $(VENV)/.dev
	$(BIN)/marl schema > scenarios/.schema.json

# READMEs and the pages of .site, in build/site; a warning or a dead link fails. The pages open as files, but for the
# search: python -m http.server -b 127.0.0.1 -d build/site
site: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -f .site/mkdocs.yml

# What was learnt, `runs/`, stays.
clean:
	rm -rf $(VENV) .clients* .mcp .verifiers *.egg-info

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml .ci/constraints.txt | $(BIN)/python
	$(PINNED) -e .
	touch $@

$(VENV)/.gguf: $(VENV)/.runtime
	$(PINNED) -e '.[gguf]'
	touch $@

.clients/.installed: .ci/clients.txt
.clients-all/.installed: .ci/clients_all.txt
.clients-crewai/.installed: .ci/clients_crewai.txt
.verifiers/.installed: .ci/verifiers.txt
.clients/.installed .clients-all/.installed .clients-crewai/.installed .verifiers/.installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

.mcp/.installed: .ci/mcp.txt $(VENV)/.dev
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	site=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	echo "import site; site.addsitedir('$$site')" > $$(echo $(@D)/lib/python3*/site-packages)/first_environment.pth
	touch $@

$(VENV)/.docs: $(VENV)/.runtime
	$(PINNED) -e '.[docs]'
	touch $@

$(VENV)/.dev: $(VENV)/.runtime .ci/peers.txt .ci/vllm_needs.txt .ci/vllm.txt
	$(PINNED) -e '.[dev]'
	$(PINNED) --no-deps -r .ci/peers.txt
	$(PINNED) -c .ci/peers.txt -r .ci/vllm_needs.txt
	$(PINNED) --no-deps -r .ci/vllm.txt
	@# verl's wheel brings a top-level package `tests`, which would hide ours.
	rm -rf $(VENV)/lib/python*/site-packages/tests
	touch $@
