# SPDX-License-Identifier: Apache-2.0
"""Events are the same however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.load.targets import server_sent_events
from gpuprof.load.targets.server_sent_events import EventReader, EventTooLongError

STREAMS = {
    b"data: a\n\ndata: b\n\n": [b"a", b"b"],
    b"data: a\r\n\r\ndata:b\r\n\r\n": [b"a", b"b"],
    b"data: a\rdata: b\r\rdata: c\r\r": [b"a\nb", b"c"],
    b"\xef\xbb\xbfdata: a\n\n": [b"a"],
    b": comment\n\nevent: x\ndata: a\nid: 1\nretry: 2\n\n": [b"a"],
    b"data:  two spaces\n\n\n\n": [b" two spaces"],
    b"data\n\ndata:\n\n": [b"", b""],
    b"data: caf\xc3\xa9\xe2\x80\xa8\n\n": [b"caf\xc3\xa9\xe2\x80\xa8"],
    b"": [],
}


@given(st.sampled_from(sorted(STREAMS)), st.lists(st.integers(0, 60), max_size=6))
def test_however_the_bytes_are_cut(stream: bytes, cuts: list[int]) -> None:
    reader = EventReader()
    ends = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    found = [event for low, high in pairwise(ends) for event in reader.feed(stream[low:high])]
    assert found + reader.finish() == STREAMS[stream]
    assert not reader.has_half_event


@pytest.mark.parametrize("half", [b"data: a", b"data: a\n", b"dat", b"data: a\r"])
def test_an_event_without_its_end_is_a_half(half: bytes) -> None:
    reader = EventReader()
    assert reader.feed(b"data: whole\n\n" + half) == [b"whole"]
    assert reader.finish() == []
    assert reader.has_half_event


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_sent_events, "_LONGEST_EVENT", 100)
    reader = EventReader()
    assert reader.feed(b"data: 123456\n" * 10) == []
    with pytest.raises(EventTooLongError):
        reader.feed(b"data: 123456\n" * 10)
