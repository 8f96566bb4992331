// Several things timed against each other: in rounds, so that a machine that slows down in the
// meantime slows all of them and not their differences.
//
// Three modes a, b, c in three rounds:  a b c | b c a | c a b
// Each mode stands at each place as often as the rounds allow.
#pragma once
#include <functional>
#include <vector>

namespace longnet {

// Number of rounds for runs of `run_s` seconds: 5 below 0.3 s, 3 below 3 s, else 2.
int worthwhile_rounds(double run_s);

// `time_mode(mode)` gives the seconds of one run of modes 0 .. modes - 1. Returns
// seconds[mode][round]. Throws Error unless both numbers are positive.
std::vector<std::vector<double>> take_rounds(int modes, int rounds,
                                             const std::function<double(int)>& time_mode);

}  // namespace longnet
