# SPDX-License-Identifier: Apache-2.0
"""NVTX both ways, in programs of their own: ranges of the real package `nvtx` and of C libraries come into
the run, and spans and layers go to a stub that plays another tool."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_codes import source_code

import gpuprof
from gpuprof.record.collector import collector_path

VARIABLE = "NVTX_INJECTION64_PATH"
TOOL_SOURCE = Path(__file__).parents[1] / "support" / "fake_nvtx_tool.c"
RANGES_SOURCE = """
#include <nvtx3/nvToolsExt.h>
int push(const char* text) { return nvtxRangePushA(text); }
int push_wide(void) { return nvtxRangePushW(L"w\\u00e4hrend"); }
int pop(void) { return nvtxRangePop(); }
unsigned long long start(const char* text) { return nvtxRangeStartA(text); }
void end(unsigned long long id) { nvtxRangeEnd(id); }
int push_in(const char* domain, const char* text) {
    nvtxEventAttributes_t attributes = {0};
    nvtxDomainHandle_t handle = nvtxDomainCreateA(domain);
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = nvtxDomainRegisterStringA(handle, text);
    return nvtxDomainRangePushEx(handle, &attributes);
}
int pop_in(const char* domain) { return nvtxDomainRangePop(nvtxDomainCreateA(domain)); }
"""

needs_nvtx = pytest.mark.skipif(importlib.util.find_spec("nvtx") is None, reason="package nvtx is missing")


@pytest.fixture
def run_program(run_python: Any) -> Callable[..., Any]:
    """`run_program(source, NAME=value)` runs a program whose environment names no collector but these."""

    def run_program(source: str, *words: str, **variables: str) -> str:
        package = str(Path(gpuprof.__file__).parents[1])
        environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
        environment |= {"PYTHONPATH": package, "PYTHONWARNINGS": "error", **variables}
        done = run_python(*(words or ("-c", source)), env=environment)
        assert (done.returncode, done.stderr) == (0, "") or (words and done.returncode == 0), done.stderr
        return str(done.stdout)

    return run_program


@pytest.fixture
def recorded_ranges(run_program: Any, recorded: Any, tmp_path: Path) -> Callable[..., Any]:
    """Record `body` in a program that has imported gpuprof and nvtx; returns the run's rows."""

    def recorded_ranges(body: str, *, before: str = "") -> Any:
        block = "".join(f"    {line}\n" for line in body.strip().splitlines())
        run_program(
            f"import gpuprof, nvtx\n{before}\n"
            f"with gpuprof.profile(out='r.gpuprof', layers=False, operators=False):\n{block}"
        )
        result = recorded(gpuprof.open(tmp_path / "r.gpuprof"))
        assert source_code(result.run.meta, "nvtx") == "collected"
        assert result.totals["damaged_events"] == result.totals["dropped_events"] == 0
        return result

    return recorded_ranges


def compiled(source: Path, *words: str) -> str:
    library = source.with_suffix(".so")
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source), *words]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    return str(library)


@pytest.fixture
def ranges_library(tmp_path: Path) -> str:
    """A C library that announces ranges through the header of NVTX, a copy of its own."""
    places = [Path(entry, "nvidia", part, "include") for entry in sys.path for part in ("nvtx", "cu13")]
    places += sorted(Path("/usr/local").glob("cuda*/include"))
    include = next((place for place in places if (place / "nvtx3" / "nvToolsExt.h").is_file()), None)
    if include is None:
        pytest.skip("the header of NVTX is missing: pip install nvidia-nvtx-cu12")
    source = tmp_path / "ranges.c"
    source.write_text(RANGES_SOURCE, encoding="utf-8")
    return compiled(source, f"-I{include}", "-ldl")


@pytest.fixture
def tool(tmp_path: Path) -> dict[str, str]:
    """The environment in which a stub plays another tool."""
    source = tmp_path / "tool.c"
    source.write_text(TOOL_SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    return {VARIABLE: compiled(source), "FAKE_NVTX_LOG": str(tmp_path / "log"), "FAKE_NVTX_MODE": ""}


def lines_of(tool: dict[str, str]) -> list[str]:
    lines = Path(tool["FAKE_NVTX_LOG"]).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("tables ")
    return [line.strip() for line in lines[1:]]


# --- collecting: the package nvtx ----------------------------------------------------------------


@needs_nvtx
class TestPackage:
    def test_annotate_nests_with_spans(self, recorded_ranges: Any) -> None:
        result = recorded_ranges("""
@nvtx.annotate()
def decorated(n):
    with gpuprof.span("inner span"):
        return n and decorated(n - 1)
with gpuprof.span("outer span"):
    with nvtx.annotate("range", color="red", category="io", payload=3):
        decorated(1)
""")
        path = "outer span/range/decorated/inner span/decorated/inner span"
        steps = path.split("/")
        assert result.paths() == ["/".join(steps[: i + 1]) for i in range(6)]
        kinds = {row.name: row.kind for row in result.rows}
        assert kinds == {"outer span": "span", "range": "nvtx", "decorated": "nvtx", "inner span": "span"}
        assert result.totals["unmatched_ends"] == result.totals["unfinished_spans"] == 0

    def test_domains_are_named_and_end_their_own(self, recorded_ranges: Any) -> None:
        result = recorded_ranges("""
nvtx.push_range("a", domain="first")
nvtx.push_range("b")
nvtx.push_range("a", domain="second")
nvtx.pop_range(domain="first")
with gpuprof.span("between"): pass
nvtx.pop_range()
nvtx.pop_range(domain="second")
direct = nvtx.get_domain("first")
direct.push_range(direct.get_event_attributes(message="attributes"))
direct.pop_range()
""")
        assert result.paths() == [
            "first: a",
            "first: a/b",
            "first: a/b/second: a",
            "first: a/b/second: a/between",
            "first: attributes",
        ]
        assert result.totals["unmatched_ends"] == result.totals["unfinished_spans"] == 0

    def test_marks_and_process_ranges(self, recorded_ranges: Any) -> None:
        result = recorded_ranges(
            """
with gpuprof.span("outer"):
    nvtx.mark("mark", domain="d")
    here, there = nvtx.start_range("here"), nvtx.start_range("there", domain="d")
    with gpuprof.span("inner"):
        nvtx.end_range(here)
    left = nvtx.start_range("never ended")
    thread = threading.Thread(target=nvtx.end_range, args=(there,))
    thread.start(); thread.join()
""",
            before="import threading",
        )
        assert sorted(result.paths()) == sorted(
            ["outer", "outer/d: mark", "outer/here", "outer/d: there", "outer/inner", "outer/never ended"]
        )
        rows = {row.name: row for row in result.rows}
        assert rows["d: mark"].duration_ns == 0
        assert rows["here"].duration_ns > 0
        assert len({row.thread_id for row in result.rows}) == 1
        assert result.totals["unfinished_spans"] == 1
        own = dict(result.run.sql("SELECT name, own_ns FROM call_tree").fetchall())
        assert own["here"] == own["d: there"] == 0

    def test_several_threads(self, recorded_ranges: Any) -> None:
        result = recorded_ranges(
            """
def work(number):
    barrier.wait()
    for i in range(500):
        with nvtx.annotate("outer"), nvtx.annotate(f"inner {number}", domain="threads"):
            pass
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
            before="import threading\nbarrier = threading.Barrier(4)",
        )
        expected = {"outer": 2000, **{f"outer/threads: inner {i}": 500 for i in range(4)}}
        assert Counter(result.paths()) == expected
        assert len({row.thread_id for row in result.rows}) == 4

    def test_tasks_that_take_turns(self, recorded_ranges: Any) -> None:
        """No span of ours marks the tasks: only the ranges distinguish them."""
        result = recorded_ranges(
            """
asyncio.run(main())
""",
            before="""
import asyncio, gc
async def request(number, may_end):
    with nvtx.annotate(f"request {number}"):
        with nvtx.annotate(f"query {number}", domain="db"):
            await may_end.wait()
async def main():
    events = [asyncio.Event() for _ in range(3)]
    with nvtx.annotate("main"):
        tasks = [asyncio.create_task(request(i, events[i])) for i in range(3)]
        for i in (1, 0, 2):
            await asyncio.sleep(0)
            events[i].set()
            await tasks[i]
    assert gc.isenabled()
    gc.disable()
    await asyncio.create_task(request(3, events[2]))
    assert not gc.isenabled()
""",
        )
        expected = ["main", "request 3", "request 3/db: query 3"]
        for i in range(3):
            expected += [f"main/request {i}", f"main/request {i}/db: query {i}"]
        assert sorted(result.paths()) == sorted(expected)
        ends = {row.name: row.start_ns + row.duration_ns for row in result.rows}
        assert ends["request 1"] < ends["request 0"] < ends["request 2"] < ends["main"]
        assert result.totals["unmatched_ends"] == result.totals["unfinished_spans"] == 0

    def test_texts_of_all_kinds(self, recorded_ranges: Any, tmp_path: Path) -> None:
        texts = [
            "日本語 😀",
            "a 'quoted' \"name\"\nof\ttwo lines; DROP TABLE spans --",
            "</script>",
            "x" * 1_000_000,
        ]
        (tmp_path / "texts.py").write_text(f"texts = {texts!r}\n", encoding="utf-8")
        result = recorded_ranges(
            """
for text in texts + texts:
    with nvtx.annotate(text):
        pass
with nvtx.annotate("x", domain="domain: of 'its' own"), nvtx.annotate():
    pass
""",
            before="import sys; sys.path.insert(0, '.'); from texts import texts",
        )
        assert Counter(result.names()) == {
            **dict.fromkeys(texts, 2),
            "domain: of 'its' own: x": 1,
            "(unnamed)": 1,
        }

    def test_summary_and_flame_graph_show_ranges(self, recorded_ranges: Any, tmp_path: Path) -> None:
        result = recorded_ranges("""
with nvtx.annotate("step", domain="training"):
    with gpuprof.span("load"):
        pass
""")
        rows = {row.name: row for row in result.run.summary(by="span").rows}
        assert (rows["training: step"].kind, rows["training: step"].calls) == ("nvtx", 1)
        page = result.run.flamegraph(tmp_path / "flame.html").read_text(encoding="utf-8")
        assert "training: step" in page
        assert "No nvtx" not in page

    def test_ranges_around_a_recording(self, recorded_ranges: Any) -> None:
        result = recorded_ranges(
            """
nvtx.pop_range()
nvtx.push_range("continues")
""",
            before="nvtx.push_range('began before')",
        )
        assert result.names() == ["continues"]
        assert (result.totals["unmatched_ends"], result.totals["unfinished_spans"]) == (1, 1)

    def test_forked_children_record_too(self, recorded_ranges: Any) -> None:
        result = recorded_ranges(
            """
with nvtx.annotate("parent"):
    child = os.fork()
    if child == 0:
        with nvtx.annotate("child", domain="d"):
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
""",
            before="import os",
        )
        processes = {row.name: row.process_id for row in result.rows}
        assert set(processes) == {"parent", "d: child"}
        assert processes["parent"] != processes["d: child"]


# --- collecting: where the variable is set -------------------------------------------------------


@needs_nvtx
class TestTheVariable:
    def test_a_program_that_knows_nothing_of_gpuprof(
        self, run_program: Any, recorded: Any, tmp_path: Path
    ) -> None:
        script = tmp_path / "script.py"
        script.write_text("import nvtx\nwith nvtx.annotate('mine'):\n    pass\n", encoding="utf-8")
        run_program("", "-m", "gpuprof", "run", "--no-operators", "--out", "r.gpuprof", "script.py")
        result = recorded(gpuprof.open(tmp_path / "r.gpuprof"))
        assert [(row.kind, row.name) for row in result.rows] == [("nvtx", "mine")]

    def test_a_package_that_was_used_first_cannot_be_collected(self, run_program: Any) -> None:
        out = run_program("""
import nvtx
nvtx.push_range("too early")
import gpuprof
with gpuprof.profile() as recording:
    with nvtx.annotate("unseen"):
        pass
print(recording.run.sources["nvtx"].reason.value)
print(recording.run.sql("SELECT count(*) FROM spans").fetchall())
""")
        assert out.splitlines() == [
            "nvtx_imported_first",
            "[(0,)]",
        ]

    def test_a_package_that_was_only_imported_first_is_collected(self, run_program: Any) -> None:
        out = run_program("""
import nvtx, gpuprof
with gpuprof.profile() as recording:
    with nvtx.annotate("seen"):
        pass
print(recording.run.sources["nvtx"].method.value)
print(recording.run.sql("SELECT name FROM spans").fetchall())
""")
        assert out.splitlines() == ["collected", "[('seen',)]"]

    def test_child_processes_inherit_a_collector_that_does_nothing(self, run_program: Any) -> None:
        out = run_program(f"""
import gpuprof, os, subprocess, sys
child = '''
import nvtx, os
with nvtx.annotate("in the child"):
    print(os.environ["{VARIABLE}"])
'''
with gpuprof.profile() as recording:
    print(subprocess.run([sys.executable, "-c", child], check=True, capture_output=True, text=True).stdout)
print(recording.run.sql("SELECT count(*) FROM spans").fetchall())
""")
        assert out.split() == [str(collector_path()), "[(0,)]"]

    @pytest.mark.parametrize(
        ("value", "source"),
        [
            ("", "nvtx_variable_empty"),
            ("/else/where/libgpuprof_core.so", "nvtx_other_gpuprof"),
        ],
    )
    def test_values_that_name_no_tool(self, run_program: Any, value: str, source: str) -> None:
        program = f"""
import gpuprof, os
with gpuprof.profile() as recording, gpuprof.span("x"):
    pass
print(repr(os.environ["{VARIABLE}"]), recording.run.sources["nvtx"].reason.value, recording.run.notes)
"""
        assert run_program(program, **{VARIABLE: value}) == f"{value!r} {source} []\n"


# --- collecting: libraries in C ------------------------------------------------------------------


def test_a_library_with_a_header_of_its_own(
    run_program: Any, recorded: Any, ranges_library: str, tmp_path: Path
) -> None:
    """Two copies of the header, with and without the interpreter lock, on threads of Python and in tasks."""
    other = tmp_path / "other.so"
    other.write_bytes(Path(ranges_library).read_bytes())
    out = run_program(f"""
import asyncio, ctypes, gpuprof, threading
from gpuprof import _native
free, locked = ctypes.CDLL({ranges_library!r}), ctypes.PyDLL({str(other)!r})
for library in (free, locked):
    library.start.restype = ctypes.c_uint64
    library.end.argtypes = [ctypes.c_uint64]
def levels():
    print(free.push(b"outer"), locked.push(b"inner"), end=" ")
    print(free.push_in(b"d", b"text"), locked.push_in(b"d", b"text"))
    print(free.pop_in(b"d"), locked.pop(), free.pop(), free.pop(), locked.pop_in(b"d"))
async def task(number, library):
    with gpuprof.span(f"task {{number}}"):
        library.push(b"waits")
        await asyncio.sleep(0)
        library.push(b"again")
        await asyncio.sleep(0)
        library.pop()
        library.pop()
async def main():
    await asyncio.gather(*(task(i, locked) for i in range(4)))
    await task(4, free)
with gpuprof.profile(out="r.gpuprof", layers=False, operators=False):
    levels()
    free.push_wide(); locked.pop()
    thread = threading.Thread(target=locked.end, args=(free.start(b"handed over"),))
    thread.start(); thread.join()
    asyncio.run(main())
print(_native.nvtx_attachments())
""")
    assert out.splitlines() == ["0 1 0 1", "1 1 0 -1 0", "2"]
    result = recorded(gpuprof.open(tmp_path / "r.gpuprof"))
    expected = ["outer", "outer/inner", "outer/inner/d: text", "outer/inner/d: text/d: text"]
    expected += ["während", "handed over"]
    for i in range(5):
        expected += [f"task {i}", f"task {i}/waits", f"task {i}/waits/again"]
    assert sorted(result.paths()) == sorted(expected)
    assert result.totals["unmatched_ends"] == 1
    assert result.totals["unfinished_spans"] == result.totals["damaged_events"] == 0


def test_ranges_of_torch(run_program: Any, recorded: Any, tmp_path: Path) -> None:
    """A build with CUDA carries its own copy of the header; it needs no GPU for this."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None:
        pytest.skip("this build of torch has no NVTX, as it has no CUDA")
    run_program("""
import gpuprof, torch
from torch.cuda import nvtx
with gpuprof.profile(out="r.gpuprof", layers=False, operators=False):
    with nvtx.range("outer"):
        nvtx.range_push("inner")
        nvtx.range_pop()
    nvtx.range_end(nvtx.range_start("by number"))
    nvtx.mark("mark")
""")
    result = recorded(gpuprof.open(tmp_path / "r.gpuprof"))
    assert sorted(result.paths()) == ["by number", "mark", "outer", "outer/inner"]
    assert result.totals["damaged_events"] == result.totals["unmatched_ends"] == 0


# --- announcing to another tool ------------------------------------------------------------------


class TestAnotherTool:
    def test_spans_are_announced_recording_or_not(self, run_program: Any, tool: dict[str, str]) -> None:
        out = run_program(
            """
import gpuprof
span = gpuprof.span("first")
with span, span:
    pass
@gpuprof.span("decorated")
def fail():
    raise KeyError
with gpuprof.profile() as recording:
    try:
        fail()
    except KeyError:
        pass
with gpuprof.span("w\\u00e4hrend \\ud800"):
    pass
run = recording.run
status = run.sources["nvtx"]
print(status.reason.value, status.values["tool"], run.notes)
print(run.sql("SELECT kind, name FROM spans").fetchall())
""",
            **tool,
        )
        assert out.splitlines() == [
            f"nvtx_tool_collects {tool[VARIABLE]} []",
            "[('span', 'decorated')]",
        ]
        names = ["first", "first", "decorated", "während \\ud800"]
        pushes = [f"push gpuprof {name}" for name in names]
        pop = "pop gpuprof"
        assert lines_of(tool) == [pushes[0], pushes[1], pop, pop, pushes[2], pop, pushes[3], pop]

    def test_layers_are_announced_while_they_are_recorded(
        self, run_program: Any, tool: dict[str, str]
    ) -> None:
        pytest.importorskip("torch")
        run_program(
            """
import gpuprof, torch
class Fails(torch.nn.Module):
    def forward(self, x):
        raise KeyError
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
x = torch.zeros(1, 2)
model(x)
with gpuprof.profile(model, Fails()):
    model(x)
    try:
        Fails()(x)
    except KeyError:
        pass
with gpuprof.profile(layers=False):
    model(x)
model(x)
""",
            **tool,
        )
        lines = lines_of(tool)
        assert lines[:6] == [
            "push gpuprof Sequential",
            "push gpuprof 0",
            "pop gpuprof",
            "push gpuprof 1",
            "pop gpuprof",
            "pop gpuprof",
        ]
        assert lines[6:] in ([], ["push gpuprof Fails", "pop gpuprof"])

    @pytest.mark.parametrize(("mode", "code"), [("refuse", "tool_refused"), ("deaf", "tool_without_ranges")])
    def test_a_tool_that_fails_is_ignored(
        self, run_program: Any, tool: dict[str, str], mode: str, code: str
    ) -> None:
        out = run_program(IGNORED, **{**tool, "FAKE_NVTX_MODE": mode})
        source, notes = out.splitlines()
        assert source == f"nvtx_tool_not_attached {tool[VARIABLE]}"
        assert notes == str([("nvtx_tool_ignored", {"code": code})])

    def test_a_tool_that_is_not_there_is_ignored(self, run_program: Any) -> None:
        out = run_program(IGNORED, **{VARIABLE: "/nowhere/libtool.so"})
        source, notes = out.splitlines()
        assert source == "nvtx_tool_not_attached /nowhere/libtool.so"
        assert "'tool_not_loaded'" in notes
        assert "/nowhere/libtool.so" in notes

    @needs_nvtx
    def test_ranges_of_others_are_the_tools(self, run_program: Any, tool: dict[str, str]) -> None:
        out = run_program(
            """
import gpuprof, nvtx
with gpuprof.profile() as recording:
    with nvtx.annotate("theirs"):
        pass
print(recording.run.sql("SELECT count(*) FROM spans").fetchall())
""",
            **tool,
        )
        assert out == "[(0,)]\n"


IGNORED = """
import gpuprof
with gpuprof.profile() as recording:
    with gpuprof.span("x"):
        pass
run = recording.run
assert run.sql("SELECT name FROM spans").fetchall() == [("x",)]
status = run.sources["nvtx"]
print(status.reason.value, status.values["tool"])
print([(note.code.value, note.values["error"]) for note in run.notes])
"""
