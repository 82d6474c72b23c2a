"""Which cluster to rent for 100 billion tokens of a 1B model, if time, money and carbon all matter.

Every point is a full search. Nothing here scores them for you: the points printed are those that no other beats in
time, cost, memory headroom and devices together.
"""

from planner import Terms
from planner.sweep.running import sweep

answer = sweep(
    {
        "model": ["llama-3.2-1b"],
        "cluster": ["dgx-h100", "dgx-a100-80g"],
        "devices": [8, 16, 32],
        "seq_len": [4096],
        "global_batch": [256],
    },
    Terms(tokens=1e11, grid_kg_per_kwh=0.4),
    fixed={"pipeline": 1},
)

for i, point in enumerate(answer.points):
    if point.pareto and point.economics is not None:
        spent = point.economics
        print(
            f"{point.inputs.devices:3} x {point.inputs.cluster:<13} {spent.time_to_train_s / 86400:5.1f} days "
            f"{spent.cost:8,.0f} {spent.currency} {(spent.carbon_kg or 0) / 1000:5.2f} t CO2e  {point.name}"
            + ("  <- nearly the cheapest, and the fastest of those" if i in answer.recommended else "")
        )
