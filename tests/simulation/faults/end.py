"""Rules of the section "End"."""

from __future__ import annotations

from tests.simulation.faults import Fault

FAULTS: tuple[Fault, ...] = ()
