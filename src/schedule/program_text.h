// Programs for people: text for `lnbench plan --schedule`, Graphviz for `--dot`.
#pragma once
#include <string>

#include "schedule/program.h"

namespace longnet {

std::string to_text(const Slice& slice);
std::string to_text(const Op& op);  // without its number and dependencies
std::string to_text(const ShardedProblem& sharded, const RankProgram& program, Rank rank);
// One cluster per rank, solid edges for dependencies, dashed ones for messages between the ranks
// shown.
std::string to_dot(const Schedule& schedule, int max_ranks);

}  // namespace longnet
