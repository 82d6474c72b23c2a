"""How one operator is split over a device mesh, and what changing the split costs."""
