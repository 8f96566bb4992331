// The machine under the ranks: its measured peak, and who runs where.
#pragma once
#include <vector>

#include "io/result.h"
#include "lnbench/world.h"
#include "measure/rank_place.h"

namespace longnet {

// Fused multiply-adds per second times 2 that one rank reaches with `threads` threads while all
// ranks of the world work at once: what a share of peak is a share of.
double measure_peak_per_rank(World& world, int threads);

// Of every rank of `comm`, in rank order, on every rank. Collective.
std::vector<RankPlace> gather_places(Communicator& comm);

std::vector<RankInfo> describe_ranks(World& world, int threads);

}  // namespace longnet
