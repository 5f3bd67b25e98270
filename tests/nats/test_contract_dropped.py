"""What every journal engine must do (tests/contract), asked of the one in a JetStream stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.test_dropped import *  # noqa: F403
from tests.support.jetstream import NatsServer
from tests.support.streams import Nats

pytestmark = pytest.mark.engines


@pytest.fixture
def engine(nats_server: NatsServer, tmp_path: Path) -> Nats:
    return Nats(tmp_path, nats_server)
