# SPDX-License-Identifier: Apache-2.0
"""What a recording that could not begin leaves in its folder, whatever is there already."""

from __future__ import annotations

from pathlib import Path

from gpuprof.record.recording_folder import RECORDING_FILE, SEGMENTS, is_marked_refused, mark_refused


def test_a_refused_recording_leaves_nothing_that_looks_like_one(tmp_path: Path) -> None:
    (tmp_path / SEGMENTS).mkdir()
    (tmp_path / SEGMENTS / "1-2.0.segment").write_bytes(b"begun")
    (tmp_path / RECORDING_FILE).write_text("{}")
    assert not is_marked_refused(tmp_path)
    mark_refused(tmp_path)
    assert is_marked_refused(tmp_path)


def test_what_cannot_be_removed_does_not_reach_the_program(tmp_path: Path) -> None:
    (tmp_path / RECORDING_FILE).mkdir()
    mark_refused(tmp_path)
    mark_refused(tmp_path / "gone")
    assert not is_marked_refused(tmp_path)
