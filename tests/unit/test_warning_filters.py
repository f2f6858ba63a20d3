"""Warnings are errors here, but for a few that others give about themselves."""

import ast
import importlib
import sys
import warnings
from pathlib import Path

import pytest
import torch

SOURCES = sorted((Path(__file__).parents[2] / "src" / "calibrant").rglob("*.py"))
OF_TORCH = "torch.jit._script"


def told(name: str, *, module: str, category: type[Warning] = DeprecationWarning) -> None:
    """Warn as PyTorch does of one of its functions."""
    warnings.warn_explicit(f"`torch.jit.{name}` is deprecated. Please switch.", category, "_script.py", 1, module=module)


def test_inductor_loads_what_warns_of_script_methods(monkeypatch):
    # A fresh load, as the first `torch.compile` of a process brings about; later ones are silent.
    monkeypatch.setattr(torch.utils, "mkldnn", None, raising=False)
    monkeypatch.delitem(sys.modules, "torch.utils.mkldnn", raising=False)
    found = importlib.import_module("torch.utils.mkldnn")
    monkeypatch.setitem(sys.modules, "torch.utils.mkldnn", found)
    assert found.MkldnnLinear
    told("script_method", module=OF_TORCH)


@pytest.mark.parametrize(
    ("name", "module", "category"),
    [
        ("script", OF_TORCH, DeprecationWarning),
        ("trace", "torch.jit._trace", DeprecationWarning),
        ("script_method", "calibrant.losses.focal", DeprecationWarning),
        ("script_method", OF_TORCH, UserWarning),
    ],
)
def test_what_is_like_the_ignored_warning_stays_an_error(name, module, category):
    with pytest.raises(category, match=f"torch.jit.{name}"):
        told(name, module=module, category=category)


def names_used(path: Path) -> set[str]:
    """Attributes and parts of imported names."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    found |= {part for node in imports for alias in node.names for part in alias.name.split(".")}
    return found | {part for node in imports for part in (getattr(node, "module", None) or "").split(".")}


def test_package_does_not_use_torchscript():
    # PyTorch tells of a script method as if it were its own, so the filter cannot know one of ours.
    assert "Tensor" in set().union(*map(names_used, SOURCES))
    assert not [path.name for path in SOURCES if names_used(path) & {"jit", "ScriptModule", "script_method"}]
