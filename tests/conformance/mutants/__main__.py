"""`python -m tests.conformance.mutants R2.1`: serves the mutant of a rule until it is interrupted, to be certified by hand. Its first line is the address."""

import asyncio
import sys

from tests.conformance.mutants.every import MUTANTS
from tests.conformance.mutants.wire import Wire


async def serve(rule_id: str) -> None:
    """Serves it until the task is cancelled."""
    mutant = MUTANTS[rule_id]
    async with Wire(mutant.make(), mutant.worker) as wire:
        sys.stdout.write(f"{wire.address}\n{rule_id}: {mutant.breaks}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> int:
    """0 after an interrupt, 2 for a rule without a mutant."""
    if len(sys.argv) != 2 or sys.argv[1] not in MUTANTS:
        sys.stderr.write(f"usage: python -m tests.conformance.mutants RULE, one of {', '.join(MUTANTS)}\n")
        return 2
    try:
        asyncio.run(serve(sys.argv[1]))
    except KeyboardInterrupt:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
