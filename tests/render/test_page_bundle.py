# SPDX-License-Identifier: Apache-2.0
"""ES modules joined into the script of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.render.page import bundled_script


def write_modules(folder: Path, **modules: str) -> Path:
    """Write modules named by keywords and return the first."""
    paths = [folder / f"{name}.js" for name in modules]
    for path, text in zip(paths, modules.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths[0]


def test_a_module_comes_once_and_after_what_it_imports(tmp_path: Path) -> None:
    entry = write_modules(
        tmp_path,
        main='import { one } from "./one.js";\nimport { two } from "./two.js";\none(two);\n',
        one='import { two } from "./two.js";\nexport function one() {\n  return two;\n}\n',
        two="// Two.\nexport const two = 2;\n",
    )
    lines = [
        *('"use strict";', "{"),
        *("const module0 = (() => {", "const two = 2;", "return { two };", "})();"),
        *("const module1 = (() => {", "const { two } = module0;"),
        *("function one() {", "return two;", "}", "return { one };", "})();"),
        *("const module2 = (() => {", "const { one } = module1;", "const { two } = module0;"),
        *("one(two);", "return {  };", "})();"),
        "}",
    ]
    assert bundled_script(entry).splitlines() == lines


def test_every_kind_of_declaration_and_imports_over_several_lines(tmp_path: Path) -> None:
    entry = write_modules(
        tmp_path,
        main='import {\n  a,\n  b,\n  c,\n  d,\n} from "./all.js";\na(b, c, d);\n',
        all="export async function a() {}\nexport function* b() {}\nexport class c {}\nexport const d = 1;\n",
    )
    script = bundled_script(entry)
    assert "const { a, b, c, d } = module0;\n" in script
    assert "return { a, b, c, d };\n" in script
    assert "import" not in script
    assert "export" not in script


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ('import one from "./other.js";', "only named imports and exported declarations"),
        ('import * as one from "./other.js";', "only named imports and exported declarations"),
        ('import { one as two } from "./other.js";\ntwo();', "exports no as, two"),
        ('import { missing } from "./other.js";', "exports no missing"),
        ("export default 1;", "only named imports and exported declarations"),
        ("export let changing = 1;", "only named imports and exported declarations"),
        ("export { one };", "only named imports and exported declarations"),
        ("const text = `two\n  lines`;", "a template literal goes over several lines"),
        ('const text = "</Script>";', "ends or hides a script element"),
        ('const text = "<!--";', "ends or hides a script element"),
    ],
)
def test_what_cannot_be_joined_is_refused(tmp_path: Path, module: str, message: str) -> None:
    entry = write_modules(tmp_path, main=f"{module}\n", other="export const one = 1;\n")
    with pytest.raises(ValueError, match=message):
        bundled_script(entry)


def test_a_circle_is_refused_with_its_modules(tmp_path: Path) -> None:
    entry = write_modules(
        tmp_path,
        main='import { one } from "./one.js";\none();\n',
        one='import { two } from "./two.js";\nexport const one = two;\n',
        two='import { one } from "./one.js";\nexport const two = one;\n',
    )
    with pytest.raises(ValueError, match=r"one\.js imports two\.js imports one\.js"):
        bundled_script(entry)
