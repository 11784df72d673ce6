"""`python -m adapters.reference --listen ADDRESS [--worker]`."""

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk.serve import run_adapter_main

if __name__ == "__main__":
    run_adapter_main(ReferenceAdapter, "adapters.reference")
