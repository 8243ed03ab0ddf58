"""Run a function on N real ranks: processes, torch.distributed, recording and verdicts."""
from utils.ranks.backend import Choice, choose_backend
from utils.ranks.launch import launch
from utils.ranks.processes import start_loading_in_a_notebook
from utils.ranks.rank import device, span
from utils.ranks.run import Run
from utils.ranks.verdicts import RankError

__all__ = ["Choice", "RankError", "Run", "choose_backend", "device", "launch", "span"]

start_loading_in_a_notebook()
