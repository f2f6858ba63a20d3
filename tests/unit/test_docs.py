"""What the documentation shows is run, and what is public is documented."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
MODULES = sorted(
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for path in SRC.rglob("*.py")
    if path.name != "__main__.py"
)
BUILT = ROOT / "docs" / "reference"  # what `make docs` writes
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if BUILT not in page.parents)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def blocks(page: str) -> list[str]:
    return re.findall(r"^```(?:python|py)\s*\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)


PAGES_WITH_PYTHON = [page for page in PAGES if blocks(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES_WITH_PYTHON, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_of_a_page_run_in_order(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = blocks(page.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(found, 1):
        where = f"{page.name}, block {number}"
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, names, where, str(page), 0)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            runner.run(test, clear_globs=False)
            names.update(test.globs)
            assert runner.failures == 0, where
        else:
            exec(compile(block, where, "exec"), names)
    assert names


def without_code(page: str) -> str:
    return re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)


def anchors(page: str) -> set[str]:
    """What the headings of a page are linked by, as GitHub makes it: small letters, signs left out, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there; those to other sites are not followed."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        there = link.startswith("http") or target.exists()
        if not there or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    return broken


def test_links_of_every_page_lead_somewhere(tmp_path: Path) -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    assert {page.name: found for page in pages if (found := broken_links(page))} == {}
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n[1](#a-b-c) [2](#d) [3](page.md#a-b-c) [4](no.md) [5](https://x.org/#y)\n", encoding="utf-8")
    assert broken_links(page) == ["#d", "no.md"]


def test_page_of_metrics_names_every_metric_and_marks_those_that_are_measured() -> None:
    from calibrant import measure
    from calibrant.metrics import METRICS

    rows = re.findall(
        r"^\| `(\w+)`( ✓)? \| `(\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {key: function for key, _, function in rows} == {key: metric.function.__name__ for key, metric in METRICS.items()}
    measured = measure([[0.9, 0.1], [0.2, 0.8]] * 5, [0, 1] * 5, n_resamples=100)
    assert {key for key, mark, _ in rows if mark} == set(measured.metrics)


def reference() -> tuple[list[ModuleType], set[str]]:
    """The modules of the reference, and the classes that are in it beside what these export."""
    page = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    modules, returned = re.search(r'MODULES = """(.*?)"""', page, re.DOTALL), re.search(r"RETURNED = {(.*?)}", page, re.DOTALL)
    assert modules
    assert returned
    return [importlib.import_module(name) for name in modules[1].split()], set(re.findall(r"\w+", returned[1]))


def test_modules_of_the_reference_promise_names() -> None:
    assert [module.__name__ for module in reference()[0] if not getattr(module, "__all__", ())] == []


def test_what_functions_return_is_in_the_reference() -> None:
    modules, listed = reference()
    exported = {name for module in modules for name in module.__all__}
    functions = [
        value for module in modules[:2] for name in module.__all__ if inspect.isfunction(value := getattr(module, name))
    ]
    kinds = {function.__globals__.get(function.__annotations__["return"]) for function in functions}
    returned = {kind.__name__ for kind in kinds if inspect.isclass(kind) and kind.__module__.startswith("calibrant.")}
    assert returned > {"Run", "Scores"}
    assert returned <= exported | listed


def undocumented(module: ModuleType) -> list[str]:
    """Names in ``__all__`` that are missing, or functions and classes without a docstring of their own."""
    found = []
    for name in getattr(module, "__all__", ()):
        if not hasattr(module, name):
            found.append(name)
            continue
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            text = value.__doc__ or ""
            # A dataclass without docstring is given its signature as one.
            if not text.strip() or text.startswith(f"{name}("):
                found.append(name)
    return found


def test_public_names_of_every_module_exist_and_are_documented() -> None:
    modules = [importlib.import_module(name) for name in MODULES]
    assert {module.__name__: found for module in modules if (found := undocumented(module))} == {}
    module = ModuleType("made_up")
    exec("__all__ = ['a', 'b', 'c']\ndef a(): pass\ndef b():\n    'said'\n", module.__dict__)
    assert undocumented(module) == ["a", "c"]


def test_readme_shows_what_measure_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from calibrant.cli.main import app

    monkeypatch.chdir(tmp_path)
    runner = CliRunner(env={"COLUMNS": "80"})
    assert runner.invoke(app, ["demo", "--measure", "--out", "."]).exit_code == 0
    (tmp_path / "demo.npz").rename("predictions.npz")
    printed = [line.rstrip() for line in runner.invoke(app, ["measure", "predictions.npz"]).output.splitlines()]
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = page[page.index("predictions.npz  10,000") :].partition("\n…")[0].splitlines()
    assert [line for line in shown if line not in printed] == []
