"""HTML, built so that text from outside cannot become markup."""

from __future__ import annotations

from html import escape

from verify.reports.summary import plain


class Markup(str):
    """A string that is HTML already. Any other string is text and gets escaped."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Markup:
    """One element. ``class_`` gives the attribute class, ``aria_label`` aria-label; texts become printable ASCII."""
    pairs = "".join(f' {key.rstrip("_").replace("_", "-")}="{_safe(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{pairs}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """Several pieces one after the other."""
    return Markup("".join(_safe(child) for child in children))


def _safe(text: str) -> str:
    return text if isinstance(text, Markup) else escape(plain(text))
