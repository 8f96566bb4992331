// Points whose times decide nothing, because their own records show that something else ran beside
// them.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "io/record.h"

namespace longnet {

// Id -> how it shows, of the points of one run:
//   "samples are 1.8 times apart"
//   "the full step, repeated by the ablations, took 1.4 times as long"
//   "its pairs as a single attend took 1.2 times as long as those of ef99170a"
//   "the cores' peak beside the samples was lower than the samples' own rate"
//   "other programs used 31 % of the cores"
// Simulated points have no clock; ranks that share cores or a GPU disturb each other: neither is
// looked at.
std::map<std::string, std::string> disturbed_points(const std::vector<PointRecord>& points);

}  // namespace longnet
