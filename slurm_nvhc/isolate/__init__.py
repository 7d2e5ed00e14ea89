"""`nvhc isolate`: which part of the node is at fault, found by traffic between chosen GPUs (docs/isolate.md).

    Snapshot ─► Board ─► next step ─► traffic, counters before and after ─► Seen ─► … ─► explanation

`board`, `plan`, `explain` and `swap` are pure, and stand on `evidence` (what complained), `causes` (which parts may be behind it),
`simplest` (the cheapest sets of them) and `direction` (which end of a wire); `run` moves data and reads counters; `state` keeps the
steps so that an interrupted search goes on; `show` draws.
"""
