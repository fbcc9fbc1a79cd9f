# SPDX-License-Identifier: Apache-2.0
"""Short texts for kernels' names: the function and what distinguishes it.

The name of a kernel of PyTorch is a page of template arguments, and its first 80 characters are those of a
hundred other kernels. `kernel_label` shows the function and the functor it applies, as in
`vectorized_elementwise_kernel<GeluFunctor>`. `kernel_labels` is for a listing: names that would read the same
get more detail until no two do. Full names stay in the tables of a run.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from gpuprof.analyze.cpp_names import CppName, parse_mangled, plain_spelling

LONGEST_LABEL = 72
_ELLIPSIS = "..."
_LONGEST_DETAIL = 24
_DEEPEST_ARGUMENT = 8
_MOST_DETAILS = 3

# Function names without a meaning by themselves: what encloses them is shown, too.
_GENERIC = frozenset(("kernel", "Kernel", "Kernel2", "kentry", "run", "operator()", "device_kernel"))
# Template arguments that only pass on what they are made of.
_WRAPPERS = frozenset(
    (
        "gpu_kernel_impl",
        "gpu_kernel_impl_nocast",
        "ReduceOp",
        "func_wrapper_t",
        "BinaryFunctor",
        "enable_if_t",
    )
)
_NESTED = frozenset(("AUnaryFunctor", "BUnaryFunctor", "UnaryFunctor"))
# Template arguments for how data is reached or split, the same for every operation.
_PLUMBING = re.compile(
    r"(?:array|Array|tuple|pair|vector|integral_constant|\w*OffsetCalculator|IntDivider|Load\w*|Store\w*|"
    r"\w*Metadata|OpaqueType|decltype|\w*[Pp]olicy\w*|\w*Traits|\w*Accessor\w*|TensorInfo|"
    r"\w*[Ii]terator\w*|cublasGemv\w+|null_type|NullType|T\d+)\Z"
)
# fmt: off
_SCALAR_WORDS = frozenset(
    (
        "bool", "char", "short", "int", "long", "float", "double", "half", "signed", "unsigned", "const",
        "volatile", "size_t", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t",
        "uint64_t", "float2", "float4", "double2", "Half", "BFloat16", "bfloat16_t", "half_t", "tfloat32_t",
        "complex", "__half", "__half2", "__nv_bfloat16", "__nv_bfloat162", "__hip_bfloat16",
        "Float8_e4m3fn", "Float8_e5m2", "__nv_fp8_e4m3", "float_e4m3_t",
    )
)
# fmt: on
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?|true|false")
_POINTERS = re.compile(r"[*&\s]+\Z|\b(?:const|volatile)\b")
# Parts that names of cuBLAS and cuDNN have for every kernel of a family.
_LIBRARY_DETAILS = re.compile(
    r"_(?:stage\d+|warp(?:group)?size\dx\dx\d|align[abc]\d+|g\d+|execute_kernel\w*|kernel__5x_cublas\w*|cudnn\w*)"
)
_BRACKETS = re.compile(r"[<(]")
_WORD = re.compile(r"[A-Za-z0-9]+")


@lru_cache(maxsize=16_384)
def kernel_label(name: str) -> str:
    """Return the function of a kernel's full name and what distinguishes it, in 72 characters at most."""
    return _cut(_with_functor(name))


def label_of(name: str, kind: str, kernels: Mapping[str, str] | None = None) -> str | None:
    """Return what is shown of a call in place of its name, None for the name; `kernels` are their labels."""
    if kind == "gc":
        return collection_label(name)
    return (kernels or {}).get(name) if kind == "kernel" else None


def collection_label(name: str) -> str:
    """Return what a view shows of a collection of Python's garbage collector, named `generation 2`."""
    return f"garbage collection, {name}"


def kernel_labels(names: Iterable[str]) -> dict[str, str]:
    """Return a label for each of the full names of a listing; no two of them have the same."""
    distinct = dict.fromkeys(names)
    labels: dict[str, str] = {}
    _label_apart(sorted(distinct), 0, labels)
    marked = _with_marks(labels)
    return {name: marked[name] for name in distinct}


def _label_apart(names: Sequence[str], level: int, labels: dict[str, str]) -> None:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[_cut(_LEVELS[level](name))].append(name)
    for label, alike in groups.items():
        if len(alike) == 1:
            labels[alike[0]] = label
        elif level + 1 < len(_LEVELS):
            _label_apart(alike, level + 1, labels)
        else:
            labels |= _with_differences(alike)


def _with_functor(name: str) -> str:
    """`function<functor>`, or with the types that it is made for where it applies no functor."""
    if name.startswith("_Z"):
        return _of_mangled(name)
    if not _BRACKETS.search(name):
        return _LIBRARY_DETAILS.sub("", name) if "_xmma_" in name else name
    function = _parsed(name)
    return _listed(function, _details(function))


def _details(function: CppName) -> list[str]:
    """Return the functor, else the types, else the numbers where they are few."""
    if found := _functor(function.arguments):
        return [found]
    few = function.arguments if len(function.arguments) <= _MOST_DETAILS else ()
    return _types(function)[:_MOST_DETAILS] or [each.text for each in few if not _is_plumbing(each)]


def _with_types(name: str) -> str:
    function = _parsed(name)
    found = _functor(function.arguments)
    return _listed(function, [*filter(None, (found,)), *_types(function)])


def _with_arguments(name: str) -> str:
    function = _parsed(name)
    return _listed(function, [_argument(each) for each in function.arguments if not _is_plumbing(each)])


def _with_scope(name: str) -> str:
    function = _parsed(name)
    return _listed(function, _details(function), function.qualified)


_LEVELS: tuple[Callable[[str], str], ...] = (_with_functor, _with_types, _with_arguments, _with_scope)


@lru_cache(maxsize=16_384)
def _parsed(name: str) -> CppName:
    return CppName(plain_spelling(name))


def _of_mangled(name: str) -> str:
    identifiers = parse_mangled(name)
    kernels = [number for number, each in enumerate(identifiers) if "kernel" in each or each in _GENERIC]
    if not kernels:
        return "::".join(identifiers[-1:]) or name
    function, details = identifiers[kernels[0]], identifiers[kernels[0] + 1 :]
    shown = [each for each in details if not _PLUMBING.match(each) and each not in _SCALAR_WORDS]
    if function in _GENERIC and kernels[0]:
        function = f"{identifiers[kernels[0] - 1]}::{function}"
    return f"{function}<{shown[0]}>" if shown else function


def _function(function: CppName) -> str:
    names = [name for name, _ in function.components if name]
    if len(names) > 1 and names[-1] in _GENERIC:
        return "::".join(names[-2:])
    return names[-1] if names else function.text


def _listed(function: CppName, details: Iterable[str], shown: str | None = None) -> str:
    text = ", ".join(details)
    shown = shown or _function(function)
    return f"{shown}<{text}>" if text else shown


def _functor(arguments: Iterable[CppName], depth: int = 0) -> str | None:
    """Return the first argument that names the calculation, None where all are types and plumbing."""
    if depth > _DEEPEST_ARGUMENT:
        return None
    for argument in arguments:
        if _is_scalar(argument) or _NUMBER.fullmatch(argument.text):
            continue
        name = _meaning(argument)
        if _is_plumbing(argument):
            continue
        inner = _functor(argument.arguments, depth + 1) if name in _WRAPPERS | _NESTED else None
        if name in _NESTED and inner:
            return f"{name}<{inner}>"
        return inner or name
    return None


def _meaning(argument: CppName) -> str:
    """Return the name of a type; of a functor's call operator that of the functor."""
    names = [name for name, _ in argument.components if name != "operator()"]
    return names[-1] if names else argument.text


def _argument(argument: CppName) -> str:
    if _is_scalar(argument):
        return _scalar(argument.text)
    name = _meaning(argument)
    parameters = "" if name in _WRAPPERS else ", ".join(map(_scalar, argument.lambda_parameters))
    inner = _functor([argument]) or name
    return f"{inner}({parameters})" if parameters else inner


def _types(function: CppName) -> list[str]:
    """Return the scalar types that a kernel is made for, each once, in their order."""
    found: dict[str, None] = {}
    _gather_types(function.arguments, found, 0)
    return list(found)


def _gather_types(arguments: Collection[CppName], found: dict[str, None], depth: int) -> None:
    if depth > _DEEPEST_ARGUMENT:
        return
    for argument in arguments:
        if _is_scalar(argument):
            found.setdefault(_scalar(argument.text))
            continue
        if _is_plumbing(argument):
            continue
        _gather_types(argument.arguments, found, depth + 1)
        # The lambda in a wrapper takes an index.
        for parameter in () if _meaning(argument) in _WRAPPERS else argument.lambda_parameters:
            if _is_scalar(CppName(parameter)):
                found.setdefault(_scalar(parameter))


def _is_plumbing(argument: CppName) -> bool:
    return not _is_scalar(argument) and bool(_PLUMBING.match(_meaning(argument)))


def _is_scalar(argument: CppName) -> bool:
    words = _scalar(argument.text).split()
    return bool(words) and all(word in _SCALAR_WORDS for word in words)


def _scalar(text: str) -> str:
    """Return a type without its namespaces, pointers and qualifiers."""
    plain = _POINTERS.sub("", text).strip()
    return plain.rpartition("::")[2] if "<" not in plain else CppName(plain).name


def _with_differences(names: Sequence[str]) -> dict[str, str]:
    """Label names that every level shows alike by the first piece in which they differ."""
    words = [_WORD.findall(plain_spelling(name)) for name in names]
    labels = {}
    for name, different in zip(names, _different_words(words), strict=True):
        piece = " ".join(dict.fromkeys(different))[:_LONGEST_DETAIL].rstrip()
        base = _with_functor(name)
        labels[name] = f"{_cut(base, LONGEST_LABEL - len(piece) - 3)} [{piece}]" if piece else _cut(base)
    return labels


def _different_words(words: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return of each name the words that the others have not in the same place."""
    if len(set(map(len, words))) > 1:
        start = _common_start(words)
        end = _common_start([each[start:][::-1] for each in words])
        return [list(each[start : len(each) - end]) for each in words]
    places = [place for place, column in enumerate(zip(*words, strict=True)) if len(set(column)) > 1]
    return [[each[place] for place in places] for each in words]


def _common_start(words: Sequence[Sequence[str]]) -> int:
    return next(
        (place for place, column in enumerate(zip(*words, strict=False)) if len(set(column)) > 1),
        min(map(len, words)),
    )


def _with_marks(labels: dict[str, str]) -> dict[str, str]:
    """Give labels that are still the same a mark made of the full name."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name, label in labels.items():
        alike[label].append(name)
    marked = dict(labels)
    taken = {label for label, names in alike.items() if len(names) == 1}
    for label, names in alike.items():
        for name in names if len(names) > 1 else ():
            marked[name] = next(each for each in _marked(label, name) if each not in taken)
            taken.add(marked[name])
    return marked


def _marked(label: str, name: str) -> Iterable[str]:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    for length in range(4, len(digest)):
        mark = f" #{digest[:length]}"
        yield _cut(label, max(LONGEST_LABEL - len(mark), len(_ELLIPSIS) + 1)) + mark


def _cut(text: str, width: int = LONGEST_LABEL) -> str:
    """Cut the middle out of what is too long: the end of a generated name often is its number."""
    if len(text) <= width:
        return text
    tail = max((width - len(_ELLIPSIS)) // 4, 0)
    head = width - len(_ELLIPSIS) - tail
    return text[:head] + _ELLIPSIS + (text[-tail:] if tail else "")
