"""Text that pdflatex prints without a further package: signs of LaTeX are escaped, others written by their commands."""

from __future__ import annotations

import re
import unicodedata

DAGGER = r"$^{\dagger}$"
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
    "`": "{}`",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "†": DAGGER,
    "‡": r"$^{\ddagger}$",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
    "…": r"\dots{}",
    "•": r"$\bullet$",
    "\u200b": "",
}
# Signs and their commands in mathematics.
_MATHS = """
    ± pm × times ÷ div · cdot ∓ mp ∗ ast ∘ circ √ surd ∞ infty ≤ le ≥ ge ≠ ne ≈ approx ≡ equiv ∼ sim ≪ ll ≫ gg
    ∝ propto → rightarrow ← leftarrow ↑ uparrow ↓ downarrow ↔ leftrightarrow ⇒ Rightarrow ∆ Delta ∇ nabla
    ∂ partial ∑ sum ∏ prod ∫ int ∈ in ∪ cup ∩ cap Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Φ Phi Ψ Psi
    Ω Omega α alpha β beta γ gamma δ delta ε epsilon ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu ν nu ξ xi
    π pi ρ rho σ sigma ς varsigma τ tau υ upsilon φ phi χ chi ψ psi ω omega ℓ ell ★ star ✓ surd
""".split()
_SIGNS |= {sign: rf"$\{name}$" for sign, name in zip(_MATHS[::2], _MATHS[1::2], strict=True)}
# Letters of this range are left as they are but for some that LaTeX's first encoding of fonts has not.
_FIRST, _LAST, _MISSING = "\u00a1", "\u017e", "«»ÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲų"
UNKNOWN = "?"


def escape(text: str) -> str:
    r"""Text that pdflatex prints as it is, or the nearest to it; an FL with its gamma is set as the paper does.

    Signs that stand for nothing in LaTeX's own fonts lose their accents, or become a question mark.

    Example:
        >>> escape("50% of_it & FLγ")
        '50\\% of\\_it \\& FL$_{\\gamma}$'
        >>> escape("∆ ≤ 1, naïve, --set, 中")
        '$\\Delta$ $\\le$ 1, naïve, -{}-set, ?'
    """
    words = re.sub(r"\s", " ", text).split("FLγ")
    return r"FL$_{\gamma}$".join("".join(map(_sign, word)) for word in map(_apart, words))


def _apart(text: str) -> str:
    """Hyphens that LaTeX would join to a dash, held apart by a sign that nothing else has."""
    return re.sub("-(?=-)", "-\0", text.replace("\0", UNKNOWN))


def _sign(sign: str) -> str:
    if sign == "\0":
        return "{}"
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isascii():
        return sign if sign.isprintable() else UNKNOWN
    if _FIRST <= sign <= _LAST and sign not in _MISSING:
        return sign
    parts = unicodedata.normalize("NFKD", sign)
    plain = "".join(_SIGNS.get(part, part if part.isascii() and part.isprintable() else "") for part in parts)
    return plain or ("" if unicodedata.combining(sign) else UNKNOWN)
