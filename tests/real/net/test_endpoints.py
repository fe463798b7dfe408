"""Addresses that a user writes."""

from __future__ import annotations

import pytest

from dualray.real.net.addresses import parse_endpoint


@pytest.mark.parametrize("text", ["10.0.0.1:6399", "[::1]:6399", "head.example:6399", "büro.example:6399"])
def test_host_and_port(text):
    host, port = parse_endpoint(text, "--address")
    assert (f"{host}:{port}", port) == (text.replace("[", "").replace("]", ""), 6399)


@pytest.mark.parametrize(
    "text", ["", ":", "host", "host:0", "host:65536", f"{64 * 'a'}:1", "a..b:1", f"{5000 * 'a'}:1"]
)
def test_what_is_none_is_refused_in_one_short_line(text):
    with pytest.raises(ValueError, match=r"must be host:port") as caught:
        parse_endpoint(text, "--address")
    assert "\n" not in str(caught.value)
