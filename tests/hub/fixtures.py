"""The fixtures `hub` and `online`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .process import HubServer


@pytest.fixture(scope="session")
def hub_process() -> Iterator[HubServer]:
    """The one process that `hub` uses; it takes a tenth of a second to start."""
    with HubServer() as server:
        yield server


@pytest.fixture
def hub(hub_process: HubServer) -> HubServer:
    """A Hub that holds nothing yet, with a cache of its own."""
    hub_process.renew()
    return hub_process


@pytest.fixture
def online(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """`hub`, as the one that huggingface_hub in this very process talks to, though it was imported long before.

    Environment, endpoint, cache and token are those of `hub.env()`. Faster than a child process by the time it takes to
    import the client; what a user gets is seen only from a child.
    """
    from huggingface_hub import HfFileSystem, constants, hf_api
    from huggingface_hub.utils import _http

    for name, value in hub.env().items():
        monkeypatch.setenv(name, value)
    for name, setting in _settings(hub).items():
        monkeypatch.setattr(constants, name, setting, raising=False)
    monkeypatch.setattr(hf_api.api, "endpoint", hub.url)
    HfFileSystem.clear_instance_cache()
    yield hub
    _http.close_session()
    HfFileSystem.clear_instance_cache()


def _settings(hub: HubServer) -> dict[str, Any]:
    """`huggingface_hub.constants` as an import with `hub.env()` would have set them."""
    return {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_URL_HOSTS": frozenset({"127.0.0.1", "huggingface.co", "hf.co"}),
        "HF_HOME": str(hub.home),
        "HF_HUB_CACHE": str(hub.home / "hub"),
        "HF_TOKEN_PATH": str(hub.home / "token"),
        "HF_STORED_TOKENS_PATH": str(hub.home / "stored_tokens"),
        "AGENT_HARNESSES_PATH": str(hub.home / ".agent_harnesses.json"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_DISABLE_PROGRESS_BARS": True,
    }
