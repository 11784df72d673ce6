"""`python -m services.gateway`."""

from services.common.process import run_process
from services.common.settings import load_settings
from services.gateway.server import serve
from services.gateway.settings import GatewaySettings

if __name__ == "__main__":
    run_process("gateway", load_settings(GatewaySettings), serve)
