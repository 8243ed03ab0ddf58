# The course's commands; `make` alone lists them. GNU make 3.81 or later (the one macOS has) will do.
#
#   make lab VENV=            use the Python that is active (conda, Colab, your own environment), make no .venv
#   make lab PYTHON=python3.12    make .venv with this Python
#   make lab LAB_ARGS="--no-browser --port 9000"    options for JupyterLab
#   make lab PIP_ARGS="--index-url ADDRESS"         options for pip
#
# A torch that is installed already is kept. To begin anew, delete .venv.

VENV = .venv
LAB_ARGS =
PIP_ARGS =
WORKERS = 2
MATRIX_PYTHONS =
MEGATRON = megatron-core==0.16.1
LAUNCHERS = accelerate==1.15.0 ipyparallel==9.2.0
QUICK =

# The first Python that is new enough. A name can exist and not run (pyenv has such), so each one is tried.
PYTHON = $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$name && break; done)

ifneq ($(strip $(VENV)),)
PY = $(VENV)/bin/python
READY_LAB = $(VENV)/.ready-lab
READY_TEST = $(VENV)/.ready-test
else
PY = $(PYTHON)
READY_LAB = install-lab
READY_TEST = install-test
PIP_ARGS += --quiet
endif

# Notebooks are run without the settings of the person who runs them, and matplotlib's fonts are listed beforehand.
# Limits of time are there to end what hangs, so they are long: a machine may be busy.
CLEAN_SETTINGS = MPLCONFIGDIR="$(CURDIR)/build/matplotlib" IPYTHONDIR="$(CURDIR)/build/ipython" COURSE_TIMEOUT=300
AS_ROOT = $(shell test "$$(id -u)" = 0 && echo --allow-root)
RUN_NOTEBOOKS = $(CLEAN_SETTINGS) $(PY) -m pytest --nbval --nbval-current-env --nbval-cell-timeout 600

# How long `make endurance` works: LAUNCHES and WIDGET_RUNS in one kernel, FAULT_SECONDS, PASSES through the notebooks.
LAUNCHES = 1000
WIDGET_RUNS = 200
FAULT_SECONDS = 600
PASSES = 10

.PHONY: help lab test test-fast test-unit test-labs test-notebooks lint bench peers release notebooks site matrix clean
.PHONY: endurance deepspeed install-deepspeed test-browser install-browser install-lab install-test
.NOTPARALLEL:

help:
	@echo "Commands of the course:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

lab: $(READY_LAB)  ## open the course in JupyterLab (installs it first)
	@if ! test -w "$$HOME"; then mkdir -p build/home && export HOME="$(CURDIR)/build/home" && \
		echo "Your home folder cannot be written, so JupyterLab keeps its settings in build/home."; fi; \
	JUPYTER_CONFIG_PATH="$(CURDIR)/utils/jupyter$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
	env -u MPLBACKEND $(PY) -m jupyterlab $(AS_ROOT) --LabApp.default_url=/lab/tree/lessons/00_start_here.ipynb $(LAB_ARGS)

test: install-deepspeed test-unit test-labs test-notebooks test-browser  ## run every test: code, labs, notebooks, in a browser
	@echo "All tests passed."

test-fast: $(READY_TEST)  ## run the code's tests but for the slow ones
	$(PY) -m pytest -n $(WORKERS) --dist loadfile -m "not slow and not soak" --ignore tests/browser

test-unit: $(READY_TEST)  ## run the code's tests
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --ignore tests/browser

test-labs: $(READY_TEST)  ## compare labs with solutions; known wrong answers must be rejected
	$(PY) -m utils.cli release --check --stored --self-check

test-notebooks: $(READY_TEST)  ## run the notebooks and compare their outputs with the stored ones
	@$(CLEAN_SETTINGS) $(PY) -c "import matplotlib.pyplot"
	@rm -rf build/temporary && mkdir -p build/temporary
	TMPDIR="$(CURDIR)/build/temporary" $(RUN_NOTEBOOKS) -n $(WORKERS) --dist loadfile lessons solutions
	@left=$$(ls build/temporary | grep -v '^torchinductor_\|^pytest-of-'); test -z "$$left" || { \
		echo "The notebooks left these temporary files behind:" $$left; exit 1; }

test-browser: install-browser  ## open every lesson in JupyterLab, in a real browser; screenshots come to build/browser
	@if $(PY) tests/browser/lab.py 2>/dev/null; then \
		$(CLEAN_SETTINGS) $(PY) -c "import matplotlib.pyplot" && \
		$(CLEAN_SETTINGS) $(PY) -m pytest -n $(WORKERS) --dist worksteal tests/browser; \
	else printf '%s\n' "" "*** NOT TESTED: there is no browser here; what was tried stands above. Install Chromium or Chrome" \
		"*** (Debian: apt install chromium) or run $(PY) -m playwright install chromium," \
		"*** and then make test-browser. No lesson was opened in JupyterLab; everything else goes on." ""; fi

# Playwright comes from PyPI, the browser from the system's packages.
install-browser: $(READY_TEST)
	@$(PY) -c "import playwright" 2>/dev/null || { \
		echo "Installing Playwright"; \
		$(PY) -m pip install --quiet $(PIP_ARGS) --editable ".[browser]" "torch==$$($(PY) -c \
			'from importlib.metadata import version; print(version("torch"))')"; } || true
	@$(PY) tests/browser/lab.py 2>/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "Installing Chromium" && apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium >/dev/null; } || true

lint: $(READY_TEST)  ## look for mistakes and style in the code
	$(PY) -m ruff check

bench: $(READY_TEST) build/launchers install-browser  ## measure everything, write benchmarks/RESULTS.md (QUICK=1: only see that it works)
	$(CLEAN_SETTINGS) PYTHONPATH="$$(echo "$(CURDIR)"/build/launchers/lib/python*/site-packages)" \
		$(PY) -m benchmarks $(if $(QUICK),--quick --output build/RESULTS-quick.md)

# Beside the course's environment, not in it: they bring an extension of JupyterLab. Without them their rows say so.
build/launchers: $(READY_TEST)
	$(PY) -m pip install --quiet $(PIP_ARGS) --prefix $@ $(LAUNCHERS) || echo "Not compared with: $(LAUNCHERS)"

peers: build/peers/megatron  ## compare the layers with Megatron's own (installed apart, into build/peers; not in make test)
	PYTHONPATH=build/peers $(PY) -m pytest tests/peers/test_megatron.py

build/peers/megatron: $(READY_TEST)
	$(PY) -m pip install --quiet $(PIP_ARGS) --upgrade --no-deps --target build/peers "$(MEGATRON)"
	@touch $@

deepspeed: install-deepspeed  ## install DeepSpeed, which lesson 02 compares with, and test that it equals the course's ZeRO
	$(PY) -m pytest -rs tests/peers/test_deepspeed.py

# It has no wheel and 2,000 files, but compiles nothing: some 15 seconds. Its tests skip themselves without it.
install-deepspeed: $(READY_TEST)
	@$(PY) -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('deepspeed'))" || { \
		echo "Installing DeepSpeed"; \
		DS_BUILD_OPS=0 $(PY) -m pip install --quiet $(PIP_ARGS) --editable ".[deepspeed]" "torch==$$($(PY) -c \
			'from importlib.metadata import version; print(version("torch"))')"; } || \
		printf '%s\n' "" "*** NOT TESTED: DeepSpeed could not be installed; pip's reason stands above." \
			"*** Its tests and its section of lesson 02 are skipped. Everything else goes on." ""

endurance: $(READY_TEST)  ## hours: launches and widget runs in one kernel, random faults, the notebooks again and again
	COURSE_LAUNCHES=$(LAUNCHES) COURSE_WIDGET_RUNS=$(WIDGET_RUNS) COURSE_FAULT_SECONDS=$(FAULT_SECONDS) \
		$(PY) -m pytest -rP tests/endurance
	@$(CLEAN_SETTINGS) $(PY) -c "import matplotlib.pyplot"
	@for pass in $$(seq $(PASSES)); do echo "== The notebooks, pass $$pass of $(PASSES)"; \
		$(RUN_NOTEBOOKS) -n $(WORKERS) --dist loadfile lessons solutions || exit 1; done

release: $(READY_TEST)  ## write labs/ from solutions/
	$(PY) -m utils.cli release

notebooks: $(READY_TEST)  ## run lessons/ and solutions/ and store their outputs
	@$(CLEAN_SETTINGS) $(PY) -c "import matplotlib.pyplot"
	$(CLEAN_SETTINGS) $(PY) -m utils.notebooks execute lessons/*.ipynb solutions/*.ipynb

site: $(READY_TEST)  ## make web pages of lessons, labs and texts: site/index.html
	rm -rf site
	$(PY) -m utils.site_pages site

# About 6 GB for each of three environments. Other Pythons: make matrix MATRIX_PYTHONS="python3.10 python3.12 python3.13"
matrix: $(READY_TEST)  ## run lessons with the oldest and the newest PyTorch, and as on Colab (large; not in make test)
	$(PY) tests/front_ends/matrix.py $(MATRIX_PYTHONS)

clean:  ## remove what tests and builds left (keeps .venv)
	rm -rf build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -exec rm -rf {} +

$(READY_LAB): EXTRAS =
$(READY_TEST): EXTRAS = [dev,grading]

ifneq ($(strip $(VENV)),)
$(READY_LAB) $(READY_TEST): pyproject.toml constraints.txt
	$(make_venv)
	$(install)
	@touch $@
else
install-lab install-test:
	$(install)
endif

define make_venv
@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	if test -z "$(PYTHON)"; then \
		echo "The course needs Python 3.10 or newer, and there is none on the PATH. Install one, or name it:" \
			"make lab PYTHON=/path/to/python3"; exit 1; fi; \
	if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then \
		echo "The course needs Python 3.10 or newer; $(PYTHON) is not one."; exit 1; fi; \
	if ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then \
		echo "$(PYTHON) cannot make virtual environments: its venv or ensurepip module is missing." \
			"On Debian and Ubuntu: sudo apt install python3-venv. Then run make again."; exit 1; fi; \
	echo "Making $(VENV) with $$($(PYTHON) --version)"; \
	$(PYTHON) -m venv $(VENV); fi
endef

# pip is held to constraints.txt, except that a torch which is installed already stays.
define install
@mkdir -p build
@if torch=$$($(PY) -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null); \
	then sed "s/^torch==.*/torch==$$torch/" constraints.txt; else cat constraints.txt; fi >build/constraints.txt
@echo "Installing the course (the first time this takes a minute or more)"
@$(PY) -m pip install $(PIP_ARGS) --editable ".$(EXTRAS)" --constraint build/constraints.txt || { \
	echo "The installation failed; pip's reason stands above. If it found no torch for $$($(PY) --version)," \
		"try another one: make lab PYTHON=python3.12 (delete $(or $(VENV),the environment) first)." \
		"If it names the torch that is installed here: the course did not touch it; use an environment of its own."; exit 1; }
endef
