"""Critics of every kind, off their start, and pairs to score."""

import torch

from flatclr.mi import critics, tasks
from flatclr.mi.copula import fit_gaussian, fit_student
from flatclr.mi.critics import Critic, make_critic

GAUSSIAN = fit_gaussian(*tasks.gaussian_dense(3, 3).sample(400, seed=0))
STUDENT = fit_student(*tasks.student(3, 3, 2).sample(400, seed=0))
NAMES = [*critics.CRITICS, "anchored_on_student", "anchored_joint"]
X, Y = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(1)).unbind()


def make(name: str) -> Critic:
    torch.manual_seed(0)
    if name == "anchored_on_student":
        critic = critics.anchored(STUDENT, 3, 3, hidden=8)
    elif name == "anchored_joint":
        critic = critics.anchored(GAUSSIAN, 3, 3, hidden=8, joint=True)
    else:
        critic = make_critic(name, 3, 3, hidden=8, copula=GAUSSIAN)
    with torch.no_grad():  # so that nothing is zero by its start
        for parameter in critic.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return critic
