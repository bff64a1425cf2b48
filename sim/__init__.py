"""The simulator: contracts, scheduler, engine, results and the command line."""
