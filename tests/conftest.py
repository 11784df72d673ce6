"""What every test of the project shares. Settings of pytest itself are in pyproject.toml."""

from hypothesis import HealthCheck, settings

# No test may depend on how fast the machine is; `timeout` in pyproject.toml ends what hangs.
settings.register_profile("harness", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("harness")
