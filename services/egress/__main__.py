"""`python -m services.egress`."""

from services.common.process import run_process
from services.common.settings import load_settings
from services.egress.server import serve
from services.egress.settings import EgressSettings

if __name__ == "__main__":
    run_process("egress", load_settings(EgressSettings), serve)
