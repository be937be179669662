# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where healthz is, and asking it over HTTP."""

from __future__ import annotations

import http.server
import threading
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet import healthz


class Server:
    """Answers with the given codes in turn; the last one stays. A code of 0 hangs up."""

    def __init__(self, codes: t.Sequence[int]) -> None:
        rest = list(codes)
        self.asked = asked = []  # type: t.List[str]

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                code = rest.pop(0) if len(rest) > 1 else rest[0]
                if code:
                    self.send_response(code)
                    self.end_headers()

            def log_message(self, *_args: t.Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d/healthz" % self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_it_waits_until_the_answer_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with Server([500, 0, 503, 200]) as server:
        assert healthz.wait_healthy(server.url, 600) == ""
        assert server.asked == ["/healthz"] * 4


def test_it_gives_up_with_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthz, "POLL", 600)  # it asks once, and a busy server has time to answer
    with Server([500]) as server:
        assert healthz.wait_healthy(server.url, 600).startswith(server.url + " did not return 200: HTTP Error 500")
    assert "did not return 200: <urlopen error" in healthz.wait_healthy(server.url, 0.01)


@pytest.mark.parametrize("url", ["127.0.0.1:10248", "file:///etc/nothing", "http://", "http://x:99999/", "http://[1/"])
def test_what_is_no_url_does_not_return_200(url: str) -> None:
    assert healthz.wait_healthy(url, 0.01).startswith(url + " did not return 200: ")


@pytest.mark.parametrize(
    "words, config, url",
    [
        ([], None, "http://127.0.0.1:10248/healthz"),
        (["--config=/c"], "kind: KubeletConfiguration\n", "http://127.0.0.1:10248/healthz"),
        (["--config=/c"], "healthzBindAddress: 192.0.2.7\nhealthzPort: 1024\n", "http://192.0.2.7:1024/healthz"),
        (["--config", "/c"], "healthzBindAddress: '::'\n", "http://[::1]:10248/healthz"),
        (["--config=/c"], '{"healthzPort":1024,"healthzBindAddress":"0.0.0.0"}', "http://127.0.0.1:1024/healthz"),
        (["--config=/c"], "# healthzPort: 1024\n", "http://127.0.0.1:10248/healthz"),
        (["--config=/c"], "healthzPort: 0\n", ""),
        (["--config=/c", "--healthz-port=1024"], "healthzPort: 0\n", "http://127.0.0.1:1024/healthz"),
        (["--healthz_port", "0"], None, ""),
        (["--healthz-bind-address=::1"], None, "http://[::1]:10248/healthz"),
    ],
)
def test_healthz_is_where_flags_and_configuration_say(words: t.List[str], config: t.Optional[str], url: str) -> None:
    assert healthz.url_of(words, lambda path: {"/c": config or ""}[path]) == url
