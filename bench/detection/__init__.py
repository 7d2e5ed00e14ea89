"""Synthetic fleets with a known truth, judged by the real judge and by the rules that others publish.

    ./run bench detection [--json FILE] [--nodes N] [--days D] [--faulty N] [--seed S] [--params FILE] [--processes N]

params    what is healthy and what is faulty, from fleet.yaml
boards    healthy nodes to start from, read through the real reader
plan      what happens on one node, when, and which part is at fault
healthy   what goes on at sound nodes
faulty    what goes wrong, with its truth
traps     what convicts sound nodes elsewhere, each alone
node      a plan as snapshots
looks     which looks of the hooks are judged, and why leaving out the others changes nothing
ours      the real judge over a plan
theirs    published rules over the same plan
exact     probabilities that are computed, not simulated
score     precision, recall, time to detection, rates
report    table, JSON, goals
plots     the pictures of docs/detection.md
"""
