"""`everlong bench chaos`: inject faults while the server is used, and check that nothing acknowledged is lost.

`processes` runs a cluster, `load` uses it and records what was acknowledged, `faults` breaks it, and `campaign` does all
three and reports.
"""

from everlong_lab.chaos.campaign import CampaignPlan, run
from everlong_lab.chaos.faults import FAULTS
from everlong_lab.chaos.processes import ClusterError

__all__ = ["FAULTS", "CampaignPlan", "ClusterError", "run"]
