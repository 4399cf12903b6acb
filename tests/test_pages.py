"""Every block of code in the documents, run as printed, and what the documents look like."""

import shlex

import pytest
import typer

from cosnorm.study.cli import app
from document_blocks import ROOT, Block, blocks_of, check_output, pages, run_page

PAGES = {page: blocks_of(page) for page in pages()}
LANGUAGES = {"python", "sh", "text", "bash", "yaml"}  # the last two: files, see test_recipes
WIDEST = 88  # characters, the column of the site

# Every block that is not run, by its page and first line. The page has the reason.
NOT_RUN = {
    ("README.md", 'pip install "torch>=2.11"  # the build for your machine, first'),
    (
        "README.md",
        "make compare    # a few minutes: five methods, five seeds, a data set that comes along",
    ),
    ("docs/start.md", 'pip install "torch>=2.11"'),
    (
        "docs/training.md",
        "model = nn.parallel.DistributedDataParallel(network().to(device))",
    ),
    ("docs/experiments.md", "cosnorm study learning-rates --out runs/learning-rates"),
    (
        "docs/speed.md",
        "cosnorm bench models --models resnet50,vit_small_patch16_224 \\",
    ),
    (
        "docs/scaling.md",
        "# one machine: a process for each GPU, or as many processes as you like on CPUs",
    ),
    (
        "docs/scaling.md",
        "torchrun --nproc-per-node 4 --max-restarts 3 -m cosnorm train --dataset mnist \\",
    ),
    (
        "docs/scaling.md",
        "torchrun --nproc-per-node 4 -m cosnorm train --dataset mnist --method pearson \\",
    ),
    ("docs/scaling.md", "pip install '.[all,ray]'  # in a checkout"),
    ("docs/ecosystem.md", "tensorboard --logdir runs/digits/tensorboard"),
    ("docs/scaling.md", "# on the first machine"),
    ("docs/scaling.md", "cosnorm compare --dataset mnist --seeds 10 --out runs/mnist"),
    (
        "docs/scaling.md",
        "PYTHONPATH=src python -m tools.seeds --data DIR --out results/h200/seeds.json",
    ),
    ("docs/scaling.md", "pip install '.[all]'  # in a checkout"),
    (
        "docs/scaling.md",
        "sky jobs launch cosnorm.yaml --secret AWS_ACCESS_KEY_ID --secret AWS_SECRET_ACCESS_KEY",
    ),
    ("docs/fine-tuning.md", "PYTHONPATH=src python -m tools.finetuning --data DIR --minutes 8 \\"),
    (
        "docs/optimisers.md",
        "PYTHONPATH=src python -m tools.optimisers --data DIR --out results/cpu/optimisers.json",
    ),
}


def _run(page):
    return [block for block in PAGES[page] if block.runs]


# Commands train networks, and one page exports one: not for every test run.
SLOW = {page for page in PAGES if any(b.language == "sh" for b in _run(page))} | {"docs/convert.md"}


@pytest.mark.timeout(1800)  # seconds, where a machine has much else to do
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # exporters' own
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
        for page in PAGES
        if _run(page)
    ],
)
def test_a_page_runs_from_top_to_bottom_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(PAGES[page], tmp_path)


def test_blocks_that_are_not_run_are_the_ones_listed():
    found = {
        (page, block.code.splitlines()[0])
        for page, blocks in PAGES.items()
        for block in blocks
        if block.remark.startswith("not run")
    }
    assert found == NOT_RUN


def _commands(block):
    """The words of every call of the program in a block, after `cosnorm`."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "cosnorm" in words:
            yield words[words.index("cosnorm") + 1 :]


def test_commands_that_are_not_run_have_the_flags_that_there_are():
    program, seen = typer.main.get_command(app), 0
    for block in (b for blocks in PAGES.values() for b in blocks if b.language == "sh"):
        for words in _commands(block):
            command = program
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            known = {name for parameter in command.params for name in parameter.opts}
            known |= {name for parameter in command.params for name in parameter.secondary_opts}
            if command.name == "bench":  # has a parser of its own, and its own tests
                continue
            flags = {word for word in words if word.startswith("-")}
            assert flags <= known | {"--version", "--help"}, f"{block.name}: {flags - known}"
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language_and_fits_its_column(page):
    for block in PAGES[page]:
        assert block.language in LANGUAGES or block.language.startswith("{"), block.name
        wide = [line for line in block.code.splitlines() if len(line) > WIDEST]
        assert not wide or block.language.startswith("{"), f"{block.name}: {wide}"


def test_every_fence_is_read():
    for page, blocks in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        fences = [line for line in text.splitlines() if line.lstrip().startswith("```")]
        assert len(fences) == 2 * len(blocks), page


BROKEN = """
```python
x = 2
```

```sh
echo $((1 + 1)) > sum; cat sum
```

```text
3
```
"""


def test_what_is_printed_is_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=r"page.md:10:\n2"):
        run_page(blocks_of("page.md", BROKEN), tmp_path)
    assert run_page(blocks_of("page.md", BROKEN.replace("3\n", "2\n")), tmp_path) == 1
    with pytest.raises(AssertionError, match=r"page.md:2: ZeroDivisionError"):
        run_page(blocks_of("page.md", BROKEN.replace("x = 2", "1 / 0")), tmp_path)
    with pytest.raises(AssertionError, match=r"page.md:6: exit 3"):
        run_page(blocks_of("page.md", BROKEN.replace("cat sum", "exit 3")), tmp_path)


def test_measured_numbers_have_their_room_and_nothing_else_has():
    def shown(text, remark="numbers within 0.5"):
        return Block("page.md", 1, "text", text, remark, True)

    check_output(shown("error 1.2 of 10"), "error 1.4 of 10\n")
    with pytest.raises(AssertionError):
        check_output(shown("error 1.2 of 10"), "error 1.8 of 10\n")
    with pytest.raises(AssertionError):
        check_output(shown("error 1.2"), "errors 1.2\n")
    check_output(shown("took … s", ""), "took 12.5 s\n")
    with pytest.raises(AssertionError):
        check_output(shown("took … s", ""), "took 12.5 m\n")
