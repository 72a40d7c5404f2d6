"""Whether `flatclr doctor` names what is wrong: broken and healthy runs, and a confusion table for each bench."""
