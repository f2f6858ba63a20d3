"""A table as LaTeX with the rules of booktabs, ready to be read into a document."""

from __future__ import annotations

from itertools import groupby

from calibrant.grid.layout import INFO_NAMES, Cell, Column, Line, Section, Table

_DAGGER = r"$^{\dagger}$"
# Six metrics with their spread are wider than many a page; what fits keeps its size.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
_SIGNS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    '"': "''",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "†": _DAGGER,
    "α": r"$\alpha$",
    "γ": r"$\gamma$",
    "Δ": r"$\Delta$",
    "“": "``",
    "”": "''",
    "’": "'",
    "…": r"\dots{}",
    "≥": r"$\ge$",
    "→": r"$\rightarrow$",
    "×": r"$\times$",
}


def to_latex(table: Table) -> str:
    r"""Write a table as a LaTeX ``table`` environment; the document needs ``\usepackage{booktabs,graphicx}``.

    Args:
        table: The table. Its notes become the caption, its name the label ``tab:NAME``. It shrinks where it is too wide.

    Example:
        >>> from calibrant.grid.layout import Cell, Column, Line, Section, Table
        >>> line = Line("FLγ-SECE", "flgamma-sece", {"ece": Cell(0.0214, 0.0082, best=True)}, runs=5)
        >>> table = Table("t", "A 100% test", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,)),))
        >>> print(to_latex(table))
        % needs \usepackage{booktabs,graphicx}
        \begin{table}[htb]
        \centering
        \footnotesize
        \caption{A 100\% test.}
        \label{tab:t}
        \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
        \begin{tabular}{lrr}
        \toprule
        Method & Seeds & ECE (\%) \\
        \midrule
        \multicolumn{3}{c}{CIFAR-10} \\
        FL$_{\gamma}$-SECE & 5 & \textbf{2.140 $\pm$ 0.820} \\
        \bottomrule
        \end{tabular}}
        \end{table}
        <BLANKLINE>
    """
    width = 1 + len(table.info) + len(table.columns)
    caption = " ".join([f"{table.title}.", *table.notes])
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        r"\begin{table}[htb]",
        r"\centering",
        r"\footnotesize",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{tab:{_label(table.name)}}}",
        _FIT,
        rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
        r"\toprule",
        *_heads(table),
    ]
    for section in table.sections:
        lines += [r"\midrule", *_section(table, section, width)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", r"\end{table}"]) + "\n"


def escape(text: str) -> str:
    r"""Text that LaTeX prints as it is; an FL with its gamma is set as the paper does.

    Example:
        >>> escape("50% of_it & FLγ")
        '50\\% of\\_it \\& FL$_{\\gamma}$'
    """
    return r"FL$_{\gamma}$".join("".join(_SIGNS.get(sign, sign) for sign in part) for part in text.split("FLγ"))


def _heads(table: Table) -> list[str]:
    first = 2 + len(table.info)
    lines = []
    if any(column.group for column in table.columns):
        cells, rules, place = [""] * (first - 1), [], first
        for group, columns in groupby(table.columns, key=lambda column: column.group):
            size = len(list(columns))
            cells.append(rf"\multicolumn{{{size}}}{{c}}{{{escape(group)}}}")
            rules.append(rf"\cmidrule(lr){{{place}-{place + size - 1}}}")
            place += size
        lines += [_row(cells), " ".join(rules)]
    names = ["Method", *(INFO_NAMES[name] for name in table.info), *(column.heading for column in table.columns)]
    return [*lines, _row([escape(name) for name in names])]


def _section(table: Table, section: Section, width: int) -> list[str]:
    lines = [rf"\multicolumn{{{width}}}{{c}}{{{escape(section.title)}}} \\"] if section.title else []
    for line in section.lines:
        label = escape(line.label)
        label = rf"\quad \textit{{{label}}}" if line.kind == "paper" else label
        info = [escape(line.info(name)) for name in table.info]
        lines.append(_row([label, *info, *(_cell(line, column) for column in table.columns)]))
    return lines


def _cell(line: Line, column: Column) -> str:
    cell = line.cells.get(column.key)
    return "--" if cell is None else _number(cell, column)


def _number(cell: Cell, column: Column) -> str:
    mean, std = cell.shown(column)
    mean = mean.replace("-", "$-$")
    text = mean if std is None else rf"{mean} $\pm$ {std}"
    return (rf"\textbf{{{text}}}" if cell.best else text) + (_DAGGER if cell.differs else "")


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _label(name: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-:." else "-" for sign in name)
