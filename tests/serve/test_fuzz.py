"""Whatever fits the OpenAPI description, and much that does not, must never make the service fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from servesupport import running

from driftgate.serve.engine import EngineSettings


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    engine = EngineSettings(max_delay=0.0)
    with running(tmp_path_factory.mktemp("state"), engine=engine) as (_, client):
        yield schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")


schema = schemathesis.pytest.from_fixture("description")


@schema.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
def test_no_request_makes_the_service_fail(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=[not_a_server_error])
