"""What the hardware is: sourced facts about devices, links and clusters; no arithmetic but units."""
