"""`everlong bench chaos`: break everything that can break while the server is used; nothing acknowledged may be lost.

`processes` runs a cluster, `load` uses it and records what was acknowledged, `faults` breaks it, and `campaign` does all
three and reports.
"""

from everlong_lab.chaos.campaign import CampaignPlan, run
from everlong_lab.chaos.faults import FAULTS
from everlong_lab.chaos.processes import ClusterError

__all__ = ["FAULTS", "CampaignPlan", "ClusterError", "run"]
