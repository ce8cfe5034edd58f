"""`everlong bench chaos`: what can break is broken while the server is used, and nothing acknowledged may be lost.

`world` has the processes, `load` uses them and knows what was acknowledged, `faults` breaks them, `campaign` does all
three and reports.
"""

from everlong_lab.chaos.campaign import CampaignPlan, run
from everlong_lab.chaos.faults import FAULTS
from everlong_lab.chaos.processes import ClusterError

__all__ = ["FAULTS", "ClusterError", "CampaignPlan", "run"]
