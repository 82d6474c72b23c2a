"""Pipeline schedules as data, and the simulator that runs them."""
