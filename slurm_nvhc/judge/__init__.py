"""What does it mean, and who is at fault? A pure fold with memory."""

from slurm_nvhc.judge.context import EPILOG, HEALTH_CHECK, PROLOG, Input, Judgement, Window
from slurm_nvhc.judge.judge import judge, with_diag

__all__ = ["EPILOG", "HEALTH_CHECK", "PROLOG", "Input", "Judgement", "Window", "judge", "with_diag"]
