# Four environments: .venv (Oscine and its tools), and for tests only .venv-oracle (the official qwen-tts package),
# .venv-clients (speech clients of others) and .venv-asr (a recogniser, which listens to the demo voice).
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install oracle clients asr serve test test-gpu lint clean

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . --group dev
	touch $@

oracle: .venv-oracle/.installed

.venv-oracle/.installed: tests/oracle/environment.sh tests/oracle/requirements.txt constraints.txt
	PYTHON=$(PYTHON) bash tests/oracle/environment.sh .venv-oracle
	touch $@

clients: .venv-clients/.installed

.venv-clients/.installed: tests/clients/environment.sh tests/clients/requirements.txt | .venv/.installed
	PYTHON=$(PYTHON) bash tests/clients/environment.sh .venv-clients
	touch $@

asr: .venv-asr/.installed

.venv-asr/.installed: tests/asr/environment.sh tests/asr/requirements.txt tests/asr/weights.txt | .venv/.installed
	PYTHON=$(PYTHON) bash tests/asr/environment.sh .venv-asr
	touch $@

# The server on the demo voice, or on MODEL=... (a folder or a hub id); ARGS are options of `oscine serve`.
MODEL ?= demo
serve: install
	$(BIN)/oscine serve --model $(MODEL) $(ARGS)

# What is missing fails a test instead of skipping it.
# One thread for each of the processes that share the cores.
TEST_ENVIRONMENT := OSCINE_ORACLE=required OSCINE_CLIENTS=required OSCINE_ASR=required OMP_NUM_THREADS=1
test: install oracle clients asr
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile

test-gpu:
	$(PYTHON) -m pytest -m gpu

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-oracle .venv-clients .venv-asr .cache .mypy_cache .pytest_cache .ruff_cache
