# SPDX-License-Identifier: Apache-2.0
"""Names of C++ functions and types as demanglers write them, taken apart.

Nsight Systems, CUPTI and Kineto spell the same name differently: `(int)4` and `4`, `<unnamed>` and
`(anonymous namespace)`, `[lambda(float) (instance 1)]` and `{lambda(float)#1}`. `plain_spelling` gives all
of them one form. Names come from files of other tools, so any text is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

LONGEST_NAME = 8_192  # characters that are read of a name; CUPTI and Nsight cut theirs earlier

_OPENING = {"<": ">", "(": ")", "[": "]", "{": "}"}
_CLOSING = frozenset(_OPENING.values())
_UNNAMED = re.compile(r"(?:\(anonymous namespace\)|\(anonymous class\)|<unnamed>|_GLOBAL__N_\w*)::")
_CAST = re.compile(r"\((?:[A-Za-z_][\w: ]*)\)(?=-?\d)")
_BOOL_CAST = re.compile(r"\(bool\)([01])\b")
_SUFFIXED_NUMBER = re.compile(r"(?<![\w.])(-?\d+)(?:ull|ul|ll|u|l)\b", re.IGNORECASE)
_INSTANCE = re.compile(r"\) \(instance (\d+)\)\]")
_SPACES = re.compile(r"\s+(?=[*&>,])|(?<=[<,(])\s+|\s{2,}")
_LAMBDA = re.compile(r"\{lambda\(([^(){}]*)\)#\d+\}")
_OPERATOR_SYMBOL = re.compile(r"operator\s*(?:\(\)|\[\]|->\*?|<=>|<<=?|>>=?|[<>]=?)")
# In a mangled name: literals, substitutions, parameters and types with numbers, else an identifier's length.
_MANGLED_PIECE = re.compile(r"L\w?n?\d+E|E\d+E|[ST][0-9A-Z]*_|DF\d+b?|(\d+)")


def plain_spelling(name: str) -> str:
    """Return a demangled name in one spelling, whichever tool wrote it."""
    text = _UNNAMED.sub("", name[:LONGEST_NAME])
    text = _BOOL_CAST.sub(lambda found: "true" if found[1] == "1" else "false", text)
    text = _SUFFIXED_NUMBER.sub(r"\1", _CAST.sub("", text))
    text = _INSTANCE.sub(r")#\1}", text.replace("[lambda(", "{lambda("))
    return _SPACES.sub("", text.replace("operator ()", "operator()")).strip()


@dataclass(frozen=True)
class CppName:
    """A function or type, in the plain spelling."""

    text: str

    @cached_property
    def components(self) -> tuple[tuple[str, str | None], ...]:
        """Return the qualified name: each component with its template arguments' text, None without any.

        The return type and the parameters are no part of it, nor is what is nested in the function.
        """
        return tuple(_component(piece) for piece in _split(self._head, "::") if piece)

    @property
    def name(self) -> str:
        """The last component, without template arguments."""
        return self.components[-1][0] if self.components else self.text

    @property
    def qualified(self) -> str:
        """All components, without template arguments."""
        return "::".join(name for name, _ in self.components) or self.text

    @cached_property
    def arguments(self) -> tuple[CppName, ...]:
        """Return the template arguments of the last component that has any."""
        written = next((text for _, text in reversed(self.components) if text is not None), None)
        return () if written is None else tuple(CppName(piece) for piece in _split(written, ",") if piece)

    @cached_property
    def lambda_parameters(self) -> tuple[str, ...]:
        """Return the parameters' types of the innermost lambda that is nested in a function."""
        found = _LAMBDA.findall(self.text[len(self._head) :])
        return tuple(_split(found[-1], ",")) if found and found[-1] else ()

    @cached_property
    def _head(self) -> str:
        """What follows the return type and precedes the parameters."""
        ends = len(self.text)
        begins = 0
        for place, character in _outermost(self.text):
            if character == "(":
                ends = place
                break
            if character == " ":
                begins = place + 1
        return self.text[begins:ends]


def parse_mangled(name: str) -> tuple[str, ...]:
    """Return the identifiers of a mangled name in their order, for one that no demangler could read.

    Kineto leaves names mangled that are too long, or use types that its demangler does not know.
    """
    identifiers, place = [], 2
    while found := _MANGLED_PIECE.search(name, place, LONGEST_NAME):
        place = found.end()
        length = int(found[1][:6]) if found[1] else 0
        identifier = name[place : place + length]
        if length and len(identifier) == length and identifier.isidentifier():
            identifiers.append(identifier)
            place += length
    return tuple(each for each in identifiers if not each.startswith("_GLOBAL__N_"))


def _component(piece: str) -> tuple[str, str | None]:
    for place, character in _outermost(piece):
        if character == "<":
            ends = len(piece) - 1 if piece.endswith(">") else len(piece)
            return piece[:place], piece[place + 1 : ends]
    return piece, None


def _split(text: str, separator: str) -> list[str]:
    """Split where no bracket is open."""
    pieces, begin = [], 0
    for place, character in _outermost(text):
        if character == separator[0] and place >= begin and text.startswith(separator, place):
            pieces.append(text[begin:place].strip())
            begin = place + len(separator)
    pieces.append(text[begin:].strip())
    return pieces


def _outermost(text: str) -> Iterator[tuple[int, str]]:
    """Yield the characters outside of all brackets with their places; of a bracket that opens, the opening.

    What never closes is closed by the end of the text, and a closing bracket without its opening is a
    character as any other. The symbols of operators are no brackets.
    """
    open_brackets: list[str] = []
    place = 0
    while place < len(text):
        character = text[place]
        if (
            character == "o"
            and (found := _OPERATOR_SYMBOL.match(text, place))
            and not _is_word(text, place - 1)
        ):
            place = found.end()
            continue
        if character in _OPENING:
            if not open_brackets:
                yield place, character
            open_brackets.append(_OPENING[character])
        elif character in _CLOSING and open_brackets:
            _close(open_brackets, character, is_arrow=text[place - 1] == "-")
        elif not open_brackets:
            yield place, character
        place += 1


def _is_word(text: str, place: int) -> bool:
    return place >= 0 and (text[place].isalnum() or text[place] == "_")


def _close(open_brackets: list[str], character: str, *, is_arrow: bool) -> None:
    if character == ">":
        # Inside of parentheses it compares.
        if open_brackets[-1] == ">" and not is_arrow:
            open_brackets.pop()
    elif character in open_brackets:
        while open_brackets.pop() != character:
            pass
