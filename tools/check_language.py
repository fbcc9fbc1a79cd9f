# SPDX-License-Identifier: Apache-2.0
"""Find words that the project replaces by plainer ones, in everything that a person reads.

Usage: python tools/check_language.py [FILE...]. Without arguments it checks the files listed in `words.toml`.
It prints one line for each finding, `file:line: word: use X`, and exits with 1 if there is one. It reads the
comments, strings and names of functions and classes of a Python file, the comments and strings of C++,
JavaScript and CSS, and all of other files. Underscores count as spaces.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORDS = Path(__file__).with_name("words.toml")
# Replaces code, so that two texts with code between them are not read as one.
CODE = "\0"
# A comment or a string of C++, JavaScript or CSS. A quote after a digit separates thousands in C++.
C_TEXT = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|(?<!\d)'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`""",
    re.DOTALL,
)
# What is not read in a text: its delimiters, backslash sequences and placeholders.
C_SYNTAX = re.compile(r'//|/\*|\*/|(?<=\n)\s*\*|["\'`]|\\.|\$\{[^{}]*\}')
QUOTE = r'(?:"""|\'\'\'|["\'])'
PYTHON_SYNTAX = re.compile(rf"^#|^[A-Za-z]{{0,2}}{QUOTE}|{QUOTE}$|\\.|\{{[^{{}}]*\}}", re.DOTALL)
# An f-string is one token before Python 3.12, and several since.
PYTHON_TEXTS = {tokenize.COMMENT, tokenize.STRING} | {
    getattr(tokenize, name, tokenize.STRING) for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
}


@dataclass
class Allowed:
    """Where a word is correct: in the files that match a pattern, in the lines that match an expression."""

    file: str = "*"
    line: str = ""
    used: bool = False

    def covers(self, file: str, line: str) -> bool:
        """Return whether a finding in this line is allowed."""
        covered = fnmatchcase(file, self.file) and re.search(self.line, line, re.IGNORECASE) is not None
        self.used = self.used or covered
        return covered


@dataclass
class Word:
    """A word or phrase as a regular expression, and what to write instead."""

    pattern: str
    expression: re.Pattern[str]
    use: str
    only: str
    allowed: list[Allowed]


@dataclass(frozen=True)
class Finding:
    """One use of a word that has a plainer replacement."""

    file: str
    line: int
    word: str
    use: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.word}: use {self.use}"


@dataclass
class Rules:
    """The files to check and the words to find there."""

    include: list[str]
    exclude: list[str]
    words: list[Word] = field(default_factory=list)

    def applies_to(self, file: str) -> bool:
        """Return whether a file is one of those to check."""
        return _matches(file, self.include) and not _matches(file, self.exclude)

    def unused(self) -> Iterator[str]:
        """Yield the exceptions that no text needed."""
        for word in self.words:
            for allowed in word.allowed:
                if not allowed.used:
                    where = f"{allowed.file} {allowed.line}"
                    yield f"words.toml: an exception of {word.pattern} is not used: {where}"


def _matches(file: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(file, pattern) for pattern in patterns)


def read_rules(path: Path) -> Rules:
    """Return the rules of a `words.toml`."""
    document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return Rules(**document["files"], words=[_word(entry) for entry in document["word"]])


def _word(entry: dict[str, Any]) -> Word:
    pattern = rf"\b(?:{entry['pattern']})\b".replace(" ", r"\s+")
    allowed = [Allowed(**each) for each in entry.get("allow", [])]
    expression = re.compile(pattern, re.IGNORECASE)
    return Word(entry["pattern"], expression, entry["use"], entry.get("only", "*"), allowed)


def find(rules: Rules, file: str, content: str) -> Iterator[Finding]:
    """Yield the findings in a file, by word."""
    text = readable_text(file, content)
    lines = content.split("\n")
    for word in rules.words:
        if not fnmatchcase(file, word.only):
            continue
        for match in word.expression.finditer(text):
            number = text.count("\n", 0, match.start())
            if not any(allowed.covers(file, lines[number]) for allowed in word.allowed):
                yield Finding(file, number + 1, " ".join(match[0].split()), word.use)


def readable_text(file: str, content: str) -> str:
    """Return what a person reads in a file, at its place; everything else is blank."""
    reader = READERS.get(Path(file).suffix)
    return (reader(content) if reader else content).replace("_", " ")


def _blank(text: str, character: str) -> str:
    return re.sub(r"\S", character, text)


def _blank_syntax(match: re.Match[str]) -> str:
    return _blank(match[0], CODE if "{" in match[0] else " ")


def _only(content: str, spans: Iterable[tuple[int, int]], syntax: re.Pattern[str]) -> str:
    """Return `content` with code replaced outside `spans`, and the syntax inside them blank."""
    parts, position = [], 0
    for start, end in spans:
        parts.append(_blank(content[position:start], CODE))
        parts.append(syntax.sub(_blank_syntax, content[start:end]))
        position = end
    return "".join([*parts, _blank(content[position:], CODE)])


def _c_text(content: str) -> str:
    return _only(content, (match.span() for match in C_TEXT.finditer(content)), C_SYNTAX)


def _python_text(content: str) -> str:
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans, definition = [], False
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type in PYTHON_TEXTS or definition:
            spans.append(
                (starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1])
            )
        definition = token.type == tokenize.NAME and token.string in ("def", "class")
    return _only(content, spans, PYTHON_SYNTAX)


READERS: dict[str, Callable[[str], str]] = {
    **dict.fromkeys([".py", ".pyi"], _python_text),
    **dict.fromkeys([".c", ".cpp", ".css", ".cu", ".h", ".hpp", ".js"], _c_text),
}


def _project_files(folder: Path) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.splitlines() if (folder / name).is_file()]


def main(arguments: list[str], folder: Path, words: Path = WORDS) -> int:
    """Print the findings in the named files, or in all of the project's; return the exit code."""
    rules = read_rules(words)
    files = arguments or [name for name in _project_files(folder) if rules.applies_to(name)]
    found = [
        str(each) for name in files for each in find(rules, name, (folder / name).read_text(encoding="utf-8"))
    ]
    if not arguments:
        found += rules.unused()
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parents[1]))
