# SPDX-License-Identifier: Apache-2.0
"""Profilers of the program during a recording: each sees what it sees without one."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
from run_codes import note_codes, source_code

import gpuprof

# isort: split
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.autograd import profiler_legacy
from torch_models import announced, layer_calls, record, shown_counts, small_step, torch_profile

pytestmark = [
    # Python 3.12 warns of any fork in a process with threads.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    # torch.profiler warns in the middle of its own start, and crashes if that raises.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]


def seen_alike(profiled: Callable[[], Any]) -> Any:
    """Check that it sees the same in a recording, which continues after it; returns what it sees."""
    expected = profiled()
    seen = []

    def program() -> None:
        seen.append(profiled())
        torch.zeros(1).exp()

    run = record(program)
    assert seen == [expected]
    assert announced(run)["aten::exp"] == 1
    return expected


class TestProfilersOfTheProgram:
    """What the program's own profilers see is what they see without us."""

    @pytest.mark.parametrize(
        "options",
        [{}, {"record_shapes": True}, {"profile_memory": True}, {"with_stack": True}, {"with_modules": True}],
        ids=str,
    )
    def test_torch_profiler(self, options: dict[str, bool]) -> None:
        step = small_step()

        def shown() -> dict[str, int]:
            # Python frames differ by the test's own callers.
            counts = shown_counts(torch_profile(step, **options))
            return {name: count for name, count in counts.items() if "(" not in name and "<" not in name}

        expected = shown()
        if torch.version.cuda is None:  # builds with CUDA show no modules where there is no driver
            assert ("nn.Module: Mlp_0" in expected) == ("with_stack" in options)
        seen = []

        def program() -> None:
            step()
            torch.zeros(1).cos()
            seen.append(shown())
            torch.zeros(1).exp()

        run = record(program)
        assert seen == [expected]
        assert announced(run)["aten::cos"] == 1
        assert announced(run)["aten::exp"] == 1
        assert note_codes(run.meta) == ["operators_stepped_back"]

    def test_again_and_again(self) -> None:
        step = small_step()
        expected = shown_counts(torch_profile(step))
        seen = []

        def program() -> None:
            for _ in range(3):
                torch.zeros(1).cos()
                seen.append(shown_counts(torch_profile(step)))
            torch.zeros(1).exp()

        run = record(program)
        assert seen == [expected] * 3
        assert announced(run)["aten::cos"] == 3
        assert announced(run)["aten::exp"] == 1

    @pytest.mark.parametrize("kind", [torch.autograd.profiler.profile, profiler_legacy.profile])
    def test_autograd_profiler(self, kind: Any) -> None:
        step = small_step()

        def profiled() -> dict[str, int]:
            with kind() as profiler:
                step()
            return {event.key: event.count for event in profiler.key_averages()}

        seen_alike(profiled)

    def test_schedule(self) -> None:
        step = small_step()

        def scheduled() -> list[dict[str, int]]:
            cycles: list[dict[str, int]] = []
            plan = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU],
                schedule=plan,
                on_trace_ready=lambda p: cycles.append(shown_counts(p)),
            ) as profiler:
                for _ in range(9):
                    step()
                    profiler.step()
            return cycles

        assert len(seen_alike(scheduled)) == 2

    def test_one_that_fails(self) -> None:
        def program() -> None:
            with pytest.raises(ZeroDivisionError), torch.profiler.profile():
                int(torch.zeros(1).cos()) // 0
            torch.zeros(1).exp()

        assert announced(record(program))["aten::exp"] == 1

    @pytest.mark.parametrize("kind", [torch.autograd.profiler.profile, torch.profiler.profile])
    def test_one_in_another(self, kind: Any) -> None:
        step = small_step()

        def nested() -> list[Any]:
            """What PyTorch makes of it is not ours to judge: it has to be the same."""
            outcome: list[Any] = []
            outer, inner = kind(), kind()
            try:
                with outer:
                    step()
                    with inner:
                        step()
                    outcome.append(sorted((e.key, e.count) for e in inner.key_averages()))
                    step()
                outcome.append(sorted((e.key, e.count) for e in outer.key_averages()))
            except (RuntimeError, AssertionError) as error:
                outcome.append(str(error).splitlines()[:1])
            return outcome

        seen_alike(nested)

    def test_one_that_cannot_begin_or_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """PyTorch 2.4 raises where profilers that were nested end."""
        end = torch.autograd.profiler._disable_profiler

        fails: list[bool] = []

        def ends_and_raises() -> Any:
            result = end()
            if fails:
                fails.clear()
                raise RuntimeError("of PyTorch")
            return result

        monkeypatch.setattr(torch.autograd.profiler, "_disable_profiler", ends_and_raises)

        def profiled() -> None:
            with torch.autograd.profiler.profile():
                # Wrong use in the middle of a profile ends nothing.
                with pytest.raises(TypeError):
                    torch.autograd.profiler._enable_profiler("no configuration")
                torch.zeros(1).sin()
                fails[:] = [True]

        def program() -> None:
            with pytest.raises(TypeError):
                torch.autograd.profiler._enable_profiler("no configuration")
            torch.zeros(1).cos()
            with pytest.raises(RuntimeError, match="of PyTorch"):
                profiled()
            torch.zeros(1).exp()

        run = record(program)
        counts = announced(run)
        assert (counts["aten::cos"], counts["aten::sin"], counts["aten::exp"]) == (1, 0, 1)

    def test_emit_itt_of_the_program(self) -> None:
        def program() -> None:
            with torch.autograd.profiler.emit_itt():
                torch.zeros(1).cos()
            torch.zeros(1).exp()

        counts = announced(record(program))
        assert counts["aten::cos"] == 1
        assert counts["aten::exp"] == 1

    def test_emit_nvtx_of_the_program(self) -> None:
        def emit() -> type[BaseException] | None:
            try:
                with torch.autograd.profiler.emit_nvtx():
                    torch.zeros(1).cos()
            except BaseException as error:
                return type(error)
            return None

        seen_alike(emit)

    def test_in_a_thread_of_the_program(self) -> None:
        step = small_step()
        expected = shown_counts(torch_profile(step))
        seen: list[Any] = []

        def in_thread() -> None:
            torch.zeros(1).cos()
            try:
                seen.append(shown_counts(torch_profile(step)))
            except RuntimeError as error:
                seen.append(error)
            torch.zeros(1).exp()

        def program() -> None:
            thread = threading.Thread(target=in_thread)
            thread.start()
            thread.join()

        counts = announced(record(program))
        assert seen == [expected]
        assert counts["aten::cos"] == 1
        assert counts["aten::exp"] == 1

    def test_in_a_thread_that_outlives_the_recording(self) -> None:
        step = small_step()
        expected = shown_counts(torch_profile(step))
        with ThreadPoolExecutor(1) as pool:
            record(lambda: pool.submit(step).result())
            assert pool.submit(lambda: shown_counts(torch_profile(step))).result() == expected

    def test_torch_itself_is_as_it_was_afterwards(self) -> None:
        from torch.autograd import profiler

        profiler._is_profiler_enabled = False  # whatever an earlier test left
        before = dict(vars(profiler))
        record(lambda: torch_profile(small_step()))
        assert {name: value for name, value in vars(profiler).items() if before.get(name) is not value} == {}
        assert torch._C._autograd._profiler_type().name == "NONE"

    def test_after_a_recording(self) -> None:
        step = small_step()
        expected = shown_counts(torch_profile(step))
        record(step)
        assert shown_counts(torch_profile(step)) == expected

    def test_active_before_the_recording(self) -> None:
        step = small_step()
        expected = shown_counts(torch_profile(step))
        runs = []
        seen = torch_profile(lambda: runs.append(record(step)))
        (run,) = runs
        assert source_code(run.meta, "operators") == "off: failed"
        assert "profiler" in run.sources["operators"].values["error"].lower()
        assert announced(run) == {}
        assert layer_calls(run)["Mlp"] == 1
        assert shown_counts(seen) == expected
        assert announced(record(step))["aten::addmm"] == 2

    def test_announcements_of_the_program_before_the_recording(self) -> None:
        """They come to us as well, and the run does not claim otherwise."""
        with torch.autograd.profiler.emit_itt():
            run = record(lambda: torch.zeros(1).cos())
            again = record(lambda: torch.zeros(1).cos())
        recorded = announced(run)["aten::cos"] == announced(again)["aten::cos"] == 1
        assert recorded == run.sources["operators"].is_on

    def test_recording_that_ends_on_another_thread(self) -> None:
        step = small_step()
        expected = shown_counts(torch_profile(step))
        recording = gpuprof.profile().__enter__()
        step()
        thread = threading.Thread(target=recording.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        try:
            assert shown_counts(torch_profile(step)) == expected
            assert announced(record(step)) == expected
        finally:
            while torch._C._autograd._profiler_type().name != "NONE":
                torch._C._autograd._disable_profiler()

    def test_profiler_that_outlives_the_recording(self) -> None:
        step = small_step()
        expected = shown_counts(torch_profile(step))
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        with gpuprof.profile() as recording:
            profiler.start()
        step()
        profiler.stop()
        assert shown_counts(profiler) == expected
        assert recording.run.meta["complete"] is True
        assert announced(record(step))["aten::addmm"] == 2

        def program() -> None:
            torch_profile(step)
            torch.zeros(1).exp()

        assert announced(record(program))["aten::exp"] == 1

    def test_many_recordings(self) -> None:
        step = small_step()
        counts = [announced(record(step)) for _ in range(5)]
        assert counts == [counts[0]] * 5
