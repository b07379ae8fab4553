"""The syntax of RFC 3987 (internationalised addresses), its grammar compiled at the first question, not at import.

Takes the place of rfc3987_syntax/__init__.py in the images. That one compiles some forty parsers as it is imported,
about a second of each server's start, for checks that a server hardly ever makes. The answers are the package's own.
"""

from importlib import import_module

_GRAMMAR = "rfc3987_syntax.syntax_helpers"


def is_valid_syntax(term: str, value: str) -> bool:
    """Whether the value is what RFC 3987 calls the term, such as `iri`."""
    return bool(import_module(_GRAMMAR).is_valid_syntax(term, value))


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module(_GRAMMAR), name)
