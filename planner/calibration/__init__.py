"""From measurements to a cluster file with constants of one's own: ``meshwright calibrate``."""
