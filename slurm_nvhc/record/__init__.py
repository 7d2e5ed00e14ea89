"""Remember and show: the node's ledger, one SQLite file with a small mirror of what must survive."""
