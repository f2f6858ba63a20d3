"""The site: ``make docs`` builds it from the pages beside this file, the docstrings and ``examples/``."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

DOCS = Path(__file__).parent
logger = logging.getLogger(__name__)

# What the left side of the site shows. The pages themselves stay plain Markdown, for readers on a Git host.
CONTENTS = {
    "Quick start": "start/scikit-learn start/pytorch start/transformers start/research",
    "Examples": "examples/index",
    "Measure": "measure metrics intervals streaming files report",
    "Repair and decide": "calibrators decisions",
    "Train": "train losses meta trainers data",
    "Compare": "compare figures reproduce results research",
    "Reference": "reference/index",
    "Project": "reference/changelog reference/contributing architecture research-archive",
}
# The modules whose names are promised, and the files outside this folder that are pages of the site too.
MODULES = """calibrant calibrant.metrics calibrant.calibrators calibrant.decisions calibrant.plot calibrant.testing
calibrant.losses calibrant.meta calibrant.integrations.lightning calibrant.integrations.transformers
calibrant.integrations.trackers calibrant.data calibrant.backbones calibrant.grid calibrant.report calibrant.io""".split()
# What their functions return without exporting it.
RETURNED = {
    "calibrant.core.records": "Scores Estimate IfCalibrated ClassScore PositiveClass Paired Bins BinSweep",
    "calibrant.metrics.measure": "Watched Window",
    "calibrant.engine.run": "Run EpochRecord",
}
PAGES_ABOVE = {"../CONTRIBUTING.md": "reference/contributing.md", "../CHANGELOG.md": "reference/changelog.md"}

project = "calibrant"
author = "The calibrant authors"
copyright = "the calibrant authors, Apache-2.0"
release = version = importlib.import_module("calibrant").__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
root_doc = "index"
exclude_patterns = ["examples/*.ipynb", "examples/*.py", "sg_execution_times.rst", "**/sg_execution_times.rst"]
default_role = "py:obj"  # `name` in a docstring is a link if there is something of that name
highlight_language = "none"
myst_heading_anchors = 4
maximum_signature_line_length = 100

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Reference"]
strip_signature_backslash = True  # keeps the underscore of `threshold_`

html_theme = "furo"
html_title = f"calibrant {release}"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_css_files = ["site.css"]
html_static_path = ["static"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "examples",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"^(?!plot_)",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "min_reported_time": 0,
    "write_computation_times": False,
    "remove_config_comments": True,
    "ignore_repr_types": "matplotlib",
    "first_notebook_cell": "%pip install calibrant",
    "download_all_examples": False,
}


def write_reference(app: Sphinx) -> None:
    """Writes the pages that come from elsewhere: one of docstrings for each module, and those of the folder above."""
    folder = DOCS / "reference"
    folder.mkdir(exist_ok=True)
    for name in MODULES:
        module = importlib.import_module(name)
        heading = f"{name}\n{'=' * len(name)}\n\n"
        elsewhere = {key for other in MODULES[1:] for key in importlib.import_module(other).__all__ if name == MODULES[0]}
        public = [key for key in module.__all__ if callable(getattr(module, key)) and key not in elsewhere]
        rows = "".join(f"   {key}\n" for key in public)
        table = f".. autosummary::\n   :nosignatures:\n\n{rows}\n" if rows else ""
        text = f"{heading}.. automodule:: {name}\n   :no-members:\n\n.. currentmodule:: {name}\n\n{table}"
        for key in public:
            kind = "class" if isinstance(getattr(module, key), type) else "function"
            text += f".. auto{kind}:: {key}\n\n"
        (folder / f"{name}.rst").write_text(text, encoding="utf-8")
    title = "What functions return"
    text = f"{title}\n{'=' * len(title)}\n\nThese classes have no promised place of their own: functions hand them to you.\n\n"
    text += "".join(f".. autoclass:: {module}.{key}\n\n" for module, keys in RETURNED.items() for key in keys.split())
    (folder / "returned.rst").write_text(text, encoding="utf-8")
    listed = "".join(f"   {name}\n" for name in [*MODULES, "returned"])
    index = f"Reference\n=========\n\n.. toctree::\n   :maxdepth: 1\n\n{listed}"
    (folder / "index.rst").write_text(index, encoding="utf-8")
    for file, page in PAGES_ABOVE.items():
        text = (DOCS / file).read_text(encoding="utf-8")
        text = text.replace("](docs/", "](../").replace("](CONTRIBUTING.md", "](contributing.md")
        (DOCS / page).write_text(text, encoding="utf-8")


def adapt_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Turns links that leave the folder into links within the site, and gives the first page the contents."""
    for file, target in PAGES_ABOVE.items():
        source[0] = re.sub(rf"\]\((\.\./)*{re.escape(file)}", f"](/{target}", source[0])
    source[0] = re.sub(r"\]\((\.\./)+examples/(plot_\w+)\.py\)", r"](/examples/\2.rst)", source[0])
    if page == root_doc:
        listed = " ".join(CONTENTS.values()).split()
        others = sorted(path.stem for path in DOCS.glob("*.md") if path.stem not in (root_doc, *listed))
        for caption, pages in (CONTENTS | ({"More": " ".join(others)} if others else {})).items():
            listed = "\n".join(pages.split())
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def skip_member(app: Sphinx, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    """Leaves out what scikit-learn gives every estimator for the routing of metadata, and Python every field of a tuple."""
    return True if re.fullmatch(r"set_\w+_request", name) or str(value.__doc__).startswith("Alias for field") else None


def name_types(
    app: Sphinx, what: str, name: str, value: object, options: object, arguments: str | None, returned: str | None
) -> tuple[str, str] | None:
    """Writes the name of a type alias in place of its long union, and a default that Sphinx can read."""
    if arguments is None:
        return None
    arguments = arguments.replace("<factory>", "{}")
    return re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", arguments), returned or ""


def mathml(tex: str, *, block: bool) -> str:
    """A formula as MathML, which browsers draw without a script or a network."""
    # In \text, the only place where there is one, an underscore needs no backslash here.
    known = tex.replace(r"\dots", r"\ldots").replace("…", r"\ldots").replace(r"\_", "_")
    known = re.sub(r"\\(bar|hat|tilde)\s*(\\[a-zA-Z]+|[a-zA-Z])(?=_)", r"{\\\1{\2}{}}", known)  # keeps the index beside
    try:
        return latex2mathml.tex2mathml(known, as_block=block)
    except MathError as error:
        logger.warning("cannot write %r as MathML: %s", tex, error)
        return tex


def draw_inline(translator: nodes.NodeVisitor, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def draw_block(translator: nodes.NodeVisitor, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference, priority=100)
    app.connect("source-read", adapt_page)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-signature", name_types)
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
