"""`python -m services.sandbox`."""

from services.common.server import run_service
from services.common.settings import load_settings
from services.sandbox.server import build
from services.sandbox.settings import SandboxSettings

if __name__ == "__main__":
    run_service("sandbox", load_settings(SandboxSettings), build)
