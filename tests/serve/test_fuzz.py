"""Whatever fits the OpenAPI description, and much that does not, must never make the service fail."""

from __future__ import annotations

from pathlib import Path

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from servesupport import running

from driftgate.serve.engine import EngineSettings


def test_no_request_makes_the_service_fail(tmp_path: Path) -> None:
    quick = settings(max_examples=8, deadline=None, derandomize=True, database=None)
    with running(tmp_path, engine=EngineSettings(max_delay=0.0)) as (service, client):
        schema = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations()]
        assert len(operations) > 15
        for operation in operations:

            @settings(quick, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy())
            def ask(case: schemathesis.Case) -> None:
                case.call_and_validate(checks=[not_a_server_error])

            ask()
        assert service.engine.alive
