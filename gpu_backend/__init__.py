"""Does every block table of a run hold what its request reads? And how long do steps take?"""
