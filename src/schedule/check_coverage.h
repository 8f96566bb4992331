// Part of check_schedule: does one rank's output hold exactly the pattern's pairs?
#pragma once
#include <string>
#include <vector>

#include "schedule/program.h"

namespace longnet {

// Follows partial results symbolically (an attend puts "these queries x these keys" into a slot, a
// merge adds them to another) and compares what reaches the output with the pattern. Empty when all
// is right.
std::vector<std::string> check_coverage(const ShardedProblem& sharded, const RankProgram& program,
                                        Rank rank);

}  // namespace longnet
