"""Where a number stops being healthy.

Set on bench A (`python -m benchmarks.doctor table bench_a`) alone: between the healthiest of the broken runs and the
least healthy of the sound ones, nearer to the broken ones, unless a comment says where else a value comes from.
"""

LATE_SHARE = 0.25  # of the rows, the last: what the run had come to

# saturation
SATURATED = 0.8  # of the bound over log(K + 1): four fifths of InfoNCE's gradient are gone
SATURATED_BELOW_POOL = 0.65  # where the views are known to share more than the batch can show
ESS_ALL_EQUAL = 0.9  # mean ESS from which all negatives weigh the same
FEW_EFFECTIVE = 3.5  # negatives that carry the gradient of an anchor, of many
MANY_NEGATIVES = 16  # fewer have few that carry it at any temperature
SQUEEZED_STD, SQUEEZED_ESS = 0.3, 0.6  # a narrow cone whose negatives differ all the same
CLAMPED_SHARE = 0.5  # of the late rows

# collapse
COLLAPSED_STD = 0.12  # 1 is an even spread; 0 one point
COLLAPSED_UNIFORMITY, COLLAPSED_ESS = -0.7, 0.7  # a narrow cone whose negatives all weigh the same
HEAD_RANK_SHARE = 0.34  # of the encoder's rank, or of the width of the embedding where that is less

# learning rate
UPDATE_TOO_LARGE = 0.05  # of a weight's length in one step, which nine tenths of the steps stay below
UPDATE_TOO_SMALL = 1.5e-4  # 1e-3 is the usual advice
LOSS_ROSE = 0.02

# gradient
SNR_BATCHES = 8  # that the trainer draws for the ratio
SIGNAL_IN_NOISE = 0.025  # squared ratio of one batch
STILL_LEARNING = 0.25  # that the bound has risen by since the first evaluation

# data
COLLISIONS_PER_ANCHOR = 0.25  # expected near-duplicates among its negatives
COLLISION_RATE = 0.35  # of negatives of the same class
PIXELS_MATCH = 0.6  # of views whose other view is found by pixels
LITTLE_SHARED_NATS = 0.35  # that the views of an image share after training
WAITING = 0.35  # of the time, for data
OVERLAP = 0.03  # of the test images that are training images

# evaluation
HELD_OUT_GAP = 0.25  # of the bound that holds for training images alone
FALLEN_ERRORS = 2.5  # standard errors of a difference
FALLEN_POINTS = 0.02
HALF_WIDTH = 0.06  # of the 95 % interval of an accuracy
DEAD_UNITS = 0.25
STATISTICS_GAP = 0.8
BAD_STEPS = 0.02  # of the steps that were not finite
FEWEST_ROWS = 8  # of a log that can be said to rise
FEWEST_EVALUATIONS = 3  # that show where something is going
GAP_NATS = 0.3  # below it a gap is within the noise of 512 pairs
RISEN_NATS = 0.05
ASSUMED_SAMPLES = 1000  # where an evaluation does not say how many images it had
LEAST_VARIANCE = 0.05  # of an accuracy near 0 or 1, whose interval is not that of a normal
SETTLED_STEPS = 50  # before which running statistics, with a momentum of 0.1, and bounds are still on their way
