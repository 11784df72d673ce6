"""Which other rules see a mutant: `python -m tests.conformance.mutants.seen [RULE …]` runs a whole certification of each, minutes in all, and keeps it.

A mutant changes the wire in one way, and one change may be a breach of several rules, or keep a case from getting as far as what it is about. What a
case says only because it met its own bound is not kept: that depends on the machine.
"""

import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import structlog
from google.protobuf import json_format

from conformance import certification
from conformance.certification import Options
from conformance.kit import Kit
from conformance.results import FAILED
from conformance.rules import ADAPTER, RULES, RULES_BY_ID, WORKER
from tests.conformance.mutants.every import MUTANTS
from tests.conformance.mutants.judge import NO_FINDING, looked_at_twice
from tests.conformance.mutants.mutant import Mutant
from tests.conformance.mutants.wire import Wire

KEPT = Path(__file__).with_name("seen.json")
# Seconds of one case: a mutant that stalls one is not waited for as a target is.
CASE_SECONDS = 20.0


def seen() -> dict[str, list[str]]:
    """By the rule of a mutant: the other rules with a finding, in their order."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


async def seen_by(mutant: Mutant, folder: Path) -> list[str]:
    """The rules, but its own, of which a case finds something."""
    descriptor = folder / "descriptor.json"
    claims = RULES_BY_ID[mutant.rule_id].capabilities
    async with Wire(mutant.make(), mutant.worker, claims) as wire:
        descriptor.write_text(json_format.MessageToJson(wire.descriptor))
        placement = WORKER if mutant.worker else ADAPTER
        options = Options(wire.address, placement, descriptor=str(descriptor) if mutant.worker else "")
        until = looked_at_twice if mutant.never else Kit.until
        with patch.object(certification, "CASE_SECONDS", CASE_SECONDS), patch.object(Kit, "until", until):
            made = await certification.certify(options, lambda _: None)
    found = {
        each.case.rule.id for each in made.cases if each.result == FAILED and not each.reason.startswith(NO_FINDING)
    }
    return [rule.id for rule in RULES if rule.id in found - {mutant.rule_id}]


def main(chosen: list[str]) -> int:
    """Looks again at these mutants, or at all of them."""
    # The adapter behind the wire logs every failure that a case asks for.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    kept = seen()
    for rule_id in chosen or list(MUTANTS):
        with tempfile.TemporaryDirectory(prefix="hs-") as folder:
            kept[rule_id] = asyncio.run(seen_by(MUTANTS[rule_id], Path(folder)))
        sys.stdout.write(f"{rule_id}: {', '.join(kept[rule_id]) or 'no other'}\n")
        sys.stdout.flush()
    ordered = {rule.id: kept[rule.id] for rule in RULES if rule.id in kept and rule.id in MUTANTS}
    KEPT.write_text(
        json.dumps(ordered, indent=1).replace("[\n  ", "[").replace(",\n  ", ", ").replace("\n ]", "]") + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
