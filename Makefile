# Environments: .venv holds Oscine (`make install`) and the tools of contributors (`make dev`). For tests only:
# .venv-oracle (the official qwen-tts package), .venv-clients (speech clients of others), .venv-asr (a recognizer that
# transcribes the demo voice), .venv-lowest (the lowest versions that pyproject.toml allows), .venv-linters (checkers of
# deploy/), .venv-triton (a second version of the compiler Triton), .venv-tritonserver (NVIDIA's Triton Inference Server,
# which has only the name in common) and .venv-ray (Ray Serve, on top of .venv).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check

.PHONY: install dev oracle clients asr lowest linters triton tritonserver ray serve check test test-triton test-gpu lint \
	format docs soak fuzz chaos chaos-as-root chaos-packages lock audit wheel release clean FORCE

# TORCH overrides the choice of torch: cpu, cuda, auto, cu126, torch==2.11.0 (see tools/install_torch.py).
install: .venv/.installed

ifeq ($(origin TORCH),command line)
.venv/.installed: FORCE
endif
.venv/.installed: pyproject.toml constraints.txt tools/install_torch.py tools/run_pip.py
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Oscine needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another one: make install PYTHON=python3.12" % sys.version_info[:2])'
	@echo 'Installing into .venv. Step 1 of 3: an environment with pip'
	@$(PYTHON) -m venv .venv
	@$(PIP) install --upgrade 'pip>=25.1'
	@echo 'Step 2 of 3: PyTorch'
	@$(BIN)/python tools/install_torch.py '$(TORCH)'
	@echo 'Step 3 of 3: Oscine and its requirements, about 75 MB to download'
	@$(BIN)/python tools/run_pip.py install --editable .
	@touch $@

dev: .venv/.dev

.venv/.dev: .venv/.installed
	@echo 'Installing the tools of contributors into .venv'
	@$(BIN)/python tools/run_pip.py install --editable '.[bench,export]' --group dev --group docs
	@touch $@

oracle: .venv-oracle/.installed

.venv-oracle/.installed: tests/oracle/environment.sh tests/oracle/requirements.txt constraints.txt | .venv/.installed
	$(PYTHON) -m venv --without-pip .venv-oracle
	$(BIN)/python tools/share_torch.py .venv-oracle
	PYTHON=$(PYTHON) bash tests/oracle/environment.sh .venv-oracle
	touch $@

clients: .venv-clients/.installed

CLIENT_LISTS := environment.sh requirements.txt node/environment.sh node/package-lock.json wyoming/environment.sh \
	wyoming/requirements.txt
.venv-clients/.installed: $(addprefix tests/clients/, $(CLIENT_LISTS)) | .venv/.installed
	PYTHON=$(PYTHON) bash tests/clients/environment.sh .venv-clients
	touch $@

asr: .venv-asr/.installed

.venv-asr/.installed: tests/asr/environment.sh tests/asr/requirements.txt tests/asr/weights.txt | .venv/.installed
	PYTHON=$(PYTHON) bash tests/asr/environment.sh .venv-asr
	touch $@

lowest: .venv-lowest/.installed

.venv-lowest/.installed: tests/lowest/environment.py pyproject.toml constraints.txt | .venv/.dev
	PYTHONPATH=tools $(BIN)/python tests/lowest/environment.py .venv-lowest
	touch $@

linters: .venv-linters/.installed

.venv-linters/.installed: tests/deploy/environment.sh tests/deploy/requirements.txt | .venv/.installed
	PYTHON=$(PYTHON) bash tests/deploy/environment.sh .venv-linters
	touch $@

# .venv has the Triton of the pinned torch, 3.7. This is the Triton of torch 2.11.
OTHER_TRITON := 3.6.0
triton: .venv-triton/$(OTHER_TRITON)

.venv-triton/$(OTHER_TRITON): | .venv/.installed
	rm -rf .venv-triton
	$(PIP) install --no-deps --target .venv-triton triton==$(OTHER_TRITON)
	touch $@

tritonserver: .venv-tritonserver/.installed

.venv-tritonserver/.installed: tests/tritonserver/environment.sh tests/tritonserver/requirements.txt | .venv/.dev
	bash tests/tritonserver/environment.sh .venv-tritonserver
	touch $@

ray: .venv-ray/.installed

.venv-ray/.installed: tests/deploy_ray/environment.sh tests/deploy_ray/requirements.txt | .venv/.installed
	bash tests/deploy_ray/environment.sh .venv-ray
	touch $@

# The server on the demo voice, or on MODEL=... (a folder or a hub id); ARGS are options of `oscine serve`.
MODEL ?= demo
serve: install
	$(BIN)/oscine serve --model $(MODEL) $(ARGS)

# One thread for each of the processes that share the cores. Where PYTHONDONTWRITEBYTECODE is set (images often do), every
# process of the tests would compile all that it imports again.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile \
	--no-loadscope-reorder

# For every change before it is pushed: no other environment, no browser, no network.
check: lint
	$(PYTEST) -m 'not slow and not gpu'

# Missing environments fail the tests instead of skipping them.
test: dev oracle clients asr lowest linters tritonserver ray
	OSCINE_ORACLE=required OSCINE_CLIENTS=required OSCINE_ASR=required OSCINE_LOWEST=required OSCINE_LINTERS=required \
		OSCINE_TRITONSERVER=required OSCINE_RAY=required $(PYTEST)

test-triton: dev triton
	PYTHONPATH=.venv-triton $(BIN)/python -c 'import triton; assert triton.__version__ == "$(OTHER_TRITON)", triton'
	PYTHONPATH=.venv-triton $(PYTEST) tests/kernels --ignore tests/kernels/test_primitives.py --ignore tests/kernels/cuda

test-gpu:
	$(PYTHON) -m pytest -m gpu

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Formats, and fixes what the linters can fix by themselves.
format: dev
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

# The pages as a site, in site/.
docs: dev
	$(BIN)/mkdocs build --strict

# Ten minutes of mixed load on the demo voice; nightly. SOAK are options of benchmarks/soak.py.
soak: dev
	$(BIN)/python -m benchmarks.soak --out .cache/results $(SOAK)

# Coverage-guided fuzzing of what reads a client's bytes, each target for SECONDS; nightly. TARGETS: some of tests/fuzz.
SECONDS ?= 180
fuzz: dev
	$(PIP) install --no-deps --upgrade --target .venv-fuzz 'atheris>=3'
	PYTHONPATH=.venv-fuzz $(BIN)/python tools/fuzz.py --seconds $(SECONDS) $(TARGETS)

# Faults of the machine around whole servers, some minutes; nightly. As root, none is skipped.
chaos-packages:
	sudo apt-get update -qq
	sudo apt-get install -qq --no-install-recommends nginx openssl

chaos: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m chaos tests/faults

# The same, where what cannot run fails. One server runs as nobody, who must reach this folder.
chaos-as-root: dev
	chmod o+x $(HOME)
	sudo env "PATH=$(PATH)" OSCINE_PROGRAMS=required $(MAKE) chaos

# Pins all that the wheel needs, but for torch, whose build depends on the machine, by the hashes of its files.
lock: dev
	$(BIN)/uv pip compile --quiet pyproject.toml --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-annotate --custom-compile-command 'make lock' --excludes constraints.txt \
		--output-file requirements.lock

# Known vulnerabilities of what is pinned; nightly.
audit:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/pip --quiet --disable-pip-version-check install 'pip-audit>=2.10'
	.venv-audit/bin/pip-audit --disable-pip --require-hashes --requirement requirements.lock
	.venv-audit/bin/pip-audit --disable-pip --no-deps --requirement constraints.txt

DIST := dist
wheel: install
	rm -rf $(DIST)
	$(PIP) wheel --no-deps --wheel-dir $(DIST) .

# The wheel, and a bill of materials of everything that it pulls in, made from an environment that has nothing else.
release: wheel
	rm -rf .venv-release .venv-sbom
	$(PYTHON) -m venv .venv-release
	@.venv-release/bin/python tools/install_torch.py '$(TORCH)'
	.venv-release/bin/pip --quiet --disable-pip-version-check install --require-hashes -r requirements.lock
	.venv-release/bin/pip --quiet --disable-pip-version-check install $(DIST)/*.whl
	$(PYTHON) -m venv .venv-sbom
	.venv-sbom/bin/pip --quiet --disable-pip-version-check install 'cyclonedx-bom>=7'
	.venv-sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file $(DIST)/oscine-sbom.json .venv-release/bin/python
	cp requirements.lock $(DIST)
	cd $(DIST) && sha256sum * > SHA256SUMS

clean:
	rm -rf .venv .venv-* .cache .mypy_cache .pytest_cache .ruff_cache site $(DIST)
