"""What a run did, as pictures and as a page; reads run directories and nothing else."""
