"""Where a number stops being healthy.

Set on bench A (results/doctor/bench_a.md); those that name another bench were set, or mended, by what it showed. What
is said of the end of a run needs an end: a value that still moves is not judged, or by another threshold. Behind each
stands what was measured: `sound` is the sound run nearest to it, `broken` the broken run nearest to it from the other
side.
"""

LATE_SHARE = 0.25  # of the rows, the last, or the first: what a run came to, and how it began
SETTLED_STEPS = 50  # before which running statistics, with a momentum of 0.1, and bounds are still on their way
FEWEST_ROWS = 8  # of a log that can be said to rise
FEWEST_EVALUATIONS = 3  # that show where something is going
RISEN_NATS = 0.05  # of the bound: a rise, and not the luck of a pool
STILL_RISING = 0.25  # of what the bound came to, gained in the second half; sound 0.66, broken 0.21 (benches B and D)
NEAR_ITS_BEST = 0.9  # of its highest value: where the last value of a bound is that still rises (bench D)
STILL_GROWING = 1.1  # times what it was in the middle of the run: a rank, or a bound, on its way
STILL_FALLING = 0.7  # of the evaluation before: a gap of running statistics on its way; broken 0.93 (bench D)

# saturation
SATURATED = 0.8  # share of log(K + 1) that InfoNCE's bound has reached; sound 0.44, broken 0.91
SATURATED_BELOW_POOL = 0.65  # the same, where the views are known to share more than the batch can show
ESS_ALL_EQUAL = 0.85  # mean ESS; sound 0.32, broken 0.91
SPREAD_STD = 0.6  # of embeddings that differ whatever the temperature; not too high 0.45 (bench C), too high 0.89
FEW_EFFECTIVE = 3.5  # negatives that carry an anchor's gradient early, before learning leaves few; sound 12, broken 2.5
MANY_NEGATIVES = 16  # fewer have few that carry it at any temperature
SQUEEZED_STD, SQUEEZED_ESS = 0.3, 0.6  # spread of a narrow cone whose negatives still differ; sound 0.55, broken 0.22
CLAMPED_SHARE = 0.5  # of the late rows; sound 0, broken 1
MISSED_ODDS = 2.6  # odds of the ESS over those of its target, or below them; sound 2.3 (bench D), broken 2.9 (bench B)
MISSED_FAR = 4.5  # the same, of a target that more steps do not reach; broken 5.2 (bench C)

# collapse
COLLAPSED_STD, POINT_STD = 0.12, 0.05  # spread, 1 is even; at the second no temperature tells negatives apart
COLLAPSED_UNIFORMITY = -0.7  # or, by this, a narrow cone; sound -1.1, broken -0.44
COLLAPSED_ESS = 0.7  # of the negatives of such a cone, which weigh the same; sound 0.43 (bench D), broken 0.77
HEAD_RANK_SHARE = 0.33  # of the encoder's rank, or of the width of the embedding if less; sound 0.48, broken 0.22
RANK_LEFT_LOW = 2.0  # times its lowest value since training began: a rank that left a narrow cone; broken 1.5 (bench E)

# learning rate
UPDATE_TOO_LARGE = 0.06  # of a weight's length, in the longest step that was logged; sound 0.022, broken 0.13
UPDATE_TOO_SMALL = 2e-4  # likewise; sound 1.4e-3, broken 4.3e-5
BAD_STEPS = 0.02  # share of the steps that were not finite; sound 0
LOSS_ROSE = 0.02  # relative to where it began; used where updates were not measured

# gradient
SNR_BATCHES = 8  # that the trainer draws for the ratio
SIGNAL_IN_NOISE = 0.025  # squared signal-to-noise ratio of one batch; sound 0.034, broken 0.015
LEARNT_SHARE, LEARNT_NATS = 0.25, 0.15  # rise of the bound since the first evaluation; broken 0.23, and 0.13 (bench B)
LEARNT_IN_ALL_NATS = 0.4  # rise since before training, after which noise is that of a minimum; sound 0.60, broken 0.26

# data
COLLISIONS_PER_ANCHOR = 0.25  # near-duplicates among the negatives; sound 0, broken 3.1
COLLISION_RATE = 0.3  # share of negatives of the anchor's class; sound 0.1, broken 0.5
PIXELS_MATCH = 0.6  # share of views whose other view is found by pixels; sound 0.05, broken 0.93
LITTLE_SHARED_NATS = 0.25  # that views share after training; sound 0.68, broken 0.045
PIXELS_SHARE = 0.03  # of the views are found by pixels where views share something; sound 0.05, broken 0.008
WAITING = 0.35  # share of the time without a batch; broken 0.57
OVERLAP = 0.03  # share of the test images that are training images; sound 0, broken 0.2

# evaluation
HELD_OUT_GAP, GAP_NATS = 0.15, 0.3  # of the bound that holds for training images alone; sound 0.13, broken 0.23
GAP_WHILE_RISING = 0.25  # the same, where images held out still gain; broken 0.35 (bench B)
PASSES_TO_MEMORISE = 5  # over the data; before, a gap is that of the images that happened to be drawn (bench B)
FALLEN_ERRORS, FALLEN_POINTS = 2.0, 0.02  # standard errors, and least size, of a fall; sound 0.8 errors, broken 2.2
ASSUMED_SAMPLES = 1000  # where an evaluation does not say how many images it had
HALF_WIDTH = 0.06  # of the 95 % interval of an accuracy; sound 0.03, broken 0.095
LEAST_VARIANCE = 0.05  # of an accuracy near 0 or 1, whose interval is not that of a normal
DEAD_UNITS = 0.25  # share of the units of batch normalisation; sound 0, broken 0.55
STATISTICS_GAP = 1.5  # of running statistics, in standard deviations; sound 0.14, 1.2 at step 120 (bench E), broken 2.8
