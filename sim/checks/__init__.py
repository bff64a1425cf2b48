"""What `sim.testing` is made of: managers and policies under guard in random programs."""
