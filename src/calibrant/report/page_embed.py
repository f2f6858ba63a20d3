"""Putting data and scripts into a page so that nothing in them can break out of it."""

from __future__ import annotations

import base64
import hashlib
import json
import math


def embed_json(data: object) -> str:
    r"""Return data as JSON that is safe between ``<script>`` tags.

    Whatever could end the element or begin a comment in it is written as an escape, which JSON reads back as the same text.
    Numbers that are not finite become null.

    Example:
        >>> print(embed_json({"name": "</script><!--", "value": float("nan")}))
        {"name":"\u003c/script\u003e\u003c!--","value":null}
    """
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_hash(script: str) -> str:
    """Return what a content security policy calls a script: only the scripts it names may run.

    Example:
        >>> script_hash("let a = 1;")
        'sha256-xY6QKfH9PRsQnLz56nj6MBwiK5oHg+im1Jkpdp1x/Ck='
    """
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
