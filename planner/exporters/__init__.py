"""Plans written out in the formats that people already train with."""
