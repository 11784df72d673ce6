"""Server-sent events: one upstream watch and one encoding per run, however many subscribers (performance; I7, I8, I14)."""
