"""Clean-up of a program before anything is planned: what need not run, and what runs as one kernel."""
