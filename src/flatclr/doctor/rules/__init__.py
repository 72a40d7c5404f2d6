"""One function for each fault, in a file for each family; importing them registers them."""

from flatclr.doctor.rules import collapse, data, evaluation, learning_rate, saturation
from flatclr.doctor.rules.registry import RULES, Rule, rule

__all__ = ["RULES", "Rule", "collapse", "data", "evaluation", "learning_rate", "rule", "saturation"]
