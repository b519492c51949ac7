"""A machine behind a proxy: what is on this machine is reached without it."""

import http.server
import threading

import pytest

from fedpers.core.errors import FedpersError
from fedpers.deploy.submit import Link, past_proxies, proxy_hint

PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


@pytest.fixture
def proxy(monkeypatch):
    """A stand-in that notes who asks it for what."""
    asked = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def any(self):
            asked.append(f"{self.command} {self.path}")
            self.send_error(502)

        do_GET = do_POST = do_CONNECT = do_PUT = any

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in PROXIES:
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield asked
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_loopback_is_not_asked_of_the_proxy(proxy, tmp_path):
    with pytest.raises(FedpersError, match=r"SuperLink 127\.0\.0\.1:1"):
        Link(tmp_path / "home", "127.0.0.1:1", None).flwr("list", "fedpers")
    assert not [line for line in proxy if "127.0.0.1:1" in line]


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "127.8.0.3:8000"])
def test_what_goes_past_the_proxy(monkeypatch, address):
    monkeypatch.setenv("no_proxy", "intranet.example,10.0.0.0/8")
    found = past_proxies(address)
    assert set(found) == {"NO_PROXY", "no_proxy", "no_grpc_proxy"} and len(set(found.values())) == 1
    hosts = found["NO_PROXY"].split(",")
    assert hosts[:2] == ["intranet.example", "10.0.0.0/8"]  # what the owner of the machine set stays
    assert {"127.0.0.1", "localhost", "::1", address.rpartition(":")[0]} <= set(hosts)


def test_another_machine_is_reached_as_its_owner_says(monkeypatch):
    """Maybe only through the proxy; where that fails, the message names it."""
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.delenv("https_proxy", raising=False)
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    assert past_proxies("fl.example:443") == {}
    assert proxy_hint("fl.example:443") == (
        " (http_proxy=http://proxy.example:3128 is set; NO_PROXY=fl.example would go past it)"
    )
    assert proxy_hint("127.0.0.1:8000") == ""
    monkeypatch.delenv("http_proxy")
    monkeypatch.delenv("HTTP_PROXY", raising=False)
    assert proxy_hint("fl.example:443") == ""
